"""List domains, models, formats, engines, algorithms and presets, each with one line."""

import importlib
from collections.abc import Mapping

from understudy.algorithms.presets import algorithm_preset_text, algorithm_presets
from understudy.runs.presets import preset_names, preset_text
from understudy.sources.references import list_domains

BENCHMARKS = {
    "tau-bench:PATH#DOMAIN": "tau-bench, from your own clone of github.com/sierra-research/tau-bench.",
    "tau2:PATH#DOMAIN": "tau2-bench, from your own clone of github.com/sierra-research/tau2-bench.",
    "bfcl:PATH#CATEGORY": "Multi-turn rows of BFCL v4, from your own copy of bfcl-eval (PyPI).",
    "sopbench:PATH#DOMAIN": "SOPBench, from your own clone of github.com/Leezekun/SOPBench.",
}
MODELS = {
    "smollm2-135m": "SmolLM2-135M-Instruct in bfloat16 (270 MB).",
    "tiny": "115 thousand random weights, for tests.",
}
FORMATS = {
    "chatml": "ChatML with tool calls in Hermes form: Qwen2.5, Qwen3, SmolLM2.",
    "template": "What the model's own chat template renders, for templates that render each turn independently.",
    "prompted_tools": "Tools described in the prompt, for models without native tool calls, or for a chosen form.",
}
ENGINES = {
    "local": "PyTorch on this machine. Replies are sampled by PyTorch or vLLM.",
    "tinker": "A server of the Tinker API, such as SkyRL's, holds the weights, samples and trains.",
    "skyrl": "SkyRL's trainer on Ray, with the tasks, episodes and rewards of understudy; see docs/cluster.md.",
}


def list_available() -> dict[str, dict[str, str]]:
    """Return one line for each name, by kind."""
    return {
        "domains": {name: _domain_text(name) for name in list_domains()},
        "benchmarks": BENCHMARKS,
        "models": MODELS,
        "formats": FORMATS,
        "engines": ENGINES,
        "algorithms": {name: _title(algorithm_preset_text(name)) for name in algorithm_presets()},
        "presets": {name: _title(preset_text(name)) for name in preset_names()},
    }


def format_available(found: Mapping[str, Mapping[str, str]]) -> str:
    """Format the list as text."""
    width = max(len(name) for entries in found.values() for name in entries)
    blocks = (
        [kind, *(f"  {name:<{width}}  {line}" for name, line in entries.items())] for kind, entries in found.items()
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def _domain_text(name: str) -> str:
    """Return the first line of a domain's docstring, without its title."""
    text = importlib.import_module(f"understudy.domains.{name}").__doc__ or ""
    text = text.partition("\n")[0].partition(": ")[2]
    return text[:1].upper() + text[1:]


def _title(toml: str) -> str:
    return toml.partition("\n")[0].lstrip("# ")
