"""What a run takes of a machine's memory, reckoned before it begins from shapes alone.

All that lives as long as the run is counted exactly. What sampling and training take in turn (sampling forgets its
cache before an update) is reckoned for the largest pass that the config allows: episodes of the full length, a cache
that is full, micro-batches that are full. Shorter episodes take less. Of several processes each has such a plan, for
its share of the episodes. docs/memory.md has the formulas, and how far plans and measurements are apart.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from understudy.config import TrainConfig
from understudy.engines.local.config import ALL_LINEAR, LocalConfig
from understudy.engines.local.machine import Machine
from understudy.engines.local.programs import KEPT, SIZE
from understudy.engines.vllm.server import installed
from understudy.errors import ConfigError
from understudy.records import Record

LOGITS = 512
"""Positions whose logits are there at once (`engines.local.head.CHUNK`)."""
GROWTH = 128
"""Tokens by which slots of the cache grow (`engines.local.cache.GROWTH`)."""
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits: 64 share a scale of a byte, 256 scales one of four."""
GIB = 1 << 30

When = Literal["always", "sampling", "training"]


class Linear(Record):
    """A linear layer of the model's body."""

    name: str
    """The last part of its module's name, such as `q_proj`."""
    outputs: int
    inputs: int


class Shape(Record):
    """What of a model decides how much memory it takes."""

    parameters: int
    """All of them, tied ones once."""
    embeddings: int
    """Of the embeddings, and of the output head where it is not tied to them."""
    linear: tuple[Linear, ...]
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_dim: int
    vocabulary: int


class Load(Record):
    """The largest passes of a process, in tokens."""

    longest: int
    """Of an episode."""
    prompt: int
    """Of what the episodes of a group begin with alike."""
    turn: int
    """That an episode has got since its last reply."""
    group: int
    """Episodes of a group that it has, where it has any: each prompt is computed and kept once for so many."""
    live: int
    """Episodes that are sampled side by side."""
    reference: bool
    """Whether a frozen copy of the weights is kept."""
    averaged: bool = False
    """Whether that is an average, in float32."""
    here: bool = True
    """Whether replies are sampled by PyTorch in this process; vLLM takes what `engine.vllm` says."""


class Part(Record):
    """Something that takes memory, and when it does."""

    name: str
    when: When
    size: int
    """In bytes."""


class Plan(Record):
    """What each process of a run takes, in parts."""

    device: str
    parts: tuple[Part, ...]
    total: int
    """Bytes that the device has."""
    processes: int = 1
    """How many there are: all on one CPU, or each on a GPU of its own."""

    @property
    def peak(self) -> int:
        """Bytes of a process at its peak: sampling and training take turns."""
        return self.sum("always") + max(self.sum("sampling"), self.sum("training"))

    @property
    def needed(self) -> int:
        """Bytes that the device has to have: a CPU's memory is shared by all processes."""
        return self.peak * (self.processes if self.device == "cpu" else 1)

    @property
    def fits(self) -> bool:
        """Whether the device has as much."""
        return self.needed <= self.total

    def sum(self, when: When) -> int:
        """Bytes of all parts of one kind."""
        return sum(part.size for part in self.parts if part.when == when)


def plan(shape: Shape, config: LocalConfig, load: Load, machine: Machine, processes: int = 1) -> Plan:
    """The plan of an engine, or of each of several processes' that work on one run, from the shapes of its model."""
    shards = processes if config.sharding == "fsdp" else 1
    parts = [*_kept(shape, config, load, machine, shards), *_training(shape, config, load, machine)]
    parts += _sampling(shape, config, load, machine) if load.here else ()
    parts += _gathered(shape, config, machine) if shards > 1 else ()
    whole = tuple(part for part in parts if part.size)
    return Plan(device=machine.device, parts=whole, total=machine.total, processes=processes)


def planned(config: TrainConfig, folder: Path, machine: Machine, processes: int = 1) -> list[Plan]:
    """The plan of a run with the model in a folder; none where a server has the weights."""
    if config.engine.kind != "local":
        return []
    return [plan(read_shape(folder), config.engine, load_of(config, processes), machine, processes)]


def load_of(config: TrainConfig, processes: int = 1) -> Load:
    """The largest passes that a config allows, as if no two episodes began alike: how much they do is not known before.

    Several processes have every n-th episode each, and so some of most groups.
    """
    longest = config.limits.max_tokens + config.sampling.max_tokens
    algorithm = config.algorithm
    return Load(
        longest=longest,
        prompt=0,
        turn=max(1, longest // config.limits.max_turns),
        group=-(-algorithm.group_size // processes),
        live=min(config.engine.sequences, -(-algorithm.group_size * algorithm.tasks_per_step // processes)),
        reference=algorithm.kl_coefficient > 0 or config.preferences.steps > 0,
        averaged=algorithm.kl_coefficient > 0 and algorithm.reference.kind == "ema",
        here=_samples_here(config.engine),
    )


def _samples_here(config: LocalConfig) -> bool:
    """Whether PyTorch will sample, as far as can be told before the model is loaded."""
    if config.sampler != "auto":
        return config.sampler == "torch"
    return not config.vllm.url and not installed(config.vllm.python)


def checkpoint_bytes(shape: Shape, config: TrainConfig, item: int) -> int:
    """What a checkpoint takes on disk: master weights, moments, and the reference; a weight has `item` bytes.

    An average has 4 of each, and another model is in a folder of its own.
    """
    held = item if config.preferences.steps else 0
    if config.algorithm.kl_coefficient:
        held = max(held, {"frozen": item, "ema": 4, "model": 0}[config.algorithm.reference.kind])
    return (12 + held) * _trainable(shape, config.engine)


def read_shape(folder: Path) -> Shape:
    """The shape of the model in a folder, from its config.json and the headers of its safetensors."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    shapes = {name: tensor["shape"] for file in sorted(folder.glob("*.safetensors")) for name, tensor in _header(file)}
    try:
        return _shape(config, shapes)
    except KeyError as e:
        raise ConfigError(f"{folder / 'config.json'} says no {e}; its memory cannot be planned") from e


def as_text(plan: Plan) -> str:
    """A table: what a process takes, and where several share a device, what they take together."""
    width = max(len(part.name) for part in plan.parts)
    several = f", for each of {plan.processes} processes" if plan.processes > 1 else ""
    lines = [f"planned memory of the {plan.device}{several}"]
    for when in ("always", "sampling", "training"):
        lines += [f"  {p.name:<{width}}  {when:<8} {_gib(p.size)}" for p in plan.parts if p.when == when]
    once = f"  {'at once':<{width}}           {_gib(plan.peak)}"
    if plan.needed > plan.peak:
        once += f"\n  {'all processes':<{width}}           {_gib(plan.needed)}"
    lines.append(f"{once} of {_gib(plan.total).strip()}")
    if not plan.fits:
        lines[-1] += f": more than there is; lower {_knobs(plan)}"
    return "\n".join(lines)


def beside(plan: Plan, measured: int) -> str:
    """The peak that a process came to, beside the plan's."""
    whose = " of the first process" if plan.processes > 1 else ""
    return f"memory{whose} at its peak: {measured / GIB:.2f} GiB; the plan allowed for {plan.peak / GIB:.2f}"


def _gib(size: int) -> str:
    return f"{size / GIB:8.3f} GiB"


def _knobs(plan: Plan) -> str:
    training = plan.sum("training") > plan.sum("sampling")
    knobs = "engine.tokens_per_microbatch, or set engine.checkpointing" if training else "engine.sequences"
    return f"{knobs}, or start fewer processes" if plan.needed > plan.peak else knobs


def _header(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and headers of the tensors in a safetensors file: its first 8 bytes say how long the JSON after them is."""
    with file.open("rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    yield from ((name, tensor) for name, tensor in header.items() if name != "__metadata__")


def _shape(config: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> Shape:
    tied = bool(config.get("tie_word_embeddings", "lm_head.weight" not in shapes))
    ends = ("embed_tokens.weight", "wte.weight", "lm_head.weight")
    outer = {name: s for name, s in shapes.items() if name.endswith(ends) and not (tied and "lm_head" in name)}
    body = {name: s for name, s in shapes.items() if not name.endswith(ends)}
    heads = config["num_attention_heads"]
    return Shape(
        parameters=sum(math.prod(s) for s in (outer | body).values()),
        embeddings=sum(math.prod(s) for s in outer.values()),
        linear=tuple(
            Linear(name=name.split(".")[-2], outputs=s[0], inputs=s[1])
            for name, s in sorted(body.items())
            if len(s) == 2 and name.endswith(".weight")
        ),
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config.get("intermediate_size") or 4 * config["hidden_size"],
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
    )


def _adapted(shape: Shape, config: LocalConfig) -> list[Linear]:
    """The linear layers that get an adapter."""
    if not config.adapters:
        return []
    targets, names = config.lora.targets, {x.name for x in shape.linear}
    if targets == (ALL_LINEAR,):
        return list(shape.linear)
    if missing := set(targets) - names:
        raise ConfigError(f"engine.lora.targets: no module {min(missing)!r} in this model; it has {sorted(names)}")
    return [x for x in shape.linear if x.name in targets]


def _trainable(shape: Shape, config: LocalConfig) -> int:
    if config.adapters:
        return sum(config.lora.rank * (x.inputs + x.outputs) for x in _adapted(shape, config))
    return shape.parameters - (0 if config.train_embeddings else shape.embeddings)


def _kept(shape: Shape, config: LocalConfig, load: Load, machine: Machine, shards: int) -> Iterator[Part]:
    """What lives as long as the run; of the layers a process has one of so many shards."""
    item, trainable = machine.item, _trainable(shape, config)
    outside = shape.embeddings if config.train_embeddings and not config.adapters else 0
    own = -(-(trainable - outside) // shards) + outside
    copied = 4 if load.averaged else item
    linear = sum(x.inputs * x.outputs for x in shape.linear)
    quantized = int(linear * NF4) - linear * item if config.finetune == "qlora" else 0
    copies = 0 if config.finetune == "qlora" or not machine.packs else linear * item
    for name, size in (
        ("process and its libraries", machine.taken),
        ("weights", -(-(_layers(shape) * item + quantized) // shards) + shape.embeddings * item),
        ("weights, arranged for sampling", copies),
        ("programs for shapes", KEPT * SIZE if machine.packs else 0),
        ("adapters", own * item if config.adapters else 0),
        ("master weights", 4 * own),
        ("gradients", 4 * own),
        ("optimizer moments", 8 * own),
        ("reference", own * (copied + item) if load.reference else 0),  # beside it, while it is read, the current ones
    ):
        yield Part(name=name, when="always", size=size)


def _gathered(shape: Shape, config: LocalConfig, machine: Machine) -> Iterator[Part]:
    """What is whole beside a process's shard: all layers while it samples, one at a time in an update."""
    adapters = _trainable(shape, config) if config.adapters else 0
    size = (_layers(shape) + adapters) * machine.item
    yield Part(name="layers, gathered", when="sampling", size=size)
    yield Part(name="a layer, gathered", when="training", size=size // shape.layers)


def _layers(shape: Shape) -> int:
    """Parameters that shards divide."""
    return shape.parameters - shape.embeddings


def _sampling(shape: Shape, config: LocalConfig, load: Load, machine: Machine) -> Iterator[Part]:
    """The cache, and the larger of prefilling a turn of every live episode and of drawing a token for every row."""
    item = machine.item
    token = 2 * shape.layers * shape.key_heads * shape.head_dim * item
    own = -(-(load.longest - load.prompt) // GROWTH) * GROWTH
    prefixes = -(-load.live // load.group) * load.prompt
    yield Part(name="keys and values", when="sampling", size=(config.sequences * own + prefixes) * token)
    new = max(load.prompt, load.live * load.turn)
    folded = 2 * shape.heads * (load.live * load.turn) * load.longest
    prefill = item * (new * (4 * shape.hidden + 3 * shape.intermediate) + folded)
    rows = max(config.rows, load.live)
    logits = rows * shape.vocabulary * (item if machine.fused else 24)
    yield Part(name="passes", when="sampling", size=max(prefill, logits))


def _training(shape: Shape, config: LocalConfig, load: Load, machine: Machine) -> Iterator[Part]:
    """A micro-batch: what waits for the backward pass, and the largest thing that is computed beside it."""
    item = machine.item
    computed, queries = _microbatch(config.tokens_per_microbatch, load)
    width = _width(shape, config, machine)
    weights = shape.heads * queries * load.longest * item  # attention probabilities of one layer
    layer = computed * width + weights
    inputs = shape.layers * computed * shape.hidden * item
    activations = inputs + layer if config.checkpointing else shape.layers * layer
    yield Part(name="activations", when="training", size=activations)
    yield Part(name="weights, joined", when="training", size=_joined(shape, config, machine))
    yield Part(name="gaps between tensors", when="training", size=layer if machine.device == "cpu" else 0)
    backward = max(2 * weights, computed * (4 * shape.intermediate + 4 * shape.hidden) * item)
    logits = LOGITS * shape.vocabulary * (item if machine.fused else item + 12)
    head = 2 * shape.vocabulary * shape.hidden * item if config.train_embeddings and not config.adapters else 0
    beside = ("logits of a chunk", logits + head) if logits + head > backward else ("a layer's gradients", backward)
    yield Part(name=beside[0], when="training", size=beside[1])


def _microbatch(budget: int, load: Load) -> tuple[int, int]:
    """Tokens that a full micro-batch computes, and those of them that attend to whole rows."""
    own = load.longest - load.prompt
    rows = (budget - load.prompt) // own
    if rows < 2 or not load.prompt:
        whole = max(budget, load.longest)  # a row may be longer than the budget
        return whole, whole
    while rows > 2 and rows * own + -(-rows // load.group) * load.prompt > budget:
        rows -= 1
    return rows * own + -(-rows // load.group) * load.prompt, rows * own


def _width(shape: Shape, config: LocalConfig, machine: Machine) -> int:
    """Bytes that a layer keeps of a token for the backward pass, without attention probabilities."""
    queries, keys = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    numbers = 4 * shape.hidden + 3 * queries + 3 * keys + 3 * shape.intermediate
    if not machine.fused:
        numbers += shape.intermediate  # the gate, before and after its function
    size = numbers * machine.item + (0 if machine.fused else 16 * shape.hidden)  # norms, in float32
    adapted = _adapted(shape, config)
    if adapted:
        size += machine.item * config.lora.rank * len(adapted) // shape.layers
    if config.lora.dropout and adapted:
        size += (machine.item + 1) * sum(x.inputs for x in adapted) // shape.layers
    return size


def _joined(shape: Shape, config: LocalConfig, machine: Machine) -> int:
    """Copies of the weights that one product joins (q, k and v; gate and up), where they are plain layers."""
    if not machine.fused or config.finetune == "qlora":
        return 0
    adapted = {x.name for x in _adapted(shape, config)}
    sizes: dict[str, int] = {}
    for x in shape.linear:
        sizes[x.name] = sizes.get(x.name, 0) + x.inputs * x.outputs * machine.item
    joints = ({"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"})
    whole = sum(sizes.get(name, 0) for joint in joints if not joint & adapted for name in joint)
    return whole // shape.layers if config.checkpointing else whole
