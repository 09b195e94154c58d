"""Plan the memory of a run from the shapes of its model, before it starts.

Memory that is used during the whole run is counted exactly. Sampling and training alternate: sampling frees its cache
before an update. Both are estimated for the largest passes that the config allows: full-length episodes, a full cache,
full microbatches. Shorter episodes need less. In a run with several processes, a plan gives the memory of one process.

docs/archive/memory.md has the formulas and compares plans with measurements.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.engines.local.config import ALL_LINEAR, LocalEngineConfig
from understudy.engines.local.cpu.onednn_cache import PRIMITIVE_BYTES, max_cached_primitives
from understudy.engines.local.machine import Machine
from understudy.engines.models import find_model_config
from understudy.engines.reference_config import ReferenceConfig
from understudy.engines.vllm.server import vllm_installed
from understudy.runs.config import TrainConfig

VLLM_PART = "vLLM"
"""The part of a plan that is reserved for vLLM. Its size is exact."""
LOGIT_CHUNK, CHUNK_LOGITS = 512, 1 << 25
"""Positions and logits that are in memory at once, at most (`engines.local.token_logprobs`)."""
CACHE_COPIES, MAX_PREFILL_TOKENS = 3, 4096
"""Copies of the cache of padded rows while a batch changes, and tokens of a prefill of them, at most
(`engines.local.sampling.padded_passes`)."""
CACHE_GROWTH = 128
"""Tokens by which the KV cache of a sequence grows (`engines.local.sampling.kv_cache.CACHE_GROWTH`)."""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a 4-bit weight: 64 weights share a scale of 1 byte, and 256 scales share one of 4 bytes."""
GIB = 1 << 30
MAX_KERNEL_DIM = 256
"""The largest size of a head for which attention has a kernel on a CPU (`MOST_DIM` of `kernels.c`)."""
QUERIES_AT_ONCE = 128
"""Tokens whose attention scores are in memory at once without that kernel (`engines.local.cpu.tree`)."""
MAX_SCORES = 1 << 26
"""Attention scores that a pass of the sampler on a GPU stores at once (`engines.local.attention.MAX_SCORES`)."""
OTHER_NAMES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "layers_block_type"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "num_heads", "n_heads"),
}
"""Names of sizes in the configs of old models."""
FUSED_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Types of models whose modules have kernels on a CPU (`engines.local.cpu.fuse`)."""
PADDED_TYPES = frozenset(
    {"bamba", "bloom", "falcon", "falcon_h1", "falcon_mamba", "jamba", "mamba", "mamba2", "nemotron", "nemotron_h"}
    | {"stablelm"}
)
"""Types of models whose rows are padded although the kinds of their layers do not say so."""
LINEAR_ATTENTION_TENSORS = 16
"""Float32 tensors as wide as its values that a layer of linear attention stores: queries, keys and values, their
products with decay and step size, and the matrices of its chunks. Counted in transformers' gated delta rule."""
TIGHT_SHARE = 0.8
"""The share of a device's memory above which a run prints its whole memory plan."""

MemoryPhase = Literal["always", "sampling", "training"]


class LinearShape(Record):
    """A linear layer of the model's body."""

    name: str
    """The last part of its module's name, such as `q_proj`."""
    outputs: int
    inputs: int


class LayerMemory(Record):
    """Bytes of a layer for one row of tokens."""

    stored: int
    """What its forward pass stores for the backward pass, with its output."""
    backward: int
    """What its backward pass needs in addition, at most."""
    inference: int
    """What a forward pass without gradient needs, at most, without what is cached."""
    cached: int
    """What it caches of the row: keys and values, or states of linear attention and convolutions."""


class ModelShape(Record):
    """The shapes of a model that determine its memory."""

    parameters: int
    """The number of parameters; tied ones count once."""
    embeddings: int
    """Parameters of the embeddings, and of the output head if it is not tied to them."""
    linear: tuple[LinearShape, ...]
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_dim: int
    vocabulary: int
    normalizes_heads: bool = False
    """True if each head of the queries and of the keys is normalized, as in Qwen3."""
    cached_layers: int | None = None
    """Layers whose cache grows with the tokens, if not all: linear attention and convolutions have a fixed state."""
    pads_rows: bool = False
    """True if the config says that rows cannot be packed (`engine.batching`)."""
    has_kernels: bool = True
    """True if the fused kernels know its modules."""
    norms: int = 2
    """Norms of hidden states in a layer."""
    stores_scores: bool = False
    """True if padded rows store attention scores: caps and sinks are computed by transformers' eager attention."""
    has_plain_head: bool = True
    """True if logits are a product of hidden states and weights, which are neither scaled nor capped."""
    used_experts: int = 0
    """Experts that a token uses."""
    linear_layers: int = 0
    """Layers of linear attention."""
    trains_rows: bool = False
    """True if rows of control tokens are trained, so that the backward pass reaches the embeddings."""
    linear_width: int = 0
    """Numbers of a token's values in such a layer."""
    measured: tuple[LayerMemory, ...] = ()
    """The memory of each layer for a row of `MaxPassSizes.max_episode_tokens`, if it was measured (`measure_shape`)."""

    def is_padded(self, config: LocalEngineConfig) -> bool:
        """Return whether rows are padded."""
        return config.batching == "padded" or (config.batching == "auto" and self.pads_rows)


class MaxPassSizes(Record):
    """The largest passes of a process."""

    max_episode_tokens: int
    """Tokens of an episode."""
    prompt_tokens: int
    """Tokens of the prompt that the episodes of a group share."""
    max_turn_tokens: int
    """Tokens added to an episode since its last reply."""
    group_size: int
    """Episodes of a group in this process. They share one computed and cached prompt."""
    concurrent_episodes: int
    """Episodes that are sampled at once."""
    has_reference: bool
    """True if a copy of the weights is stored as the reference."""
    has_ema_reference: bool = False
    """True if the reference is a moving average, which is stored in float32."""
    teacher_parameters: int = 0
    """Parameters of the reference if it is another model. Each process has all of them."""
    samples_locally: bool = True
    """True if PyTorch samples replies in this process. vLLM uses the memory that `engine.vllm` sets."""


class MemoryPart(Record):
    """One part of the memory."""

    name: str
    phase: MemoryPhase
    """The phase that uses it."""
    num_bytes: int
    """The size in bytes."""


class MemoryPlan(Record):
    """The memory of each process of a run, in parts."""

    device: str
    parts: tuple[MemoryPart, ...]
    device_bytes: int
    """The memory of the device, in bytes."""
    processes: int = 1
    """The number of processes: all on one CPU, or each on its own GPU."""

    @property
    def peak_bytes(self) -> int:
        """Return the peak bytes of a process. Sampling and training alternate, so the larger of the two counts."""
        return self.bytes_in("always") + max(self.bytes_in("sampling"), self.bytes_in("training"))

    @property
    def required_bytes(self) -> int:
        """Return the bytes that the device must have. On a CPU this is the sum over all processes."""
        return max(self.required_bytes_in("sampling"), self.required_bytes_in("training"))

    def required_bytes_in(self, phase: MemoryPhase) -> int:
        """Return the bytes that the device must have in one phase. On a CPU this is the sum over all processes."""
        return (self.bytes_in("always") + self.bytes_in(phase)) * (self.processes if self.device == "cpu" else 1)

    @property
    def fits(self) -> bool:
        """Return whether the device has enough memory."""
        return self.required_bytes <= self.device_bytes

    @property
    def vllm_bytes(self) -> int:
        """Return the bytes that vLLM takes beside this process, on the same GPU."""
        return sum(part.num_bytes for part in self.parts if part.name == VLLM_PART)

    def bytes_in(self, when: MemoryPhase) -> int:
        """Return the bytes of all parts of one phase."""
        return sum(part.num_bytes for part in self.parts if part.phase == when)


def plan_memory(
    shape: ModelShape, config: LocalEngineConfig, load: MaxPassSizes, machine: Machine, processes: int = 1
) -> MemoryPlan:
    """Return the memory plan of each of `processes` processes, from the shapes of the model."""
    shards = processes if config.sharding == "fsdp" else 1
    if shape.is_padded(config):  # it runs with transformers' modules, and rows share no prefix
        shape, load = shape.replace(has_kernels=False), load.replace(prompt_tokens=0)
    parts = [*_resident_parts(shape, config, load, machine, shards), *_training_parts(shape, config, load, machine)]
    if load.samples_locally:
        parts += (sampling := [*_sampling_parts(shape, config, load, machine)])
        kept = sum(part.num_bytes for part in sampling) if machine.device == "cpu" else 0
        parts.append(MemoryPart(name="kept after sampling", phase="training", num_bytes=kept))
    else:
        parts += _vllm_parts(config, machine)
    parts += _gathered_parts(shape, config, machine) if shards > 1 else ()
    whole = tuple(part for part in parts if part.num_bytes)
    return MemoryPlan(device=machine.device, parts=whole, device_bytes=machine.memory_total, processes=processes)


def max_pass_sizes(config: TrainConfig, processes: int = 1) -> MaxPassSizes:
    """Return the largest passes that a config allows. They assume that episodes share no prefix.

    The length of shared prefixes is not known before the run. Each of n processes plays every n-th episode, so it has
    some episodes of most groups.
    """
    longest = config.limits.max_episode_tokens + config.sampling.max_response_tokens
    algorithm = config.algorithm
    return MaxPassSizes(
        max_episode_tokens=longest,
        prompt_tokens=0,
        max_turn_tokens=max(1, longest // config.limits.max_turns),
        group_size=-(-algorithm.group_size // processes),
        concurrent_episodes=min(
            config.engine.max_num_seqs, -(-algorithm.group_size * algorithm.groups_per_batch // processes)
        ),
        has_reference=config.preferences.steps > 0 or (algorithm.kl_coef > 0 and algorithm.reference.kind != "model"),
        has_ema_reference=algorithm.kl_coef > 0 and algorithm.reference.kind == "ema",
        teacher_parameters=_teacher_parameters(algorithm.reference) if algorithm.kl_coef > 0 else 0,
        samples_locally=_samples_here(config.engine.export_engine_config),
    )


def _teacher_parameters(reference: ReferenceConfig) -> int:
    """Return the number of parameters of another model that is the reference. Its weights need not be there yet."""
    if not reference.model:
        return 0
    folder = find_model_config(reference.model)
    has_weights = any(folder.glob("*.safetensors"))
    return (read_model_shape(folder) if has_weights else model_shape_of_config(folder)).parameters


def _samples_here(config: LocalEngineConfig) -> bool:
    """Return whether PyTorch will sample. With `sampler = "auto"` this is a guess, as the model is not loaded yet."""
    if config.sampler != "auto" or config.finetune == "qlora":  # vLLM does not sample from 4-bit weights
        return config.sampler != "vllm"
    return not config.vllm.base_url and not vllm_installed(config.vllm.python)


def checkpoint_bytes(shape: ModelShape, config: TrainConfig, item: int) -> int:
    """Return the bytes of a checkpoint: master weights, moments, and the reference.

    Each weight of a frozen reference takes `item` bytes. Each weight of a moving average takes 4 bytes. A reference
    that is another model is not in the checkpoint.
    """
    held = item if config.preferences.steps else 0
    if config.algorithm.kl_coef:
        held = max(held, {"frozen": item, "ema": 4, "model": 0}[config.algorithm.reference.kind])
    return (12 + held) * _trainable(shape, config.engine.export_engine_config)


def weight_bytes(shape: ModelShape, item: int) -> int:
    """Return the bytes of the weights, with `item` bytes for each."""
    return shape.parameters * item


def token_cache_bytes(shape: ModelShape, item: int) -> int:
    """Return the bytes of the keys and values of one token, with `item` bytes for each number."""
    layers = shape.layers if shape.cached_layers is None else shape.cached_layers
    return 2 * layers * shape.key_heads * shape.head_dim * item


def read_model_shape(folder: Path) -> ModelShape:
    """Return the shapes of the model in a folder, from its config.json and the headers of its safetensors files.

    Raise ConfigError if config.json lacks a size.
    """
    shapes = {name: tensor["shape"] for file in sorted(folder.glob("*.safetensors")) for name, tensor in _header(file)}
    return _shape_in(folder, shapes)


def model_shape_of_config(folder: Path) -> ModelShape:
    """Return the shapes of the model that a config.json describes. The folder need not have weights.

    transformers builds the model without memory for its weights. Raise ConfigError if it cannot.
    """
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, RuntimeError, StrictDataclassError) as e:
        reason = str(e).partition("\n")[0]
        raise ConfigError(f"transformers cannot build the model of {folder / 'config.json'}: {reason}") from e
    return _shape_in(folder, {name: list(parameter.shape) for name, parameter in network.named_parameters()})


def _shape_in(folder: Path, shapes: Mapping[str, list[int]]) -> ModelShape:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    try:
        return _shape(config, shapes)
    except KeyError as e:
        raise ConfigError(f"{folder / 'config.json'} has no key {e}, which the memory plan needs; add it") from e


def format_memory_plan(plan: MemoryPlan) -> str:
    """Return a table of the memory of a process, and the total if several share a device."""
    width = max(len(part.name) for part in plan.parts)
    several = f", for each of {plan.processes} processes" if plan.processes > 1 else ""
    lines = [f"planned memory of the {plan.device}{several}"]
    for when in ("always", "sampling", "training"):
        lines += [f"  {p.name:<{width}}  {when:<8} {_gib(p.num_bytes)}" for p in plan.parts if p.phase == when]
    once = f"  {'peak':<{width}}           {_gib(plan.peak_bytes)}"
    if plan.required_bytes > plan.peak_bytes:
        once += f"\n  {'all processes':<{width}}           {_gib(plan.required_bytes)}"
    lines.append(f"{once} of {_gib(plan.device_bytes).strip()}")
    if not plan.fits:
        lines[-1] += ", which is not enough"
    return "\n".join(lines)


def summarize_memory_plan(plan: MemoryPlan) -> str:
    """Return the plan in one line, or as a table if it takes more than `TIGHT_SHARE` of the device."""
    if plan.required_bytes > TIGHT_SHARE * plan.device_bytes:
        return format_memory_plan(plan)
    required, there = plan.required_bytes / GIB, plan.device_bytes / GIB
    return f"memory: {required:.2f} GiB planned; the {plan.device} has {there:.2f} GiB"


def explain_misfit(plan: MemoryPlan, engine: LocalEngineConfig, episode_tokens: int = 0) -> str:
    """Return a line that says that a plan does not fit and what to change, or nothing if it fits.

    Settings of `engine` that cannot be changed to need less memory are left out: a microbatch holds at least one
    episode, which has up to `episode_tokens` tokens.
    """
    if plan.fits:
        return ""
    training = plan.bytes_in("training") > plan.bytes_in("sampling")
    keys = ["limits.max_episode_tokens"]
    if training and engine.max_tokens_per_microbatch > episode_tokens:
        keys.append("engine.max_tokens_per_microbatch")
    if not training and engine.max_num_seqs > 1:
        keys.append("engine.max_num_seqs")
    if plan.vllm_bytes:
        keys.append("engine.vllm.gpu_memory_utilization")
    remedies = [f"lower {' or '.join(keys)}"]
    if training and not engine.gradient_checkpointing:
        remedies.append("set engine.gradient_checkpointing=true")
    if training and engine.finetune == "full":
        remedies.append("set engine.finetune=lora")
        if plan.device == "cuda":
            remedies.append("set engine.sharding=fsdp and use more GPUs")
    total = ""
    if plan.required_bytes > plan.peak_bytes:
        total = f" for {plan.processes} processes"
        remedies.append("start fewer processes")
    return (
        f"the run does not fit into the memory: it needs {_gib(plan.required_bytes).strip()}{total}, and the "
        f"{plan.device} has {_gib(plan.device_bytes).strip()}; {', or '.join(remedies)}"
    )


def format_measured_peak(plan: MemoryPlan, measured: int) -> str:
    """Return a line with the measured and the planned peak of a process, without vLLM's memory. `measured` is in
    bytes."""
    process = " of the first process" if plan.processes > 1 else ""
    planned = plan.peak_bytes - plan.vllm_bytes
    return f"peak memory{process}: {measured / GIB:.2f} GiB; planned: {planned / GIB:.2f} GiB"


def _gib(size: int) -> str:
    return f"{size / GIB:8.3f} GiB"


def _header(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the header of each tensor in a safetensors file.

    The file's first 8 bytes are the length of its JSON header.
    """
    with file.open("rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    yield from ((name, tensor) for name, tensor in header.items() if name != "__metadata__")


def _shape(config: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> ModelShape:
    tied = bool(config.get("tie_word_embeddings", "lm_head.weight" not in shapes))
    ends = ("embed_tokens.weight", "wte.weight", "lm_head.weight")
    outer = {name: s for name, s in shapes.items() if name.endswith(ends) and not (tied and "lm_head" in name)}
    body = {name: s for name, s in shapes.items() if not name.endswith(ends)}
    layers, hidden, heads = (_size(config, name) for name in OTHER_NAMES)
    kinds = config.get("layer_types") or ()
    growing = sum(kind.endswith("attention") and kind != "linear_attention" for kind in kinds)
    first = {name for name in body if ".layers.0." in f".{name}" and name.endswith("norm.weight")}
    return ModelShape(
        parameters=sum(math.prod(s) for s in (outer | body).values()),
        embeddings=sum(math.prod(s) for s in outer.values()),
        linear=tuple(
            LinearShape(name=name.split(".")[-2], outputs=s[0], inputs=s[1])
            for name, s in sorted(body.items())
            if len(s) == 2 and name.endswith(".weight") and ".experts." not in name
        ),
        layers=layers,
        hidden=hidden,
        intermediate=max(_largest(config.get("intermediate_size")) or 4 * hidden, _expert_size(config)),
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        head_dim=_head_dim(config) or hidden // heads,
        vocabulary=config["vocab_size"],
        normalizes_heads=any(name.endswith("q_norm.weight") for name in body),
        cached_layers=growing if kinds else None,
        pads_rows=config.get("model_type") in PADDED_TYPES
        or not {"full_attention", "sliding_attention", "chunked_attention"}.issuperset(kinds),
        has_kernels=config.get("model_type") in FUSED_TYPES,
        norms=sum(body[name] == [hidden] for name in first) or 2,
        stores_scores=bool(config.get("attn_logit_softcapping")) or config.get("model_type") == "gpt_oss",
        has_plain_head=not any(
            config.get(name) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
        ),
        used_experts=config.get("num_experts_per_tok") or 0,
        linear_layers=sum(kind == "linear_attention" for kind in kinds),
        linear_width=(config.get("linear_num_value_heads") or 0) * (config.get("linear_value_head_dim") or 0),
    )


def _head_dim(config: Mapping[str, Any]) -> int:
    """Return the mean size of a key and a value, which differ in latent attention. It is 0 if the config has none."""
    if config.get("kv_lora_rank"):
        return -(-sum(int(config[f"{part}_head_dim"]) for part in ("qk_nope", "qk_rope", "v")) // 2)
    return int(config.get("head_dim") or 0)


def _size(config: Mapping[str, Any], name: str) -> int:
    """Return a size of a config, which old models give under another name. Models of linear attention have no heads."""
    for key in (name, *OTHER_NAMES[name]):
        if config.get(key):
            return len(config[key]) if isinstance(config[key], list) else int(config[key])
    if name == "num_attention_heads" and "mamba" in config.get("model_type", ""):
        return 1
    raise KeyError(name)


def _expert_size(config: Mapping[str, Any]) -> int:
    """Return the intermediate numbers of a token in the experts that it uses. It is 0 without experts."""
    used = config.get("num_experts_per_tok") or 0
    size = _largest(config.get("moe_intermediate_size") or config.get("intermediate_size"))
    return int(used * size) + int(config.get("shared_expert_intermediate_size") or 0)


def _largest(size: int | list[int] | None) -> int:
    """Return a size, or the largest one if the layers differ, as in Gemma 3n. It is 0 without one."""
    return max(size) if isinstance(size, list) else int(size or 0)


def _adapted(shape: ModelShape, config: LocalEngineConfig) -> list[LinearShape]:
    """Return the linear layers that get an adapter."""
    if not config.uses_lora:
        return []
    targets, names = config.lora.target_modules, {x.name for x in shape.linear}
    if targets == (ALL_LINEAR,):
        return list(shape.linear)
    if missing := set(targets) - names:
        raise ConfigError(
            f"engine.lora.target_modules: the model has no module {min(missing)!r}; choose from {sorted(names)}"
        )
    return [x for x in shape.linear if x.name in targets]


def _trained_layers(shape: ModelShape, config: LocalEngineConfig) -> int:
    return min(config.trainable_layers or shape.layers, shape.layers)


def _trainable(shape: ModelShape, config: LocalEngineConfig) -> int:
    trained = _trained_layers(shape, config)
    if config.uses_lora:
        return sum(config.lora.rank * (x.inputs + x.outputs) for x in _adapted(shape, config)) * trained // shape.layers
    return _layers(shape) * trained // shape.layers + (shape.embeddings if config.train_embeddings else 0)


def _stored_layers(shape: ModelShape, config: LocalEngineConfig) -> int:
    """Return the number of layers that the backward pass goes through: to the embeddings if they are trained."""
    reaches_embeddings = shape.trains_rows or (config.train_embeddings and not config.uses_lora)
    return shape.layers if reaches_embeddings else _trained_layers(shape, config)


def _resident_parts(
    shape: ModelShape, config: LocalEngineConfig, load: MaxPassSizes, machine: Machine, shards: int
) -> Iterator[MemoryPart]:
    """Yield the parts that are used during the whole run. A process has one of `shards` shards of the layers."""
    item, trainable = machine.dtype_bytes, _trainable(shape, config)
    outside = shape.embeddings if config.train_embeddings and not config.uses_lora else 0
    own = -(-(trainable - outside) // shards) + outside
    copied = 4 if load.has_ema_reference else item
    linear = sum(x.inputs * x.outputs for x in shape.linear)
    quantized = int(linear * NF4_BYTES) - linear * item if config.finetune == "qlora" else 0
    packs = machine.packs_weights and not shape.is_padded(config)
    packed = (0 if config.finetune == "qlora" else linear) + shape.vocabulary * shape.hidden
    copies = packed * item if packs else 0
    has_primitives = machine.packs_weights and item == 2
    for name, size in (
        ("process and its libraries", machine.memory_used),
        ("weights", -(-(_layers(shape) * item + quantized) // shards) + shape.embeddings * item),
        ("packed weights", copies),
        ("oneDNN primitives", max_cached_primitives() * PRIMITIVE_BYTES if has_primitives else 0),
        ("adapters", own * item if config.uses_lora else 0),
        ("master weights", 4 * own),
        ("gradients", 4 * own),
        ("optimizer moments", 8 * own),
        (
            "reference",
            own * (copied + item) if load.has_reference else 0,
        ),  # and a copy of the current weights while the reference computes
        ("teacher", load.teacher_parameters * item),
    ):
        yield MemoryPart(name=name, phase="always", num_bytes=size)


def _gathered_parts(shape: ModelShape, config: LocalEngineConfig, machine: Machine) -> Iterator[MemoryPart]:
    """Yield the memory of the weights that FSDP gathers in addition to a process's shard.

    Sampling gathers all layers, and an update one layer at a time.
    """
    adapters = _trainable(shape, config) if config.uses_lora else 0
    size = (_layers(shape) + adapters) * machine.dtype_bytes
    yield MemoryPart(name="gathered layers", phase="sampling", num_bytes=size)
    yield MemoryPart(name="gathered layer", phase="training", num_bytes=size // shape.layers)


def _layers(shape: ModelShape) -> int:
    """Return the number of parameters that are sharded."""
    return shape.parameters - shape.embeddings


def _sampling_parts(
    shape: ModelShape, config: LocalEngineConfig, load: MaxPassSizes, machine: Machine
) -> Iterator[MemoryPart]:
    """Yield the memory of the KV cache and of the largest pass.

    The largest pass is a prefill of all concurrent episodes, or a decoding step with the maximum number of rows.
    """
    item = machine.dtype_bytes
    token = token_cache_bytes(shape, item)
    own = -(-(load.max_episode_tokens - load.prompt_tokens) // CACHE_GROWTH) * CACHE_GROWTH
    prefixes = -(-load.concurrent_episodes // load.group_size) * load.prompt_tokens
    cached = (config.max_num_seqs * own + prefixes) * token
    if shape.measured:
        cached = CACHE_COPIES * config.max_num_seqs * sum(layer.cached for layer in shape.measured)
    yield MemoryPart(name="KV cache", phase="sampling", num_bytes=cached)
    new = max(load.prompt_tokens, load.concurrent_episodes * load.max_turn_tokens)
    scores = shape.heads * (load.concurrent_episodes * load.max_turn_tokens) * load.max_episode_tokens
    size = 2 * item * scores
    if machine.device != "cpu":  # without the kernels, the softmax makes four copies in float32
        size = (item + 16) * min(scores, MAX_SCORES)
    prefill = item * new * (4 * shape.hidden + 3 * shape.intermediate) + size
    if shape.measured:
        new = min(new, max(MAX_PREFILL_TOKENS, load.max_turn_tokens))
        prefill = max(layer.inference for layer in shape.measured) * new // load.max_episode_tokens
    rows = max(config.max_draft_rows, load.concurrent_episodes)
    logits = rows * shape.vocabulary * (4 if machine.fused_kernels else item + 32)  # four tensors of float64
    yield MemoryPart(name="passes", phase="sampling", num_bytes=max(prefill, logits))


def _vllm_parts(config: LocalEngineConfig, machine: Machine) -> Iterator[MemoryPart]:
    """Yield the memory of the vLLM that a process starts on its GPU. Its weights, cache and passes share it."""
    if machine.device == "cuda" and not config.vllm.base_url:
        size = int(config.vllm.gpu_memory_utilization * machine.memory_total)
        yield MemoryPart(name=VLLM_PART, phase="always", num_bytes=size)


def _training_parts(
    shape: ModelShape, config: LocalEngineConfig, load: MaxPassSizes, machine: Machine
) -> Iterator[MemoryPart]:
    """Yield the parts of an update: tensors stored for the backward pass, and the largest temporary tensor.

    The stored tensors grow with the tokens of a microbatch. Without kernels, the backward pass also computes the
    attention probabilities and their gradients, of a layer for padded rows, else of `QUERIES_AT_ONCE` tokens.
    """
    item, on_gpu = machine.dtype_bytes, machine.device == "cuda"
    computed = _microbatch(config.max_tokens_per_microbatch, load)
    if is_padded := shape.is_padded(config):  # whole rows
        computed = max(1, computed // load.max_episode_tokens) * load.max_episode_tokens
    rows = computed // load.max_episode_tokens
    if shape.measured:
        adapters = computed * _adapter_width(shape, config, machine)
        every = [rows * layer.stored + adapters for layer in shape.measured]
        backward = rows * max(layer.backward for layer in shape.measured)
    else:
        width = (_gpu_width if on_gpu else _width)(shape, config, machine)
        width += _padded_width(shape, load.max_episode_tokens, item) if is_padded else 0
        every = [computed * width] * shape.layers
        attention = 0
        if is_padded:
            attention = 2 * item * shape.heads * computed * load.max_episode_tokens
        elif not (on_gpu or (machine.fused_kernels and shape.head_dim <= MAX_KERNEL_DIM)):
            attention = 4 * 6 * shape.heads * min(QUERIES_AT_ONCE, computed) * computed
        # An adapter and its layer have gradients of the same inputs and outputs, which no kernel on a CPU joins.
        gradients = (8 if config.uses_lora and not on_gpu else 4) * (shape.intermediate + shape.hidden)
        backward = max(attention, computed * gradients * item)
    stored = every[-_stored_layers(shape, config) :]
    inputs = len(stored) * computed * shape.hidden * item
    activations = inputs + max(stored) if config.gradient_checkpointing else sum(stored)
    yield MemoryPart(name="activations", phase="training", num_bytes=activations)
    ends = computed * shape.hidden * (3 * item + 4) if on_gpu or shape.measured else 0
    yield MemoryPart(name="final hidden states", phase="training", num_bytes=ends)
    yield MemoryPart(name="fused weights", phase="training", num_bytes=_joined(shape, config, machine))
    positions = max(1, min(LOGIT_CHUNK, CHUNK_LOGITS // shape.vocabulary))
    has_kernel = machine.fused_kernels and shape.has_plain_head
    # With the kernel, those of the forward and the backward pass in float32, which do not use the same memory of the
    # heap, and their gradient.
    logits = positions * shape.vocabulary * (8 + item if has_kernel else item + 12)
    logits *= 1 if shape.has_plain_head else 2  # autograd stores the scaled and capped ones too
    head = (4 + item) * shape.vocabulary * shape.hidden if config.train_embeddings and not config.uses_lora else 0
    beside = ("logits of a chunk", logits + head) if logits + head > backward else ("a layer's gradients", backward)
    yield MemoryPart(name=beside[0], phase="training", num_bytes=beside[1])
    # Measured shares, see benchmarks/memory.py: buffers of many sizes leave gaps in a heap that is kept.
    gaps = max(max(stored), (activations + beside[1]) // 3)
    if shape.measured:
        gaps = (activations + beside[1]) // 10
    gaps = gaps if machine.device == "cpu" else 0
    yield MemoryPart(name="heap fragmentation", phase="training", num_bytes=gaps)
    largest = max((x.inputs * x.outputs for x in shape.linear), default=0) if config.finetune == "qlora" else 0
    yield MemoryPart(name="dequantized weight", phase="training", num_bytes=largest * item)


def _microbatch(budget: int, load: MaxPassSizes) -> int:
    """Return the computed tokens of a full microbatch. `budget` is the maximum.

    A shared prompt is computed once for the episodes of a group.
    """
    own = load.max_episode_tokens - load.prompt_tokens
    rows = (budget - load.prompt_tokens) // own
    if rows < 2 or not load.prompt_tokens:
        return max(budget, load.max_episode_tokens)  # a row may be longer than the budget
    while rows > 2 and rows * own + -(-rows // load.group_size) * load.prompt_tokens > budget:
        rows -= 1
    return rows * own + -(-rows // load.group_size) * load.prompt_tokens


def _width(shape: ModelShape, config: LocalEngineConfig, machine: Machine) -> int:
    """Return the bytes that a layer stores for the backward pass for each token.

    These are two hidden states, q, k, v, the result of attention, and both halves of the gated layer. Without the
    kernels, also normalized states, q and k before rotation, and the gated product with the result of its function.
    """
    queries, keys = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    fused = machine.fused_kernels and shape.has_kernels
    numbers = 2 * shape.hidden + 2 * queries + 2 * keys + 2 * shape.intermediate
    numbers += 2 * shape.used_experts * shape.hidden  # a token's input and result for each of its experts
    if not fused:
        numbers += 2 * shape.hidden + queries + keys + 2 * shape.intermediate
    elif config.gradient_checkpointing:  # it computes a layer again, and then stores all of it
        numbers += 2 * shape.hidden + shape.intermediate
    if fused and shape.normalizes_heads:
        numbers += queries + keys
    size = numbers * machine.dtype_bytes
    if not fused:  # the input and the result of each norm, in float32
        size += 8 * (shape.norms * shape.hidden + (queries + keys if shape.normalizes_heads else 0))
    return size + _adapter_width(shape, config, machine)


def _padded_width(shape: ModelShape, longest: int, item: int) -> int:
    """Return the bytes that a layer of a padded model stores for each token, beside those of every model.

    These are attention scores, before and after the softmax and its cap, and the tensors of linear attention.
    """
    scores = shape.heads * longest * (2 * item + 4) if shape.stores_scores else 0
    linear = 4 * LINEAR_ATTENTION_TENSORS * shape.linear_width * shape.linear_layers // shape.layers
    return scores + linear


def _gpu_width(shape: ModelShape, config: LocalEngineConfig, machine: Machine) -> int:
    """Return the bytes that a layer stores for the backward pass for each token on a GPU.

    These are the tensors that autograd stores for transformers' modules and for `tree_attention`: of each norm its
    input in float32, its result and, to train its weight, the normalized input; q, k, v, the result of attention and
    two float32 per head; the gate before and after its function, the other half, and their product.
    """
    item, queries, keys = machine.dtype_bytes, shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    normalized = 0 if config.uses_lora else item
    size = 2 * shape.hidden * (4 + item + normalized) + 8
    size += item * (2 * queries + 2 * keys + 4 * shape.intermediate) + 8 * shape.heads
    if shape.normalizes_heads:
        size += (queries + keys) * (4 + normalized) + 4 * (shape.heads + shape.key_heads)
    return size + _adapter_width(shape, config, machine)


def _adapter_width(shape: ModelShape, config: LocalEngineConfig, machine: Machine) -> int:
    """Return the bytes that the adapters of a layer store for the backward pass for each token."""
    adapted = _adapted(shape, config)
    size = machine.dtype_bytes * config.lora.rank * len(adapted) // shape.layers
    if config.lora.dropout:
        size += (machine.dtype_bytes + 1) * sum(x.inputs for x in adapted) // shape.layers
    return size


def _joined(shape: ModelShape, config: LocalEngineConfig, machine: Machine) -> int:
    """Return the bytes of the copies of weights that are fused for one product (q, k, v; gate, up).

    Only layers without adapters are fused.
    """
    if not (machine.fused_kernels and shape.has_kernels) or config.finetune == "qlora":
        return 0
    adapted = {x.name for x in _adapted(shape, config)}
    sizes: dict[str, int] = {}
    for x in shape.linear:
        sizes[x.name] = sizes.get(x.name, 0) + x.inputs * x.outputs * machine.dtype_bytes
    joints = ({"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"})
    whole = sum(sizes.get(name, 0) for joint in joints if not joint & adapted for name in joint)
    return whole // shape.layers * (1 if config.gradient_checkpointing else _stored_layers(shape, config))
