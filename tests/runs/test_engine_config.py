"""Test the engine's config: each engine kind has its own record, with only the keys that it uses."""

import math

import pytest

from understudy.core.errors import ConfigError
from understudy.core.settings import dump_toml
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.skyrl_config import SkyRLEngineConfig
from understudy.engines.tinker.config import TinkerEngineConfig
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.train.engine_support import unsupported_settings

TINKER = ("engine.kind=tinker", "engine.base_url=http://h:1", "engine.server_kind=hosted")


def config_error(*overrides: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, overrides, where="my.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_engine_kind_selects_the_config_and_defaults_to_local() -> None:
    assert type(TrainConfig().engine) is LocalEngineConfig
    assert type(parse_config("[engine]\nthreads = 2").engine) is LocalEngineConfig
    assert type(TrainConfig.model_validate({"engine": {"device": "cpu"}}).engine) is LocalEngineConfig
    assert type(parse_config("", TINKER).engine) is TinkerEngineConfig
    assert type(parse_config('[engine]\nkind = "skyrl"').engine) is SkyRLEngineConfig


@pytest.mark.parametrize(
    "settings",
    [
        ["engine.finetune=lora", "engine.lora.rank=4", "engine.vllm.base_url=http://h:1"],
        [*TINKER, "engine.lora.rank=4", "engine.optimizer.beta1=0.5"],
        ["engine.kind=skyrl", "engine.finetune=lora", "engine.trainer.placement.colocate_all=false"],
    ],
)
def test_config_of_each_kind_round_trips_through_toml(settings: list[str]) -> None:
    config = parse_config("", settings)
    assert parse_config(dump_toml(config)) == config


def test_order_of_engine_overrides_does_not_matter() -> None:
    assert parse_config("", [*reversed(TINKER)]) == parse_config("", TINKER)


@pytest.mark.parametrize(
    ("overrides", "key", "kinds"),
    [
        ([*TINKER, "engine.device=cpu"], "engine.device", ("tinker", "local")),
        ([*TINKER, "engine.finetune=full"], "engine.finetune", ("tinker", "local")),
        ([*TINKER, "engine.lora.alpha=64"], "engine.lora.alpha", ("tinker", "skyrl")),
        ([*TINKER, "engine.vllm.base_url=http://h:1"], "engine.vllm", ("tinker", "local")),
        (["engine.kind=skyrl", "engine.sampler=vllm"], "engine.sampler", ("skyrl", "local")),
        (["engine.kind=skyrl", "engine.train_embeddings=true"], "engine.train_embeddings", ("skyrl", "local")),
        (["engine.base_url=http://h:1"], "engine.base_url", ("local", "tinker")),
        (["engine.trainer.placement.colocate_all=true"], "engine.trainer", ("local", "skyrl")),
    ],
)
def test_key_of_another_kind_is_rejected_and_names_both_kinds(
    overrides: list[str], key: str, kinds: tuple[str, str]
) -> None:
    error = config_error(*overrides)
    assert f"engine.kind = '{kinds[0]}' has no key '{key}'" in error
    assert f"engine.kind = '{kinds[1]}'" in error.partition("has no key")[2]


def test_key_of_another_kind_in_a_file_is_rejected() -> None:
    error = config_error(text='[engine]\nkind = "tinker"\nthreads = 2')
    assert error.startswith("my.toml: engine.kind = 'tinker' has no key 'engine.threads'")


@pytest.mark.parametrize(
    ("overrides", "key", "allowed"),
    [
        (["engine.kind=tinkr"], "engine.kind", "'tinker'"),
        (["engine.thread=2"], "'engine.thread'", "'engine.threads'"),
        ([*TINKER, "engine.base_ur=x"], "'engine.base_ur'", "'engine.base_url'"),
        (["engine.kind=skyrl", "engine.finetune=qlora"], "engine.finetune", "lora"),
        (["engine.lora.rank=0"], "engine.lora.rank = 0", "1"),
        ([*TINKER, "engine.timeout=0"], "engine.timeout = 0", "0"),
        (["engine=tinker"], "engine", "section"),
    ],
)
def test_invalid_engine_setting_names_key_and_allowed_values(overrides: list[str], key: str, allowed: str) -> None:
    assert allowed in config_error(*overrides).partition(key)[2]


def test_preset_with_another_engine_kind_keeps_shared_keys() -> None:
    """The preset's local engine keys that a server lacks are dropped; its other sections stay."""
    preset = load_config("retail_easy")
    assert isinstance(preset.engine, LocalEngineConfig)
    config = load_config("retail_easy", [*TINKER, "engine.lora.rank=4"])
    assert isinstance(config.engine, TinkerEngineConfig)
    assert config.engine.lora.rank == 4
    assert config.replace(engine=preset.engine) == preset
    text = '[engine]\nfinetune = "lora"\n[engine.lora]\nrank = 8\nalpha = 16'
    assert parse_config(text, TINKER).engine.export_engine_config.lora.rank == 8
    skyrl = parse_config(text, ["engine.kind=skyrl"]).engine
    assert (skyrl.finetune, skyrl.export_engine_config.lora.alpha) == ("lora", 16.0)


def test_remote_engine_config_maps_to_a_local_config() -> None:
    tinker = parse_config("", [*TINKER, "engine.lora.rank=4"]).engine.export_engine_config
    assert (tinker.finetune, tinker.lora.rank, tinker.lora.alpha) == ("lora", 4, 32.0)
    skyrl = parse_config("", ["engine.kind=skyrl", "engine.max_tokens_per_microbatch=9"]).engine.export_engine_config
    assert (skyrl.finetune, skyrl.train_embeddings, skyrl.max_tokens_per_microbatch) == ("full", True, 9)
    local = parse_config("", ["engine.device=cpu"]).engine
    assert local.export_engine_config is local


def test_unsupported_settings_of_each_engine_kind() -> None:
    def keys(*settings: str) -> list[str]:
        return [each.key for each in unsupported_settings(parse_config("", settings))]

    all_unsupported = ("sampling.min_p=0.1", "eval.temperature=0.5", "algorithm.preset=ppo", "certify.every=2")
    assert keys(*all_unsupported) == []
    assert keys(*TINKER, *all_unsupported) == [
        "sampling.min_p",
        "eval.temperature",
        "eval.min_p",
        "algorithm.advantage_estimator",
    ]
    assert keys("engine.kind=skyrl", *all_unsupported, "sft.steps=0") == ["certify"]
    assert keys("engine.kind=tinker", "sft.steps=0") == ["engine.base_url", "engine.server_kind"]
    assert math.isinf(parse_config("", TINKER).engine.optimizer.max_grad_norm)
