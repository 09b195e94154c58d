"""Test task folders of Harbor: what runs as local processes, what needs a container, and what the code can reach."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from support.machine import ELSEWHERE
from support.software import harbor_packages
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.event_loop import run_async
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import SPLITS, Score, Task
from understudy.envs.task_source import TaskSource
from understudy.runs.targets import load

TEST = 'grep -qx "$WORD" out.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'
FILES = {
    "task.toml": 'schema_version = "1.4"\n[environment]\nnetwork_mode = "no-network"\nenv = {PLACE = "here"}\n'
    '[verifier]\nenv = {WORD = "second"}\n[agent]\ntimeout_sec = 0.001\n',
    "instruction.md": "Write the second line of data/words.txt into out.txt.",
    "environment/Dockerfile": "FROM ubuntu:24.04\nENV A=1 \\\n    B=2\nWORKDIR /app\nCOPY words.txt data/\n",
    "environment/words.txt": "first\nsecond\n",
    "tests/test.sh": f"#!/bin/bash\n{TEST}",
    "solution/solve.sh": "#!/bin/bash\nsed -n 2p data/words.txt > out.txt\n",
}


def write_task(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in {**FILES, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def load_local(folder: Path) -> TaskSource:
    try:
        return load(f"harbor:{folder}#run=local")
    except ConfigError as e:
        if "user namespaces" in str(e):
            pytest.skip(f"{ELSEWHERE}{e}")
        raise


def bash(*commands: str) -> list[Message]:
    return [
        Message(role="assistant", tool_calls=(ToolCall(id="1", name="bash", arguments={"command": command}),))
        for command in commands
    ]


def tasks_of(source: TaskSource) -> list[Task]:
    return [task for split in SPLITS for task in source.tasks(split)]


async def play(source: TaskSource, task: Task, replies: Sequence[Message]) -> tuple[Score, list[str]]:
    environment = source.environment(task)
    try:
        step = await environment.start()
        seen = [message.content for message in step.messages]
        for reply in (*replies, Message(role="assistant", content="Done.")):
            step = await environment.step(reply)
            seen += [message.content for message in step.messages]
            if step.score:
                break
        assert step.score
        return step.score, seen
    finally:
        await environment.close()


def test_the_solution_earns_the_reward(tmp_path: Path) -> None:
    write_task(tmp_path / "set" / "words", {})
    source = load_local(tmp_path / "set")
    (task,) = tasks_of(source)
    assert (task.id, source.lacks_gold) == ("harbor-set/words", False)
    assert run_async(play(source, task, task.gold_turns))[0].reward == 1.0
    score, seen = run_async(play(source, task, bash('pwd; echo "$A$B$PLACE$WORD"', "echo x > out.txt; exit 3")))
    assert seen == [FILES["instruction.md"], "/app\n12here", "[exit status 3]"]
    assert score.parts == {"reward": 0.0, "within_limits": 1.0}


def test_commands_reach_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    (tmp_path / "mine.txt").write_text("x")
    source = load_local(write_task(tmp_path / "words", {}))
    commands = bash(
        f"cat {tmp_path}/mine.txt",
        "touch /usr/x",
        'echo "[$SECRET_KEY]"',
        "cat < /dev/tcp/127.0.0.1/1",
        "umount /usr",
        "ls /tests",
        "echo 1 > /logs/verifier/reward.txt; ln -s /etc /tests",
    )
    score, (_, *seen) = run_async(play(source, tasks_of(source)[0], commands))
    assert ["No such file" in seen[0], "Read-only" in seen[1], seen[2]] == [True, True, "[]"]
    assert "unreachable" in seen[3]
    assert ["[exit status" in seen[4], "No such file" in seen[5]] == [True, True]
    assert score.reward == 0.0


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ('echo \'{"reward": 0.25, "speed": 3}\' > /logs/verifier/reward.json', 0.25),
        ("echo '{\"passed\": 1}' > /logs/verifier/reward.json", 1.0),
        ("echo .5 > /logs/verifier/reward.txt", 0.5),
        ("echo broken; exit 1", None),
        ("echo no > /logs/verifier/reward.txt", None),
        ('echo \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json', None),
        ("echo NaN > /logs/verifier/reward.txt", None),
    ],
)
def test_forms_of_rewards(tmp_path: Path, script: str, reward: float | None) -> None:
    source = load_local(write_task(tmp_path, {"tests/test.sh": script}))
    playing = play(source, tasks_of(source)[0], [])
    if reward is not None:
        assert run_async(playing)[0].reward == reward
    else:
        with pytest.raises(RolloutError) as e:
            run_async(playing)
        assert e.value.fault == "grader"


@pytest.mark.parametrize(
    ("files", "key"),
    [
        ({"environment/Dockerfile": "FROM x\nRUN apt-get update\n"}, "RUN"),
        ({"environment/Dockerfile": "FROM x\nCOPY --from=a /x /y\n"}, "--from"),
        ({"environment/Dockerfile": "FROM x\nCOPY words.txt /usr/bin/\n"}, "/usr/bin"),
        ({"environment/Dockerfile": "FROM x\nWORKDIR /app/../etc\n"}, ".."),
        ({"environment/docker-compose.yaml": ""}, "docker-compose.yaml"),
        ({"task.toml": '[environment]\ndocker_image = "x"'}, "docker_image"),
        ({"task.toml": '[environment]\nos = "windows"'}, "windows"),
        ({"task.toml": '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["h"]'}, "allowed_hosts"),
        ({"task.toml": '[verifier]\nenv = {KEY = "${OPENAI_API_KEY}"}'}, "verifier.env.KEY"),
        ({"task.toml": '[verifier]\nenvironment_mode = "separate"'}, "environment_mode"),
        ({"task.toml": '[[steps]]\nname = "a"'}, "steps"),
    ],
)
def test_tasks_that_need_a_container_are_named(tmp_path: Path, files: Mapping[str, str], key: str) -> None:
    write_task(tmp_path / "hard", files)
    with pytest.raises(ConfigError) as e:
        load(f"harbor:{tmp_path}#run=local")
    assert "hard" in str(e.value)
    assert key in str(e.value)
    write_task(tmp_path / "words", {})
    (note,) = load_local(tmp_path).notes()
    assert ("1 of 2" in note, key in note) == (True, True)


@pytest.mark.parametrize(
    ("files", "option", "key"),
    [
        ({}, "", "#run=local"),
        ({}, "#run=docker", "#run=local"),
        ({}, "#walk=local", "walk"),
        ({"environment/Dockerfile": "FROM x\nCOPY ../../secret /app/\n"}, "#run=local", "outside"),
        ({"environment/Dockerfile": "FROM x\nCOPY none.txt /app/\n"}, "#run=local", "none.txt"),
        ({"environment/Dockerfile": 'FROM x\nCOPY "a /app/\n'}, "#run=local", "quotation"),
        ({"task.toml": "["}, "#run=local", "task.toml"),
    ],
)
def test_wrong_tasks_and_names_are_refused(tmp_path: Path, files: Mapping[str, str], option: str, key: str) -> None:
    write_task(tmp_path / "words", files)
    with pytest.raises(ConfigError) as e:
        load(f"harbor:{tmp_path}{option}")
    assert key in str(e.value)


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    task = write_task(tmp_path / "words", {})
    (task / "environment" / "link").symlink_to("/etc")
    with pytest.raises(ConfigError, match="environment/link"):
        load(f"harbor:{task}#run=local")


@pytest.mark.environments
def test_harbor_reads_the_same_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Harbor accepts the folder of these tests, and its own template of a task is read here."""
    monkeypatch.syspath_prepend(harbor_packages())
    folder = write_task(tmp_path / "words", {})
    from harbor.models.task.config import TaskConfig

    config = TaskConfig.model_validate_toml((folder / "task.toml").read_text())
    assert config.environment.network_mode.value == "no-network"
    assert config.verifier.env == {"WORD": "second"}
    template = Path(sys.modules["harbor"].__path__[0]) / "cli" / "template-task"
    (task,) = tasks_of(load(f"harbor:{template}#run=local"))
    assert task.scenario.opening == (template / "instruction.md").read_text()
