"""Resolve what a command works on: TARGET, further configs, and `key=value` settings.

    preset        the name of a preset (`understudy list`)
    domain        the name of a domain, `module:attribute`, `mcp:FILE`, `openenv:URL`, `verifiers:PYTHON#NAME`,
                  `mix:A,B`, a benchmark such as `tau2:PATH#NAME`, `hf:OWNER/NAME` (a data set of tasks), or the path of
                  an MCP environment's TOML file: all of its tasks, with the default of every key
    config        the path of a TOML file
    run           the folder of a run
    checkpoint    RUN/checkpoints/STEP
    evaluation    the folder of an evaluation
    tasks         a file of tasks, or a folder of such files: used like a domain
    model         the folder of a model

Presets, algorithms and config files may follow TARGET: `understudy train retail dapo mine.toml seed=1`. Later ones win.

A name wins over a file or folder of the same name; `./NAME` is always the file or folder. A new kind needs an entry in
`TARGET_KINDS` and a test in `detect_target`; a new kind with a config needs a branch in `_load_target_config` too.
"""

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from understudy.algorithms.presets import algorithm_presets
from understudy.core.errors import ConfigError, did_you_mean, no_such_path
from understudy.core.files import RETRY_HINT
from understudy.core.foreign_names import explained_arguments
from understudy.core.settings import dump_toml, loads_toml, matching_keys, read_text, shown_setting, with_full_key
from understudy.envs.task_source import FULL_SLICE, TaskSource, with_reward_policy
from understudy.runs.config import PROVENANCE_FILE, ConfigLayer, TrainConfig, load_config, parse_config
from understudy.runs.eval_spec import is_eval_folder, read_spec
from understudy.runs.foreign_configs import YAML_SUFFIXES, explain_yaml
from understudy.runs.presets import DEFAULT_PRESET, preset_names, preset_text
from understudy.runs.run import CONFIG_FILE, is_run_folder, validate_config_file
from understudy.sources.dataset_files import subfolder_hint
from understudy.sources.loading import list_names, load_source
from understudy.sources.readers import SUFFIXES, explain_suffix
from understudy.sources.references import list_domains
from understudy.sources.task_files.files import is_task_file

TargetKind = Literal["preset", "domain", "config", "run", "checkpoint", "evaluation", "tasks", "model"]
TARGET_KINDS: Mapping[TargetKind, str] = {
    "preset": "a preset",
    "domain": "a domain (also module:attribute, mcp:FILE, openenv:URL, verifiers:PYTHON#NAME, "
    "nemo-gym:URL#ROWS, harbor:FOLDER#run=local, bfcl:PATH#CATEGORY, sopbench:PATH#NAME, tau-bench:PATH#NAME, "
    "tau2:PATH#NAME, hf:OWNER/NAME or mix:A,B)",
    "config": "a config file (.toml)",
    "run": "the folder of a run (with config.toml)",
    "checkpoint": "a checkpoint (RUN/checkpoints/STEP)",
    "evaluation": "the folder of an evaluation (with spec.json)",
    "tasks": f"a file of tasks ({', '.join(SUFFIXES)}) or a folder of such files",
    "model": "the folder of a model",
}
"""Text of each kind in errors."""
CONFIG_KINDS: tuple[TargetKind, ...] = ("preset", "domain", "tasks", "config", "run", "checkpoint", "evaluation")
"""Kinds that have a config. Each command that takes TARGET takes all of them."""
_SETTING = re.compile(r"[^=/:]*=")
_MODULE = re.compile(r"(?:\./)?(?P<name>[A-Za-z_]\w*)(?:\.py)?(?:[.:](?P<attribute>\w+))?")
"""The name of a module of this folder, or of an object in it, as people write it in place of `module:attribute`."""
PROGRAMS = frozenset(
    ["understudy", "python", "python3", "uv", "uvx", "pip", "npx", "node", "bash", "sh", "sudo", "env", "torchrun", "$"]
)
"""Words that begin another command, of a line that was pasted or is not quoted."""
_DOMAIN_REFERENCE = re.compile(r"[\w.-]+:")
_MODEL_FILES = ("config.json", "adapter_config.json")


@dataclass(frozen=True, slots=True)
class Target:
    """What a command works on: its kind, and its name or path."""

    kind: TargetKind
    text: str

    @property
    def path(self) -> Path:
        """`text` as a path."""
        return Path(self.text)


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A target and its config, with the settings applied."""

    target: Target
    config: TrainConfig

    @property
    def name(self) -> str:
        """The name of new run folders: the preset, the domain, the file, or the run, without characters of paths."""
        target = self.target
        if target.kind in ("run", "evaluation"):
            return target.path.resolve().name
        if target.kind == "checkpoint":
            return target.path.resolve().parent.parent.name
        if target.kind == "config":
            is_of_run = target.path.name == CONFIG_FILE and (target.path.parent / PROVENANCE_FILE).is_file()
            return target.path.parent.resolve().name if is_of_run else target.path.stem
        if target.kind == "tasks":
            return target.path.stem
        parts = (Path(part).stem if is_task_file(part) else part for part in list_names(target.text))
        prefix = "mix-" if target.text.startswith("mix:") else ""
        return prefix + re.sub(r"[^\w.]+", "-", "-".join(dict.fromkeys(parts))).strip("-")


def resolve(arguments: Sequence[str] = ()) -> ResolvedTarget:
    """Resolve `[TARGET [CONFIG...]] key=value...` to a config: TARGET, each CONFIG, then the settings; later ones win.

    A CONFIG is the name of a preset or of an algorithm, or a config file. Without TARGET, `domain=NAME` means the same
    as TARGET = NAME, and `data.train=FILE` the same as TARGET = FILE. Without these, TARGET is the preset
    `retail_quick`. Raise ConfigError for a TARGET that does not exist or has no config, and for a wrong setting.
    """
    names, settings = split_arguments(arguments)
    _refuse_repeated_keys(settings)
    what, domain = "".join(names[:1]), _setting_text(settings, "domain")
    layers = [read_layer(name, what) for name in names[1:]]
    alone = domain or _setting_text(settings, "data.train")
    if not what and alone:
        target = find_target(alone, ("domain", "tasks"))
    else:
        target = find_target(what or DEFAULT_PRESET)
        if target.kind in ("domain", "tasks") and domain not in ("", what, target.text):
            raise ConfigError(
                f"{what} and domain={domain} name two sources of tasks; give one of them, or choose the domains of a "
                "file with slice.domains"
            )
    return ResolvedTarget(target, _load_target_config(target, settings, layers))


def _refuse_repeated_keys(settings: Sequence[str]) -> None:
    """Raise ConfigError if settings give two values to a key of `data` or `slice`, whose author may mean both.

    Of other keys the last value counts.
    """
    given = dict[str, str]()
    for setting in settings:
        key, _, value = with_full_key(TrainConfig, setting).partition("=")
        key, value = key.strip(), value.strip()
        if key.startswith(("data.", "slice.")) and given.setdefault(key, value) != value:
            both = " and ".join(shown_setting(f"{key}={each}") for each in (given[key], value))
            raise ConfigError(f"{key} is given twice, as {both}; give it once")


def has_target(arguments: Sequence[str]) -> bool:
    """Return whether `[TARGET] key=value...` names a target, by TARGET, by `domain=` or by `data.train=`."""
    names, settings = split_arguments(arguments)
    return bool(names or _setting_text(settings, "domain") or _setting_text(settings, "data.train"))


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names (TARGET, if it is given, and the configs after it) and the settings."""
    words = _join_settings(arguments)
    for word in words:
        key, colon, value = word.partition(":")
        is_key = key in TrainConfig.model_fields or matching_keys(TrainConfig, key)
        if is_key and colon and (not value or value.startswith(" ")):
            raise ConfigError(f"{word!r} is written as in YAML; write {key}={value.strip() or 'VALUE'}")
    for before, word in itertools.pairwise(words):
        if _SETTING.match(before) and word.isdecimal() and not Path(word).exists():
            raise ConfigError(f"{word!r} is an argument of its own; did you mean {before.rstrip(',')},{word}?")
    names = [word for word in words if not _SETTING.match(word)]
    if pasted := next((name for name in names if name in {*PROGRAMS, "#"}), None):
        raise ConfigError(f"{pasted!r} begins another command or a comment; leave it out, or quote it")
    return names, [word for word in words if _SETTING.match(word)]


def _join_settings(words: Sequence[str]) -> list[str]:
    """Return the words, with a setting that was written with spaces, such as `seed = 1`, as one word."""
    joined: list[str] = []
    for word in words:
        after_equals = len(joined) > 1 and joined[-1] == "="
        if joined and len(joined[-1]) > 1 and joined[-1].endswith("=") and not _is_argument(word):
            joined[-1] += word
        elif after_equals or (joined and word.startswith("=") and len(word) > 1):
            setting = joined.pop()
            joined.append(f"{joined.pop() if after_equals else ''}{setting}{word}")
        else:
            joined.append(word)
    return joined


def _is_argument(word: str) -> bool:
    """Return whether a word after `KEY=` is an argument of its own, so that KEY is set to nothing."""
    return bool(_SETTING.match(word)) or word in algorithm_presets() or detect_target(word) is not None


def is_config(name: str) -> bool:
    """Return whether a name is a preset, an algorithm or a config file, which may follow TARGET."""
    target = detect_target(name)
    return name in algorithm_presets() or (target is not None and target.kind in ("preset", "config"))


def read_layer(name: str, what: str) -> ConfigLayer:
    """Return a config that follows `what`. Raise ConfigError if `name` is not a preset, an algorithm or a file."""
    if name in algorithm_presets():
        return ConfigLayer(name, f'algorithm.preset = "{name}"')
    target = detect_target(name)
    if target and target.kind == "preset":
        return ConfigLayer(name, preset_text(name))
    if target and target.kind == "config":
        return ConfigLayer(name, read_text(target.text))
    if keys := matching_keys(TrainConfig, name):
        raise ConfigError(f"{name!r} is a key of the config; set it by {' or '.join(f'{key}=VALUE' for key in keys)}")
    if (path := Path(os.path.expanduser(name))).is_file() and path.suffix in YAML_SUFFIXES:
        raise ConfigError(explain_yaml(path))
    known = [*preset_names(), *algorithm_presets()]
    found = f"{name!r} is {TARGET_KINDS[target.kind]}" if target else f"unknown config {did_you_mean(name, known)}"
    raise ConfigError(
        f"{found}; only presets, algorithms, config files and key=value settings may follow {what!r} "
        "(several domains are one: mix:A,B)"
    )


def find_target(text: str, allowed: Sequence[TargetKind] = CONFIG_KINDS) -> Target:
    """Return what `text` names. Raise ConfigError if it names nothing, or something of a kind that is not allowed."""
    target = detect_target(text)
    kinds = ", ".join(TARGET_KINDS[kind] for kind in allowed)
    if target is None and Path(text).is_dir():
        hint = subfolder_hint(Path(text))
        raise ConfigError(f"the folder {text} holds nothing that is accepted here{hint}; allowed: {kinds}")
    if text in algorithm_presets():
        raise ConfigError(f"{text!r} is an algorithm; name what to train on before it, such as: retail {text}")
    if target is None and (path := Path(os.path.expanduser(text))).is_file():
        if path.suffix in YAML_SUFFIXES:
            raise ConfigError(explain_yaml(path))
        suffixes = explain_suffix(path, (*SUFFIXES, ".toml"))
        raise ConfigError(f"{text}: unknown file suffix {suffixes}")
    module = _MODULE.fullmatch(text)
    if target is None and module and Path(f"{module['name']}.py").is_file():
        name, attribute = module["name"], module["attribute"] or "NAME"
        raise ConfigError(f"{text!r} is no target; did you mean {name}:{attribute}, an object in {name}.py?")
    if target is None and ("/" in text or Path(text).suffix in (*SUFFIXES, ".toml", *YAML_SUFFIXES)):
        raise ConfigError(no_such_path(text))
    if target is None:
        names = [*(preset_names() if "preset" in allowed else ()), *(list_domains() if "domain" in allowed else ())]
        raise ConfigError(f"unknown name or path {did_you_mean(text, names)}; or give {kinds}")
    if target.kind not in allowed:
        raise ConfigError(f"{text} is {TARGET_KINDS[target.kind]}; allowed: {kinds}")
    return target


def detect_target(text: str) -> Target | None:
    """Return what `text` names, or None if it names nothing."""
    if text in preset_names():
        return Target("preset", text)
    if text in list_domains() or _DOMAIN_REFERENCE.match(text):
        return Target("domain", text)
    path = Path(os.path.expanduser(text))
    if path.suffix == ".toml" and _is_mcp_environment(path):
        return Target("domain", f"mcp:{path}")
    kind = _kind_of_path(path)
    return Target(kind, os.path.expanduser(text)) if kind else None


@explained_arguments(keyword="write it as a setting, as in load(TARGET, '{name}={value}')")
def load(what: str, *settings: str) -> TaskSource:
    """Load the tasks and environments of TARGET: a domain, or the slice of a domain that a config names.

    TARGET and the settings are those of the command line (see `resolve`): `load("retail")`, `load("my_module:SUMS")`,
    `load("mcp:notes.toml")`, `load("telecom_easy", "slice.difficulties=hard")`.
    """
    config = resolve([what, *settings]).config
    source = with_reward_policy(load_source(config.domain, config.data), config.reward)
    return source if config.slice == FULL_SLICE else source.slice(config.slice)


def _kind_of_path(path: Path) -> TargetKind | None:
    """Return what a path is, or None if it is nothing that is accepted. Raise ConfigError if it cannot be read."""
    try:
        return _kind_of_readable_path(path)
    except PermissionError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror}); fix that, then {RETRY_HINT}") from e


def _kind_of_readable_path(path: Path) -> TargetKind | None:
    if is_run_folder(path):
        return "run"
    if path.parent.name == "checkpoints" and is_run_folder(path.parent.parent):
        return "checkpoint"
    if is_eval_folder(path):
        return "evaluation"
    if any((path / name).is_file() for name in _MODEL_FILES):
        return "model"
    if path.is_dir():
        return "tasks" if any(child.suffix in SUFFIXES for child in path.iterdir()) else None
    if path.is_file() and path.suffix in SUFFIXES:
        return "tasks"
    return "config" if path.suffix == ".toml" or (path.is_file() and not path.suffix) else None


def _is_mcp_environment(path: Path) -> bool:
    """Return whether a TOML file has the keys of an MCP environment. A file that cannot be read has none."""
    try:
        return bool({"server", "servers"} & loads_toml(path.read_text(encoding="utf-8")).keys())
    except (OSError, ValueError):
        return False


def _setting_text(settings: Sequence[str], key: str) -> str:
    """Return the sources that the settings give to a key, as one target: a list is a mixture. "" if there are none."""
    parts = [with_full_key(TrainConfig, setting).partition("=") for setting in settings]
    text = next((value.strip() for name, _, value in reversed(parts) if name.strip() == key), "")
    try:
        listed = loads_toml(f"value = {text}")["value"] if text.startswith("[") else None
    except ValueError:
        return text
    if listed is None and not text.startswith("mix:"):
        listed = list_names(text)
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        return text
    return listed[0] if len(listed) == 1 else f"mix:{','.join(listed)}" if listed else ""


def _load_target_config(target: Target, settings: Sequence[str], layers: Sequence[ConfigLayer]) -> TrainConfig:
    match target.kind:
        case "preset" | "config":
            return load_config(target.text, settings, layers)
        case "run":
            validate_config_file(target.path)
            return load_config(target.path / CONFIG_FILE, settings, layers)
        case "checkpoint":
            validate_config_file(target.path.parent.parent)
            return load_config(target.path.parent.parent / CONFIG_FILE, settings, layers)
        case "evaluation":
            return parse_config(dump_toml(read_spec(target.path).config), settings, layers=layers)
        case "domain" | "tasks":
            text = str(target.path.absolute()) if target.kind == "tasks" else target.text
            named = [f"domain={text}"] if _setting_text(settings, "domain") else []
            return parse_config(f"domain = {json.dumps(text)}", [*settings, *named], layers=layers)
        case "model":
            raise ConfigError(f"{target.text} is {TARGET_KINDS[target.kind]}, which has no config")
