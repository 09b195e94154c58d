"""A loop with OpenAI's client and the Responses API, whose server keeps the conversation."""

import json
import os

from openai import OpenAI

TOOL = {
    "type": "function",
    "name": "look_up",
    "description": "Return a number by its name.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "strict": False,
}
items = json.loads(os.environ["UNDERSTUDY_PROMPT"])
client, previous = OpenAI(), None
while items:
    response = client.responses.create(model="gpt-4.1-mini", input=items, tools=[TOOL], previous_response_id=previous)
    previous = response.id
    calls = [item for item in response.output if item.type == "function_call"]
    items = [{"type": "function_call_output", "call_id": call.call_id, "output": "21"} for call in calls]
