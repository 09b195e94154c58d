"""A loop with OpenAI's client and chat completions."""

import json
import os

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Return a number by its name.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
messages = json.loads(os.environ["UNDERSTUDY_PROMPT"])
client = OpenAI()
while True:
    reply = client.chat.completions.create(model="gpt-4.1-mini", messages=messages, tools=[TOOL]).choices[0].message
    messages.append(reply)
    if not reply.tool_calls:
        break
    for call in reply.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "21"})
