"""What follows from the size of the model: learning rates that are `auto`, and how a preset suits it."""

import math

from understudy.engines.config import EngineConfig
from understudy.engines.local.config import TrainedWeightsConfig
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
RATE_SECTIONS = ("sft", "preferences", "algorithm")
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
    missing = [name for name in RATE_SECTIONS if shares[name] and getattr(config, name).learning_rate == "auto"]
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


def fit_preset_to_size(config: TrainConfig, parameters: int | None = None) -> tuple[TrainConfig, list[str]]:
    """Return the config fitted to a model of another size than that of its presets, and a line for each of them.

    A model that is much larger than a preset's is trained with LoRA, as it was measured, unless `engine.finetune` is
    set or embeddings are trained. Without `parameters`, they are counted.
    """
    made_for = {name: load_config(name).model for name in config.presets}
    sizes = {name: MODEL_PARAMETERS[model] for name, model in made_for.items() if model in MODEL_PARAMETERS}
    sizes = {name: size for name, size in sizes.items() if made_for[name] != config.model}
    if not sizes:
        return config, []
    parameters, engine, lines = parameters or _count_parameters(config), config.engine, []
    for name, size in sizes.items():
        if max(parameters / size, size / parameters) <= MAX_SIZE_RATIO:
            continue
        fitted = ""
        if parameters > size and _leaves_finetune_open(engine):
            config, fitted = config.replace(engine=engine.replace(finetune="lora")), ", so engine.finetune = lora"
        lines.append(
            f"the preset {name} was made for {made_for[name]} ({_millions(size)} parameters), and this model has "
            f"{_millions(parameters)}{fitted}; its sampling, limits and other engine settings may not suit it"
        )
    return config, lines


def _leaves_finetune_open(engine: EngineConfig) -> bool:
    """Return whether no setting says which weights are trained."""
    is_set = "finetune" in engine.model_fields_set or getattr(engine, "train_embeddings", False)
    return isinstance(engine, TrainedWeightsConfig) and not is_set


def _count_parameters(config: TrainConfig) -> int:
    return read_model_shape(find_model(config.model)).parameters


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:,.{0 if parameters >= 1e6 else 1}f} million"
