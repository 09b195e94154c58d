"""The command line: each verb once, and every mistake as one line with exit code 2."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from toy import DOMAIN
from understudy import launch
from understudy.agent import GoldAgent
from understudy.cli import main
from understudy.config import TrainConfig
from understudy.crew import Crew
from understudy.errors import ConfigError, RolloutError
from understudy.evaluation import Evaluation
from understudy.run import Run, read_config, read_metrics
from understudy.settings import parse
from understudy.weights import config_of

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the program: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["understudy", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return run


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`understudy.train` without torch: two steps, a checkpoint, one row."""

    def train(
        config: TrainConfig, run: Run, report: Callable[..., None], crew: Crew
    ) -> dict[str, list[tuple[str, Evaluation]]]:
        for step in range(run.step + 1, 3):
            run.log(step, {"reward": step / 2})
            report("train", step, 2, {"reward": step / 2})
            with run.checkpoint(step) as folder:
                (folder / "weights").write_text("w")
        result = {"task": "t", "family": "f", "difficulty": "easy", "rewards": (1.0,)}
        row = Evaluation.model_validate({"domain": "toy", "seed": 0, "trials": 1, "results": (result,)})
        return {"evaluations": [("trained", row)]}

    module = ModuleType("understudy.train")
    vars(module).update(train=train)
    monkeypatch.setitem(sys.modules, "understudy.train", module)
    return module


def test_list(call: Call) -> None:
    code, text, _ = call("list")
    assert code == 0
    assert "smollm2-135m" in text
    found = json.loads(call("list", "--json")[1])
    assert found.keys() == {"domains", "benchmarks", "models", "formats", "engines", "algorithms", "presets"}
    assert "retail" in found["domains"]
    assert all(line for entries in found.values() for line in entries.values())


def test_check(call: Call) -> None:
    code, text, _ = call("check", "toy:DOMAIN")
    assert code == 0
    assert "sound: gold earns 1.0" in text
    report = json.loads(call("check", "toy:DOMAIN", "--json")[1])
    assert report["problems"] == []
    assert [(s["split"], s["tasks"], s["floor"], s["oracle"]) for s in report["splits"]] == [
        ("train", 12, 0.0, 1.0),
        ("validation", 12, 0.0, 1.0),
        ("test", 12, 0.0, 1.0),
    ]


def test_check_of_all_domains(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.domains.base.names", lambda: ["toy:DOMAIN", "toy:DOMAIN"])
    code, text, _ = call("check")
    assert (code, text.count("sound: gold earns 1.0")) == (0, 2)
    assert [report["domain"] for report in json.loads(call("check", "--json")[1])] == ["toy", "toy"]


def test_check_of_an_unsound_slice(call: Call) -> None:
    code, text, _ = call("check", "toy:DOMAIN", "slice.tools=find_lamp")
    assert code == 1
    assert "its gold calls switch_lamp, which is not among the tools shown" in text
    assert text.rstrip().endswith("problems")


def test_eval(call: Call) -> None:
    code, text, _ = call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "10", "--trials", "2", "--split", "train")
    assert code == 0
    assert "gold succeeds on 1.000" in text
    assert "pass^2" in text
    found = json.loads(call("eval", "toy:DOMAIN", "slice.families=one", "--agent", "silent", "--json")[1])
    assert [row["success"]["mean"] for row in found["rows"]] == [0.0, 1.0, 0.0]
    assert {r["family"] for r in found["rows"][2]["evaluation"]["results"]} == {"one"}


def test_eval_takes_the_domain_of_a_config_or_a_run(call: Call, tmp_path: Path) -> None:
    config = parse(TrainConfig, "", ["domain=toy:DOMAIN", "slice.families=two", "eval.tasks=3"])
    run = Run.create(tmp_path / "run", config)
    for what in (run.folder, run.folder / "config.toml"):
        found = json.loads(call("eval", str(what), "--agent", "gold", "--json")[1])
        assert [r["family"] for r in found["rows"][2]["evaluation"]["results"]] == ["two"] * 3


def test_eval_of_a_run_takes_its_last_whole_checkpoint(
    call: Call, trainer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    (tmp_path / "toy.toml").write_text('domain = "toy:DOMAIN"')
    call("train", str(tmp_path / "toy.toml"), "--out", str(folder))
    (folder / "checkpoints" / "step_000002" / "weights").write_text("damaged")
    taken: list[Path | None] = []

    def agent(name: str, config: TrainConfig, checkpoint: Path | None, payer: object) -> GoldAgent:
        taken.append(checkpoint)
        return GoldAgent()

    monkeypatch.setattr("understudy.assess.sitting.named_agent", agent)
    monkeypatch.chdir(tmp_path)
    code, _, err = call("eval", str(folder), "--tasks", "3")
    assert (code, taken) == (0, [folder / "checkpoints" / "step_000001"])
    assert "step_000002 is damaged" in err
    assert call("eval", str(folder / "checkpoints" / "step_000001"), "--tasks", "3")[0] == 0
    assert taken[1:] == taken[:1]
    Run.create(tmp_path / "new", TrainConfig())
    assert "has no checkpoint yet" in call("eval", str(tmp_path / "new"))[2]


def test_play(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello, a lamp please.\nYes.\n\n"))
    code, text, _ = call("play", "toy:DOMAIN", "--as", "user", "--task", DOMAIN.tasks("test")[0].id, "--split", "test")
    assert code == 0
    assert "reward 1 " in text


def test_train_and_view(call: Call, trainer: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, text, err = call("train", "domain=toy:DOMAIN", "seed=4", "--out", str(folder))
    assert code == 0
    assert "trained succeeds on 1.000" in text
    assert f"understudy view {folder}" in text
    assert "step 2/2 reward=1 left=" in err
    assert read_config(folder).seed == 4
    assert (folder / "result.md").exists()
    code, text, _ = call("view", "--text", str(folder))
    assert code == 0
    assert f"{'reward/average_reward':<36} ▁█" in text


def test_resume(call: Call, trainer: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    call("train", "domain=toy:DOMAIN", "--out", str(folder))
    (folder / "checkpoints" / "step_000002" / "weights").write_text("damaged")
    code, _, err = call("train", "--resume", str(folder))
    assert code == 0
    assert "step_000002 is damaged" in err
    assert [line["step"] for line in read_metrics(folder)] == [1, 2]
    assert call("train", "--resume", str(folder), "--out", "x")[0] == 2
    assert "seed: 0 and 9" in call("train", "seed=9", "--resume", str(folder))[2]


def test_train_never_writes_over_a_run(call: Call, trainer: ModuleType, tmp_path: Path) -> None:
    call("train", "--out", str(tmp_path / "run"))
    code, _, err = call("train", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "holds another run" in err


def test_certify(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from understudy.certify import proof
    from understudy.formats import ChatML
    from understudy.models import make_tiny

    model = str(make_tiny(tmp_path))
    small = (
        "engine.finetune=full",
        "engine.rows=0",
        "engine.device=cpu",
        "engine.dtype=float32",
        "sampling.max_tokens=3",
    )
    code, text, _ = call("certify", model, *small)
    assert (code, text.count("FAILED")) == (0, 0)
    assert re.search(r"full, updated .* ok .*\n.*\n.*log-probabilities agree +│ ok +│ largest", text)
    assert "\ncertified, in " in text
    monkeypatch.setattr(proof, "ways", lambda config: ())
    encode = ChatML.encode  # without the line break before a turn
    monkeypatch.setattr(
        ChatML, "encode", lambda self, new, tools, before: encode(self, new, tools, before)[len(before) > 0 :]
    )
    code, text, _ = call("certify", model, "--json")
    certificate = json.loads(text)
    assert (code, certificate["ok"], certificate["format"]) == (1, False, "ChatML")
    assert "> " in next(check["diff"] for check in certificate["checks"] if not check["ok"])


def test_keys(call: Call) -> None:
    code, text, _ = call("train", "default", "seed=9", "--keys")
    assert code == 0
    assert "# Groups in a step.\ntasks_per_step = " in text
    assert parse(TrainConfig, text).seed == 9


def test_launch_reads_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert launch.read([])[0] == "default"
    assert launch.read(["seed=2"])[1].seed == 2
    (tmp_path / "mine.toml").write_text("seed = 3")
    assert launch.read([str(tmp_path / "mine.toml"), "steps=1"]) == ("mine", TrainConfig(seed=3, steps=1))
    (tmp_path / "plain").write_text("seed = 4")
    assert launch.read([str(tmp_path / "plain")]) == ("plain", TrainConfig(seed=4))
    monkeypatch.chdir(tmp_path)
    assert [launch.open_run([], None, None).folder.name for _ in range(2)] == ["default-001", "default-002"]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("retail", "retail"),
        ("toy:DOMAIN", "toy-DOMAIN"),
        ("mcp:notes.toml", "mcp-notes.toml"),
        ("mix:retail*2,mcp:notes.toml", "mix-retail-2-mcp-notes.toml"),
        ("tau2:../tau2-bench#telecom", "tau2-..-tau2-bench-telecom"),
    ],
)
def test_train_takes_a_domain_as_check_does(what: str, name: str) -> None:
    whole = TrainConfig(domain=what, seed=3)
    assert launch.read([what, "seed=3"]) == (name, whole)
    assert config_of(what, ["seed=3"]) == whole


def test_a_run_is_the_config_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = launch.open_run(["toy:DOMAIN", "seed=5"], tmp_path / "mine", None)
    for what in (run.folder, run.folder / "config.toml"):
        assert launch.read([str(what), "steps=7"]) == ("mine", TrainConfig(domain="toy:DOMAIN", seed=5, steps=7))
    monkeypatch.chdir(run.folder)
    assert launch.read(["."])[0] == "mine"
    (tmp_path / "config.toml").write_text("seed = 6")
    assert launch.read([str(tmp_path / "config.toml")]) == ("config", TrainConfig(seed=6))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train", "--resme", "x"], "--resume"),
        (["train", "algorithm.group_sise=3"], "did you mean 'algorithm.group_size'?"),
        (["train", "defualt"], "unknown preset or domain 'defualt'; did you mean 'default'?"),
        (["train", "retial"], "did you mean 'retail'?"),
        (["doctor", "retial"], "did you mean 'retail'?"),
        (["train", "gone.toml"], "config gone.toml: "),
        (["train", "."], ". is not a run: it has no config.toml"),
        (["train", "--resume", "nowhere"], "nowhere is not a run"),
        (["check", "retial"], "unknown domain 'retial'; did you mean 'retail'?"),
        (["check", "toy:NOTHING"], "module toy has no 'NOTHING'; allowed: DIFFICULTIES"),
        (["check", "toy:DOMAIN", "slice.families=onne"], "did you mean 'one'?"),
        (["eval", "toy:DOMAIN", "--agent", "glod"], "did you mean 'gold'?"),
        (["eval", "toy:DOMAIN", "--model", "smolm2-135m"], "did you mean 'smollm2-135m'?"),
        (["eval", "toy:DOMAIN", "--split", "tset"], "did you mean 'test'?"),
        (["play", "toy:DOMAIN", "--task", "toy/x"], "unknown task 'toy/x'"),
        (["play", "toy:DOMAIN", "--as", "usr"], "'user'"),
        (["certify", "smolm2-135m"], "did you mean 'smollm2-135m'?"),
        (["certify", "tiny", "certify.evry=1"], "did you mean 'certify.every'?"),
        (["view", "nowhere"], "nowhere is not a run"),
        (["view", "--text", "nowhere"], "nowhere is not a run"),
    ],
)
def test_mistakes(call: Call, arguments: list[str], said: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    if err.startswith("understudy: "):
        assert err.count("\n") == 1


def test_how_training_stops(call: Call, trainer: ModuleType, tmp_path: Path) -> None:
    def raising(error: BaseException) -> Mapping[str, Any]:
        def train(*_: object) -> None:
            raise error

        return {"train": train}

    vars(trainer).update(raising(KeyboardInterrupt("stopped; go on with: understudy train --resume x")))
    code, _, err = call("train", "--out", str(tmp_path / "a"))
    assert (code, err.splitlines()[-1]) == (130, "stopped; go on with: understudy train --resume x")
    vars(trainer).update(raising(RolloutError("9 of 10 episodes failed", "engine")))
    code, _, err = call("train", "--out", str(tmp_path / "b"))
    assert (code, err) == (1, "understudy: 9 of 10 episodes failed\n")
    vars(trainer).update(raising(ConfigError("no such device")))
    assert call("train", "--out", str(tmp_path / "c"))[0] == 2
    assert [(tmp_path / name).exists() for name in "abc"] == [True, True, False]
    assert call("train", "--resume", str(tmp_path / "b"))[0] == 2
    assert (tmp_path / "b" / "config.toml").exists(), "a run that is gone on with is never removed"


def test_without_torch_training_says_what_to_install(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("understudy.train")]:  # what other tests have loaded
        monkeypatch.delitem(sys.modules, name)
    code, _, err = call("train", "--out", str(tmp_path / "run"))
    told = "understudy: training needs torch; run pip install -e '.[train]' in the clone of understudy\n"
    assert (code, err) == (2, told)
    assert not (tmp_path / "run").exists()


def test_help_says_what_there_is_and_loads_little() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); sys.argv = ['understudy', '--help']\n"
        "from understudy.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'understudy.evaluate', 'understudy.config'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    for verb in ("list", "check", "play", "eval", "train", "view"):
        assert f"\n  {verb} " in done.stdout
    assert done.stdout.rstrip().endswith("set()")
