"""Run folders: written whole, never over another run, and resumed from the last checkpoint that is sound."""

import json
import os
import signal
from pathlib import Path

import pytest

from machine import ELSEWHERE
from understudy.checkpoints import MANIFEST, checkpoints, damage, last_checkpoint
from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.interruption import interruptible
from understudy.messages import Message
from understudy.run import OF_TESTS, Run, evaluation_files, free_folder, read_config, read_metrics
from understudy.settings import dump, parse
from understudy.tasks import Score
from understudy.trajectory import Stop, Trajectory, read_trajectories

CONFIG = TrainConfig(seed=7)


def episode(task: str = "t1") -> Trajectory:
    return Trajectory(task, messages=[Message(role="user", content="hi")], score=Score(reward=1.0), stop=Stop.DONE)


def save(run: Run, step: int, weights: str = "w") -> None:
    with run.checkpoint(step) as folder:
        (folder / "weights").write_text(weights)
        (folder / "inner").mkdir()
        (folder / "inner" / "state").write_text(str(step))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of four steps with checkpoints at 2 and 4, and a fifth step after them."""
    run = Run.create(tmp_path / "run", CONFIG)
    for step in range(1, 6):
        run.log(step, {"reward": step / 10})
        run.keep(step, [episode()])
        run.write(f"evaluations/{step:06} now.json", "{}")
        if step in (2, 4):
            save(run, step)
    return run


def test_a_new_run_can_be_read(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a" / "b", CONFIG)
    assert read_config(run.folder) == CONFIG
    assert (run.step, run.last, read_metrics(run.folder)) == (0, None, [])


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", CONFIG)
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=r"run holds another run; go on with it by --resume .*run, or give another"):
        Run.create(tmp_path / "run", TrainConfig())
    assert (tmp_path / "run" / "config.toml").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        Run.create(tmp_path / "other", CONFIG)


def test_metrics_are_a_line_a_step(run: Run) -> None:
    run.log(6, {"reward": float("nan"), "text": "é", "n": 1})
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6
    assert json.loads(lines[-1]) == {"step": 6, "reward": None, "text": "é", "n": 1}
    assert [line["step"] for line in read_metrics(run.folder)] == [1, 2, 3, 4, 5, 6]


def test_a_metrics_line_is_one_write(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, data: written.append(data) or len(data))
    run.log(9, {"a": 1.0, "b": 2.0})
    assert written == [b'{"step": 9, "a": 1.0, "b": 2.0}\n']


def test_episodes_of_a_step_replace_those_kept_before(run: Run) -> None:
    run.keep(3, [episode("again"), episode("more")])
    episodes, damaged = read_trajectories(run.folder / "trajectories" / "step_000003.jsonl")
    assert [e.task for e in episodes] == ["again", "more"]
    assert damaged == []


def test_a_checkpoint_is_whole_or_not_there(run: Run) -> None:
    def fail() -> None:
        with run.checkpoint(6) as folder:
            (folder / "weights").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [step for step, _ in checkpoints(run.folder)] == [2, 4]
    assert all(damage(folder) is None for _, folder in checkpoints(run.folder))
    manifest = json.loads((run.folder / "checkpoints" / "step_000004" / MANIFEST).read_text())
    assert manifest["step"] == 4
    assert set(manifest["sha256"]) == {"weights", "inner/state"}


def test_a_checkpoint_of_the_same_step_is_replaced(run: Run) -> None:
    save(run, 4, "new")
    assert run.last is not None
    assert (run.last / "weights").read_text() == "new"
    assert damage(run.last) is None


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason=f"{ELSEWHERE}open files have no names")
def test_a_checkpoint_is_on_the_disk_before_it_takes_its_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    final, synced, fsync = run.folder / "checkpoints" / "step_000006", set[str](), os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        if not final.exists():
            synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", watched)
    save(run, 6)
    assert {"weights", "state"} <= synced


def test_resuming_drops_what_came_after_the_checkpoint(run: Run) -> None:
    (run.folder / "checkpoints" / "step_000005.partial").mkdir()
    resumed = Run.resume(run.folder, CONFIG)
    assert resumed.step == 4
    assert resumed.last == run.folder / "checkpoints" / "step_000004"
    assert resumed.warnings == []
    assert [line["step"] for line in read_metrics(run.folder)] == [1, 2, 3, 4]
    for name in ("trajectories", "evaluations"):
        assert len(list((run.folder / name).iterdir())) == 4
    assert sorted(p.name for p in (run.folder / "checkpoints").iterdir()) == ["latest", "step_000002", "step_000004"]


def test_a_line_that_a_crash_cut_is_dropped(run: Run) -> None:
    with (run.folder / "metrics.jsonl").open("a") as f:
        f.write('{"step": 3, "rew')
    assert len(read_metrics(run.folder)) == 5
    Run.resume(run.folder)
    assert (run.folder / "metrics.jsonl").read_text().count("\n") == 4


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda c: (c / "weights").write_text("x"), "weights does not have the digest"),
        (lambda c: (c / "inner" / "state").unlink(), "state is missing"),
        (lambda c: (c / MANIFEST).unlink(), f"{MANIFEST} is missing"),
        (lambda c: (c / MANIFEST).write_text("{"), "cannot be read"),
        (lambda c: (c / MANIFEST).write_text("[]"), "cannot be read"),
        (lambda c: (c / MANIFEST).write_text('{"sha256": {"inner": "x"}}'), "cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_skipped(run: Run, harm, said: str) -> None:  # type: ignore[no-untyped-def]
    harm(run.folder / "checkpoints" / "step_000004")
    resumed = Run.resume(run.folder)
    assert resumed.step == 2
    (warning,) = resumed.warnings
    assert "step_000004 is damaged" in warning
    assert said in warning
    assert [line["step"] for line in read_metrics(run.folder)] == [1, 2]


def test_when_all_are_damaged_nothing_is_touched(run: Run) -> None:
    for _, folder in checkpoints(run.folder):
        (folder / "weights").write_text("x")
    with pytest.raises(ConfigError, match=r"000004 is damaged .*000002 is damaged .* no whole checkpoint"):
        Run.resume(run.folder)
    assert len(read_metrics(run.folder)) == 5
    assert len(checkpoints(run.folder)) == 2


def test_without_a_checkpoint_a_run_starts_from_its_beginning(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.log(0, {"reward": 0.0})
    resumed = Run.resume(run.folder)
    assert (resumed.step, resumed.last, read_metrics(run.folder)) == (0, None, [])
    assert "no checkpoint yet" in resumed.warnings[0]
    assert last_checkpoint(run.folder) == (None, [])


def test_only_a_new_run_that_came_to_nothing_is_removed(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    Run.resume(run.folder).withdraw()
    assert read_config(run.folder) == CONFIG
    run.withdraw()
    assert not run.folder.exists()


def test_resuming_with_another_config_names_the_keys(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"another config \(.*\): seed: 7 and 8; limits.max_turns: 30 and 3") as error:
        Run.resume(run.folder, CONFIG.replace(seed=8, limits=CONFIG.limits.replace(max_turns=3)))
    anew = f"understudy train {run.folder} KEY=VALUE model=MODEL sft.steps=0"
    assert str(error.value).endswith(f"understudy export {run.folder} --out MODEL, then {anew}")
    assert len(read_metrics(run.folder)) == 5


def test_a_run_that_ran_out_of_memory_may_go_on_with_less(run: Run) -> None:
    smaller = CONFIG.engine.replace(tokens_per_microbatch=512, sequences=8, checkpointing=True, sharding="fsdp")
    Run.resume(run.folder, CONFIG.replace(engine=smaller, keep=7))
    assert read_config(run.folder).engine == smaller


def test_what_a_run_stopped_over_may_be_otherwise(run: Run) -> None:
    settings = [
        "user.chat.base_url=http://other:8000/v1",
        "user.chat.timeout=9",
        "user.chat.cache=replies",
        "chat.concurrency=2",
        "judge.model=m",
        "engine.sampler=torch",
        "engine.vllm.gpu_memory_utilization=0.2",
        "cost_cap=5",
        "max_fault_rate=0.5",
        "save_every=1",
        "certify.halt=false",
    ]
    turned = parse(TrainConfig, dump(CONFIG), settings)
    Run.resume(run.folder, turned)
    assert read_config(run.folder) == turned
    with pytest.raises(ConfigError, match=r"user\.chat\.model: '' and 'm'"):
        Run.resume(run.folder, parse(TrainConfig, dump(turned), ["user.chat.model=m"]))


def of_steps(folder: Path, steps: int, *settings: str) -> TrainConfig:
    return parse(TrainConfig, dump(read_config(folder)), [f"steps={steps}", *settings])


def test_a_longer_run_and_a_shorter_one_call_their_evaluations_by_their_steps(tmp_path: Path) -> None:
    config = parse(TrainConfig, "", ["sft.steps=1", "steps=3"])
    run = Run.create(tmp_path / "run", config)
    for step, name in ((0, "base model"), (1, "warm start"), (2, "step 2"), (4, "trained")):
        save(run, step)
        run.write(f"evaluations/{step:06} {name}.json", "{}")
        run.write(f"tests/{step:06} {name}.json", "{}")
        run.keep_evaluation(f"{step:06} {name}{OF_TESTS}", [episode()])
    begin = ["000000 base model", "000001 warm start"]
    for steps, names in ((5, ["000002 step 2", "000004 step 4"]), (3, ["000002 step 2", "000004 trained"])):
        run.write("result.json", "{}")
        Run.resume(run.folder)
        assert (run.folder / "result.json").exists()
        Run.resume(run.folder, of_steps(run.folder, steps))
        assert not (run.folder / "result.json").exists(), "it has not ended"
        for folder in ("evaluations", "tests"):
            assert sorted(path.stem for path in (run.folder / folder).iterdir()) == [*begin, *names]
        assert list(evaluation_files(run.folder)) == [f"{name}{OF_TESTS}" for name in (*begin, *names)]


def test_steps_that_cannot_be_others_are_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", parse(TrainConfig, "", ["sft.steps=1", "steps=8"]))
    save(run, 4)
    with pytest.raises(ConfigError, match="was started with steps = 8, and cannot have 2: 3 are done"):
        Run.resume(run.folder, of_steps(run.folder, 2))
    for name, key, why in (
        ("ramp", "curriculum.difficulty=true", "by the share"),
        ("ray", "engine.kind=skyrl", "SkyRL"),
        ("falling", "algorithm.decay=0.1", "the learning rate of each"),
    ):
        other = Run.create(tmp_path / name, parse(TrainConfig, "", ["sft.steps=0", key]))
        with pytest.raises(ConfigError, match=f"was started with steps = 12, and cannot have 20: .*{why}"):
            Run.resume(other.folder, of_steps(other.folder, 20))


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run: it has no config.toml"):
        Run.resume(tmp_path / "nowhere")


def test_free_folder(tmp_path: Path) -> None:
    assert free_folder("a", tmp_path) == tmp_path / "a-001"
    for name in ("a-001", "a-003", "b-002"):
        (tmp_path / name).mkdir()
    assert free_folder("a", tmp_path) == tmp_path / "a-002"


def test_the_first_interrupt_is_a_wish_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
