"""Measure the cells of all tables that need a GPU, one after the other, and write one Markdown file. See gpu.sh.

A cell is a command that prints JSON. It runs in a process group of its own, with a time limit. Its result is stored in
`--out`, so the next start does not measure it again; a cell without a result is tried again. The Markdown file is
written after each cell. A cell that has no result has the reason in the table.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import NAMES
from shapes import SHAPES

from understudy.engines.vllm.server import vllm_installed
from understudy.runs.provenance import collect_provenance

HERE = Path(__file__).parent
ENGINE, PYTHON = str(HERE / "engine.py"), sys.executable
CHECKPOINTED = {"3b", "7b"}
"""Shapes that are trained with gradient checkpointing, on both sides."""
CPU_SIZES = ("--prompt=64", "--reply=4", "--groups=1", "--group=2")
POLL_SECONDS = 0.5
MAX_REASON = 200

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class PublishedStep:
    """The sizes of a step in a config that another trainer publishes."""

    config: str
    shape: str
    finetune: str
    prompt: int
    """The largest number of tokens of a prompt."""
    reply: int
    """The largest number of tokens of a reply."""
    groups: int
    """Prompts of a step."""
    group: int
    """Replies to a prompt."""


PUBLISHED = (
    PublishedStep("verl, run_qwen2_5-3b_gsm8k_grpo_lora.sh, 1/64 of a step", "3b", "lora", 512, 1024, 16, 5),
    PublishedStep("prime-rl, configs/basic/reverse-text/rl.toml", "0.5b", "full", 256, 128, 8, 16),
    PublishedStep("prime-rl, configs/basic/wiki-search/rl.toml", "3b", "lora", 3584, 512, 8, 16),
)
"""verl's model has 3, prime-rl's have 0.6 and 4 billion parameters. prime-rl bounds prompt and reply together: 2,048
and 4,096 tokens. None of these configs is published with the time of a step.
"""


@dataclass(frozen=True)
class Cell:
    """A command, and where its rows stand."""

    name: str
    section: str
    """The heading of the table; empty for a preparation."""
    command: Sequence[str]
    limit: float
    """Seconds after which the command is ended."""
    labels: Mapping[str, str]
    """The first columns of its rows."""
    missing: str = ""
    """Why the command cannot run here."""
    after: tuple[str, ...] = ()
    """Cells that must have a result."""
    result_file: Path | None = None
    """The file with the JSON result; None for the output of the command."""
    codes: tuple[int, ...] = (0,)
    """Exit codes with which there is a result."""
    to_rows: Callable[[Any], Rows] = lambda found: found if isinstance(found, list) else [found]


def all_cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells, the most important first."""
    no_vllm = "" if vllm_installed(arguments.vllm_python) else "vLLM is not installed (--vllm-python names its Python)"
    on_cpu = arguments.device == "cpu"
    yield from _preparations(arguments)
    for shape in arguments.shapes:
        yield from _steps(arguments, shape, no_vllm)
    yield from _sampling(arguments, no_vllm)
    yield _memory(arguments)
    for sampler, missing in (("torch", ""), ("vllm", no_vllm)):
        settings = [f"engine.device={arguments.device}", f"engine.sampler={sampler}", *_vllm(arguments, sampler)]
        command = [PYTHON, "-m", "understudy", "certify", arguments.model, "--json", *settings]
        labels = {"sampler": sampler}
        yield Cell(f"certify-{sampler}", CERTIFY, command, 300, labels, missing, codes=(0, 1), to_rows=_certified)
    yield from _peers(arguments, "trl-vllm")
    yield _preset(arguments)
    for step in () if on_cpu else PUBLISHED:
        if step.shape in arguments.shapes:
            yield _published(arguments, step, no_vllm)
    yield from _peers(arguments, "unsloth")
    yield from _peers(arguments, "trl")
    yield _several(arguments)


STEPS = "One step of GRPO, with random weights"
PUBLISHED_STEPS = "Our step in the sizes of other trainers' published configs"
DECODING = "Sampling: episodes of the preset retail_easy"
MEMORY = "The memory plan and the measured peak"
CERTIFY = "Agreement of sampler and trainer (`understudy certify`)"
PRESET = "The preset retail_easy from the first to the last step"
SEVERAL = "Several GPUs"
NOTES = {
    STEPS: "`full` trains embeddings too. TRL and Unsloth get prompts of about as many tokens. `peak GiB` counts the "
    "tensors of the training process, without a vLLM server; `GPU GiB` is the memory in use on the first GPU.",
    CERTIFY: "Differences of log-probabilities, and failed checks of any kind.",
    PUBLISHED_STEPS: "Prompts and replies have the largest number of tokens that the config allows.",
    DECODING: "Tokens a second. Prefill counts the tokens of cached prefixes.",
}


def _preparations(arguments: argparse.Namespace) -> Iterator[Cell]:
    for shape in arguments.shapes:
        folder = arguments.out / "models" / shape
        command = [PYTHON, str(HERE / "shapes.py"), shape, str(folder), "--device", arguments.device]
        yield Cell(f"model-{shape}", "", command, 300, {})


def _engine(arguments: argparse.Namespace, shape: str, finetune: str) -> list[str]:
    """Return the command for a row of `engine.py`, without what is sampled and shared."""
    command = [PYTHON, ENGINE, "--one", f"--model={arguments.out / 'models' / shape}", f"--finetune={finetune}"]
    command += [f"--device={arguments.device}", "--embeddings", f"--steps={arguments.steps}"]
    command += ["--checkpointing"] if shape in CHECKPOINTED else []
    return [*command, *(CPU_SIZES if arguments.device == "cpu" else ())]


def _steps(arguments: argparse.Namespace, shape: str, no_vllm: str) -> Iterator[Cell]:
    for finetune in ("full", "lora"):
        for name, options, missing in (
            ("shared", ["--share"], ""),
            ("not-shared", [], ""),
            ("vllm", ["--share", "--sampler=vllm", f"--python={arguments.vllm_python}"], no_vllm),
        ):
            yield Cell(
                f"step-{shape}-{finetune}-{name}",
                STEPS,
                [*_engine(arguments, shape, finetune), *options],
                240,
                {"model": shape, "finetune": finetune, "trainer": f"understudy, {LABELS[name]}"},
                missing,
                (f"model-{shape}",),
            )


LABELS = {"shared": "shared prompts", "not-shared": "no shared prompts", "vllm": "shared prompts, vLLM"}


def _peers(arguments: argparse.Namespace, peer: str) -> Iterator[Cell]:
    needs_gpu = "it samples with vLLM on a GPU" if arguments.device == "cpu" and peer != "trl" else ""
    missing = needs_gpu or ("" if peer in arguments.peers else "left out by --peers")
    yield Cell(f"install-{peer}", "", [PYTHON, str(HERE / "peer.py"), peer], 900, {}, missing)
    for shape in arguments.shapes:
        for finetune in ("lora",) if peer == "unsloth" else ("full", "lora"):
            yield Cell(
                f"step-{shape}-{finetune}-{peer}",
                STEPS,
                [*_engine(arguments, shape, finetune), "--peers", peer],
                300,
                {"model": shape, "finetune": finetune, "trainer": NAMES[peer]},
                missing,
                (f"model-{shape}", f"install-{peer}"),
            )


def _published(arguments: argparse.Namespace, step: PublishedStep, no_vllm: str) -> Cell:
    sizes = {name: getattr(step, name) for name in ("prompt", "reply", "groups", "group")}
    command = [*_engine(arguments, step.shape, step.finetune), "--share", "--microbatch=16384"]
    command += [f"--sampler={'torch' if no_vllm else 'vllm'}", f"--python={arguments.vllm_python}"]
    command += [f"--{name}={size}" for name, size in sizes.items()]
    labels = {"config": step.config, "model": step.shape, "finetune": step.finetune}
    labels |= {name: str(size) for name, size in sizes.items()}
    name = f"published-{step.config.partition(',')[0]}-{step.prompt}"
    return Cell(name, PUBLISHED_STEPS, command, 300, labels, "", (f"model-{step.shape}",))


def _sampling(arguments: argparse.Namespace, no_vllm: str) -> Iterator[Cell]:
    small = ("--episodes", "2", "--turns", "1", "--tokens", "4") if arguments.device == "cpu" else ()
    for sampler, missing in (("torch", ""), ("vllm", no_vllm)):
        command = [PYTHON, str(HERE / "sampling.py"), "--samplers", sampler, "--device", arguments.device, "--json"]
        command += ["--python", arguments.vllm_python, *small]
        yield Cell(f"sampling-{sampler}", DECODING, command, 400, {"sampler": sampler}, missing, to_rows=_sampled)


def _sampled(found: Mapping[str, Rows]) -> Rows:
    names = {"episodes": "parallel episodes", "prefill": "prefill tokens/s", "decode": "decode tokens/s"}
    return [{names[key]: row[key] for key in names} for rows in found.values() for row in rows]


def _memory(arguments: argparse.Namespace) -> Cell:
    sizes = [] if arguments.device == "cpu" else ["--model", arguments.model, "--longest=4096", "--microbatch=8192"]
    cases = ["--cases", "full"] if arguments.device == "cpu" else []
    command = [PYTHON, str(HERE / "memory.py"), "--device", arguments.device, "--json", *sizes, *cases]
    return Cell("memory", MEMORY, command, 300, {})


def _certified(found: Mapping[str, Any]) -> Rows:
    """Return the checks that compare log-probabilities, and those that failed."""
    checks = [each for each in found["checks"] if "log-prob" in each["name"] or not each["passed"]]
    return [
        {"engine": c["subject"], "check": c["name"], "passed": str(c["passed"]), "measured": c["measurements"]}
        for c in checks
    ]


def _preset(arguments: argparse.Namespace) -> Cell:
    run = arguments.out / "runs" / "retail_easy"
    settings = ["smoke"] if arguments.device == "cpu" else ["retail_easy", f"model={arguments.model}"]
    command = [PYTHON, "-m", "understudy", "train", *settings, f"engine.device={arguments.device}", "--out", str(run)]
    return Cell("retail-easy", PRESET, command, 900, {}, result_file=run / "result.json", to_rows=_trained)


def _trained(found: Mapping[str, Any]) -> Rows:
    bounds = ((row["name"], row["success"]) for row in found["rows"])
    return [{"agent": name, "success": s["mean"], "low": s["low"], "high": s["high"]} for name, s in bounds]


def _several(arguments: argparse.Namespace) -> Cell:
    count, run = len(gpus()), arguments.out / "runs" / "several"
    command = [PYTHON, "-m", "understudy", "train", "retail_easy", "--num-processes", str(count)]
    command += ["steps=4", "sft.steps=8", f"model={arguments.model}", "engine.sharding=fsdp"]
    command += [*_vllm(arguments, "vllm"), "--out", str(run)]
    missing = "" if count > 1 else f"this machine has {count} GPUs"
    return Cell(
        "several-gpus", SEVERAL, command, 600, {"GPUs": str(count)}, missing, (), run / "result.json", (0,), _trained
    )


def _vllm(arguments: argparse.Namespace, sampler: str) -> list[str]:
    return [f"engine.vllm.python={arguments.vllm_python}"] if sampler == "vllm" and arguments.vllm_python else []


def measure(cell: Cell, out: Path, device: str, limit: float) -> str:
    """Run a cell for at most `limit` seconds. Store its result and return nothing, or return why there is none."""
    if cell.result_file:
        shutil.rmtree(cell.result_file.parent, ignore_errors=True)  # a run that was interrupted
    log, started = out / f"{cell.name}.log", time.perf_counter()
    with (
        log.open("w") as errors,
        peak_gpu_memory(device) as peak,
        subprocess.Popen(
            cell.command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process,
    ):
        try:
            printed, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            printed = ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the command, or a server that it left
    seconds = time.perf_counter() - started
    text = cell.result_file.read_text() if cell.result_file and cell.result_file.exists() else printed
    found = read_json(text)
    if process.returncode not in cell.codes or found is None:
        return f"more than {limit:.0f} s" if seconds >= limit else last_line(log.read_text(), process.returncode)
    rows = [row | ({"GPU GiB": peak[0]} if peak else {}) for row in cell.to_rows(found)]
    (out / f"{cell.name}.json").write_text(json.dumps({"seconds": seconds, "rows": rows}, indent=1))
    return ""


def read_json(text: str) -> Any:
    """Return the JSON that a text ends with, or None. Lines before it are ignored."""
    lines = text.splitlines()
    for first, line in enumerate(lines):
        if line[:1] in ("{", "["):
            with contextlib.suppress(json.JSONDecodeError):
                return json.loads("\n".join(lines[first:]))
    return None


def last_line(log: str, code: int) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:MAX_REASON] if lines else f"exit code {code}, without output"


@contextlib.contextmanager
def peak_gpu_memory(device: str) -> Iterator[list[float]]:
    """Poll the memory in use on the first GPU, and put its peak in GiB into the list. It stays empty on a CPU."""
    peak, done = list[float](), threading.Event()

    def poll() -> None:
        while not done.wait(POLL_SECONDS):
            readings = [*peak, *query_gpus("memory.used")[:1]]
            peak[:] = [max(readings)] if readings else []

    thread = threading.Thread(target=poll, daemon=True)
    if device == "cuda":
        thread.start()
    try:
        yield peak
    finally:
        done.set()
        if device == "cuda":
            thread.join()


def query_gpus(column: str) -> list[float]:
    """Return a column of nvidia-smi for each GPU, in GiB."""
    command = ["nvidia-smi", f"--query-gpu={column}", "--format=csv,noheader,nounits"]
    return [int(line) / 1024 for line in subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.split()]


def gpus() -> list[float]:
    """Return the memory of each GPU in GiB."""
    return query_gpus("memory.total") if shutil.which("nvidia-smi") else []


def run(cells: Sequence[Cell], arguments: argparse.Namespace) -> dict[str, str]:
    """Measure the cells that have no result, while there is time. Return why cells have no result."""
    out, reasons = arguments.out, dict[str, str]()
    deadline = time.perf_counter() + arguments.minutes * 60
    for cell in cells:
        before = next((name for name in cell.after if not (out / f"{name}.json").exists()), None)
        left = deadline - time.perf_counter()
        if (out / f"{cell.name}.json").exists():
            continue
        if cell.missing or before:
            reasons[cell.name] = cell.missing or reasons.get(str(before), f"{before} is not among --cells")
        elif left < 1:
            reasons[cell.name] = "the time was over; run the command again to go on"
        else:
            print(f"{cell.name}: at most {min(cell.limit, left):.0f} s", file=sys.stderr, flush=True)
            if reason := measure(cell, out, arguments.device, min(cell.limit, left)):
                reasons[cell.name] = reason
                print(f"{cell.name}: {reason}", file=sys.stderr, flush=True)
        write_report(cells, out, reasons)
    write_report(cells, out, reasons)
    return reasons


def write_report(cells: Sequence[Cell], out: Path, reasons: Mapping[str, str]) -> None:
    """Write results.md."""
    about = collect_provenance({})
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    commit = ", ".join(f"{where} at {git.commit[:12]}" for where, git in about.git.items())
    lines = [
        "# Measurements on a GPU",
        "",
        f"{about.started_on}; {', '.join(about.gpus) or 'no GPU'}; {about.cpu_count} CPU cores, "
        f"{about.memory_bytes / 2**30:.0f} GiB of main memory; {versions}; {commit}.",
        "",
        "Each cell is one run, so differences of a few percent mean nothing.",
    ]
    for section in dict.fromkeys(cell.section for cell in cells if cell.section):
        lines += ["", f"## {section}", "", *([NOTES[section], ""] if section in NOTES else [])]
        lines += table([cell for cell in cells if cell.section == section], out, reasons)
    (out / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(cells: Sequence[Cell], out: Path, reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table. A cell without a result is a row with the reason."""
    rows: Rows = []
    for cell in cells:
        file = out / f"{cell.name}.json"
        found = json.loads(file.read_text()) if file.exists() else None
        note = {"note": reasons.get(cell.name, "not measured yet")}
        rows += [{**cell.labels, **row} for row in (found["rows"] if found else [note])]
        if found and found["rows"]:
            rows[-1]["whole cell, s"] = found["seconds"]
    columns = [*dict.fromkeys(key for row in rows for key in row if key != "note")]
    columns += ["note"] if any("note" in row for row in rows) else []
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(format_value(row.get(column)) for column in columns)} |"


def format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of results (default: %(default)s)")
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, "tiny"], default=[*SHAPES], help="random models")
    parser.add_argument("--model", default="smollm2-135m", help="the real model (default: %(default)s)")
    parser.add_argument("--vllm-python", default="", help="the Python in which vLLM is installed (default: this one)")
    parser.add_argument("--peers", nargs="*", choices=[*NAMES], default=[*NAMES], help="other trainers to install")
    parser.add_argument("--steps", type=int, default=2, help="measured steps of a cell (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=55, help="minutes for all cells (default: %(default)s)")
    parser.add_argument("--cells", nargs="+", default=[], help="beginnings of names; measure only these cells")
    parser.add_argument("--list", action="store_true", help="only print the cells, and why some would be skipped")
    arguments = parser.parse_args()
    arguments.out = arguments.out.absolute()
    if arguments.device == "cuda" and not gpus() and not arguments.list:
        parser.error("nvidia-smi finds no GPU; for a trial add: --device cpu --shapes tiny")
    cells = [
        cell for cell in all_cells(arguments) if not arguments.cells or cell.name.startswith(tuple(arguments.cells))
    ]
    if arguments.list:
        return print("\n".join(f"{cell.name:<32}{cell.limit:>6.0f} s  {cell.missing}" for cell in cells))
    arguments.out.mkdir(parents=True, exist_ok=True)
    reasons = run(cells, arguments)
    print(f"{len(cells) - len(reasons)} of {len(cells)} cells have a result: {arguments.out / 'results.md'}")


if __name__ == "__main__":
    main()
