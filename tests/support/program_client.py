"""A program's request for a reply, for tests of programs."""

from typing import Any

import httpx2

from understudy.rollouts.program import ProgramEpisode


async def ask(given: ProgramEpisode, messages: list[Any], **more: Any) -> Any:
    """Send a request, and append the reply."""
    async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=300) as client:
        answer = await client.post(
            f"{given.base_url}/chat/completions",
            json={"model": "any", "messages": messages, **more},
            headers={"Authorization": f"Bearer {given.api_key}"},
        )
    reply = answer.raise_for_status().json()["choices"][0]["message"]
    messages.append(reply)
    return reply
