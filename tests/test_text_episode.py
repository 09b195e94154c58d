"""Episodes in text alone: what they earn is what a rollout earns, and what is told is what a template would tell."""

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_kit import run, servers_left
from test_mcp_source import environment
from understudy.agent import GoldAgent, SilentAgent
from understudy.domains.base import TaskSource, find, names
from understudy.errors import RolloutError
from understudy.formats import Vocabulary
from understudy.formats.chatml import ChatML
from understudy.formats.options import Dialect
from understudy.formats.parse import render
from understudy.integrations.background import Background
from understudy.integrations.text_episode import Said, TextEpisode, told
from understudy.messages import Message
from understudy.models import find_model
from understudy.rollout import Limits, rollout
from understudy.tasks import Task
from understudy.trajectory import Trajectory

LIMITS = Limits(max_turns=60)
SOURCES = [*names(), "mcp"]
RETAIL = find("retail")


async def spoken(
    source: TaskSource, task: Task, texts: Sequence[str], dialect: Dialect = "hermes", seed: int = 0, turns: int = 60
) -> tuple[TextEpisode, list[Said]]:
    """An episode in which the agent says these texts and then nothing, and all that it was told."""
    episode = TextEpisode(source.environment(task, seed=seed), dialect=dialect, max_turns=turns)
    heard = await episode.start()
    while episode.score is None:
        text = texts[episode.turns] if episode.turns < len(texts) else ""
        heard += await episode.step(text)
    await episode.close()
    return episode, heard


def gold(task: Task, dialect: Dialect = "hermes") -> list[str]:
    return [render(turn.content, turn.tool_calls, dialect) for turn in task.turns]


def source(name: str, folder: Path) -> TaskSource:
    return find(f"mcp:{environment(folder)}" if name == "mcp" else name)


@pytest.mark.parametrize("name", SOURCES)
def test_gold_and_silence_earn_what_they_earn_in_a_rollout(name: str, tmp_path: Path) -> None:
    domain = source(name, tmp_path)
    tasks = (domain.tasks("train") + domain.tasks("test"))[:12]

    async def both(task: Task, seed: int, texts: Sequence[str], agent: GoldAgent | SilentAgent) -> float:
        theirs, _ = await spoken(domain, task, texts, seed=seed)
        ours: Trajectory = await rollout(task, domain.environment(task, seed=seed), agent, LIMITS, seed)
        assert theirs.score == ours.score
        assert theirs.turns == ours.turns
        return ours.reward

    async def all_of_them() -> tuple[list[float], list[float]]:
        played = [await both(task, i, gold(task), GoldAgent()) for i, task in enumerate(tasks)]
        return played, [await both(task, i, [], SilentAgent()) for i, task in enumerate(tasks)]

    played, silent = run(all_of_them())
    assert set(played) == {1.0}
    assert set(silent) == {0.0}


@pytest.mark.parametrize("dialect", ["json", "react", "llama3", "qwen3_coder", "xml", "pythonic"])
def test_gold_is_read_in_every_dialect(dialect: Dialect) -> None:
    for task in RETAIL.tasks("train")[:5]:
        episode, heard = asyncio.run(spoken(RETAIL, task, gold(task, dialect), dialect))
        assert episode.score
        assert episode.score.reward == 1.0
        assert {said["role"] for said in heard} == {"system", "user"}
        assert all(spec.name in heard[0]["content"] for spec in RETAIL.specs)


def test_what_is_told_in_hermes_are_the_tokens_of_tools_and_results() -> None:
    """As text and as tools, messages are the same tokens of a format that is held to Qwen's template."""
    format = ChatML(Vocabulary.load(find_model("smollm2-135m") / "tokenizer.json"))
    opening = [Message(role="system", content="Be brief."), Message(role="user", content="Hello.")]
    as_text = [Message(role=said["role"], content=said["content"]) for said in told(opening, RETAIL.specs, "hermes")]  # type: ignore[arg-type]
    before = format.encode(opening, RETAIL.specs, ())
    assert format.encode(as_text, (), ()) == before
    results = [Message(role="tool", content=text) for text in ("one", '{"two": 2}')]
    (said,) = told(results, (), "hermes")
    assert said["role"] == "user"
    assert format.encode([Message(role="user", content=said["content"])], (), before) == format.encode(
        results, (), before
    )


def test_an_episode_ends_at_its_limit_and_is_scored_as_cut_off() -> None:
    task = next(task for task in RETAIL.tasks("train") if len(task.turns) > 3)
    for turns in range(1, len(task.turns)):
        episode, _ = asyncio.run(spoken(RETAIL, task, gold(task), turns=turns))
        ours = asyncio.run(rollout(task, RETAIL.environment(task), GoldAgent(), Limits(max_turns=turns)))
        assert (episode.turns, episode.score) == (turns, ours.score)
        assert episode.score
        assert episode.score.parts["ended"] == 0.0


def test_a_call_that_is_not_complete_is_not_run() -> None:
    task = next(task for task in RETAIL.tasks("train") if task.turns[0].tool_calls)
    whole = gold(task)[0]
    cut = whole[: whole.index("}")]  # its last argument is there, and another one may have been to come
    episode, heard = asyncio.run(spoken(RETAIL, task, [cut, whole], turns=3))
    assert "Error: the call is cut off" in heard[2]["content"]
    assert "Error" not in heard[3]["content"]
    assert episode.replies["repaired"] == 1
    assert episode.errors == {"malformed": 1}


def test_results_of_one_reply_come_back_as_one_text() -> None:
    task = next(task for task in RETAIL.tasks("train") if task.turns[0].tool_calls)
    text = f'{gold(task)[0]}\n<tool_call>\n{{"name": "no_such_tool", "arguments": {{}}}}\n</tool_call>'
    _, heard = asyncio.run(spoken(RETAIL, task, [text], turns=3))
    results = heard[2]["content"]
    assert results.count("<tool_response>\n") == results.count("\n</tool_response>") == 2
    assert "Error: unknown tool 'no_such_tool'" in results


@given(st.lists(st.text(max_size=60) | st.sampled_from(gold(RETAIL.tasks("train")[0])), max_size=4))
@settings(max_examples=60)
def test_any_text_is_an_answer(texts: list[str]) -> None:
    task = RETAIL.tasks("train")[0]
    episode, _ = asyncio.run(spoken(RETAIL, task, texts, turns=8))
    assert episode.score
    assert sum(episode.replies.values()) == episode.turns <= 8


# ---- the loop in the background ----


def test_many_threads_share_one_loop() -> None:
    background = Background()

    async def where(number: int) -> tuple[int, str]:
        await asyncio.sleep(0.01)
        return number, threading.current_thread().name

    with ThreadPoolExecutor(64) as threads:
        began = time.perf_counter()
        found = list(threads.map(lambda i: background.run(where(i)), range(640)))
    assert found == [(i, "understudy") for i in range(640)]
    assert time.perf_counter() - began < 5.0  # 640 waits of 10 ms one after the other would take longer
    background.close()
    assert "understudy" not in {thread.name for thread in threading.enumerate()}
    assert background.run(where(1)) == (1, "understudy")
    background.close()


def test_what_goes_wrong_is_told_to_the_thread_that_asked() -> None:
    background = Background()

    async def fails() -> None:
        raise RolloutError("the endpoint is gone", "user")

    with pytest.raises(RolloutError, match="the endpoint is gone") as caught:
        background.run(fails())
    assert caught.value.fault == "user"
    background.close()


def test_servers_end_with_the_loop(tmp_path: Path) -> None:
    background, domain = Background(), find(f"mcp:{environment(tmp_path, server='warm = 0')}")
    episode = TextEpisode(domain.environment(domain.tasks("train")[0]), dialect="hermes", max_turns=5)
    heard = background.run(episode.start())
    assert "You keep a count." in heard[0]["content"]
    assert servers_left()
    background.close()
    assert not servers_left()


def test_the_loop_ends_with_the_process(tmp_path: Path) -> None:
    path = environment(tmp_path, server="warm = 0")
    code = f"""
import psutil
from understudy.domains.base import find
from understudy.integrations.background import Background
from understudy.integrations.text_episode import TextEpisode
source, background = find("mcp:{path}"), Background()
episode = TextEpisode(source.environment(source.tasks("train")[0]), dialect="hermes", max_turns=5)
background.run(episode.start())
print(*[child.pid for child in psutil.Process().children(recursive=True)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_fault_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(RolloutError("the server died", "mcp")))
    assert (str(error), error.fault) == ("the server died", "mcp")
