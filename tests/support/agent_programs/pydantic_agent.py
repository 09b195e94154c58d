"""An agent of Pydantic AI, with the tools of the episode over MCP."""

import json
import os

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

system, user = json.loads(os.environ["UNDERSTUDY_PROMPT"])
tools = MCPToolset(os.environ["UNDERSTUDY_MCP_URL"])
agent = Agent("openai-chat:gpt-4.1-mini", instructions=system["content"], toolsets=[tools])
print(agent.run_sync(user["content"]).output)
