"""Settings of other libraries as settings of understudy: another key, another value, or several settings."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.core.settings import find_field, is_other_name, matching_keys, other_names
from understudy.runs.other_names import OTHER_VALUES

Conversion = Callable[[str, Mapping[str, str]], Sequence[str]]
"""Returns the settings that a value becomes, given the values of the other settings by their full keys, and by the
names that were given. Raises ValueError, with what to do, if it cannot be converted."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A setting `name=value`, and what it became."""

    given: str
    settings: Sequence[str] = ()
    """With full keys. A name that means no key is unchanged."""
    reason: str = ""
    """Why there is no setting for a name of another library."""
    is_other_name: bool = False


def translate(config_type: type[Record], overrides: Sequence[str]) -> list[str]:
    """Return overrides `name=value` with the full keys and the values of understudy.

    Overrides that name no key are returned unchanged. Raise ConfigError, with all reasons, if names of other libraries
    have no key.
    """
    translations = find_translations(config_type, overrides)
    names: dict[str, list[str]] = {}
    for each in translations:
        if each.reason:
            names.setdefault(each.reason, []).append(each.given.partition("=")[0].strip())
    if names:
        texts = [f"{', '.join(map(repr, given))}: {reason}" for reason, given in names.items()]
        raise ConfigError(f"unknown key {'; '.join(texts)}")
    return [setting for each in translations for setting in each.settings]


def describe_other_names(config_type: type[Record], overrides: Sequence[str]) -> str:
    """Return in one line what the settings with names of other libraries became; empty if there are none.

    The settings are valid, so that none holds a secret.
    """
    others = [each for each in find_translations(config_type, overrides) if each.is_other_name]
    texts = [f"{each.given} is {' '.join(each.settings) or 'the default'}" for each in others]
    return f"names of other libraries: {', '.join(texts)}" if texts else ""


def find_translations(config_type: type[Record], overrides: Sequence[str]) -> list[Translation]:
    """Return the translation of each override. Conversions use the values of the others.

    A `+` before a name, which Hydra needs for a new key, is left out.
    """
    overrides, others = [override.lstrip("+") for override in overrides], other_names(config_type)
    names = [override.partition("=")[0].strip() for override in overrides]
    plain = [name.replace("-", "_") for name in names]
    plain = [name if name in others.converted else others.without_section(name) for name in plain]
    found = {
        i: _translate_key(config_type, name, override)
        for i, (name, override) in enumerate(zip(names, overrides, strict=True))
        if plain[i] not in others.converted
    }
    known = dict(zip(plain, (_parts(override)[1] for override in overrides), strict=True))
    known |= dict(_parts(setting) for each in found.values() for setting in each.settings)
    for name in others.converted:
        for i in (i for i, each in enumerate(plain) if each == name):
            found[i] = _convert(name, overrides[i], known)
            known |= dict(_parts(setting) for setting in found[i].settings)
    return [found[i] for i in range(len(overrides))]


def _translate_key(config_type: type[Record], name: str, override: str) -> Translation:
    key, field = find_field(config_type, name)
    if field:
        value = _parts(override)[1]
        settings = (f"{key}={OTHER_VALUES.get(key, {}).get(value, value)}",) if "=" in override else (key,)
        return Translation(override, settings, is_other_name=is_other_name(config_type, name))
    others = other_names(config_type)
    if (word := others.without_section(name)) != name and (meant := others.find_keys(word)):
        return Translation(override, reason=f"did you mean {' or '.join(meant)}?", is_other_name=True)
    if not matching_keys(config_type, name) and (reason := others.find_reason(name)):
        return Translation(override, reason=reason, is_other_name=True)
    return Translation(override, (override,))


def _convert(name: str, override: str, known: Mapping[str, str]) -> Translation:
    value = _parts(override)[1]
    try:
        return Translation(override, CONVERSIONS[name](value.strip("'\""), known), is_other_name=True)
    except ValueError as e:
        return Translation(override, reason=f"{value} cannot be converted: {e}", is_other_name=True)


def _parts(setting: str) -> tuple[str, str]:
    name, _, value = setting.partition("=")
    return name.strip(), value.strip()


def _to_number_of_minibatches(size: str, known: Mapping[str, str]) -> Sequence[str]:
    batch = known.get("algorithm.groups_per_batch", "")
    if not (size.isdecimal() and batch.isdecimal() and int(size) and int(batch) % int(size) == 0):
        raise ValueError(
            "it is the size of a minibatch in tasks, and algorithm.num_minibatches is their number: "
            f"algorithm.groups_per_batch{f' = {batch}' if batch else ''} / {size}"
            + ("" if batch else "; give train_batch_size too, or algorithm.num_minibatches in its place")
        )
    return (f"algorithm.num_minibatches={int(batch) // int(size)}",)


def _to_rl_steps(optimizer_steps: str, known: Mapping[str, str]) -> Sequence[str]:
    minibatches, epochs = known.get("algorithm.num_minibatches", "0"), known.get("algorithm.update_epochs", "1")
    if not all(number.isdecimal() for number in (optimizer_steps, minibatches, epochs)) or "0" in (minibatches, epochs):
        raise ValueError(
            "it counts optimizer steps, and algorithm.warmup_steps RL steps, each of algorithm.num_minibatches x "
            "algorithm.update_epochs optimizer steps; give those too, or algorithm.warmup_steps in its place"
        )
    return (f"algorithm.warmup_steps={-(-int(optimizer_steps) // (int(minibatches) * int(epochs)))}",)


def _to_betas(text: str, known: Mapping[str, str]) -> Sequence[str]:
    betas = re.findall(r"\d[\d.]*", text)
    if len(betas) != 2:
        raise ValueError("allowed: two numbers, such as [0.9,0.999]")
    return tuple(f"engine.optimizer.beta{i}={beta}" for i, beta in enumerate(betas, 1))


def _to_dual_clip(bound: str, known: Mapping[str, str]) -> Sequence[str]:
    if "dual_clip" not in (known.get("policy_loss_type"), known.get("ppo_loss_type")):
        raise ValueError(
            "SkyRL applies it only with policy_loss_type=dual_clip; leave it out, or give algorithm.loss.dual_clip"
        )
    return (f"algorithm.loss.dual_clip={bound}",)


def _to_test_set(paths: str, known: Mapping[str, str]) -> Sequence[str]:
    files = [path.strip(" '\"") for path in paths.strip("[]").split(",")]
    if len(files) != 1:
        raise ValueError("a test set is one file; give each as data.tests.NAME=FILE")
    return (f"data.tests.retail_validation={files[0]}",)


def _to_reference(model: str, known: Mapping[str, str]) -> Sequence[str]:
    if known.get("model", "").strip("'\"") == model:
        return ()  # the reference is the policy at the start of RL
    return "algorithm.reference.kind=model", f"algorithm.reference.model={model}"


def _to_ema_reference(key: str) -> Conversion:
    return lambda value, known: ("algorithm.reference.kind=ema", f"algorithm.reference.{key}={value}")


def _if_true(setting: str, if_false: str = "") -> Conversion:
    """Return the conversion of a switch. Without `if_false`, false is the default here."""

    def convert(value: str, known: Mapping[str, str]) -> Sequence[str]:
        if value.lower() not in ("true", "false"):
            raise ValueError("allowed: true, false")
        if value.lower() == "true":
            return (setting,)
        return (if_false,) if if_false else ()

    return convert


_LOSSES = {
    "grpo": "algorithm.loss_aggregation=sequence_mean; algorithm.preset=grpo",
    "dapo": "algorithm.loss_aggregation=token_mean; algorithm.preset=dapo",
    "bnpo": "algorithm.loss_aggregation=token_mean; algorithm.preset=dapo",
    "dr_grpo": "algorithm.loss_aggregation=seq_mean_token_sum_norm; algorithm.preset=dr_grpo",
    "cispo": "algorithm.loss.kind=cispo; algorithm.preset=cispo",
}
"""TRL's `loss_type`, without sequence-level and soft losses: what it sets here, and the preset that sets more."""


def _to_loss(kind: str, known: Mapping[str, str]) -> Sequence[str]:
    if kind not in _LOSSES:
        raise ValueError(
            f"known are {', '.join(_LOSSES)}; algorithm.loss.kind has ppo, gspo, cispo, nll, or module:attribute, a "
            "loss of your own (docs/extending.md)"
        )
    raise ValueError(f"{_LOSSES[kind]} sets clipping, KL and minibatches too; give one of them")


def _to_vllm_mode(mode: str, known: Mapping[str, str]) -> Sequence[str]:
    if mode == "colocate":
        return "engine.sampler=vllm", "engine.vllm.in_process=true"
    raise ValueError("engine.sampler=vllm starts a server, and engine.vllm.base_url=URL names a running one")


CONVERSIONS: Mapping[str, Conversion] = {
    "adam_betas": _to_betas,
    "load_in_4bit": _if_true("engine.finetune=qlora"),
    "trainer.algorithm.clip_ratio_c": _to_dual_clip,
    "policy_mini_batch_size": _to_number_of_minibatches,
    "ppo_mini_batch_size": _to_number_of_minibatches,
    "num_warmup_steps": _to_rl_steps,
    "ref_policy_ema_alpha": _to_ema_reference("ema_decay"),
    "reference_ema_decay": _to_ema_reference("ema_decay"),
    "ref_policy_update_frequency": _to_ema_reference("sync_steps"),
    "reference_update_interval": _to_ema_reference("sync_steps"),
    "retail_val_data": _to_test_set,
    "trainer.ref.model.path": _to_reference,
    "use_kl_estimator_k3": _if_true("algorithm.kl_estimator=k3", "algorithm.kl_estimator=k1"),
    "ref_model_sync_steps": _to_ema_reference("sync_steps"),
    "loss_type": _to_loss,
    "vllm_mode": _to_vllm_mode,
}
"""Conversions by the name of another library. A later one may use what an earlier one gave."""
