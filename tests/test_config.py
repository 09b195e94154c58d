"""Configs: what was written is read back, and every mistake is one line that names what is allowed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.records import Record
from understudy.settings import differences, dump, load, parse, preset_text, presets

EXAMPLES = Path(__file__).parents[1] / "examples"


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


def failure(*overrides: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        parse(TrainConfig, text, overrides, where="my.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_file_beats_defaults_and_overrides_beat_the_file() -> None:
    config = parse(TrainConfig, "seed = 3\n[limits]\nmax_turns = 7\nretries = 1", ["limits.max_turns=9"])
    assert (config.seed, config.limits.max_turns, config.limits.retries) == (3, 9, 1)
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
def test_an_override_has_the_type_of_its_field(override: str, value: object) -> None:
    found: Any = parse(TrainConfig, "", [override])
    for name in override.partition("=")[0].split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_an_unknown_key_names_the_nearest_and_the_allowed() -> None:
    assert "'algorithm.group_sise'; did you mean 'algorithm.group_size'? allowed: algorithm.advantage" in failure(
        "algorithm.group_sise=4"
    )
    assert "my.toml: unknown key 'limits.max_turn'; did you mean 'limits.max_turns'?" in failure(
        text="[limits]\nmax_turn = 3"
    )


def test_a_key_of_another_section_is_found() -> None:
    assert "unknown key 'group_size'; did you mean 'algorithm.group_size'?" in failure("group_size=4")
    assert "did you mean 'algorithm.loss.clip_low'?" in failure(text="[sft]\nclip_low = 0.1")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.group_size=0", "algorithm.group_size = 0: it should be greater than or equal to 1"),
        ("algorithm.group_size=1", "algorithm.group_size = 1: algorithm.advantage = 'group' compares the episodes"),
        (
            "algorithm.per=tokn",
            "algorithm.per: unknown value 'tokn'; did you mean 'token'? allowed: constant, sequence",
        ),
        ("steps=many", "steps = 'many': it should be a valid integer"),
        ("slice.difficulties=easy,hardest", "slice.difficulties.1: unknown value 'hardest'; did you mean 'hard'?"),
        ("seed.x=1", "seed is a value, not a section"),
        ("algorithm=ppo", "algorithm is a section, not a value; did you mean algorithm.preset=ppo?"),
        ("sft=1", "sft is a section, not a value"),
        ("seed", "is not of the form key=value"),
        ("=1", "is not of the form key=value"),
    ],
)
def test_a_wrong_value_says_which_and_what_is_allowed(override: str, said: str) -> None:
    assert said in failure(override)


def test_broken_files_are_one_line() -> None:
    assert failure(text="seed = ").startswith("my.toml: not TOML:")
    assert "my.toml: algorithm is a section, not a value" in failure(text="algorithm = 3")


def test_sources(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seed = 5")
    assert load(TrainConfig, path).seed == 5
    assert load(TrainConfig, path, ["seed=6"]).seed == 6
    assert load(TrainConfig) == parse(TrainConfig, preset_text("default"))
    with pytest.raises(ConfigError, match="unknown preset 'defualt'; did you mean 'default'"):
        load(TrainConfig, "defualt")
    with pytest.raises(ConfigError, match=r"config .*gone.toml: "):
        load(TrainConfig, tmp_path / "gone.toml")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"mine.toml: 'utf-8' codec"):
        load(TrainConfig, path)


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid_and_begin_with_what_they_are(name: str) -> None:
    assert parse(TrainConfig, dump(load(TrainConfig, name))) == load(TrainConfig, name)
    assert preset_text(name).startswith("# ")


@pytest.mark.parametrize(
    "path",
    [path for pattern in ("*.toml", "skyrl/*.toml", "mcp/train_*.toml") for path in EXAMPLES.glob(pattern)],
    ids=lambda path: path.stem,
)
def test_examples_are_valid_and_begin_with_what_they_are(path: Path) -> None:
    assert load(TrainConfig, path).steps
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("name", [name for name in presets() if name.endswith("_easy")])
def test_an_easy_slice_has_the_numbers_of_the_default(name: str) -> None:
    own = {text.partition(":")[0] for text in differences(load(TrainConfig), load(TrainConfig, name))}
    assert own == {"domain", "slice.families", "slice.tools", "limits.max_turns", "limits.max_tokens"}


def test_every_knob_is_documented_above_its_key() -> None:
    text = dump(TrainConfig())
    assert 'such as `tau-bench:PATH#retail`.\ndomain = "retail"' in text
    assert "\n[algorithm.loss]\n" in text


def test_differences_name_the_keys() -> None:
    one = parse(TrainConfig, "", ["limits.max_turns=3", "seed=1"])
    assert differences(one, one) == []
    assert differences(one, one.replace(seed=2)) == ["seed: 1 and 2"]
    assert differences(parse(TrainConfig, ""), one) == ["seed: 0 and 1", "limits.max_turns: 30 and 3"]


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
def test_dump_is_read_back_equal(config: Outer) -> None:
    assert parse(Outer, dump(config)) == config


def test_reading_a_config_needs_no_torch() -> None:
    code = "import sys, understudy.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
