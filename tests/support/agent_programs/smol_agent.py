"""An agent of smolagents, which posts its own reward: its last reply is a call."""

import json
import os
import urllib.request

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def look_up(name: str) -> str:
    """Return a number by its name.

    Args:
        name: The name.
    """
    return "21"


system, user = json.loads(os.environ["UNDERSTUDY_PROMPT"])
agent = ToolCallingAgent(tools=[look_up], model=OpenAIModel("gpt-4.1-mini"), max_steps=4)
answer = str(agent.run(f"{system['content']}\n{user['content']}"))
request = urllib.request.Request(
    os.environ["UNDERSTUDY_RESULT_URL"],
    json.dumps({"reward": float(answer == "42")}).encode(),
    {"Content-Type": "application/json"},
)
urllib.request.urlopen(request)
