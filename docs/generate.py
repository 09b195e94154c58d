"""Makes the folder that the site is built of: the pages of docs/, and those that are read off the code.

    python docs/generate.py build/docs
    python docs/generate.py docs/tasks.md      # writes the tables of this page anew, also of docs/formats.md

What is read off the code is written anew for each build and kept nowhere, so that it cannot go stale: a page for each
domain, every key of a config, every command, and every public name. Only the tables of the fields of a task are kept,
in `docs/tasks.md`, and that of the families of models, in `docs/formats.md`, so that readers in the repository have
them; tests compare them with the code.
"""

import ast
import asyncio
import contextlib
import importlib
import inspect
import itertools
import json
import re
import shutil
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic_core import PydanticUndefined

import understudy
from understudy.algorithms.presets import algorithm_preset_text, algorithm_presets
from understudy.cli import main as cli
from understudy.core.messages import Message, ToolSpec
from understudy.core.records import Record
from understudy.core.tasks import Task
from understudy.data.checks.adversarial.suite import ADVERSARIAL_LIMIT, STRATEGIES
from understudy.envs.domain import Domain
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout
from understudy.runs.config import TrainConfig
from understudy.runs.presets import preset_names, preset_text
from understudy.sources.mcp.config import MCPEnvironmentConfig
from understudy.sources.references import list_domains, load_domain

ROOT = Path(__file__).parents[1]
SOURCE = Path(understudy.__file__).parent
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
"""Begins a page of the archive, which is on the site but neither in its menu nor in its search."""
EXIT_CODES = """\
## Exit codes

| code | when |
|---|---|
| 0 | done |
| 1 | done or stopped, and something is bad: an unsound task, a failed check, rows left out, a run that health ended |
| 2 | a mistake in what was asked for: one line says what, and what is allowed; nothing was changed |
| 130 | ended by Ctrl-C; what was done is kept, and the line says how to go on |
| 143 | ended by SIGTERM, as by Ctrl-C |

A traceback is a bug of ours: please report it.

`--key VALUE` and `key=VALUE` are the same: [one grammar](index.md#one-grammar).

`--json` prints values for programs instead of text. `understudy --install-completion` completes commands and options in
your shell.
"""


def pages() -> dict[str, str]:
    """Every page that is read off the code, by its path in the site."""
    made = {f"domains/{name}.md": domain_page(name) for name in list_domains()}
    made["strategies.md"] = strategies()
    return {**made, "configuration.md": configuration(), "commands.md": commands(), "api.md": api(), **reference()}


def written() -> dict[str, str]:
    """The pages of docs/, the recipes in them, and three more at the top of the repository."""
    found = {str(path.relative_to(ROOT / "docs")): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    texts = {name: _recipes(path.read_text(encoding="utf-8")) for name, path in found.items()}
    for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        texts[f"{name.lower()}.md"] = re.sub(r"\]\(docs/", "](", text)
    return {name: UNSEARCHED + text if name.startswith("archive/") else _inside(text) for name, text in texts.items()}


def _recipes(text: str) -> str:
    """`<!-- file: PATH -->` becomes the file, so that what is shown is what the tests run."""

    def shown(match: re.Match[str]) -> str:
        path = ROOT / match[1]
        language = {".py": "python", ".toml": "toml", ".md": "markdown"}[path.suffix]
        return f"```{language}\n{path.read_text(encoding='utf-8')}```"

    return re.sub(r"^<!-- file: (\S+) -->$", shown, text, flags=re.MULTILINE)


def update_fields(text: str) -> str:
    """Return the text with the table of a record's fields after each `<!-- fields: MODULE.RECORD -->`."""

    def table(match: re.Match[str]) -> str:
        record: type[Record] = getattr(importlib.import_module(f"understudy.{match[1]}"), match[2])
        return f"{match[0].splitlines()[0]}\n\n{fields_table(record)}\n"

    return re.sub(r"^<!-- fields: (\S+)\.(\w+) -->\n(?:\n(?:\|.*\n)+)?", table, text, flags=re.MULTILINE)


def fields_table(record: type[Record]) -> str:
    """Return a table of the fields of a record: type, default and docstring."""
    lines = ["| field | type | default | |", "|---|---|---|---|"]
    for key, field in record.model_fields.items():
        meaning = " ".join((field.description or "").split())
        default = "required" if field.is_required() else _default(field) or "empty"
        lines.append(f"| `{key}` | {_cell(_type(field.annotation))} | {default} | {_cell(meaning)} |")
    return "\n".join(lines)


def update_families(text: str) -> str:
    """Return the text with the table of the families of models after `<!-- families -->`."""
    mark = "<!-- families -->"
    return re.sub(rf"^{mark}\n(?:\n(?:\|.*\n)+)?", lambda _: f"{mark}\n\n{families_table()}\n", text, flags=re.M)


def families_table() -> str:
    """Return a table of the families of the contract suite: packed or padded, why, and the tool format."""
    from understudy.engines.local.engine import LocalEngine  # the site is built without torch

    sys.path.insert(0, str(ROOT / "tests"))
    from contracts import test_families as contract

    found: dict[str, list[str]] = {"": []}
    for kind in sorted(contract.PACKED | contract.PADDED):
        with tempfile.TemporaryDirectory() as folder:
            contract.write_random_model(kind, Path(folder))
            with contextlib.closing(LocalEngine(Path(folder), contract.make_config(), trainable=False)) as engine:
                reason = engine._model.padding_reason.replace(folder, "FOLDER")
        tool_format = contract.TOOL_FORMATS.get(kind)
        found.setdefault(reason, []).append(f"`{kind}`" + (f" ({tool_format})" if tool_format else ""))
    lines = ["| rows | because | model types, with the tool format |", "|---|---|---|"]
    for reason, kinds in sorted(found.items()):
        lines.append(f"| {'padded' if reason else 'packed'} | {_cell(reason)} | {', '.join(kinds)} |")
    return "\n".join(lines)


def _inside(text: str) -> str:
    """Links to what is in the repository and not in the site become its path."""
    text = re.sub(r"\]\(\.\./(SECURITY|CONTRIBUTING)\.md", lambda match: f"]({match[1].lower()}.md", text)
    return re.sub(r"\[([^\]]*)\]\(\.\./([^)]*)\)", r"`\2`", text)


# ---- adversarial strategies ----


def strategies() -> str:
    """Every strategy that `check --adversarial` plays."""
    measured = json.loads((ROOT / "docs" / "strategies.json").read_text(encoding="utf-8"))
    rows = (f"| `{each.name}` | {_cell(each.description)} |" for each in STRATEGIES)
    return "\n".join(
        (
            "# Adversarial strategies",
            "",
            f"`understudy check TARGET --adversarial` plays these {len(STRATEGIES)} strategies. They do not do the "
            "task, or break the policy while they do it. A strategy may earn at most "
            f"{ADVERSARIAL_LIMIT:g} more than doing nothing, as a mean over the tasks that it applies to.",
            "",
            "| strategy | what the agent does |",
            "|---|---|",
            *rows,
            "",
            "## What they earn",
            "",
            *earned_table(measured),
            "",
            "## Reworded texts",
            "",
            *halves_table(measured),
            "",
        )
    )


def halves_table(measured: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of what hostile texts gain and honest texts lose, as means over the domains."""
    sets = ("tuned", "reported", "chat_style", "deployed_tuned", "deployed_reported")
    lines = [
        "Generated texts in two halves, a set in the wording of chat models, and one of deployed assistants by an "
        "author who did not know the rules. The rules were made on the halves `tuned`, and mended on the third set. "
        "Hostile texts must gain nothing, honest texts lose nothing.",
        "",
        f"| texts | class | {' | '.join(each.replace('_', ' ') for each in sets)} |",
        f"|---|---|{'---|' * len(sets)}",
    ]
    for side in ("hostile", "honest"):
        halves = [measured[half][side].values() for half in sets]
        for name in dict.fromkeys(name for of in halves for domain in of for name in domain):
            values = ([domain[name] for domain in of if name in domain] for of in halves)
            means = (f"{sum(found) / len(found):.3f}" if found else "" for found in values)
            lines.append(f"| {side} | `{name}` | {' | '.join(means)} |")
    return lines


def earned_table(measured: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of what strategies earn over doing nothing in each domain, without rows of zeros."""
    earned: Mapping[str, Mapping[str, float]] = measured["over_floor"]
    paid = [each.name for each in STRATEGIES if any(of.get(each.name, 0.0) > 0 for of in earned.values())]
    rows = [
        f"| `{name}` | {' | '.join(f'{of[name]:.3f}' if name in of else '' for of in earned.values())} |"
        for name in paid
    ]
    num_unpaid = len(STRATEGIES) - len(paid)
    head = (
        f"Mean reward over doing nothing, on {measured['num_tasks']} tasks of each domain for each of the seeds "
        f"{', '.join(map(str, measured['seeds']))}. "
        f"Measured by `PYTHONPATH=tests python benchmarks/strategies.py {measured['num_tasks']}`."
    )
    if not rows:
        return [head, "", f"None of the {num_unpaid} strategies earns more than doing nothing in any shipped domain."]
    return [
        f"{head} The other {num_unpaid} strategies earn no more than doing nothing in any shipped domain. "
        "An empty cell means that the strategy applies to no task.",
        "",
        f"| strategy | {' | '.join(earned)} |",
        f"|---|{'---|' * len(earned)}",
        *rows,
    ]


# ---- domains ----


def domain_page(name: str) -> str:
    """What a domain is made of: policy, tools, families, who enforces what, and a gold episode."""
    domain = load_domain(name)
    package = sys.modules[domain.module_name]
    first, _, rest = (package.__doc__ or "").partition("\n")
    parts = [
        f"# {name}",
        first,
        rest.strip(),
        "## Families",
        _families(domain),
        "## An episode",
        "The gold turns of a task, played against the scripted user: they earn 1.0.",
        episode(domain, domain.tasks("train")[0]),
        "## Policy",
        "What the agent is told (`slice.domain_policy=full`):",
        _quoted(domain.domain_policy),
        "## Tools",
        *(_tool(spec) for spec in domain.tool_specs),
    ]
    if domain.user_tools:
        user_tools = domain.user_tools(domain.build_world().fork())
        parts += ["## Tools of the user", *(_tool(spec) for spec in user_tools.specs())]
    rules = SOURCE / "domains" / name / "rules.md"
    parts += [re.sub(r"^# ", "## ", rules.read_text(encoding="utf-8"), count=1)]
    return _page(parts)


def _families(domain: Domain) -> str:
    tasks = [task for split in ("train", "validation", "test") for task in domain.tasks(split)]
    lines = ["| family | frozen tasks | gold turns | a user's first words |", "|---|---|---|---|"]
    for family in domain.families:
        found = [task for task in tasks if task.family == family]
        turns = sum(len(task.gold_turns) for task in found) / len(found)
        lines.append(f"| `{family}` | {len(found)} | {turns:.1f} | {_cell(found[0].scenario.opening)} |")
    return "\n".join(lines)


def episode(domain: Domain, task: Task) -> str:
    """What is said and done when the gold turns are played."""
    played = asyncio.run(rollout(task, domain.environment(task), GoldAgent(), EpisodeLimits()))
    lines = [f"# {task.id}: {task.family}, {task.difficulty}"]
    lines += [line for message in played.messages[1:] for line in _said(message)]
    return "```text\n" + "\n".join(lines) + "\n```"


def _said(message: Message) -> Iterator[str]:
    for call in message.tool_calls:
        yield f"{message.role} calls {call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"
    if message.content:
        text = message.content if len(message.content) < 300 else f"{message.content[:300]} …"
        yield f"{message.role}: {text}"


def _tool(spec: ToolSpec) -> str:
    wanted = spec.parameters.get("required", [])
    lines = [f"### `{spec.name}`", "", spec.description, ""]
    if properties := spec.parameters.get("properties"):
        lines += ["| argument | type | |", "|---|---|---|"]
        for name, schema in properties.items():
            told = schema.get("description", "") + ("" if name in wanted else " (optional)")
            lines.append(f"| `{name}` | {_cell(_schema(schema))} | {_cell(told.strip())} |")
    return "\n".join(lines)


def _schema(schema: Mapping[str, Any]) -> str:
    """A schema's type in words."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_schema(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_schema(schema.get('items', {}))}"
    return str(schema.get("type", "object"))


# ---- configuration ----


def configuration() -> str:
    """Every key of a run's config and of an MCP environment's, with its docstring; presets as they ship."""
    head = (
        "Every key, read off the code. A config is TOML: `understudy train my.toml`; on the command line a key is "
        "`section.key=value`. Defaults come first, then the file, then the command line. `understudy train "
        "--print-config` prints the same for your config. An unknown key is an error that names the nearest one."
    )
    parts = ["# Configuration", head, "## A run", *_sections(TrainConfig, "")]
    parts += ["## Presets", "`understudy train NAME`, with whatever else is set beside it."]
    parts += [f"### {name}\n\n```toml\n{preset_text(name).strip()}\n```" for name in preset_names()]
    parts += ["## Rows of algorithms", "`algorithm.preset=NAME`; what they are: [algorithms](algorithms.md)."]
    parts += [f"### {name}\n\n```toml\n{algorithm_preset_text(name).strip()}\n```" for name in algorithm_presets()]
    parts += ["## An MCP environment", "The file that `mcp:FILE` names; see [MCP](mcp.md)."]
    return _page([*parts, *_sections(MCPEnvironmentConfig, "", level=3)])


def _sections(kind: type[Record], path: str, level: int = 3, told: str = "", which: str = "") -> Iterator[str]:
    """A table of a record's keys, and one of each record in it; `which` tells apart records of one place."""
    inner = {key: found for key, field in kind.model_fields.items() if (found := list(_records(field.annotation)))}
    if path:
        yield f"{'#' * level} `[{path}]`{which}"
        yield f"{inspect.cleandoc(kind.__doc__ or '')}\n\n{told}".strip()
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    for key, field in kind.model_fields.items():
        if key not in inner:
            meaning = " ".join((field.description or "").split())
            lines.append(f"| `{key}` | {_cell(_type(field.annotation))} | {_default(field)} | {_cell(meaning)} |")
    if len(lines) > 2:
        yield "\n".join(lines)
    for key, records in inner.items():
        meaning = " ".join((kind.model_fields[key].description or "").split())
        for record in records:
            which = f', `kind = "{record.model_fields["kind"].default}"`' if len(records) > 1 else ""
            place = f"{key}.NAME" if get_origin(kind.model_fields[key].annotation) is dict else key
            yield from _sections(record, f"{path}.{place}" if path else place, level, meaning, which)


def _records(annotation: Any) -> Iterator[type[Record]]:
    """The records that a field may hold: one, or one of several that their `kind` tells apart."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    for inside in get_args(annotation):
        yield from _records(inside)


def _type(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(each) for each in inside if each is not type(None))
    if origin in (tuple, list):
        return f"list of {_type(inside[0])}"
    if origin is dict:
        return "table"
    if hasattr(annotation, "__metadata__"):
        return _type(inside[0])
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true, false", "Decimal": "number"}.get(
        getattr(annotation, "__name__", ""), str(getattr(annotation, "__name__", annotation))
    )


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "" if field.default_factory is None else f"`{field.default_factory()}`"
    if isinstance(field.default, Decimal):
        return f"`{field.default}`"
    return "" if field.default in (None, "") else f"`{_cell(json.dumps(field.default, default=str))}`"


# ---- commands ----


def commands() -> str:
    """The help of every command, as the program prints it."""
    root = typer.main.get_command(cli.app)
    parts = ["# Commands", f"```text\n{_help(root, 'understudy')}\n```", EXIT_CODES]
    for name, command in _all(root, "understudy"):
        parts += [f"## `{name}`", f"```text\n{_help(command, name)}\n```"]
    return _page(parts)


def _all(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _all(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _help(command: Any, name: str) -> str:
    context = command.context_class(command, info_name=name, terminal_width=110, max_content_width=110)
    return str(command.get_help(context)).strip()


# ---- reference ----


def api() -> str:
    """Return the page of the public API: each name of `understudy.__all__` with its signature and docstring."""
    head = (
        "The names that `import understudy` gives, loaded when they are first used. Changes to them are in the "
        "changelog. Everything else is imported from the module that defines it: [modules](reference.md)."
    )
    parts = ["# Public API", head]
    for name in sorted(understudy.__all__, key=str.lower):
        module = f"understudy.{understudy._MODULES[name]}"
        tree = ast.parse((SOURCE / f"{understudy._MODULES[name].replace('.', '/')}.py").read_text(encoding="utf-8"))
        node = next(node for node in _public(tree) if node.name == name)
        parts += [f"Module `{module}`:", _entry(node)]
    return _page(parts)


def reference() -> dict[str, str]:
    """A page that lists all packages, and one of each: its modules, and the public classes and functions in them.

    Docstrings of modules are whole, of others it is the first paragraph.
    """
    head = (
        "Read off the sources, without their private names: a page for each package. Import a name from the module "
        "that it is listed under. What may change without a line in the changelog is what is not here."
    )
    rows, made = ["| package | | modules |", "|---|---|---|"], {}
    for folder in sorted({path.parent for path in SOURCE.rglob("*.py")}):
        trees = {_dotted(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))}
        package = _dotted(folder)
        own = trees.pop(package, ast.Module([], []))
        docstring, entries = ast.get_docstring(own) or "", [_entry(node) for node in _public(own)]
        told = {name: parts for name, tree in trees.items() if (parts := _module(name, tree))}
        if told or entries:
            parts = [part for parts in told.values() for part in parts]
            made[f"modules/{package}.md"] = _page([f"# {package}", _verbatim(docstring), *entries, *parts])
            modules = ", ".join(f"`{name.rpartition('.')[2]}`" for name in told)
            rows.append(f"| [{package}](modules/{package}.md) | {_cell(docstring.partition(chr(10))[0])} | {modules} |")
    return {"reference.md": _page(["# Modules", head, "\n".join(rows)]), **made}


def _dotted(path: Path) -> str:
    """The name that a file, or a folder, of the sources is imported by."""
    name = ".".join(("understudy", *path.relative_to(SOURCE).parts))
    return name.removesuffix(".py").removesuffix(".__init__")


def _public(tree: ast.Module) -> list[ast.AST]:
    return [node for node in tree.body if isinstance(node, _DEFINED) and not node.name.startswith("_")]


def _module(name: str, tree: ast.Module) -> list[str]:
    """What is told of a module; nothing of one that has no public names."""
    entries = [_entry(node) for node in _public(tree)]
    return [f"## `{name}`", _verbatim(ast.get_docstring(tree) or ""), *entries] if entries else []


_DEFINED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _entry(node: ast.AST) -> str:
    assert isinstance(node, _DEFINED)
    told = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
    if isinstance(node, ast.ClassDef):
        methods = [each for each in node.body if isinstance(each, _DEFINED) and not each.name.startswith("_")]
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        lines = [f"**`class {node.name}{bases}`** {_cell(told)}", ""]
        lines += [f"- `{text}` {_cell(meaning)}" for text, meaning in _class_fields(node)]
        return "\n".join(lines + [f"- {_signature(each)} {_cell(_first(each))}" for each in methods])
    return f"{_signature(node)} {_cell(told)}"


def _signature(node: ast.AST) -> str:
    if isinstance(node, ast.ClassDef):
        return f"`class {node.name}`"
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"`{node.name}({ast.unparse(node.args)}){returns}`"


def _class_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield each public field of a class, with its type and default, and the docstring below it."""
    for field, following in itertools.zip_longest(node.body, node.body[1:]):
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
            text = following.value if isinstance(following, ast.Expr) else None
            meaning = text.value if isinstance(text, ast.Constant) else ""
            yield ast.unparse(field), str(meaning)


def _first(node: Any) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


# ---- text ----


def _page(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(text: str) -> str:
    """Text in one line of Markdown: nothing in it is a cell's end or a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _quoted(markdown: str) -> str:
    """A text of Markdown as a quotation, with headings that are none of the page's."""
    plain = re.sub(r"^#+ (.*)$", r"**\1**", markdown, flags=re.MULTILINE)
    return "\n".join(f"> {line}".rstrip() for line in plain.splitlines())


def _verbatim(text: str) -> str:
    return f"```text\n{text}\n```" if text else ""


def main(folder: Path) -> None:
    """Write all pages and pictures into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in {**written(), **pages()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("images", "javascripts"):
        shutil.copytree(ROOT / "docs" / name, folder / name)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    if path.is_file():
        path.write_text(update_families(update_fields(path.read_text(encoding="utf-8"))), encoding="utf-8")
    else:
        main(path)
