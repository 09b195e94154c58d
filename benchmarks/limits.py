"""Measure how much of this machine a step of the local engine uses: its products and its memory are the limits.

    python benchmarks/limits.py                                # SmolLM2-135M: 4 groups of 8, 650 + 64 tokens
    python benchmarks/limits.py --shape 0.5b --finetune lora   # random weights in the shape of a 0.5B model

An update is limited by products: a trained token takes 6 operations for each weight (forward 2, gradients of inputs 2,
of weights 2), and with LoRA 4, because the weights have no gradients. The rate is that of the best forward product of
the model's largest layer, in the dtype that the engine chooses here. Sampling multiplies the prompts once. Then each
token of the replies reads all weights from memory and multiplies them with all rows: the slower of both is the limit
(the roofline model, Williams et al. 2009, doi:10.1145/1498765.1498785). Attention is left out of both, so shares are a
little too low.

Measure on a quiet machine: other programs slow the limits and the step differently.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from engine import find_model_or_folder
from shapes import SHAPES, write_model

from understudy.engines.local.model import choose_dtype
from understudy.train.planning.memory import read_model_shape

ENGINE = Path(__file__).with_name("engine.py")
REPEATS = 7
ROWS = 512, 1024, 2048, 4096
"""Numbers of tokens of a product. The best of them is the limit."""
STREAM_BYTES = 1 << 30
GROUPS, GROUP_SIZE = 4, 8
UNITS = "amx_bf16", "avx512_bf16", "avx512f", "avx2"
"""Units of x86 processors for products, the fastest first."""
OPERATIONS = {"full": 6, "lora": 4}
"""Operations for each weight and trained token."""


class Limits(NamedTuple):
    """What this machine can do at most."""

    flops: float
    """Operations a second of the best product."""
    bandwidth: float
    """Bytes a second that are read from memory."""


def seconds(run: Callable[[], object]) -> float:
    """Return the least time of several runs, after a warm-up."""
    run()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def measure_limits(hidden: int, intermediate: int, dtype: torch.dtype) -> Limits:
    """Measure products of the model's largest layer, and a sum over memory that no cache holds."""
    weight = torch.randn(intermediate, hidden).to(dtype)
    rates = []
    for rows in ROWS:
        tokens = torch.randn(rows, hidden).to(dtype)
        spent = seconds(partial(torch.nn.functional.linear, tokens, weight))
        rates.append(2 * rows * hidden * intermediate / spent)
    buffer = torch.ones(STREAM_BYTES // 4)
    return Limits(max(rates), STREAM_BYTES / seconds(buffer.sum))


def processor_unit() -> str:
    """Return the fastest known unit of this processor, or an empty string."""
    file = Path("/proc/cpuinfo")
    flags = file.read_text(encoding="utf-8").split() if file.exists() else []
    return next((unit for unit in UNITS if unit in flags), "")


def main() -> None:
    """Print the limits, the times of a step, and the share of the limits that it reaches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="model name or folder (default: %(default)s)")
    parser.add_argument("--shape", choices=[*SHAPES], help="use random weights of this shape instead of --model")
    parser.add_argument("--finetune", choices=[*OPERATIONS], default="full")
    parser.add_argument("--prompt", type=int, default=650, help="tokens per prompt (default: %(default)s)")
    parser.add_argument("--reply", type=int, default=64, help="tokens per reply (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="measured steps (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_model(Path(folder), arguments.shape)) if arguments.shape else arguments.model
        found = measure(model, arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    machine = f"{found['unit'] or 'unknown unit'}, {found['dtype']}, {found['threads']} threads"
    print(f"{machine}: {found['tflops']:.2f} TFLOP/s, {found['gb_s']:.1f} GB/s")
    print("| part | measured, s | at the limit, s | share of the limit |\n|---|---|---|---|")
    for part in ("update", "sampling"):
        measured, limit = found[part], found[f"{part}_limit"]
        print(f"| {part} | {measured:.2f} | {limit:.2f} | {limit / measured:.0%} |")


def measure(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the limits before and after a step, which runs in its own process, and return both."""
    shape = read_model_shape(find_model_or_folder(model))
    dtype = choose_dtype("auto", torch.device("cpu"))
    before = measure_limits(shape.hidden, shape.intermediate, dtype)
    name = str(dtype).removeprefix("torch.")
    command = [sys.executable, str(ENGINE), "--one", "--share", "--device=cpu", f"--dtype={name}"]
    command += [f"--groups={GROUPS}", f"--group={GROUP_SIZE}"]
    command += [f"--{key}={getattr(arguments, key)}" for key in ("finetune", "prompt", "reply", "steps")]
    command += [f"--model={model}", *(["--embeddings"] if arguments.finetune == "full" else [])]
    step = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    after = measure_limits(shape.hidden, shape.intermediate, dtype)
    flops, bandwidth = (statistics.mean(pair) for pair in zip(before, after, strict=True))
    operations = OPERATIONS[arguments.finetune] * shape.parameters * step["computed tokens/s"] * step["update, s"]
    token = 2 * shape.parameters / flops
    decoding = max(dtype.itemsize * shape.parameters / bandwidth, GROUPS * GROUP_SIZE * token)
    return {
        "unit": processor_unit(),
        "dtype": name,
        "threads": torch.get_num_threads(),
        "tflops": flops / 1e12,
        "gb_s": bandwidth / 1e9,
        "update": step["update, s"],
        "update_limit": operations / flops,
        "sampling": step["sampling, s"],
        "sampling_limit": GROUPS * arguments.prompt * token + arguments.reply * decoding,
    }


if __name__ == "__main__":
    main()
