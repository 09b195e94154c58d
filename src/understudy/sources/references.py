"""`load_reference` returns a single task source by a reference: neither a file of tasks nor a mixture.

A reference is the folder name of a shipped domain, `module:attribute` for any other `TaskSource` or a class with
`reset` and `step`, `tau-bench:PATH#domain` or another of `BENCHMARK_MODULES` in your own checkout, `mcp:file.toml` for
an MCP environment, or an environment of another framework, such as `openenv:URL` (`SOURCE_MODULES`).
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path

from understudy import domains
from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.imports import import_object
from understudy.envs.domain import Domain
from understudy.envs.domain_validation import validate_domain
from understudy.envs.task_source import REQUIRED_MEMBERS, TaskSource, find_contract_error
from understudy.envs.tools import ToolkitBase
from understudy.sources.environments.gym import is_gym_class, source_of_class
from understudy.sources.tool_dataset import explain_foreign_class, is_trl_class

BENCHMARK_MODULES: Mapping[str, str] = {
    "tau-bench": "understudy.sources.benchmarks.tau_bench",
    "tau2": "understudy.sources.benchmarks.tau2_bench",
    "bfcl": "understudy.sources.benchmarks.bfcl",
    "sopbench": "understudy.sources.benchmarks.sopbench",
}
"""The module whose `open_domain` opens a benchmark, by the benchmark's prefix (before `:PATH#domain`)."""
SOURCE_MODULES: Mapping[str, str] = {
    **BENCHMARK_MODULES,
    "mcp": "understudy.sources.mcp.source",
    "openenv": "understudy.sources.environments.openenv",
    "verifiers": "understudy.sources.environments.verifiers",
    "nemo-gym": "understudy.sources.environments.nemo_gym",
    "harbor": "understudy.sources.environments.harbor",
}
"""The module whose `open_domain` opens a source, for each prefix: the benchmarks, `mcp:` and other frameworks."""


def list_domains() -> list[str]:
    """Return the names of the shipped domains, sorted."""
    return sorted(path.parent.name for path in Path(domains.__file__).parent.glob("*/policy.md"))


def load_reference(reference: str) -> TaskSource:
    """Return the task source that a reference names.

    Raise `ConfigError` for an unknown name, and for an attribute that is no `TaskSource`, or has a missing or wrong
    member.
    """
    module, _, attribute = reference.partition(":")
    if module in SOURCE_MODULES:
        opened: TaskSource = importlib.import_module(SOURCE_MODULES[module]).open_domain(attribute)
        return opened
    if not attribute:
        if reference not in list_domains():
            others = "use 'module:attribute' for your own domain, or 'tau-bench:PATH#retail' for a benchmark"
            raise ConfigError(f"unknown domain {did_you_mean(reference, list_domains())}; {others}")
        module, attribute = f"{domains.__name__}.{reference}", "DOMAIN"
    found = import_object(f"{module}:{attribute}", wanted=TaskSource)
    if is_gym_class(found) and not is_trl_class(found) and not issubclass(found, TaskSource | ToolkitBase):
        return source_of_class(attribute, found)
    if is_trl_class(found):
        raise ConfigError(
            f"{reference!r} is an environment without rows: give a file and data.reward={reference}, or name a "
            f"ToolDataset(name, policy, examples, {attribute})"
        )
    is_foreign = isinstance(found, type) and not issubclass(found, TaskSource | ToolkitBase)
    if is_foreign and hasattr(found, "reset"):
        raise ConfigError(explain_foreign_class(found))
    if isinstance(found, type):
        named = _suggest_instance(module, attribute) or f"name an instance of it, such as SOURCE = {attribute}(...)"
        raise ConfigError(f"{reference!r} is a class; {named}")
    if not isinstance(found, TaskSource):
        suggested = _suggest_instance(module, attribute)
        if inspect.isfunction(found):
            named = suggested or f"name what it returns, such as SOURCE = {attribute}(...)"
            raise ConfigError(f"{reference!r} is a function; {named}")
        if type(found).__module__ == "builtins":
            kind = type(found).__name__
            raise ConfigError(
                f"{reference!r} is no source of tasks, but of the type {kind}; "
                f"{suggested or 'name a ToolDataset or a Domain'}"
            )
        raise ConfigError(
            f"{reference!r} is a {type(found).__name__} and not a TaskSource; derive its class from "
            f"understudy.envs.task_source.TaskSource, and define {', '.join(REQUIRED_MEMBERS)}"
        )
    if isinstance(found, Domain):
        validate_domain(found)
    elif error := find_contract_error(found):
        raise ConfigError(f"{reference!r}: {error}")
    return found


def _suggest_instance(module: str, attribute: str) -> str:
    """Return the question whether one of the sources of a module was meant, or an empty text if it has none."""
    names = [name for name, value in vars(sys.modules[module]).items() if isinstance(value, TaskSource)]
    close = difflib.get_close_matches(attribute.lower(), [name.lower() for name in names], 1)
    meant = next((name for name in names if name.lower() in close), names[0] if len(names) == 1 else "")
    return f"did you mean '{module}:{meant}'?" if meant else f"name one of {', '.join(names)}" if names else ""


def load_domain(name: str) -> Domain:
    """Return the `Domain` called `name`. Raise `ConfigError` if it is another kind of task source."""
    found = load_reference(name)
    if not isinstance(found, Domain):
        raise ConfigError(
            f"{name!r} is a {type(found).__name__} and not a Domain; "
            f"allowed: {', '.join(list_domains())}, or a Domain of your own as module:attribute"
        )
    return found
