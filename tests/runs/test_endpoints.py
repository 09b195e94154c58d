"""Test named endpoints: which role uses which endpoint, and the errors for unknown or unused ones."""

import asyncio

import pytest

from understudy.core.errors import ConfigError
from understudy.core.settings import dump_toml
from understudy.runs.agents import make_agent
from understudy.runs.config import TrainConfig, parse_config
from understudy.runs.endpoints import (
    cost_limit_of,
    endpoint_configs,
    eval_endpoint_names,
    training_endpoint_names,
    validate_endpoint_overrides,
)
from understudy.train.preparation import make_reward_judge, prepare_run

CONFIG_TEXT = """
agent_endpoint = "large"
[user]
kind = "llm"
endpoint = "small"
[algorithm.shaping]
judge_weight = 0.2
judge_endpoint = "grader"
[eval]
failure_judge_endpoint = "large"
[endpoints.small]
model = "s"
prompt_price = 1
[endpoints.large]
model = "l"
[endpoints.grader]
model = "g"
"""


def test_each_role_uses_its_named_endpoint() -> None:
    config = parse_config(CONFIG_TEXT, ["endpoints.large.timeout=9", "endpoints.small.model=other"])
    assert parse_config(dump_toml(config)) == config
    assert training_endpoint_names(config) == {"user.endpoint": "small", "algorithm.shaping.judge_endpoint": "grader"}
    assert eval_endpoint_names("api", config, judge_failures=True) == {
        "agent_endpoint": "large",
        "user.endpoint": "small",
        "eval.failure_judge_endpoint": "large",
    }
    assert eval_endpoint_names("gold", config) == {"user.endpoint": "small"}
    asked = endpoint_configs(config, eval_endpoint_names("api", config))
    assert [(each.model, each.timeout) for each in asked] == [("l", 9.0), ("other", 120.0)]


def test_all_roles_use_the_default_endpoint() -> None:
    config = parse_config("", ["endpoints.default.model=m", "user.kind=llm", "algorithm.shaping.judge_weight=0.2"])
    assert set(training_endpoint_names(config).values()) == {"default"}
    assert make_reward_judge(config) is not None


def test_scripted_run_uses_no_endpoint() -> None:
    config = parse_config("", ["user.endpoint=nowhere", "agent_endpoint=nowhere", "cost_limit=3"])
    assert training_endpoint_names(config) == {}
    assert eval_endpoint_names("model", config) == {}
    assert (cost_limit_of("model", config), cost_limit_of("api", config)) == (0, 3)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (["user.kind=llm", "user.endpoint=smal"], r"user\.endpoint = 'smal'.*'small'"),
        (["algorithm.shaping.judge_endpoint=x"], r"algorithm\.shaping\.judge_endpoint = 'x'.*grader, .*small"),
    ],
)
def test_unknown_endpoint_error_lists_the_existing_ones(settings: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        asyncio.run(prepare_run(parse_config(CONFIG_TEXT, ["domain=toy:DOMAIN", "model=tiny", *settings])))
    assert "\n" not in str(caught.value)


def test_make_agent_rejects_an_unknown_endpoint() -> None:
    with pytest.raises(ConfigError, match=r"agent_endpoint = 'x'.*grader"):
        make_agent("api", parse_config(CONFIG_TEXT, ["agent_endpoint=x"]))


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("endpoints.small=3", r"endpoints\.NAME"),
        ("endpoints=3", "dictionary|table"),
        ("endpoints.small.modle=m", r"'endpoints\.small\.modle'.*'endpoints\.small\.model'"),
        ("endpoints.a b.model=m", r"endpoints.*a b"),
        ("endpoints.small.timeout=0", r"endpoints\.small\.timeout = 0"),
    ],
)
def test_invalid_endpoint_setting_gives_a_one_line_error(override: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        parse_config(CONFIG_TEXT, [override])
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"my\.toml: .*'endpoints\.a\.modle'"):
        parse_config("[endpoints.a]\nmodle = 'm'", where="my.toml")


@pytest.mark.parametrize("agent", ["gold", "api"])
def test_override_of_an_unused_endpoint_is_rejected(agent: str) -> None:
    config = TrainConfig()
    with pytest.raises(ConfigError, match=r"endpoints\.other\.model .*--agent"):
        validate_endpoint_overrides(agent, config, ["seed=1", " endpoints.other.model=m"])
    validate_endpoint_overrides("api", config, ["endpoints.default.model=m", "agent_endpoint=default"])
    validate_endpoint_overrides(agent, config, ["endpoints.default.model=m"], judge_failures=True)
