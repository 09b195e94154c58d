"""Tests of the processes that play the episodes of a function one after another, with a Python of its own."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_program import COMMAND, SUMS, TASK, SumEpisode

from support.replying import ReplySampler, say
from support.tiny_runs import make_tiny_model
from understudy.core.errors import ConfigError
from understudy.core.event_loop import gather_or_cancel, run_async
from understudy.core.messages import Message
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.formats import FormatTokenizer
from understudy.rollouts import program_processes, program_worker
from understudy.rollouts.program import ProgramAgent, validate_program
from understudy.rollouts.program_config import ProgramConfig
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.serve.generation import ServedModel
from understudy.sources.tool_dataset import ToolDataset, ToolExample

ASK = COMMAND.replace('prompt = json.loads(os.environ["UNDERSTUDY_PROMPT"])\n', "")
"""The function `ask` of a module that reads the variables of its episode."""

WAITS = 6000
"""Number of looks at what another process does, before the test fails."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, body: str, before: str = "", is_coroutine: bool = False) -> ProgramConfig:
    """Write a module with the function `play`, whose lines are those of `body`."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    start = "async def" if is_coroutine else "def"
    (folder / "own_agent.py").write_text(f"{ASK}\n{before}\n{start} play(episode):\n{lines}")
    return ProgramConfig(function="own_agent:play", python=sys.executable, max_seconds=60)


async def play(tiny: Path, config: ProgramConfig, count: int = 1, at_once: bool = False) -> list[Trajectory]:
    sampler = ReplySampler(tiny, say("42"))
    vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
    agent = ProgramAgent(
        config, ServedModel("tiny", sampler, sampler.format, vocabulary), SamplingParams(max_response_tokens=50)
    )
    limits = EpisodeLimits(max_retries=0)
    if at_once:
        return await gather_or_cancel(play_episode(SUMS, TASK, agent, limits, seed) for seed in range(count))
    return [await play_episode(SUMS, TASK, agent, limits, seed) for seed in range(count)]


def numbers(folder: Path, name: str = "pids") -> list[int]:
    """Return what the function has written, a number in each episode."""
    return [int(line) for line in (folder / name).read_text().split()]


def note(what: str, name: str = "pids") -> str:
    return f"with open({name!r}, 'a') as file: file.write(f'{{{what}}}\\n')\n"


def is_running(pid: int) -> bool:
    """Return whether a process runs: a killed one may wait to be reaped by its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def wait_for_notes(folder: Path, count: int) -> None:
    for _ in range(WAITS):
        if (folder / "pids").exists() and len((folder / "pids").read_text().splitlines()) >= count:
            return
        time.sleep(0.01)
    raise AssertionError("no episode has begun")


def wait_until_ended(pids: Sequence[int]) -> None:
    for _ in range(WAITS):
        if not any(map(is_running, pids)):
            return
        time.sleep(0.01)
    raise AssertionError("a process is left")


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_one_process_plays_several_episodes_and_ends_with_the_loop(
    is_coroutine: bool, tiny: Path, folder: Path
) -> None:
    body = note("os.getpid()") + "return ask(list(episode.prompt))['content']"
    episodes = run_async(play(tiny, write(folder, body, is_coroutine=is_coroutine), 3))
    assert [episode.reward for episode in episodes] == [1.0] * 3
    assert len(numbers(folder)) == 3
    (pid,) = set(numbers(folder))
    assert pid != os.getpid()
    wait_until_ended([pid])


def test_episodes_at_once_have_a_process_each(tiny: Path, folder: Path) -> None:
    wait = "import time\nwhile len(set(open('pids').read().split())) < 2: time.sleep(0.01)\n"
    config = write(folder, note("os.getpid()") + wait + "return ask(list(episode.prompt))['content']")
    episodes = run_async(play(tiny, config, 2, at_once=True))
    assert [episode.reward for episode in episodes] == [1.0] * 2
    assert len(set(numbers(folder))) == 2


THREADS: list[int] = []


def note_thread(episode: program_worker.ProgramEpisode) -> None:
    THREADS.append(threading.get_ident())


def test_function_runs_in_the_same_thread_in_each_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that a framework keeps belong to the event loop of the thread in which they were made."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which `play` adds
    begun = threading.Barrier(2)

    async def play_several() -> None:
        await asyncio.gather(*(asyncio.to_thread(begun.wait) for _ in range(2)))  # the loop has two threads
        for _ in range(6):
            await program_worker.play(f"{__name__}:note_thread", program_worker.ProgramEpisode("", (), "", "", "", ""))

    asyncio.run(play_several())
    assert (len(THREADS), len(set(THREADS))) == (6, 1)


def test_variables_and_folder_are_of_the_episode_and_modules_are_kept(tiny: Path, folder: Path) -> None:
    body = """\
ask(json.loads(os.environ["UNDERSTUDY_PROMPT"]))
SEEN.append(os.environ["OPENAI_API_KEY"])
assert (os.environ["OPENAI_API_KEY"], os.environ["OPENAI_BASE_URL"]) == (episode.api_key, episode.base_url)
assert "LEFT" not in os.environ and os.getcwd() == FOLDER
"""
    left = note("len(set(SEEN))") + "os.environ['LEFT'] = 'x'\nos.chdir('/')"
    episodes = run_async(play(tiny, write(folder, body + left, "SEEN, FOLDER = [], os.getcwd()"), 2))
    assert [episode.fault for episode in episodes] == [None, None]
    assert numbers(folder) == [1, 2]


def test_tasks_that_an_episode_leaves_are_ended(tiny: Path, folder: Path) -> None:
    late = "async def late():\n    import asyncio\n    await asyncio.sleep(0)\n    await asyncio.sleep(0)\n"
    write_late = f"{late}    {note('1', 'late')}"
    body = "import asyncio\nKEPT.append(asyncio.create_task(late()))\nask(list(episode.prompt))"
    run_async(play(tiny, write(folder, body, f"KEPT = []\n{write_late}", is_coroutine=True), 2))
    assert not (folder / "late").exists()


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("print('no more', flush=True); os._exit(3)", ["status 3", "no more"]),
        ("os.kill(os.getpid(), 9)", ["status -9"]),
        ("sys.exit('stopped')", ["status 1", "stopped"]),
    ],
)
def test_end_of_a_process_fails_only_its_episode(how: str, named: list[str], tiny: Path, folder: Path) -> None:
    body = note("os.getpid()") + f"if len(open('pids').readlines()) == 2: {how}\nask(list(episode.prompt))"
    first, second, third = run_async(play(tiny, write(folder, body), 3))
    assert (first.fault, second.fault, third.fault) == (None, "agent", None)
    assert all(text in second.error for text in ["own_agent:play", *named])
    one, other, new = numbers(folder)
    assert one == other != new


def test_exception_is_named_with_its_place_and_the_process_is_kept(tiny: Path, folder: Path) -> None:
    body = note("os.getpid()") + "ask(list(episode.prompt))\nif len(open('pids').readlines()) == 1: json.loads('{')"
    first, second = run_async(play(tiny, write(folder, body), 2))
    assert (first.fault, second.fault) == ("agent", None)
    assert "JSONDecodeError" in first.error
    assert "own_agent.py:" in first.error
    assert len(set(numbers(folder))) == 1


@pytest.mark.parametrize(
    ("body", "fault", "said"),
    [
        ("return next(iter(()))", "agent", "StopIteration (own_agent.py:"),
        ("return later(ask(list(episode.prompt))['content'])", None, ""),
    ],
)
def test_stop_iteration_and_coroutine_of_a_plain_function_end_its_episode(
    body: str, fault: str | None, said: str, tiny: Path, folder: Path
) -> None:
    (episode,) = run_async(play(tiny, write(folder, body, "async def later(text): return text")))
    assert (episode.fault, episode.score and episode.reward) == (fault, None if fault else 1.0)
    assert said in episode.error


@pytest.mark.parametrize(("value", "said"), [("7", "7"), ("'x' * 2**25", f"{program_processes.MAX_ANSWER_BYTES:,}")])
def test_wrong_answer_is_a_fault_of_the_agent(value: str, said: str, tiny: Path, folder: Path) -> None:
    first, second = run_async(play(tiny, write(folder, f"ask(list(episode.prompt))\nreturn {value}"), 2))
    assert (first.fault, second.fault) == ("agent", "agent")
    assert said in first.error


def test_time_limit_ends_the_process_and_its_children(tiny: Path, folder: Path) -> None:
    child = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n" + note("child.pid") + note("os.getpid()")
    config = write(folder, child + "child.wait()").replace(max_seconds=2.0)
    (episode,) = run_async(play(tiny, config))
    assert episode.fault == "agent"
    assert "agent.max_seconds" in episode.error
    assert len(numbers(folder)) == 2
    wait_until_ended(numbers(folder))


def test_cancelling_ends_all_processes(tiny: Path, folder: Path) -> None:
    body = note("os.getpid()") + "import time\ntime.sleep(600)"

    async def cancelled() -> None:
        playing = asyncio.create_task(play(tiny, write(folder, body), 2, at_once=True))
        await asyncio.to_thread(wait_for_notes, folder, 2)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)

    run_async(cancelled())
    wait_until_ended(numbers(folder))


def test_worker_ends_with_its_input_while_it_plays(folder: Path) -> None:
    write(folder, note("os.getpid()") + "import time\ntime.sleep(600)")
    command = [sys.executable, program_worker.__file__, "own_agent:play"]
    episode: dict[str, Any] = {"task": "", "prompt": [], "base_url": "", "api_key": "", "mcp_url": "", "result_url": ""}
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as worker:
        assert worker.stdin
        worker.stdin.write(json.dumps(episode).encode() + b"\n")
        worker.stdin.flush()
        wait_for_notes(folder, 1)
        worker.stdin.close()
        assert worker.wait() == -9


def test_command_starts_anew_in_each_episode(tiny: Path, folder: Path) -> None:
    (folder / "agent.py").write_text(COMMAND + note("os.getpid()") + "ask(prompt)")
    episodes = run_async(play(tiny, ProgramConfig(command=f"{sys.executable} agent.py"), 2))
    assert [episode.fault for episode in episodes] == [None, None]
    assert len(set(numbers(folder))) == 2


MANY = 200
ASK_TWICE = r"""
address=${OPENAI_BASE_URL#http://} address=${address%/v1} content='"content": ?"([0-9]+)"'
ask() {
  local body='{"model": "any", "messages": '"${UNDERSTUDY_PROMPT%]}$1]}"
  exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
  printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n' "$address" >&3
  printf 'Content-Type: application/json\r\nAuthorization: Bearer %s\r\n' "$OPENAI_API_KEY" >&3
  printf 'Content-Length: %d\r\n\r\n%s' "${#body}" "$body" >&3
  IFS= read -r -d '' answer <&3
  [[ $answer =~ $content ]]
}
ask "" && ask ', {"role": "assistant", "content": "'"${BASH_REMATCH[1]}"'"}, {"role": "user", "content": "Sure?"}'
"""
"""A program that starts in milliseconds. It sends its first reply back."""


@pytest.mark.slow
def test_many_programs_at_once_lose_no_request(tiny: Path, folder: Path) -> None:
    """All have asked before the first one gets a reply. Each is recorded under its own task."""
    (folder / "agent.sh").write_text(ASK_TWICE)
    examples = [ToolExample(prompt=f"Question {number}?", split="train") for number in range(MANY)]
    source = ToolDataset("many", "Be brief.", examples, SumEpisode)
    sampler = ReplySampler(tiny, lambda prompt, seed: say_number(seed))
    sampler.gate.clear()

    def say_number(seed: int) -> Message:
        if len(sampler.calls) + 1 == MANY:
            sampler.gate.set()
        return Message(role="assistant", content=str(seed))

    async def playing() -> list[Trajectory]:
        vocabulary = FormatTokenizer.load(tiny / "tokenizer.json")
        model = ServedModel("tiny", sampler, sampler.format, vocabulary)
        config = ProgramConfig(command="bash agent.sh", concurrency=MANY, max_seconds=120)
        agent = ProgramAgent(config, model, SamplingParams(max_response_tokens=50))
        limits = EpisodeLimits(max_retries=0)
        return await gather_or_cancel(play_episode(source, task, agent, limits, 3) for task in source.tasks("train"))

    episodes = run_async(playing())
    assert [episode.error for episode in episodes] == [""] * MANY
    assert sum(episode.event_counts["program/chat"] for episode in episodes) == len(sampler.calls) == 2 * MANY
    texts = [[message.content for message in episode.messages] for episode in episodes]
    assert [(text[1], text[3], len(text)) for text in texts] == [(each.prompt, "Sure?", 5) for each in examples]
    assert len({text[place] for text in texts for place in (2, 4)}) == 2 * MANY
    assert all(len(episode.sequences) == 1 and len(episode.reply_indices) == 2 for episode in episodes)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"python": "no-such-python"}, r"agent\.python.*no-such-python"),
        ({"function": "absent_module:play"}, r"agent\.function.*absent_module"),
        ({"function": "own_agent:absent"}, r"agent\.function.*absent"),
        ({"function": "own_agent:json"}, r"agent\.function.*module"),
    ],
)
def test_function_that_cannot_be_imported_is_one_error(settings: dict[str, str], named: str, folder: Path) -> None:
    config = write(folder, "pass", "client = os.environ['OPENAI_API_KEY']")  # as a client of OpenAI reads it
    validate_program(config)
    with pytest.raises(ConfigError, match=named):
        validate_program(config.replace(**settings))


@pytest.mark.parametrize("settings", [{"command": "python agent.py"}, {"url": "http://127.0.0.1:1/"}, {}])
def test_python_without_a_function_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"agent\.python.*agent\.function"):
        ProgramConfig.model_validate({"python": sys.executable, **settings})
