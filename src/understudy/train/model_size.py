"""What follows from the size of the model: learning rates that are `auto`, and whether a preset suits it."""

import math
from collections.abc import Iterable, Iterator

from understudy.engines.models import find_model
from understudy.runs.config import TrainConfig, load_config
from understudy.runs.presets import MODEL_PARAMETERS
from understudy.train.planning.memory import read_model_shape

SMALL, LARGE = 134_515_008, 494_032_768
"""Parameters of the two models with which rates were measured: SmolLM2-135M and Qwen2.5-0.5B."""
SMALL_RATE, LARGE_RATE = 2e-4, 2e-5
"""Their peak rates of full fine-tuning in SFT. The second was not measured: it is a tenth of the one with LoRA."""
LORA_FACTOR = 10.0
"""LoRA's best rate relative to that of full fine-tuning."""
RL_SHARE, PREFERENCE_SHARE = 0.1, 0.05
"""The mean rate of RL, and the peak rate of preference learning, relative to the peak rate of SFT."""
MAX_SIZE_RATIO = 2.0
"""Ratio of the sizes of two models above which the settings of a preset may not suit the other one."""
_SECTIONS = ("sft", "preferences", "algorithm")
"""The sections of the config that have a `learning_rate`."""


def sft_learning_rate(parameters: int, uses_lora: bool) -> float:
    """Return the peak rate of SFT, unrounded, for a model with this number of parameters.

    Measured (docs/results.md and its archive): full fine-tuning of SmolLM2-135M at 2e-4 and LoRA at 2e-3, and LoRA of
    Qwen2.5-0.5B at 2e-4. Between the two sizes the rate is a power of the number of parameters, and outside it is
    constant: LoRA's best rate is about 10 times that of full fine-tuning and depends weakly on width (Schulman et al.
    2025, "LoRA Without Regret"). tinker-cookbook's sweep from 1 to 400 billion parameters (`get_lr`) found 1e-4 to 1e-3
    for LoRA.
    """
    share = math.log(parameters / SMALL) / math.log(LARGE / SMALL)
    full = SMALL_RATE * math.pow(LARGE_RATE / SMALL_RATE, min(max(share, 0.0), 1.0))
    return full * (LORA_FACTOR if uses_lora else 1.0)


def resolve_learning_rates(config: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the config with numbers for learning rates that are `auto`, and a line with them; "" if there are none.

    Rates of phases without steps stay `auto`. Numbers have one digit, since the rule is no more exact.
    """
    shares = {
        "sft": config.sft.steps and 1.0,
        "preferences": config.preferences.steps and PREFERENCE_SHARE,
        "algorithm": config.steps and RL_SHARE * 2 / (1 + config.algorithm.min_lr_ratio),  # its decay is linear
    }
    missing = [name for name in _SECTIONS if shares[name] and getattr(config, name).learning_rate == "auto"]
    if not missing:
        return config, ""
    parameters, finetune = _count_parameters(config), config.engine.finetune
    sft = sft_learning_rate(parameters, config.engine.uses_lora)
    rates = {name: float(f"{sft * shares[name]:.0e}") for name in missing}
    named = ", ".join(f"{name}.learning_rate = {rate:g}" for name, rate in rates.items())
    return (
        config.replace(**{name: getattr(config, name).replace(learning_rate=rate) for name, rate in rates.items()}),
        f"from the model ({_millions(parameters)} parameters, engine.finetune = {finetune}): {named}",
    )


def keep_learning_rates(config: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """Return the config of a resumed run with the stored learning rates where it says `auto`."""
    kept = {
        name: getattr(config, name).replace(learning_rate=getattr(stored, name).learning_rate)
        for name in _SECTIONS
        if getattr(config, name).learning_rate == "auto"
    }
    return config.replace(**kept)


def preset_size_notes(presets: Iterable[str], config: TrainConfig) -> Iterator[str]:
    """Yield a line for each of the presets that was made for a model of another size than the config's."""
    for name in presets:
        made_for = load_config(name).model
        size = MODEL_PARAMETERS.get(made_for)
        if size is None or made_for == config.model:
            continue
        parameters = _count_parameters(config)
        if max(parameters / size, size / parameters) > MAX_SIZE_RATIO:
            yield (
                f"the preset {name} was made for {made_for} ({_millions(size)} parameters), and this model has "
                f"{_millions(parameters)}; its sampling, limits and engine settings may not suit it"
            )


def _count_parameters(config: TrainConfig) -> int:
    return read_model_shape(find_model(config.model)).parameters


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:,.{0 if parameters >= 1e6 else 1}f} million"
