"""Test targets: detecting what a command's first argument names, and the config that it gives."""

import re
from pathlib import Path

import pytest

import understudy
from understudy.core.errors import ConfigError
from understudy.core.settings import find_field
from understudy.engines.models.lookup import find_model
from understudy.envs.domain import Domain
from understudy.envs.task_source import FULL_SLICE, Slice
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.other_names import OTHER_NAMES
from understudy.runs.presets import DEFAULT_PRESET, preset_names
from understudy.runs.run import Run
from understudy.runs.targets import (
    TargetKind,
    detect_target,
    find_target,
    has_target,
    resolve,
    split_arguments,
)
from understudy.runs.weights import resolve_weights
from understudy.sources.references import list_domains


@pytest.fixture
def target_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create one target of every kind that has a path, and change into the folder."""
    monkeypatch.chdir(tmp_path)
    run = Run.create(Path("runs/first"), parse_config("", ["domain=toy:DOMAIN", "seed=5"]))
    with run.write_checkpoint(3) as checkpoint:
        (checkpoint / "weights").write_text("weights")
    Path("evals/noop").mkdir(parents=True)
    spec = EvalSpec(name="noop", agent="noop", config=TrainConfig(seed=6))
    Path("evals/noop/spec.json").write_text(spec.model_dump_json())
    Path("mine.toml").write_text("seed = 7")
    Path("notes.toml").write_text('tasks = "tasks.jsonl"\n[server]\ncommand = "notes"\n')
    Path("tasks.jsonl").write_text("")
    Path("rows.xlsx").write_bytes(b"PK")
    Path("ROWS.JSONL").write_text("")
    Path("parts").mkdir()
    Path("parts/train.parquet").write_text("")
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("telecom_easy", "preset"),
        ("retail", "domain"),
        ("my_package.my_module:SUMS", "domain"),
        ("mcp:notes.toml", "domain"),
        ("mix:retail*2,telecom", "domain"),
        ("tau2:../tau2-bench#telecom", "domain"),
        ("notes.toml", "domain"),
        ("mine.toml", "config"),
        ("gone.toml", "config"),
        ("runs/first", "run"),
        ("runs/first/checkpoints/step_000003", "checkpoint"),
        ("evals/noop", "evaluation"),
        ("tasks.jsonl", "tasks"),
        ("parts", "tasks"),
        ("model", "model"),
        ("empty", None),
        ("nowhere", None),
    ],
)
def test_target_kind_is_detected(target_folder: Path, text: str, kind: TargetKind | None) -> None:
    found = detect_target(text)
    assert (found and found.kind) == kind


def test_preset_or_domain_name_wins_over_a_path(target_folder: Path) -> None:
    assert not {*preset_names()} & {*list_domains()}
    for name, kind in (("retail", "domain"), ("smoke", "preset")):
        Run.create(Path(name), TrainConfig(seed=8))
        assert find_target(name).kind == kind
        assert resolve([f"./{name}"]).config.seed == 8


@pytest.mark.parametrize(
    ("arguments", "name", "config"),
    [
        ([], DEFAULT_PRESET, load_config(DEFAULT_PRESET)),
        (["seed=2"], DEFAULT_PRESET, load_config(DEFAULT_PRESET, ["seed=2"])),
        (["telecom_easy", "seed=2"], "telecom_easy", load_config("telecom_easy", ["seed=2"])),
        (["seed=2", "retail"], "retail", TrainConfig(domain="retail", seed=2)),
        (["domain=retail", "seed=2"], "retail", TrainConfig(domain="retail", seed=2)),
        (["retail", "domain=retail"], "retail", TrainConfig(domain="retail")),
        (
            ["mix:retail*2,mcp:notes.toml"],
            "mix-retail-2-mcp-notes.toml",
            TrainConfig(domain="mix:retail*2,mcp:notes.toml"),
        ),
        (["tau2:../tau2#telecom"], "tau2-..-tau2-telecom", TrainConfig(domain="tau2:../tau2#telecom")),
        (["notes.toml"], "mcp-notes.toml", TrainConfig(domain="mcp:notes.toml")),
        (["domain=notes.toml"], "mcp-notes.toml", TrainConfig(domain="mcp:notes.toml")),
        (["mine.toml", "domain=telecom"], "mine", TrainConfig(domain="telecom", seed=7)),
        (["runs/first", "steps=1"], "first", TrainConfig(domain="toy:DOMAIN", seed=5, steps=1)),
        (["runs/first/config.toml"], "first", TrainConfig(domain="toy:DOMAIN", seed=5)),
        (["runs/first/checkpoints/step_000003"], "first", TrainConfig(domain="toy:DOMAIN", seed=5)),
        (["evals/noop", "steps=1"], "noop", TrainConfig(seed=6, steps=1)),
    ],
    ids=str,
)
def test_resolve_returns_the_name_and_config_of_a_target(
    target_folder: Path, arguments: list[str], name: str, config: TrainConfig
) -> None:
    resolved = resolve(arguments)
    assert (resolved.name, resolved.config) == (name, config)


def test_current_folder_resolves_as_a_run(target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("runs/first")
    assert resolve(["."]).name == resolve(["config.toml"]).name == "first"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retial"], ["'retail'", "module:attribute", "config.toml"]),
        (["domain=retial"], ["'retail'", "module:attribute"]),
        (["domain=telecom_easy"], ["telecom_easy", "preset"]),
        (["retail", "domain=telecom"], ["retail", "domain=telecom"]),
        (["retail", "telecom"], ["'retail'", "'telecom'", "key=value"]),
        (["model"], ["model"]),
        (["empty"], ["empty", "config.toml"]),
        (["gone.toml"], ["gone.toml"]),
        (["rows.xlsx"], ["rows.xlsx", "'.xlsx'", ".jsonl", ".csv", ".toml"]),
        (["ROWS.JSONL"], ["ROWS.JSONL", "'.JSONL'", ".jsonl"]),
        (["retail", "sed=1"], ["'seed'"]),
        (["retail", "reward=rewards:score"], ["data.reward=rewards:score"]),
    ],
    ids=str,
)
def test_invalid_target_error_names_alternatives(target_folder: Path, arguments: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(arguments)
    assert [word for word in words if word not in str(raised.value)] == []
    assert "\n" not in str(raised.value)


def test_error_names_only_the_allowed_target_kinds(target_folder: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        find_target("telecom_easy", ("domain", "tasks"))
    assert ".parquet" in str(raised.value)
    assert "of a run" not in str(raised.value)


def test_settings_as_in_yaml() -> None:
    assert resolve(["retail", "slice.families=[cancel, return]"]).config.slice.families == ("cancel", "return")
    for words, named in ((["lora_rank: 16"], "lora_rank=16"), (["engine.lora.rank:", "16"], "engine.lora.rank=VALUE")):
        with pytest.raises(ConfigError, match=named):
            resolve(["retail", *words])


def test_split_arguments_separates_target_and_overrides() -> None:
    assert split_arguments(["a.b=1", "retail"]) == (["retail"], ["a.b=1"])
    assert split_arguments(["runs/lr=1", "x.y-z=a/b:c"]) == (["runs/lr=1"], ["x.y-z=a/b:c"])
    assert [has_target(each) for each in ([], ["seed=1"], ["retail"], ["domain=retail"])] == [
        False,
        False,
        True,
        True,
    ]


def test_load_returns_the_domain_of_a_target(target_folder: Path) -> None:
    retail = understudy.load("retail")
    assert (retail.name, isinstance(retail, Domain) and retail.task_slice) == ("retail", Slice())
    easy = understudy.load("telecom_easy", "slice.families=sim")
    assert {(task.family, task.difficulty) for task in easy.tasks("test")} == {("sim", "easy")}
    assert understudy.load("runs/first").name == "toy"
    with pytest.raises(ConfigError, match="'retail'"):
        understudy.load("retial")


def test_resolve_weights_of_runs_checkpoints_and_evaluations(target_folder: Path) -> None:
    step = "runs/first/checkpoints/step_000003"
    assert resolve_weights("runs/first").checkpoint == resolve_weights(step).checkpoint == Path(step)
    with pytest.raises(ConfigError, match=r"evals/noop .*noop\b.*no weights"):
        resolve_weights("evals/noop")
    for target in ("retail", "telecom_easy"):
        with pytest.raises(ConfigError, match="checkpoint"):
            resolve_weights(target)


LAYER = """
[engine]
kind = "tinker"
[algorithm]
learning_rate = 3e-6
"""


def test_configs_after_a_target_override_it_in_order(target_folder: Path) -> None:
    Path("layer.toml").write_text(LAYER)
    Path("last.toml").write_text('domain = "airline"\nsteps = 7\n[engine]\nkind = "local"\nfinetune = "lora"\n')
    found = resolve(["retail_easy", "dapo", "layer.toml"]).config
    assert (found.algorithm.advantage_estimator, found.algorithm.learning_rate) == ("grpo", 3e-6)
    assert found.algorithm.preset == "dapo"
    assert (
        resolve(["retail_easy", "ppo", "dapo"]).config
        == resolve(["retail_easy", "ppo", "algorithm.preset=dapo"]).config
    )
    assert (found.engine.kind, found.slice.domain_policy) == ("tinker", "brief")
    found = resolve(["retail", "layer.toml", "last.toml", "steps=9"]).config
    assert (found.domain, found.engine.kind, found.steps) == ("airline", "local", 9)
    assert found.engine.export_engine_config.finetune == "lora"


def test_algorithm_replaces_the_keys_of_the_algorithm_below_it(target_folder: Path) -> None:
    Path("rloo.toml").write_text('[algorithm]\npreset = "rloo"\ngroup_size = 5\n')
    found = resolve(["retail_easy", "dapo", "rloo.toml"]).config.algorithm
    assert (found.preset, found.advantage_estimator, found.group_size) == ("rloo", "rloo", 5)


def test_kind_of_a_section_drops_the_keys_of_another_kind(target_folder: Path) -> None:
    Path("base.toml").write_text('[engine]\nkind = "local"\nthreads = 2\nfinetune = "lora"\n')
    Path("layer.toml").write_text('[engine]\nkind = "skyrl"\n')
    engine = resolve(["base.toml", "layer.toml"]).config.engine
    assert (engine.kind, engine.finetune) == ("skyrl", "lora")  # type: ignore[union-attr]
    Path("keys.toml").write_text("[engine]\nthreads = 3\n")
    with pytest.raises(ConfigError, match=r"keys\.toml.*'skyrl'.*threads"):
        resolve(["base.toml", "layer.toml", "keys.toml"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retail", "telecom"], ["telecom", "a domain", "mix:A,B"]),
        (["retail", "dapoo"], ["'dapoo'", "'dapo'"]),
        (["dapo"], ["'dapo'", "algorithm", "retail dapo"]),
    ],
)
def test_name_that_cannot_follow_a_target(target_folder: Path, arguments: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(arguments)
    assert [word for word in words if word not in str(caught.value)] == []


def test_configs_after_the_name_of_a_model(target_folder: Path) -> None:
    Path("layer.toml").write_text("seed = 4\n[engine]\nthreads = 2\n")
    found = resolve_weights("tiny", ["layer.toml", "seed=5"]).config
    assert (found.model, found.seed, found.engine.export_engine_config.threads) == ("tiny", 5, 2)
    with pytest.raises(ConfigError, match=r"'nosuch'.*'tiny'"):
        resolve_weights("tiny", ["nosuch"])


@pytest.mark.parametrize(
    "setting",
    [
        "num_generations=4",
        "group_size=4",
        "algorithm.group_size=4",
        "num_generations = 4",
        "group_size =4",
        "group_size= 4",
    ],
)
def test_short_keys_names_of_other_libraries_and_spaces(target_folder: Path, setting: str) -> None:
    assert resolve(["retail", *setting.split(), "seed", "=", "3"]).config.algorithm.group_size == 4
    assert resolve_weights("tiny", [*setting.split(), "seed=3"]).config.seed == 3


def test_key_without_a_value_before_another_argument_stays_empty(target_folder: Path) -> None:
    found = resolve(["retail", "slice.tools=", "dapo", "model=", "tiny"]).config
    assert (found.slice.tools, found.model) == ((), "tiny")
    assert found.algorithm == resolve(["retail", "dapo"]).config.algorithm


def test_short_key_of_an_algorithm_preset_sets_the_preset(target_folder: Path) -> None:
    assert resolve(["retail", "preset=rloo"]).config == resolve(["retail", "algorithm.preset=rloo"]).config


@pytest.mark.parametrize(
    ("setting", "keys"),
    [
        ("lr=1", ["algorithm.learning_rate", "sft.learning_rate"]),
        ("algorithm.lr=1", ["algorithm.learning_rate"]),
        ("beta=1", ["algorithm.kl_coef", "preferences.beta"]),
        ("batch_size=1", ["sft.batch_size", "preferences.batch_size"]),
        ("api_key_var=A", ["endpoints.NAME.api_key_var"]),
    ],
)
def test_ambiguous_key_names_the_keys_that_it_may_mean(target_folder: Path, setting: str, keys: list[str]) -> None:
    for change in ([setting], ["file.toml"]):
        name, _, value = setting.partition("=")
        Path("file.toml").write_text(f'{name} = "{value}"\n')
        with pytest.raises(ConfigError) as caught:
            resolve(["retail", *change])
        assert re.findall(r"[\w.]+\.\w+(?= or |\?)", str(caught.value)) == keys


def test_every_other_name_stands_for_keys_of_the_config() -> None:
    for name, keys in OTHER_NAMES.keys.items():
        known = [key for key in keys if find_field(TrainConfig, f"{key}x" if key.endswith(".") else key)[1]]
        assert known == [*keys], name


def test_path_that_does_not_exist(target_folder: Path) -> None:
    for path, hint in (("./nosuch", "evals, "), ("runs/frist", "runs/first"), ("no/such/path", "no/such")):
        with pytest.raises(ConfigError, match=f"{path}.*{hint}"):
            resolve([path])
        with pytest.raises(ConfigError, match=f"{path}.*{hint}"):
            find_model(resolve_weights(path).config.model)


@pytest.mark.parametrize(
    ("arguments", "name", "domain"),
    [
        (["data.train=one.jsonl"], "one", "{folder}/one.jsonl"),
        (['data.train=["one.jsonl"]'], "one", "{folder}/one.jsonl"),
        (["data.train=one.jsonl,two.jsonl"], "mix-one-two", "mix:one.jsonl,two.jsonl"),
        (['domain=["one.jsonl", "two.jsonl"]'], "mix-one-two", "mix:one.jsonl,two.jsonl"),
        (["domain=one.jsonl,two.jsonl"], "mix-one-two", "mix:one.jsonl,two.jsonl"),
        (["domain=retail", "data.train=one.jsonl"], "retail", "retail"),
        (["telecom", "data.train=one.jsonl"], "telecom", "telecom"),
    ],
    ids=str,
)
def test_files_of_training_tasks_are_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str, domain: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("one.jsonl", "two.jsonl"):
        Path(file).write_text("{}\n")
    resolved = resolve(arguments)
    assert (resolved.name, resolved.config.domain) == (name, domain.format(folder=tmp_path))
    assert resolved.config.slice == FULL_SLICE, "no slice of a preset"
    assert has_target(arguments)


@pytest.mark.parametrize("settings", [["data.reward=a:f", "data.reward=b:g"], ["slice.tools=a", "slice.tools=b"]])
def test_a_key_of_the_data_is_given_once(settings: list[str]) -> None:
    with pytest.raises(ConfigError, match=rf"{settings[0].partition('=')[0]} is given twice, as '.*' and '.*'"):
        resolve(["retail", *settings])
    assert resolve(["retail", "steps=3", "steps=4", "slice.tools=get_order", "slice.tools=get_order"]).config.steps == 4
