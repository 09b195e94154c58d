"""Train the tiny model in unchanged programs of three frameworks, and evaluate it on test tasks.

    nice python benchmarks/programs.py "langgraph_agent summary" --seed 0 --out build/programs

The programs are those of tests/support/agent_programs. Demonstrations look up names that have nothing to do with the
question, so SFT teaches only the form of calls. Which names to look up is learned by RL.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests")]

from support.endpoint import Answer, make_completion, serve_answers  # noqa: E402
from support.software import agent_frameworks_python  # noqa: E402
from understudy.core.messages import Message  # noqa: E402
from understudy.rollouts.program_reward import RecordedEpisode  # noqa: E402
from understudy.sources.tool_dataset import ToolDataset, ToolEpisode, ToolExample  # noqa: E402

NAMES = ("Quartz", "Jade", "Zinc")
SIZES = {"train": 200, "validation": 50, "test": 100}


class Desk(ToolEpisode):
    """A question that the program's own tool answers."""

    def reward(self, transcript: Sequence[Message]) -> float:
        """Return 1 for the answer of demonstrations."""
        return float(transcript[-1].content == "21")


def _questions(prompt: str) -> list[ToolExample]:
    splits = [split for split, count in SIZES.items() for _ in range(count)]
    return [ToolExample(prompt=prompt.format(i, i + 1), split=split) for i, split in enumerate(splits, 100)]


POLICY = "Look it up."
ONE = ToolDataset("one", POLICY, _questions("Item {}"), Desk)
TWO = ToolDataset("two", POLICY, _questions("Items {} and {}"), Desk)


def count_items(question: str) -> int:
    """Return how many names a question needs."""
    return 1 + question.startswith("Items")


def reward(recorded: RecordedEpisode) -> float:
    """Return 1 if the program looked up the first names, in their order, and no others."""
    calls = [
        call.arguments.get("name")
        for sequence in recorded.episode.sequences
        for i, message in enumerate(sequence.messages)
        if i not in sequence.given_replies
        for call in message.tool_calls
        if call.name == "look_up"
    ]
    wanted = NAMES[: count_items(recorded.task.scenario.opening)]
    return float(calls == list(wanted))


def demonstrate(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reply to a request: a look-up of any name for each item, and then a text."""
    messages, names = request["messages"], [tool["function"]["name"] for tool in request.get("tools", ())]
    if handoffs := [name for name in names if name.startswith("transfer_")]:
        return _call(handoffs[0], {}, len(messages))
    question = next(message["content"] for message in messages if message["role"] == "user")
    done = sum(call["function"]["name"] == "look_up" for m in messages for call in m.get("tool_calls") or ())
    if "look_up" not in names or done >= count_items(question):
        return {"role": "assistant", "content": "21" if names else "None."}
    choices = NAMES[: 4 - count_items(question)]  # two look-ups of three names each would rarely be right
    return _call("look_up", {"name": random.Random(f"{question} {done}").choice(choices)}, len(messages))


def _call(name: str, arguments: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def complete_conversations(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the conversations that no other one continues, and few of the long ones without tools."""

    def content(message: Mapping[str, Any]) -> str:
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        return repr((message["role"], message.get("content") or "", calls))

    found = {tuple(map(content, row["messages"])): row for row in rows}
    continued = {key[:length] for key in found for length in range(len(key))}
    ends = [row for key, row in found.items() if key not in continued]
    return [*filter(lambda row: row["tools"], ends), *[row for row in ends if not row["tools"]][:10]]


SETTINGS = (
    "model=tiny",
    "agent.function=program_functions:play",
    "agent.concurrency=2",
    "slice.domain_policy=full",
    "engine.dtype=float32",
    "engine.threads=1",
    "engine.train_embeddings=true",
    "sampling.max_response_tokens=80",
    "sampling.min_p=0.1",
    "limits.max_turns=6",
    "limits.max_episode_tokens=12000",
    "sft.num_demonstrations=0",
    "sft.steps=100",
    "sft.batch_size=4",
    "sft.learning_rate=5e-3",
    "save_every=0",
    "eval.split=test",
    "eval.tasks=100",
    "eval.base_tasks=10",
    "eval.temperature=1.0",
    "certify.every=5",
    "algorithm.group_size=8",
    "algorithm.max_resampled_groups=0",
)
ONE_LOOK_UP = "domain=programs:ONE", "steps=15", "algorithm.groups_per_batch=3", "algorithm.learning_rate=5e-4"
TWO_LOOK_UPS = "domain=programs:TWO", "steps=60", "algorithm.groups_per_batch=6", "algorithm.learning_rate=3e-4"


def main() -> None:
    """Collect demonstrations, train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help='a program of tests/support/agent_programs, such as "openai_agents handoff"')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/programs"))
    parser.add_argument("settings", nargs="*")
    given = parser.parse_intermixed_args()
    folder = given.out.absolute() / given.program.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"AGENT_PROGRAM": given.program, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "benchmarks")}

    def understudy(*words: str) -> None:
        command = [sys.executable, "-m", "understudy", *words]
        subprocess.run(command, check=True, cwd=ROOT / "benchmarks", env=os.environ | variables)

    own = TWO_LOOK_UPS if "summary" in given.program else ONE_LOOK_UP
    settings = [f"agent.python={agent_frameworks_python()}", *SETTINGS, *own, *given.settings]
    demos = folder / "demonstrations.jsonl"
    if not demos.exists():
        rows: list[Mapping[str, Any]] = []

        def answer(request: Mapping[str, Any]) -> Answer:
            reply = demonstrate(request)
            rows.append({"messages": [*request["messages"], reply], "tools": request.get("tools", [])})
            calls = reply.get("tool_calls")
            return make_completion(reply["content"], **({"tool_calls": calls} if calls else {}))

        with serve_answers(answer) as endpoint:
            api = [f"endpoints.default.base_url={endpoint.url}", "endpoints.default.model=scripted"]
            understudy("data", "collect", *settings, *api, "--agent", "api", "--kto", str(folder / "played.jsonl"))
        demos.write_text("".join(json.dumps(row) + "\n" for row in complete_conversations(rows)))
    run = folder / f"seed{given.seed}"
    rest = [f"seed={given.seed}", f"sft.dataset_file={demos}", "agent.reward=programs:reward"]
    understudy("train", *settings, *rest, "--out", str(run))


if __name__ == "__main__":
    main()
