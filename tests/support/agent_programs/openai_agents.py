"""Agents of OpenAI's SDK: one with a tool, one that hands over ("handoff"), one with agents as tools ("tools")."""

import json
import os
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled


@function_tool
def look_up(name: str) -> str:
    """Return a number by its name."""
    return "21"


system, user = json.loads(os.environ["UNDERSTUDY_PROMPT"])
set_tracing_disabled(True)
if "chat" in sys.argv:
    set_default_openai_api("chat_completions")
expert = Agent(name="expert", instructions="You know numbers.", tools=[look_up], model="gpt-4.1-mini")
if "tools" in sys.argv:
    tools = [expert.as_tool("ask_first", "Ask an expert."), expert.as_tool("ask_second", "Ask another expert.")]
    agent = Agent(name="lead", instructions=system["content"], tools=tools, model="gpt-4.1-mini")
elif "handoff" in sys.argv:
    agent = Agent(name="lead", instructions=system["content"], handoffs=[expert], model="gpt-4.1-mini")
else:
    agent = Agent(name="lead", instructions=system["content"], tools=[look_up], model="gpt-4.1-mini")
print(Runner.run_sync(agent, user["content"]).final_output)
