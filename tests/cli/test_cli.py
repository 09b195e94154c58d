"""Test the command line: every command once, and one error line with exit code 2 for invalid arguments."""

import importlib.util
import io
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer

from support.program import Call, call
from toy import DOMAIN
from understudy.cli import launch
from understudy.cli import main as cli
from understudy.cli.arguments import TARGET_HELP
from understudy.core.errors import ConfigError, RolloutError, RunStoppedError
from understudy.core.settings import field_records, record_kind
from understudy.data.checks.check import PROBLEM_TITLES
from understudy.engines.models import MODELS
from understudy.envs.task_source import FULL_SLICE
from understudy.evaluation.reports.report import EvalReport, RunReport
from understudy.evaluation.result import EvalResult, ResultRow
from understudy.rollouts.agent import GoldAgent
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.run import Run, read_metrics, read_run_config
from understudy.runs.storage.status import read_run_status
from understudy.sources.references import BENCHMARK_MODULES

__all__ = ["call"]


@pytest.fixture
def fake_training(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Replace `understudy.train.loop` by a version without torch: two steps, two checkpoints, one result row."""

    def train(config: TrainConfig, run: Run, report: Callable[..., None], *_: object) -> RunReport:
        for line in run.warnings:
            report(line, 0, 0, {})
        for step in range(run.step + 1, 3):
            run.log_metrics(step, {"rollout/reward": step / 2})
            report("train", step, 2, {"rollout/reward": step / 2})
            with run.write_checkpoint(step) as folder:
                (folder / "weights").write_text("w")
        result = {"task": "t", "family": "f", "difficulty": "easy", "fingerprint": "", "rewards": (1.0,)}
        row = EvalResult.model_validate({"domain": "toy", "seed": 0, "trials": 1, "task_results": (result,)})
        return RunReport(held_out=EvalReport(rows=(ResultRow(name="trained", result=row),)))

    module = ModuleType("understudy.train.loop")
    vars(module).update(train=train)
    monkeypatch.setitem(sys.modules, "understudy.train.loop", module)
    return module


def test_list_prints_every_kind_of_entry(call: Call) -> None:
    code, text, _ = call("list")
    assert code == 0
    assert "smollm2-135m" in text
    found = json.loads(call("list", "--json")[1])
    assert found.keys() == {"domains", "benchmarks", "models", "formats", "engines", "algorithms", "presets"}
    assert "retail" in found["domains"]
    assert all(line for entries in found.values() for line in entries.values())
    assert found["models"].keys() == MODELS.keys()
    assert {name.partition(":")[0] for name in found["benchmarks"]} == BENCHMARK_MODULES.keys()
    assert found["engines"].keys() == {record_kind(kind) for kind in field_records(TrainConfig, "engine")}
    assert not re.search(r"load\(|\bReturn\b|The first call|\w+Format:", text)


def test_check_reports_baselines_and_no_problems(call: Call) -> None:
    code, text, _ = call("check", "toy:DOMAIN")
    assert code == 0
    assert re.search(r"\b1\.0\b.*\b0\.0\b", text)
    assert text.splitlines()[-1] == "train will accept these tasks"
    report = json.loads(call("check", "toy:DOMAIN", "--json")[1])
    assert (report["problems"], report["train_refusal"]) == ([], "")
    assert [(s["split"], s["tasks"], s["noop_reward"], s["gold_reward"]) for s in report["splits"]] == [
        ("train", 12, 0.0, 1.0),
        ("validation", 12, 0.0, 1.0),
        ("test", 12, 0.0, 1.0),
    ]


def test_check_without_target_checks_every_domain(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.sources.references.list_domains", lambda: ["toy:DOMAIN", "toy:DOMAIN"])
    code, text, _ = call("check")
    assert (code, len(re.findall(r"\b1\.0\b.*\b0\.0\b", text))) == (0, 2)
    assert [report["domain"] for report in json.loads(call("check", "--json")[1])] == ["toy", "toy"]


def test_check_of_no_tasks_is_a_mistake(call: Call) -> None:
    code, text, error = call("check", "support.tiny_runs:ONE_LAMP")  # all of its tasks are generated
    assert code == 2
    assert "sound" not in text
    assert re.fullmatch(r"understudy: toy: there are 0 tasks .*slice\.families.*\n", error)


def test_check_of_a_slice_without_needed_tools_is_a_mistake(call: Call) -> None:
    code, _, error = call("check", "toy:DOMAIN", "slice.tools=find_lamp")
    assert code == 2
    assert re.search(r"slice\.tools .*all 36 tasks.* switch_lamp", error)


def test_tasks_that_need_other_tools_are_left_out_and_counted(call: Call) -> None:
    code, text, _ = call("check", "retail_easy", "slice.tools=find_user,get_order", "--json")
    report = json.loads(text)
    tasks = sum(split["tasks"] for split in report["splits"])
    left_out = re.search(r"slice\.tools: (\d+) tasks are left out", " ".join(report["warnings"]))
    assert (code, report["train_refusal"], left_out is not None) == (0, "", True)
    whole = json.loads(call("check", "retail_easy", "slice.tools=", "--json")[1])
    assert tasks > 0
    assert left_out
    assert tasks + int(left_out[1]) == sum(split["tasks"] for split in whole["splits"])


def test_check_lists_what_blocks_training_first(call: Call) -> None:
    settings = ["model=tiny", "format.tool_format=qwen3_coder", "sft.steps=1", "sft.batch_size=2"]
    code, text, _ = call("check", "support.train_verdict:TYPED", *settings, "--json")
    report = json.loads(text)
    groups = [group for group in report["problem_groups"] if group["kind"] == "inexpressible_call"]
    assert code == 1
    assert [(group["blocks_training"], group["num_tasks"]) for group in groups] == [(True, 2), (False, 3)]
    order = [
        (not each["blocks_training"], list(PROBLEM_TITLES).index(each["kind"])) for each in report["problem_groups"]
    ]
    assert order == sorted(order)
    assert report["probe_episodes"] > 0


def test_eval_prints_a_table_and_json(call: Call) -> None:
    code, text, _ = call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "10", "--trials", "2", "--split", "train")
    assert code == 0
    assert re.search(r"\bgold\b.*\b1\.000\b", text)
    assert "pass^2" in text
    found = json.loads(call("eval", "toy:DOMAIN", "slice.families=one", "--agent", "noop", "--json")[1])
    assert [row["success"]["mean"] for row in found["rows"]] == [1.0, 0.0]
    assert {r["family"] for r in found["rows"][-1]["result"]["task_results"]} == {"one"}


def test_eval_accepts_a_config_or_a_run(call: Call, tmp_path: Path) -> None:
    config = parse_config("", ["domain=toy:DOMAIN", "slice.families=two", "eval.tasks=3"])
    run = Run.create(tmp_path / "run", config)
    for what in (run.folder, run.folder / "config.toml"):
        found = json.loads(call("eval", str(what), "--agent", "gold", "--json")[1])
        assert [r["family"] for r in found["rows"][-1]["result"]["task_results"]] == ["two"] * 3


def test_eval_of_a_run_uses_its_last_valid_checkpoint(
    call: Call, fake_training: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    (tmp_path / "toy.toml").write_text('domain = "toy:DOMAIN"')
    call("train", str(tmp_path / "toy.toml"), "--out", str(folder))
    (folder / "checkpoints" / "step_000002" / "weights").write_text("damaged")
    checkpoints: list[Path | None] = []

    def record_checkpoint(name: str, config: TrainConfig, checkpoint: Path | None, budget: object) -> GoldAgent:
        checkpoints.append(checkpoint)
        return GoldAgent()

    monkeypatch.setattr("understudy.runs.agents.make_agent", record_checkpoint)
    monkeypatch.chdir(tmp_path)
    code, _, err = call("eval", str(folder), "--tasks", "3")
    assert (code, checkpoints) == (0, [folder / "checkpoints" / "step_000001"])
    assert "step_000002" in err
    assert call("eval", str(folder / "checkpoints" / "step_000001"), "--tasks", "3")[0] == 0
    assert checkpoints[1:] == checkpoints[:1]
    Run.create(tmp_path / "new", TrainConfig())
    assert "checkpoint" in call("eval", str(tmp_path / "new"))[2]


def test_play_as_the_user(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello, a lamp please.\nYes.\n\n"))
    code, text, _ = call("play", "toy:DOMAIN", "--as", "user", "--task", DOMAIN.tasks("test")[0].id, "--split", "test")
    assert code == 0
    assert "reward 1 " in text


def test_train_writes_a_run_that_view_prints(call: Call, fake_training: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, text, err = call("train", "domain=toy:DOMAIN", "seed=4", "--out", str(folder))
    assert code == 0
    assert re.search(r"\btrained\b.*\b1\.000\b", text)
    assert f"understudy view {folder}" in text
    assert "step 2/2 SFT left" in err
    assert read_run_config(folder).seed == 4
    assert (folder / "result.md").exists()
    code, text, _ = call("view", "--text", str(folder))
    assert code == 0
    assert f"{'rollout/reward':<36} ▁█" in text


def test_train_records_what_it_does_and_how_it_ended(
    call: Call, fake_training: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    assert call("train", "domain=toy:DOMAIN", "--out", str(folder))[0] == 0
    assert (read_run_status(folder).state, read_run_status(folder).step) == ("finished", 2)

    def end_with(error: BaseException) -> tuple[int, str, str]:
        def train(config: TrainConfig, run: Run, report: Callable[..., None], *_: object) -> RunReport:
            assert read_run_status(folder).state == "running"
            raise error

        monkeypatch.setattr(fake_training, "train", train)
        code = call("train", "--resume", str(folder))[0]
        return code, read_run_status(folder).state, read_run_status(folder).reason

    assert end_with(KeyboardInterrupt("stopped after step 2")) == (130, "stopped", "stopped after step 2")
    assert end_with(RunStoppedError("the limit", "user")) == (1, "stopped", "the limit")
    assert end_with(RolloutError("the server is gone", "engine")) == (1, "crashed", "the server is gone")
    assert f"{'state':<12}crashed: the server is gone" in call("view", "--text", str(folder))[1]
    monkeypatch.setattr(fake_training, "train", raise_config_error)
    with pytest.raises(ConfigError, match="new"):
        launch.run_training(["domain=toy:DOMAIN"], tmp_path / "new")
    assert not (tmp_path / "new").exists(), "a run that never started leaves nothing"


def raise_config_error(*_: object) -> None:
    raise ConfigError("new")


def test_train_resumes_from_the_last_valid_checkpoint(call: Call, fake_training: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    call("train", "domain=toy:DOMAIN", "--out", str(folder))
    (folder / "checkpoints" / "step_000002" / "weights").write_text("damaged")
    code, _, err = call("train", "--resume", str(folder))
    assert code == 0
    assert "step_000002" in err
    assert [line["step"] for line in read_metrics(folder)] == [1, 2]
    assert call("train", "--resume", str(folder), "--out", "x")[0] == 2
    assert re.search(r"\bseed: 0\b.*\b9\b", call("train", "seed=9", "--resume", str(folder))[2])


def test_train_does_not_overwrite_a_run(call: Call, fake_training: ModuleType, tmp_path: Path) -> None:
    call("train", "--out", str(tmp_path / "run"))
    code, _, err = call("train", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "--resume" in err


def test_certify_passes_tiny_model_and_fails_a_broken_format(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from understudy.engines.models import make_tiny_model
    from understudy.formats import ChatML
    from understudy.train.certify import certify_model

    model = str(make_tiny_model(tmp_path))
    small = (
        "engine.finetune=full",
        "engine.max_draft_rows=0",
        "engine.device=cpu",
        "engine.dtype=float32",
        "sampling.max_response_tokens=3",
    )
    code, text, _ = call("certify", model, *small)
    assert (code, text.count("FAILED")) == (0, 0)
    assert re.search(r"full, updated .* ok .*log-probabilities agree +│ ok +│ ", text, re.DOTALL)
    monkeypatch.setattr(certify_model, "finetune_methods", lambda config: ())
    encode = ChatML.encode  # drops the line break before a turn
    monkeypatch.setattr(
        ChatML, "encode", lambda self, new, tools, before: encode(self, new, tools, before)[len(before) > 0 :]
    )
    code, text, _ = call("certify", model, "--json")
    certificate = json.loads(text)
    assert (code, certificate["passed"], certificate["format"]) == (1, False, "ChatML")
    assert "> " in next(check["diff"] for check in certificate["checks"] if not check["passed"])


def test_keys_prints_a_section_or_all(call: Call) -> None:
    section = call("train", "dapo_is_no_target", "--keys")
    assert section[0] == 2
    assert all(word in section[2] for word in ("dapo_is_no_target", "algorithm", "engine.lora"))
    for words in (("--keys", "algorithm.loss"), ("retail", "algorithm.loss", "--keys")):
        code, text, _ = call("train", *words)
        assert (code, list(tomllib.loads(text))) == (0, ["algorithm"])
        assert list(tomllib.loads(text)["algorithm"]) == ["loss"]
    assert call("train", "--keys") == call("train", "--print-config")


def test_settings_as_options(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seed = 5\n")
    options = ["--steps", "3", "--model=tiny", "--max-turns", "4", "--config", str(tmp_path / "mine.toml")]
    settings = ["steps=3", "model=tiny", "limits.max_turns=4", str(tmp_path / "mine.toml")]
    assert call("train", "retail", *options, "--print-config") == call("train", "retail", *settings, "--print-config")
    code, _, err = call("certify", "--model", "tiny", "--steps", "no")
    assert (code, "'no'" in err) == (2, True)
    code, _, err = call("train", "--stesp", "3")
    assert (code, "--steps" in err) == (2, True)


@pytest.mark.slow
def test_preset_smoke_trains_evaluates_and_resumes(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("train", "smoke", "--debug")[0] == 0
    assert call("train", "--resume", "runs/smoke-001", "steps=3")[0] == 0
    run = Path("runs/smoke-001")
    logged = (run / "run.log").read_text()
    first, resumed = re.split(r" INFO step 4/4 rollout/reward=0 .*", logged)
    assert first.count(" DEBUG task retail/train/") >= 2 * 2 * 4, "each episode of two steps"
    assert re.search(r" INFO step 5/5 rollout/reward=0 ", resumed)
    assert "DEBUG task" not in resumed.partition("peak memory")[2], "resumed without --debug"
    assert sum("rollout/reward" in step and step["train/grad_norm"] > 0 for step in read_metrics(run, "train")) == 3
    rows = json.loads((run / "result.json").read_text())["rows"]
    assert {"base", "sft", "rl"} <= {row["name"] for row in rows}


def test_wandb_is_the_default_tracker_where_it_is_installed_and_has_a_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    find_spec = importlib.util.find_spec
    found = SimpleNamespace(origin="wandb/__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == "wandb" else find_spec(name))
    settings = ["toy:DOMAIN", "model=tiny"]
    assert launch.open_run(settings, None, None).config.trackers == ()
    monkeypatch.setenv("WANDB_API_KEY", "k")
    run = launch.open_run(settings, None, None)
    assert run.config.trackers == ("wandb",)
    assert any("wandb" in line and "trackers=[]" in line for line in run.warnings)
    assert launch.open_run([*settings, "trackers=[]"], None, None).config.trackers == ()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find_spec(name))
    assert launch.open_run(settings, None, None).config.trackers == ()


def test_print_config_prints_toml_that_parses(call: Call) -> None:
    code, text, _ = call("train", "retail_easy", "seed=9", "--print-config")
    assert code == 0
    assert re.search(r"^# .+\ngroups_per_batch = ", text, re.MULTILINE)
    assert parse_config(text).seed == 9


def test_new_run_is_named_after_the_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert [launch.open_run([], None, None).folder.name for _ in range(2)] == [
        "retail_quick-001",
        "retail_quick-002",
    ]
    assert launch.open_run(["domain=retail"], None, None).folder.name == "retail-001"


COMMANDS_WITH_TARGET = ("train", "doctor", "eval", "check", "play", "data collect")


@pytest.mark.parametrize("verb", COMMANDS_WITH_TARGET)
def test_target_argument_has_the_same_help_everywhere(verb: str) -> None:
    command: Any = typer.main.get_command(cli.app)
    for name in verb.split():
        command = command.commands[name]
    (argument,) = (each for each in command.params if each.param_type_name == "argument")
    assert (argument.metavar, argument.help) == ("TARGET|KEY=VALUE", TARGET_HELP)


@pytest.mark.parametrize("verb", COMMANDS_WITH_TARGET)
def test_unknown_target_error_suggests_the_nearest_name(call: Call, verb: str) -> None:
    options = ["--sft", "x.jsonl"] if verb == "data collect" else []
    for target in ("telecom_eesy", "domain=telecm"):
        code, out, err = call(*verb.split(), target, *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "did you mean 'telecom" in err
        assert "module:attribute" in err


def test_domain_target_equals_domain_setting(call: Call) -> None:
    checked = [json.loads(call("check", each, "--json")[1]) for each in ("toy:DOMAIN", "domain=toy:DOMAIN")]
    assert checked[0] == checked[1]
    printed = [call("train", each, "seed=9", "--print-config")[1] for each in ("retail", "domain=retail")]
    assert printed[0] == printed[1]
    assert parse_config(printed[0]).slice == FULL_SLICE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train", "--resme", "x"], "--resume"),
        (["train", "--stesp", "3"], "--steps"),
        (["train", "stesp=3"], "steps=VALUE"),
        (["eval", "toy:DOMAIN", "--taks", "3"], "--tasks"),
        (["eval", "toy:DOMAIN", "concurency=3"], "concurrency=VALUE"),
        (["train", "--algorithm.group-sise", "3"], "'algorithm.group_size'"),
        (["train", "algorithm.group_sise=3"], "'algorithm.group_size'"),
        (["train", "retail_esay"], "'retail_easy'"),
        (["train", "retial"], "'retail'"),
        (["doctor", "retial"], "'retail'"),
        (["train", "gone.toml"], "no file or folder gone.toml"),
        (["train", "."], "config.toml"),
        (["train", "--resume", "nowhere"], "nowhere"),
        (["check", "retial"], "'retail'"),
        (["check", "toy:NOTHING"], "'NOTHING'"),
        (["check", "toy:DOMAIN", "slice.families=onne"], "'one'"),
        (["eval", "toy:DOMAIN", "--agent", "glod"], "'gold'"),
        (["eval", "toy:DOMAIN", "--model", "smolm2-135m"], "'smollm2-135m'"),
        (["eval", "toy:DOMAIN", "--split", "tset"], "'test'"),
        (["play", "toy:DOMAIN", "--task", "toy/x"], "'toy/x'"),
        (["play", "toy:DOMAIN", "--as", "usr"], "'user'"),
        (["certify", "smolm2-135m"], "'smollm2-135m'"),
        (["certify", "tiny", "certify.evry=1"], "'certify.every'"),
        (["view", "nowhere"], "nowhere"),
        (["view", "--text", "nowhere"], "nowhere"),
    ],
)
def test_invalid_arguments_exit_with_code_2(call: Call, arguments: list[str], said: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    if err.startswith("understudy: "):
        assert err.count("\n") == 1


def test_train_exit_codes_for_interrupt_failure_and_config_error(
    call: Call, fake_training: ModuleType, tmp_path: Path
) -> None:
    def train_that_raises(error: BaseException) -> Mapping[str, Any]:
        def train(*_: object) -> None:
            raise error

        return {"train": train}

    vars(fake_training).update(train_that_raises(KeyboardInterrupt("stopped; go on with: understudy train --resume x")))
    code, _, err = call("train", "--out", str(tmp_path / "a"))
    assert (code, err.splitlines()[-1]) == (130, "stopped; go on with: understudy train --resume x")
    vars(fake_training).update(train_that_raises(KeyboardInterrupt()))
    code, _, err = call("train", "--out", str(tmp_path / "d"))
    assert (code, f"--resume {tmp_path / 'd'}" in err) == (130, True), "a second Ctrl-C says how to resume too"
    vars(fake_training).update(train_that_raises(RolloutError("9 of 10 episodes failed", "engine")))
    code, _, err = call("train", "--out", str(tmp_path / "b"))
    assert (code, err) == (1, "understudy: 9 of 10 episodes failed\n")
    assert not (tmp_path / "b").exists(), "a run that failed before it wrote anything leaves nothing"
    vars(fake_training).update(train_that_raises(ConfigError("no such device")))
    assert call("train", "--out", str(tmp_path / "c"))[0] == 2
    assert [(tmp_path / name).exists() for name in "ac"] == [True, False]
    for error in (ConfigError("no such device"), RolloutError("9 of 10 episodes failed", "engine")):
        vars(fake_training).update(train_that_raises(error))
        assert call("train", "--resume", str(tmp_path / "a"))[0] in (1, 2)
        assert (tmp_path / "a" / "config.toml").exists(), "a run that is gone on with is never removed"


def test_help_lists_commands_and_imports_no_torch() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); sys.argv = ['understudy', '--help']\n"
        "from understudy.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'understudy.evaluation.evaluate', 'understudy.runs.config'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    for verb in ("list", "check", "play", "eval", "train", "view"):
        assert f"\n  {verb} " in done.stdout
    assert done.stdout.rstrip().endswith("set()")
