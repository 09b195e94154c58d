"""Test configs: sources, overrides, TOML round trips, and one-line errors that name what is allowed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.core.settings import config_differences, dump_toml, parse_toml
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.runs.presets import preset_names, preset_text
from understudy.sources.references import list_domains

EXAMPLES = Path(__file__).parents[2] / "examples"


class Inner(Record):
    text: str = "a"
    numbers: tuple[float, ...] = ()
    table: dict[str, Any] = {}


class Outer(Record):
    flag: bool = False
    count: int = 0
    maybe: int | None = None
    names: frozenset[str] = frozenset()
    inner: Inner = Inner()


def config_error(*overrides: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, overrides, where="my.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('endpoints = "gpt"', "endpoints"),
        ('[endpoints]\ndefault = "gpt"', "[endpoints.default]"),
        ("domain = 3", "domain"),
        ("domain = nan", "domain"),
    ],
)
def test_values_where_tables_belong_are_named(text: str, named: str) -> None:
    assert named in config_error("endpoints.default.base_url=http://localhost/v1", text=text)


def test_file_overrides_defaults_and_overrides_win() -> None:
    config = parse_config("seed = 3\n[limits]\nmax_turns = 7\nmax_retries = 1", ["limits.max_turns=9"])
    assert (config.seed, config.limits.max_turns, config.limits.max_retries) == (3, 9, 1)
    assert config.steps == TrainConfig().steps


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("slice.families=a, b", ("a", "b")),
        ('slice.families=["a"]', ("a",)),
        ("slice.families=a", ("a",)),
        ("slice.families=", ()),
        ("domain=7", "7"),
        ("domain=x=y", "x=y"),
        ("algorithm.loss.clip_high=0.28", 0.28),
        ("algorithm.learning_rate=1e-6", 1e-6),
        ("engine.train_embeddings=true", True),
    ],
)
def test_override_is_parsed_to_the_type_of_its_field(override: str, value: object) -> None:
    found: Any = parse_config("", [override])
    for name in override.partition("=")[0].split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("word", ["null", "None"])
def test_null_gives_a_key_its_default_again(word: str) -> None:
    text = "seed = 7\n[engine]\ntrainable_layers = 3\n"
    found = parse_config(text, [f"engine.trainable_layers={word}", f"seed={word}"])
    assert (found.engine.trainable_layers, found.seed) == (0, TrainConfig().seed)
    assert parse_config(text, [f"model={word}"]).model == word, "a text may be any word"


def test_a_pasted_command_is_refused_with_its_settings() -> None:
    pasted = "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n data.train_batch_size=64"
    with pytest.raises(ConfigError, match=r"train algorithm\.adv_estimator=grpo data\.train_batch_size=64$"):
        parse_config("", [pasted])
    assert parse_config("", ["sampling.stop=a b=c"]).sampling.stop == ("a b=c",)


def test_unknown_key_error_names_nearest_and_allowed_keys() -> None:
    error = config_error("algorithm.group_sise=4")
    assert re.search(r"'algorithm\.group_sise'.*'algorithm\.group_size'.*\balgorithm\.advantage_estimator\b", error)
    assert re.search(
        r"my\.toml: .*'limits\.max_turn'.*'limits\.max_turns'", config_error(text="[limits]\nmax_turn = 3")
    )


def test_key_of_another_section_is_suggested() -> None:
    assert re.search(r"'group_size'.*algorithm\.group_size", config_error(text="group_size = 4"))
    assert re.search(r"'sft\.clip_low'.*algorithm\.loss\.clip_low", config_error(text="[sft]\nclip_low = 0.1"))


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("algorithm.group_size=0", r"algorithm\.group_size = 0: .*\b1\b"),
        ("algorithm.max_trained_episodes=1", r"algorithm\.max_trained_episodes = 1: .*'group_mean'"),
        ("algorithm.group_size=1", r"algorithm\.group_size = 1: .*algorithm\.advantage_estimator = 'group_mean'"),
        (
            "algorithm.loss_aggregation=tokn",
            r"algorithm\.loss_aggregation: .*'tokn'.*seq_mean_token_sum_norm, .*token_mean",
        ),
        ("steps=many", r"\bsteps = 'many'.*\binteger\b"),
        ("seed=99999999999999999999999", r"\bseed = '9+'.*less than 9223372036854775808"),
        ("eval.seed=-99999999999999999999999", r"\beval\.seed = '-9+'.*greater than or equal to 0"),
        ("algorithm.learning_rate=inf", r"algorithm\.learning_rate = inf: .*finite number"),
        ("sft.learning_rate=Infinity", r"sft\.learning_rate = 'Infinity': .*finite number"),
        ("algorithm.kl_coef=nan", r"algorithm\.kl_coef = nan: .*"),
        ("epochs=inf", r"epochs = inf: .*finite number"),
        ("steps=true", r"override 'steps=true': steps should be a number, not true"),
        ("algorithm.learning_rate=false", r"algorithm\.learning_rate should be a number, not false"),
        ("cost_limit=true", r"cost_limit should be a number, not true"),
        ("slice.difficulties=easy,hardest", r"slice\.difficulties\.1: .*'hardest'.*'hard'"),
        ("seed.x=1", r"\bseed\b"),
        ("algorithm=ppo", r"algorithm\.preset=ppo"),
        ("sft=1", r"\bsft\b"),
        ("seed", "key=value"),
        ("=1", "key=value"),
    ],
)
def test_invalid_value_error_names_key_and_allowed_values(override: str, error: str) -> None:
    assert re.search(error, config_error(override))


def test_invalid_toml_gives_a_one_line_error() -> None:
    assert config_error(text="seed = ").startswith("my.toml: ")
    assert config_error(text="[eval]\nseed = true").startswith("my.toml: eval.seed should be a number, not true")
    assert re.search(r"my\.toml: .*\balgorithm\b", config_error(text="algorithm = 3"))


def test_load_config_reads_files_presets_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seed = 5")
    assert load_config(path).seed == 5
    path.write_text("seed = 5", encoding="utf-8-sig")
    assert load_config(path).seed == 5
    assert load_config(path, ["seed=6"]).seed == 6
    assert load_config() == load_config("retail_quick") == parse_config(preset_text("retail_quick"))
    with pytest.raises(ConfigError, match=r"'retail_esay'.*'retail_easy'"):
        load_config("retail_esay")
    with pytest.raises(ConfigError, match=r"no file or folder .*gone\.toml"):
        load_config(tmp_path / "gone.toml")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"mine\.toml .*utf-8"):
        load_config(path)


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_valid_and_start_with_a_comment(name: str) -> None:
    assert parse_config(dump_toml(load_config(name))) == load_config(name)
    assert re.match(r"# .+[.?]\n", preset_text(name)), "its first line is a sentence, which `understudy list` prints"


@pytest.mark.parametrize(
    "path",
    [path for pattern in ("*.toml", "skyrl/*.toml", "mcp/train_*.toml") for path in EXAMPLES.glob(pattern)],
    ids=lambda path: path.stem,
)
def test_example_configs_are_valid_and_start_with_a_comment(path: Path) -> None:
    assert load_config(path).steps
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("kind", ["easy", "quick"])
@pytest.mark.parametrize("domain", sorted({*list_domains()} - {"retail"}))
def test_presets_of_domains_differ_from_that_of_retail_as_documented(domain: str, kind: str) -> None:
    found = config_differences(load_config(f"retail_{kind}"), load_config(f"{domain}_{kind}"))
    lengths = {"limits.max_turns", "limits.max_episode_tokens", "sft.steps", "sft.num_demonstrations"}
    slices = {"domain", "slice.families", "slice.tools"}
    if (domain, kind) == ("airline", "quick"):
        slices.add("steps")
    assert {text.partition(":")[0] for text in found} - lengths == slices


@pytest.mark.parametrize("domain", ["doordash", "healthcare"])
def test_quick_preset_is_a_part_of_the_easy_one(domain: str) -> None:
    quick, easy = (load_config(f"{domain}_{kind}").slice for kind in ("quick", "easy"))
    assert {*quick.families} < {*easy.families}
    assert {*quick.tools} < {*easy.tools}


def test_quick_preset_of_five_domains_has_the_slices_of_the_others() -> None:
    five = load_config("five_quick").slice
    own = {domain: load_config(f"{domain}_quick").slice for domain in list_domains()}
    families = {f"{domain}/{name}" for domain, found in own.items() for name in found.families}
    tools = {f"{domain}/{name}" for domain, found in own.items() for name in found.tools}
    assert {*five.families} == families - {"telecom/bill"} | {"telecom/suspend"}
    assert {*five.tools} == tools - {"telecom/get_customer", "telecom/get_bill"} | {"telecom/suspend_line"}


def test_dumped_toml_documents_keys_in_comments() -> None:
    text = dump_toml(TrainConfig())
    assert '"mcp:notes.toml"]`.\ndomain = "retail"' in text
    assert "\n[algorithm.loss]\n" in text


def test_config_differences_name_keys_and_values() -> None:
    one = parse_config("", ["limits.max_turns=3", "seed=1"])
    assert config_differences(one, one) == []
    assert config_differences(one, one.replace(seed=2)) == ["seed: 1 and 2"]
    assert config_differences(parse_config(""), one) == ["seed: 0 and 1", "limits.max_turns: 30 and 3"]


text = st.text(st.characters(exclude_categories=("Cs",)))
plain = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | text
values = st.recursive(plain, lambda v: st.lists(v, max_size=3) | st.dictionaries(text, v, max_size=3), max_leaves=6)
inner = st.builds(
    Inner,
    text=text,
    numbers=st.lists(st.floats(allow_nan=False)).map(tuple),
    table=st.dictionaries(text, values, max_size=3),
)
outer = st.builds(
    Outer,
    flag=st.booleans(),
    count=st.integers(-(2**62), 2**62),
    maybe=st.none() | st.integers(0, 9),
    names=st.frozensets(text, max_size=3),
    inner=inner,
)


@given(outer)
def test_dumped_config_parses_back_equal(config: Outer) -> None:
    assert parse_toml(Outer, dump_toml(config)) == config


def test_parsing_a_config_does_not_import_torch() -> None:
    code = "import sys, understudy.runs.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_reference_without_a_model_is_the_model_of_the_run() -> None:
    assert load_config("smoke").algorithm.reference.model == "tiny"
    assert load_config("smoke", ["model=smollm2-135m"]).algorithm.reference.model == "smollm2-135m"
    ema = load_config("smoke", ["algorithm.reference.kind=ema"]).algorithm.reference
    assert (ema.kind, ema.model) == ("ema", "")
    with pytest.raises(ConfigError, match=r"algorithm\.reference"):
        load_config("smoke", ["algorithm.reference.kind=ema", "algorithm.reference.model=tiny"])


def test_slice_of_another_domain_names_the_keys_to_empty() -> None:
    with pytest.raises(ConfigError, match=r"'cancel_order'.* slice\.families= slice\.tools="):
        load_config("smoke", ["domain=airline"]).open_source()
    load_config("smoke", ["domain=airline", "slice.families=", "slice.tools="]).open_source()
