"""A loop with OpenAI's client that talks to a user, with the tools of the episode over MCP."""

import asyncio
import json
import os

from mcp import Client
from openai import AsyncOpenAI


async def call(server: Client, name: str, arguments: str) -> str:
    """Return the result of a call, or what is wrong with it."""
    try:
        result = await server.call_tool(name, json.loads(arguments))
    except ValueError as e:
        return f"Error: {e}"
    text = "\n".join(part.text for part in result.content)
    return f"Error: {text}" if result.is_error else text


async def main() -> None:
    messages = json.loads(os.environ["UNDERSTUDY_PROMPT"])
    async with AsyncOpenAI() as client, Client(os.environ["UNDERSTUDY_MCP_URL"]) as server:
        tools = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in (await server.list_tools()).tools
            if tool.name != "send_message"
        ]
        while True:
            answer = await client.chat.completions.create(model="gpt-4.1-mini", messages=messages, tools=tools)
            reply = answer.choices[0].message
            messages.append(reply)
            for each in reply.tool_calls or ():
                result = await call(server, each.function.name, each.function.arguments)
                messages.append({"role": "tool", "tool_call_id": each.id, "content": result})
            if not reply.tool_calls:
                said = await call(server, "send_message", json.dumps({"text": reply.content or ""}))
                if said == "The conversation has ended.":
                    return
                messages.append({"role": "user", "content": said})


asyncio.run(main())
