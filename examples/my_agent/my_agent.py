"""An agent with one tool: an ordinary program that knows nothing of training."""

import json
import os

from openai import OpenAI

NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": NUMBERS, "required": ["a", "b"]}
TOOL = {"type": "function", "function": {"name": "multiply", "parameters": PARAMETERS}}


def multiply(text: str) -> str:
    """Return the product of the numbers in a call's arguments, or what is wrong with them."""
    try:
        numbers = json.loads(text)
        return str(int(numbers["a"]) * int(numbers["b"]))
    except (ValueError, KeyError, TypeError) as e:
        return f"Error: {e!r}"


def main() -> None:
    """Answer the question of the task."""
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    messages = json.loads(os.environ["UNDERSTUDY_PROMPT"])
    while True:
        choice = client.chat.completions.create(model="gpt-4.1-mini", messages=messages, tools=[TOOL]).choices[0]
        messages.append(choice.message)
        if not choice.message.tool_calls:
            return
        for call in choice.message.tool_calls:
            result = multiply(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main()
