"""Servers of OpenEnv for the tests, run with a Python that has openenv.

The program serves three environments, and prints their ports as JSON. Each line that it reads is a list of a port and
of episodes: what `reset` gets, then the actions. OpenEnv's own client plays them, and the rewards are printed.
"""

import asyncio
import json
import socket
import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State


class Guess(Action):
    message: str


class Hint(Observation):
    hint: str = ""


class GuessEnvironment(Environment[Guess, Hint, State]):
    """The number is the seed modulo 10. A near guess pays 0.25, the right one 0.5 and the end."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self._number = (seed or 0) % 10
        return Hint(hint="Guess a number from 0 to 9.")

    def step(self, action, timeout_s=None, **more):
        distance = abs(int(action.message) - self._number)
        return Hint(
            hint="right" if not distance else "wrong", done=not distance, reward={0: 0.5, 1: 0.25}.get(distance)
        )

    @property
    def state(self):
        return State()

    def get_metadata(self):
        return EnvironmentMetadata(name="guess", description="Guess with one number.")


class Move(Action):
    """Add an amount to the counter."""

    amount: int
    note: str = ""


class Count(Observation):
    count: int = 0
    target: int = 0


class CountEnvironment(Environment[Move, Count, State]):
    """Tasks of the task API: reach a target exactly, which pays 1, or pass it, which pays -1."""

    def reset(self, seed=None, episode_id=None, split="train", index=0, **more):
        self._count, self._target = 0, {"train": 3, "eval": 5}[split] + index
        return Count(target=self._target)

    def step(self, action, timeout_s=None, **more):
        self._count += action.amount
        done = self._count >= self._target
        reward = (1 if self._count == self._target else -1) if done else 0
        return Count(count=self._count, target=self._target, done=done, reward=reward)

    @property
    def state(self):
        return State()

    def list_splits(self):
        return ["train", {"name": "eval", "type": "test"}]

    def num_tasks(self, split):
        return {"train": 4, "eval": 2}[split]


class ShelfEnvironment(MCPEnvironment):
    """An MCP environment: putting a book on the shelf pays 1 and ends the episode."""

    def __init__(self):
        server = FastMCP("shelf")
        self._shelf = []

        @server.tool
        def list_books() -> list[str]:
            """List the books on the shelf."""
            return self._shelf

        @server.tool
        def put_book(title: str) -> str:
            """Put a book on the shelf."""
            if not title:
                raise ValueError("a book has a title")
            self._shelf.append(title)
            return f"{title} is on the shelf"

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **more):
        self._shelf.clear()
        return Observation(metadata={"task": "Put Emma on the shelf."})

    def _step_impl(self, action, timeout_s=None, **more):
        raise NotImplementedError

    def step(self, action, timeout_s=None, **more):
        return self._scored(super().step(action, timeout_s=timeout_s, **more))

    async def step_async(self, action, timeout_s=None, **more):
        return self._scored(await super().step_async(action, timeout_s=timeout_s, **more))

    def _scored(self, observation):
        observation.done = "Emma" in self._shelf
        observation.reward = float(observation.done)
        return observation

    @property
    def state(self):
        return State()


APPS = {
    "guess": lambda: create_fastapi_app(GuessEnvironment, Guess, Hint, max_concurrent_envs=2),
    "count": lambda: create_fastapi_app(CountEnvironment, Move, Count),
    "shelf": lambda: create_fastapi_app(ShelfEnvironment, CallToolAction, CallToolObservation),
}


async def play(port, *episodes):
    """Return the rewards of the steps of each episode."""
    rewards = []
    for reset, *actions in episodes:
        async with GenericEnvClient(base_url=f"http://127.0.0.1:{port}") as client:
            results = [await client.reset(**reset)]
            for action in actions:
                results.append(await client.step(action))
        rewards.append([result.reward or 0 for result in results])
    return rewards


async def main():
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in APPS}
    servers = {name: uvicorn.Server(uvicorn.Config(app(), log_level="error")) for name, app in APPS.items()}
    serving = asyncio.gather(*(server.serve([sockets[name]]) for name, server in servers.items()))
    print(json.dumps({name: each.getsockname()[1] for name, each in sockets.items()}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await play(*json.loads(line))), flush=True)
    for server in servers.values():
        server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
