"""An agent of AutoGen."""

import asyncio
import json
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def look_up(name: str) -> str:
    """Return a number by its name."""
    return "21"


async def main() -> None:
    system, user = json.loads(os.environ["UNDERSTUDY_PROMPT"])
    info = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "family": "unknown",
        "structured_output": False,
    }
    client = OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=os.environ["OPENAI_BASE_URL"], model_info=info)
    agent = AssistantAgent(
        "agent",
        client,
        tools=[look_up],
        system_message=system["content"],
        reflect_on_tool_use=True,
        max_tool_iterations=5,
    )
    print((await agent.run(task=user["content"])).messages[-1])
    await client.close()


asyncio.run(main())
