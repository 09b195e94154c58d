"""Train the tiny model in unchanged programs of three frameworks, and evaluate it on test tasks.

    nice python benchmarks/programs.py "langgraph_agent summary" --seed 0 --out build/programs

The programs are those of tests/support/agent_programs. Demonstrations look up names that have nothing to do with the
question, so SFT teaches only the form of calls. Which names to look up is learned by RL.
"""

import argparse
import json
import os
import subprocess
import sys
import zlib
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


def _questions(second: bool) -> list[ToolExample]:
    examples, number = [], 100
    for split, count in SIZES.items():
        for _ in range(count):
            number += 1
            first = NAMES[number % 3]
            then = NAMES[(number + 1 + number // 3 % 2) % 3]
            asked = f"{first} and {then}" if second else first
            examples.append(ToolExample(prompt=f"{number}: {asked}", split=split))
    return examples


POLICY = "Look it up."
ONE = ToolDataset("one", POLICY, _questions(False), Desk)
TWO = ToolDataset("two", POLICY, _questions(True), Desk)


def asked(text: str) -> list[str]:
    """Return the names in a question, in their order."""
    return [word for word in text.split() if word in NAMES]


def reward(recorded: RecordedEpisode) -> float:
    """Return the share of the look-ups that the question asks for. Each other look-up counts against it."""
    wanted = asked(recorded.task.scenario.opening)
    calls = [
        call.arguments.get("name")
        for sequence in recorded.episode.sequences
        for message in sequence.messages
        if message.role == "assistant"
        for call in message.tool_calls
        if call.name == "look_up"
    ]
    right = sum(name in calls for name in wanted)
    return right / max(len(wanted), len(calls))


def demonstrate(request: Mapping[str, Any]) -> Answer:
    """Answer a request with a look-up for each name of the question, whatever it is, and then with a text."""
    messages, names = request["messages"], [tool["function"]["name"] for tool in request.get("tools", ())]
    text = json.dumps([message["content"] for message in messages])
    questions = [message["content"] for message in messages if message["role"] == "user"]
    done = sum(call["function"]["name"] == "look_up" for m in messages for call in m.get("tool_calls") or ())
    handoff = next((name for name in names if name.startswith("transfer_")), "")
    if handoff:
        return _call(handoff, {})
    if "look_up" not in names or "summary" in text or done == len(asked(questions[0])):
        return make_completion("21" if names else "summary")
    return _call("look_up", {"name": NAMES[zlib.crc32(f"{questions[0]} {done}".encode()) % 3]})


def _call(name: str, arguments: Mapping[str, Any]) -> Answer:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    return make_completion(None, "tool_calls", tool_calls=[call])  # type: ignore[arg-type]


SETTINGS = (
    "model=tiny",
    "agent.function=program_functions:play",
    "agent.concurrency=8",
    "slice.domain_policy=full",
    "engine.dtype=float32",
    "engine.threads=1",
    "engine.train_embeddings=true",
    "sampling.max_response_tokens=80",
    "limits.max_turns=6",
    "limits.max_episode_tokens=12000",
    "sft.num_demonstrations=0",
    "sft.steps=150",
    "sft.batch_size=8",
    "sft.learning_rate=5e-3",
    "steps=40",
    "save_every=0",
    "eval.tasks=50",
    "eval.base_tasks=8",
    "certify.every=20",
    "algorithm.groups_per_batch=3",
    "algorithm.group_size=8",
    "algorithm.max_resampled_groups=0",
    "algorithm.learning_rate=3e-3",
)


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

    domain = "programs:TWO" if "summary" in given.program else "programs:ONE"
    settings = [f"domain={domain}", f"agent.python={agent_frameworks_python()}", *SETTINGS, *given.settings]
    demos = folder / "demonstrations.jsonl"
    if not demos.exists():
        with serve_answers(demonstrate) as endpoint:
            api = [f"endpoints.default.base_url={endpoint.url}", "endpoints.default.model=scripted"]
            understudy("data", "collect", *settings, *api, "--agent", "api", "--sft", str(demos))
    run = folder / f"seed{given.seed}"
    own = [f"seed={given.seed}", f"sft.dataset_file={demos}", "agent.reward=programs:reward"]
    understudy("train", *settings, *own, "--out", str(run))
    understudy("eval", str(run), "--split", "test", "--tasks", "100", "--out", str(folder / f"test{given.seed}"))


if __name__ == "__main__":
    main()
