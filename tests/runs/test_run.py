"""Test run folders: atomic writes, checkpoints, and resuming from the last valid checkpoint."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.groups import make_groups
from support.machine import ELSEWHERE
from support.run_evaluations import write_run_evaluation
from support.run_folder import CONFIG, episode, save_checkpoint
from understudy.core.errors import ConfigError
from understudy.core.files import digest_file
from understudy.core.interruption import interruptible
from understudy.core.settings import dump_toml
from understudy.core.trajectory import read_trajectories
from understudy.runs.config import PROVENANCE_FILE, TrainConfig, load_config, parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.run import (
    CONFIG_FILE,
    DIFF_FILE,
    Run,
    list_run_evaluations,
    next_run_folder,
    read_metrics,
    read_run_config,
)
from understudy.runs.storage.checkpoints import MANIFEST_FILE, find_damage, last_checkpoint, list_checkpoints
from understudy.runs.targets import resolve


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Create a run of five steps with checkpoints at steps 2 and 4."""
    run = Run.create(tmp_path / "run", CONFIG)
    for step in range(1, 6):
        run.log_metrics(step, {"reward": step / 10})
        run.save_groups(step, make_groups([episode()]))
        write_run_evaluation(run, step, "now")
        if step in (2, 4):
            save_checkpoint(run, step)
    return run


def test_new_run_reads_back_its_config(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a" / "b", CONFIG)
    assert read_run_config(run.folder) == CONFIG
    assert (run.step, run.last_checkpoint, read_metrics(run.folder)) == (0, None, [])


def test_create_rejects_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", CONFIG)
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=r"\brun\b.*--resume .*run\b"):
        Run.create(tmp_path / "run", TrainConfig())
    assert (tmp_path / "run" / "config.toml").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="other"):
        Run.create(tmp_path / "other", CONFIG)


def test_metrics_are_one_json_record_per_line(run: Run) -> None:
    run.log_metrics(6, {"reward": float("nan"), "text": "é", "n": 1})
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6
    assert json.loads(lines[-1]) == {"step": 6, "kind": "train", "reward": None, "text": "é", "n": 1}
    assert [line["step"] for line in read_metrics(run.folder)] == [1, 2, 3, 4, 5, 6]


def test_read_metrics_merges_train_and_eval_records_of_a_step(run: Run) -> None:
    run.log_metrics(5, {"eval/retail/reward": 0.5}, "eval")
    run.log_metrics(6, {"reward": 0.6})
    assert read_metrics(run.folder)[-2:] == [
        {"step": 5, "reward": 0.5, "eval/retail/reward": 0.5},
        {"step": 6, "reward": 0.6},
    ]
    assert read_metrics(run.folder, "eval") == [{"step": 5, "eval/retail/reward": 0.5}]
    assert read_metrics(run.folder, "train")[-1] == {"step": 6, "reward": 0.6}


def test_metrics_line_is_written_in_one_call(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, data: written.append(data) or len(data))
    run.log_metrics(9, {"a": 1.0, "b": 2.0})
    assert written == [b'{"step": 9, "kind": "train", "a": 1.0, "b": 2.0}\n']


def test_saving_groups_replaces_the_episodes_of_a_step(run: Run) -> None:
    run.save_groups(3, make_groups([episode("again"), episode("more")]))
    episodes, damaged = read_trajectories(run.folder / "trajectories" / "step_000003.jsonl")
    assert [e.task_id for e in episodes] == ["again", "more"]
    assert damaged == []


def test_failed_checkpoint_write_leaves_no_checkpoint(run: Run) -> None:
    def fail() -> None:
        with run.write_checkpoint(6) as folder:
            (folder / "weights").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [step for step, _ in list_checkpoints(run.folder)] == [2, 4]
    assert all(find_damage(folder) is None for _, folder in list_checkpoints(run.folder))
    manifest = json.loads((run.folder / "checkpoints" / "step_000004" / MANIFEST_FILE).read_text())
    assert manifest["step"] == 4
    assert set(manifest["sha256"]) == {"weights", "inner/state"}


def test_checkpoint_of_the_same_step_is_replaced(run: Run) -> None:
    save_checkpoint(run, 4, "new")
    assert run.last_checkpoint is not None
    assert (run.last_checkpoint / "weights").read_text() == "new"
    assert find_damage(run.last_checkpoint) is None


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason=f"{ELSEWHERE}open files have no names")
def test_checkpoint_is_synced_before_it_is_renamed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    final, synced, fsync = run.folder / "checkpoints" / "step_000006", set[str](), os.fsync

    def record_fsync(descriptor: int) -> None:
        fsync(descriptor)
        if not final.exists():
            synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", record_fsync)
    save_checkpoint(run, 6)
    assert {"weights", "state"} <= synced


def test_resume_drops_everything_after_the_checkpoint(run: Run) -> None:
    (run.folder / "checkpoints" / "step_000005.partial").mkdir()
    (run.folder / "evaluations" / "000004 unfinished").mkdir()
    resumed = Run.resume(run.folder, CONFIG)
    assert resumed.step == 4
    assert resumed.last_checkpoint == run.folder / "checkpoints" / "step_000004"
    assert resumed.warnings == []
    assert [line["step"] for line in read_metrics(run.folder)] == [1, 2, 3, 4]
    for name in ("trajectories", "evaluations"):
        assert len(list((run.folder / name).iterdir())) == 4
    assert sorted(p.name for p in (run.folder / "checkpoints").iterdir()) == ["latest", "step_000002", "step_000004"]


def test_resume_keeps_files_of_other_names(run: Run) -> None:
    shutil.copytree(run.folder / "checkpoints" / "step_000002", run.folder / "checkpoints" / "step_000002_best")
    (run.folder / "checkpoints" / "best").symlink_to("step_000002")
    (run.folder / "trajectories" / "step_000001.jsonl.gz").touch()
    (run.folder / "evaluations" / "my-own").mkdir()
    latest = run.folder / "checkpoints" / "latest"
    latest.unlink()
    latest.mkdir()  # as in a copy that follows links
    Run.resume(run.folder, CONFIG)
    assert latest.is_symlink()
    for name in ("checkpoints/step_000002_best", "checkpoints/best", "trajectories/step_000001.jsonl.gz"):
        assert (run.folder / name).exists()
    assert (run.folder / "evaluations" / "my-own").is_dir()


def test_resume_drops_a_truncated_metrics_line(run: Run) -> None:
    with (run.folder / "metrics.jsonl").open("a") as f:
        f.write('{"step": 3, "rew')
    assert len(read_metrics(run.folder)) == 5
    Run.resume(run.folder)
    assert (run.folder / "metrics.jsonl").read_text().count("\n") == 4


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda c: (c / "weights").write_text("x"), "weights"),
        (lambda c: (c / "inner" / "state").unlink(), "state"),
        (lambda c: (c / MANIFEST_FILE).unlink(), MANIFEST_FILE),
        (lambda c: (c / MANIFEST_FILE).write_text("{"), MANIFEST_FILE),
        (lambda c: (c / MANIFEST_FILE).write_text("[]"), MANIFEST_FILE),
        (lambda c: (c / MANIFEST_FILE).write_text('{"sha256": {"inner": "x"}}'), MANIFEST_FILE),
    ],
)
def test_resume_skips_a_damaged_checkpoint_with_a_warning(run: Run, damage, problem: str) -> None:  # type: ignore[no-untyped-def]
    damage(run.folder / "checkpoints" / "step_000004")
    resumed = Run.resume(run.folder)
    assert resumed.step == 2
    (warning,) = resumed.warnings
    assert "step_000004" in warning
    assert problem in warning
    assert [line["step"] for line in read_metrics(run.folder)] == [1, 2]


def test_resume_fails_unchanged_if_all_checkpoints_are_damaged(run: Run) -> None:
    for _, folder in list_checkpoints(run.folder):
        (folder / "weights").write_text("x")
    with pytest.raises(ConfigError, match=r"000004\b.*000002\b"):
        Run.resume(run.folder)
    assert len(read_metrics(run.folder)) == 5
    assert len(list_checkpoints(run.folder)) == 2


def test_resume_without_checkpoint_keeps_the_base_evaluation(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.log_metrics(0, {"reward": 0.0}, "eval")
    run.log_metrics(1, {"reward": 1.0})
    resumed = Run.resume(run.folder)
    assert (resumed.step, resumed.last_checkpoint) == (0, None)
    assert read_metrics(run.folder) == [{"step": 0, "reward": 0.0}]
    assert "no checkpoint yet" in resumed.warnings[0]
    assert last_checkpoint(run.folder) == (None, [])


@pytest.mark.parametrize(
    ("lose", "steps"),
    [
        (lambda run: shutil.rmtree(run.folder / "checkpoints" / "step_000005"), 5),  # the link `latest` is left
        (lambda run: [run.log_metrics(6, {}), shutil.rmtree(run.folder / "checkpoints")], 6),
        (lambda run: [write_run_evaluation(run, 5, "sft"), shutil.rmtree(run.folder / "checkpoints")], 5),
        (lambda run: [run.write_file("result.json", "{}"), shutil.rmtree(run.folder / "checkpoints")], 5),
    ],
)
def test_resume_refuses_a_run_whose_checkpoints_are_gone(
    tmp_path: Path, lose: Callable[[Run], object], steps: int
) -> None:
    run = Run.create(tmp_path / "run", CONFIG.replace(save_every=5))
    for step in range(1, 6):
        run.log_metrics(step, {"reward": 1.0})
        run.save_groups(step, make_groups([episode()]))
    save_checkpoint(run, 5)
    lose(run)
    before = sorted(run.folder.rglob("*"))
    with pytest.raises(ConfigError, match=rf"records of {steps} steps but no checkpoint; restore .*checkpoints"):
        Run.resume(run.folder)
    assert sorted(run.folder.rglob("*")) == before
    assert len(read_metrics(run.folder)) == steps


def test_resume_restarts_a_run_that_was_killed_before_its_first_checkpoint(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG.replace(save_every=5))
    for step in range(1, 6):  # step 5 is recorded before its checkpoint is written
        run.log_metrics(step, {"reward": 1.0})
    assert Run.resume(run.folder).step == 0
    assert read_metrics(run.folder) == []


def test_discard_removes_only_a_new_run(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    Run.resume(run.folder).discard()
    assert read_run_config(run.folder) == CONFIG
    run.discard()
    assert not run.folder.exists()


def test_discard_keeps_what_a_failed_certification_found(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.write_file(DIFF_FILE, "the diff")
    run.discard()
    assert (run.folder / DIFF_FILE).read_text() == "the diff"


def test_discard_removes_the_folders_that_were_made_for_the_run_but_no_episodes(tmp_path: Path) -> None:
    Run.create(tmp_path / "runs" / "a-001", CONFIG).discard()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    Run.create(tmp_path / "runs" / "a-001", CONFIG).discard()
    assert list((tmp_path / "runs").iterdir()) == []
    played = Run.create(tmp_path / "runs" / "a-002", CONFIG)
    played.save_groups(1, make_groups([episode()]))
    played.discard()
    assert played.folder.exists()


def test_resume_with_another_config_names_the_changed_keys(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"\bseed: 7\b.*\b8\b.*\blimits\.max_turns: 30\b.*\b3\b") as error:
        Run.resume(run.folder, CONFIG.replace(seed=8, limits=CONFIG.limits.replace(max_turns=3)))
    anew = f"understudy train {run.folder} KEY=VALUE model=MODEL sft.steps=0"
    assert f"understudy export {run.folder} --out MODEL" in str(error.value)
    assert str(error.value).endswith(anew)
    assert len(read_metrics(run.folder)) == 5


def test_resume_accepts_changed_memory_settings(run: Run) -> None:
    smaller = CONFIG.engine.replace(
        max_tokens_per_microbatch=512, max_num_seqs=8, gradient_checkpointing=True, sharding="fsdp"
    )
    Run.resume(run.folder, CONFIG.replace(engine=smaller, keep_checkpoints=7))
    assert read_run_config(run.folder).engine == smaller


def test_resume_accepts_changed_endpoint_and_limit_settings(tmp_path: Path) -> None:
    settings = [
        "endpoints.simulator.base_url=http://other:8000/v1",
        "endpoints.simulator.timeout=9",
        "endpoints.simulator.cache_dir=replies",
        "endpoints.judge.max_concurrency=2",
        "endpoints.judge.model=m",
        "eval.failure_judge_endpoint=judge",
        "agent_endpoint=judge",
        "engine.sampler=torch",
        "engine.vllm.gpu_memory_utilization=0.2",
        "cost_limit=5",
        "max_fault_rate=0.5",
        "save_every=1",
        "certify.stop_on_failure=false",
    ]
    started = parse_config(
        dump_toml(CONFIG), ["user.kind=llm", "user.endpoint=simulator", "endpoints.simulator.model=u"]
    )
    folder = Run.create(tmp_path / "users", started).folder
    turned = parse_config(dump_toml(started), settings)
    Run.resume(folder, turned)
    assert read_run_config(folder) == turned
    with pytest.raises(ConfigError, match=r"endpoints\.simulator\.model: 'u'.*'m'"):
        Run.resume(folder, parse_config(dump_toml(turned), ["endpoints.simulator.model=m"]))


def config_with_steps(folder: Path, steps: int, *settings: str) -> TrainConfig:
    return parse_config(dump_toml(read_run_config(folder)), [f"steps={steps}", *settings])


def test_resume_with_other_steps_renames_evaluations(tmp_path: Path) -> None:
    config = parse_config("", ["sft.steps=1", "steps=3"])
    run = Run.create(tmp_path / "run", config)
    for step, name in ((0, "base"), (1, "sft"), (2, "step 2"), (4, "rl")):
        save_checkpoint(run, step)
        for eval_set in ("", "ood", "hard"):
            write_run_evaluation(run, step, name, eval_set=eval_set)
    begin = ["000000 base", "000001 sft"]
    for steps, names in ((5, ["000002 step 2", "000004 step 4"]), (3, ["000002 step 2", "000004 rl"])):
        run.write_file("result.json", "{}")
        Run.resume(run.folder)
        assert (run.folder / "result.json").exists()
        Run.resume(run.folder, config_with_steps(run.folder, steps))
        assert not (run.folder / "result.json").exists(), "it has not ended"
        every = [f"{name}{suffix}" for name in (*begin, *names) for suffix in ("", " hard", " ood")]
        found = list_run_evaluations(run.folder)
        assert sorted(path.name for path in (run.folder / "evaluations").iterdir()) == every
        assert [each.name for each in found] == every
        for eval_set in ("", "ood", "hard"):
            stages = [each.stage for each in found if each.eval_set == eval_set]
            assert stages == [name.partition(" ")[2] for name in (*begin, *names)]


def test_resume_rejects_steps_that_schedules_depend_on(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", parse_config("", ["sft.steps=1", "steps=8"]))
    save_checkpoint(run, 4)
    with pytest.raises(ConfigError, match=r"\bsteps = 8\b.*\b2\b.*\b3\b"):
        Run.resume(run.folder, config_with_steps(run.folder, 2))
    for name, key, why in (
        ("ramp", "curriculum.easy_first=true", "easy_first"),
        ("ray", "engine.kind=skyrl", "SkyRL"),
        ("falling", "algorithm.min_lr_ratio=0.1", "learning rate"),
    ):
        other = Run.create(tmp_path / name, parse_config("", ["sft.steps=0", key]))
        with pytest.raises(ConfigError, match=rf"\bsteps = 12\b.*\b20\b.*{why}"):
            Run.resume(other.folder, config_with_steps(other.folder, 20))


def test_resume_of_a_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\bnowhere\b.*no file or folder"):
        Run.resume(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"\bempty\b.*config\.toml"):
        Run.resume(tmp_path / "empty")


def test_next_run_folder_uses_the_first_free_number(tmp_path: Path) -> None:
    assert next_run_folder("a", tmp_path) == tmp_path / "a-001"
    for name in ("a-001", "a-003", "b-002"):
        (tmp_path / name).mkdir()
    assert next_run_folder("a", tmp_path) == tmp_path / "a-002"
    (tmp_path / "c[1]-001").mkdir()
    assert next_run_folder("c[1]", tmp_path) == tmp_path / "c[1]-002"


def test_first_ctrl_c_sets_a_flag_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_of_an_earlier_version_keeps_the_values_of_keys_that_it_did_not_know(tmp_path: Path) -> None:
    folder = Run.create(tmp_path / "run", parse_config("", ["sampling.keep_sampling_mask=false"])).folder
    file, provenance = folder / CONFIG_FILE, folder / PROVENANCE_FILE
    for edited in (False, True):  # only the digest of the file says whether it was edited
        added = ("keep_sampling_mask", "max_invalid_replies")
        lines = [line for line in file.read_text().splitlines() if not line.startswith(added)]
        file.write_text("\n".join([*lines, "# a note" * edited]))
        if not edited:
            start = json.loads(provenance.read_text())[-1]
            provenance.write_text(json.dumps([start | {"config_sha256": digest_file(file)}]))
        before = file.read_bytes()
        run = Run.resume(folder)
        assert (run.config.sampling.keep_sampling_mask, run.config.limits.max_invalid_replies) == (False, 0)
        assert file.read_bytes() == before
        assert any("was edited" in line for line in run.warnings) == edited
        assert not resolve([str(folder)]).config.sampling.keep_sampling_mask
        assert resolve([str(folder), "keep_sampling_mask=true"]).config.sampling.keep_sampling_mask
        (tmp_path / "mine.toml").write_bytes(before)
        assert load_config(tmp_path / "mine.toml").sampling.keep_sampling_mask


def test_the_spec_of_an_earlier_evaluation_equals_that_of_its_run() -> None:
    config = parse_config("", ["sampling.keep_sampling_mask=false"])
    stored = json.loads(EvalSpec(name="model", agent="model", config=config).model_dump_json())
    del stored["config"]["sampling"]["keep_sampling_mask"], stored["config"]["limits"]["max_invalid_replies"]
    assert EvalSpec.model_validate_json(json.dumps(stored)).config == config
