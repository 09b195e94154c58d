"""An agent of LangChain, which is a graph of LangGraph. With the argument "summary", it summarizes its history."""

import json
import os
import sys

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def look_up(name: str) -> str:
    """Return a number by its name."""
    return "21"


system, user = json.loads(os.environ["UNDERSTUDY_PROMPT"])
model = ChatOpenAI(model="gpt-4.1-mini")
middleware = []
if "summary" in sys.argv:
    middleware = [SummarizationMiddleware(model=model, trigger=("messages", 5), keep=("messages", 2))]
agent = create_agent(model, [look_up], system_prompt=system["content"], middleware=middleware)
print(agent.invoke({"messages": [user]})["messages"][-1].content)
