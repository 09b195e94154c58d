"""Play the tasks of a verifiers environment (0.4 and newer). It runs with a Python that has verifiers, not understudy.

    python verifiers_runner.py CONFIG --list     prints each task as a JSON line, and the end of the list
    python verifiers_runner.py CONFIG            reads episodes as JSON lines, and prints their results, in any order

CONFIG is JSON: `env`, the environment's config, and `agent`, that of its agent. Everything else that is printed goes to
stderr.
"""

import asyncio
import itertools
import json
import os
import sys
from typing import Any, TextIO

MAX_TASKS = 1000
"""Number of tasks of a taskset without an end."""
MAX_ERROR_CHARS = 10_000
"""Largest length of an error, whose text may quote a whole conversation."""


def open_environment(config: str) -> Any:
    """Return the environment of a config. Raise ValueError if it has several agents."""
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config

    given = json.loads(config)
    fields = env_config_type(given["env"]["taskset"]["id"]).model_fields
    seats = [name for name, field in fields.items() if isinstance(field.default, AgentConfig)]
    if len(seats) != 1:
        raise ValueError(f"it has the agents {', '.join(seats)}; only environments with one agent are played")
    return load_environment(resolve_env_config({**given["env"], seats[0]: given["agent"]}))


def list_tasks(environment: Any, out: TextIO) -> None:
    """Print the tasks."""
    for task in itertools.islice(environment.taskset, None if environment.taskset.bounded else MAX_TASKS):
        data = task.data
        prompt = data.prompt if isinstance(data.prompt, str) else "\n".join(_text(each) for each in data.prompt or ())
        print(json.dumps({"id": data.id or data.name or "", "prompt": prompt, "system": data.system_prompt}), file=out)
    print(json.dumps({"end": True}), file=out, flush=True)


def _text(message: Any) -> str:
    return message.content if isinstance(message.content, str) else json.dumps(message.model_dump()["content"])


async def play(environment: Any, tasks: list[Any], request: dict[str, Any], silent: str) -> dict[str, Any]:
    """Play an episode, and return its reward, or its error. Without a `base_url` the model always replies nothing."""
    import verifiers.v1 as vf

    variable = f"UNDERSTUDY_KEY_{request['number']}"
    os.environ[variable] = request.get("api_key", "none")
    client = vf.EvalClientConfig(base_url=request.get("base_url", silent), api_key_var=variable)
    context = vf.ModelContext(client=client, model="understudy", sampling=vf.SamplingConfig())
    slot = environment.slots(tasks[request["task"]], 1)[0]
    try:
        episode = await environment.run_slot(slot, context)
    finally:
        del os.environ[variable]
    found = [error for trace in episode.traces for error in trace.errors] + list(episode.errors)
    if len(episode.traces) != 1 or not episode.ok:
        errors = "; ".join(f"{error.type}: {error.message}" for error in found)
        return {"error": errors or f"{len(episode.traces)} traces, and no error"}
    (trace,) = episode.traces
    rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
    return {"reward": trace.reward, "rewards": rewards}


async def say_nothing(request: Any) -> Any:
    """Answer a request for a chat completion with an empty reply."""
    from aiohttp import web

    body = await request.json()
    message = {"role": "assistant", "content": ""}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    reply = {"id": "0", "object": "chat.completion", "created": 0, "model": body["model"]}
    return web.json_response({**reply, "choices": [choice], "usage": usage})


async def serve(environment: Any, out: TextIO) -> None:
    """Play the episodes that are read, each at once."""
    from aiohttp import web

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/chat/completions", say_nothing)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    silent = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    count = None if environment.taskset.bounded else MAX_TASKS
    tasks = list(itertools.islice(environment.taskset, count))

    async def answer(request: dict[str, Any]) -> None:
        results = await asyncio.gather(play(environment, tasks, request, silent), return_exceptions=True)
        result = results[0]
        if isinstance(result, BaseException):  # raised by the environment, which its user wrote
            result = {"error": f"{type(result).__name__}: {result}"}
        if "error" in result:
            result["error"] = result["error"][:MAX_ERROR_CHARS]
        print(json.dumps({"number": request["number"], **result}), file=out, flush=True)

    playing = set[asyncio.Task[None]]()
    async with environment.serving():
        while line := await asyncio.to_thread(sys.stdin.readline):
            playing.add(task := asyncio.create_task(answer(json.loads(line))))
            task.add_done_callback(playing.discard)
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
    await runner.cleanup()


def main() -> None:
    """Run the program. Its results are written to the file that was stdout, which nothing else may write to."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    environment = open_environment(sys.argv[1])
    if "--list" in sys.argv:
        list_tasks(environment, out)
    else:
        asyncio.run(serve(environment, out))


if __name__ == "__main__":
    main()
