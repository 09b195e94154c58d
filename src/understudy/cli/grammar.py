"""The grammar of all commands: `--key VALUE` and `key=VALUE` are the same, for options and for keys of the config.

A command is a function of an `Options` record, whose fields are the options and positional arguments of the command.
Values are parsed as those of configs are (`understudy.core.settings`, which is imported when a command runs). typer has
the tree of commands, prints their help and completes words in a shell.
"""

import contextlib
import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand
from typer.models import ArgumentInfo, ParameterInfo

from understudy.cli.messages import print_message, reserve_stdout
from understudy.core.errors import ConfigError
from understudy.core.records import Record

T = TypeVar("T", bound="Options")
_SETTING = re.compile(r"[\w.-]+=")
_OTHER_NAMES = {
    **dict.fromkeys(("limit", "max_samples", "num_examples", "num_tasks", "samples"), "tasks"),
    "repeat": "trials",
    **dict.fromkeys(("max_connections", "max_concurrency", "max_concurrent", "num_concurrent"), "concurrency"),
    **dict.fromkeys(("output_path", "output_dir", "log_dir", "save_to"), "out"),
}
"""Options of inspect_ai, lm-eval, verifiers and tau-bench, and the option that means the same here."""


class Options(Record, defer_build=True):
    """The options and positional arguments of a command. The docstring under a field is its help.

    A `typer.Argument` in the annotation of a field makes it a positional argument, and a `typer.Option` gives it
    another name. A nested record gives options such as `--data.reward`. If the metavar of an argument ends with
    KEY=VALUE, the command takes settings of the config too.
    """

    abbreviations: ClassVar[Mapping[str, str]] = {}
    """Further options, each with the key of the config that it sets."""
    other_meanings: ClassVar[Mapping[str, str]] = {}
    """Options that mean something else in other programs or in other commands, and what to give instead."""


def verb(app: typer.Typer, name: str = "") -> Callable[[Callable[[T], None]], Callable[[T], None]]:
    """Return a decorator that adds a function of an `Options` record to the program as a command."""

    def add(run: Callable[[T], None]) -> Callable[[T], None]:
        options: type[Options] = inspect.get_annotations(run)["options"]

        def stub() -> None:
            """Give typer the options of the command by its signature."""

        stub.__doc__ = run.__doc__
        vars(stub)["__signature__"] = inspect.Signature([*_parameters(options)])
        command = type("Command", (_Command,), {"options": options, "run": staticmethod(run)})
        app.command(name or run.__name__, cls=command)(stub)
        return run

    return add


class _Command(TyperCommand):
    """A command whose words `parse_words` parses."""

    options: ClassVar[type[Options]]
    run: ClassVar[Callable[[Any], None]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command line."""
        if ctx.resilient_parsing:  # a shell completes a word
            return super().parse_args(ctx, args)
        if {"-h", "--help"} & {*args[: args.index("--") if "--" in args else None]}:
            return super().parse_args(ctx, ["--help"])
        ctx.obj = parse_words(self.options, args, ctx.command_path)
        ctx.params = dict(iter(ctx.obj))  # not dict(ctx.obj), which calls a field `keys`
        return []

    def invoke(self, ctx: Any) -> None:
        """Run the command. With --json, its standard output is only what it prints with `print_result`."""
        with reserve_stdout() if getattr(ctx.obj, "as_json", False) else contextlib.nullcontext():
            type(self).run(ctx.obj)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help. An abbreviation has the help of its key, and the config's module is loaded only for it."""
        for parameter in self.params:
            if key := self.options.abbreviations.get(parameter.name or ""):
                from understudy.core.settings import find_field
                from understudy.runs.config import TrainConfig

                _, field = find_field(TrainConfig, key)
                assert field is not None
                kinds = get_args(field.annotation) or [getattr(field.annotation, "__name__", "")]
                text = f"{field.description} Default: {key} of TARGET, or {field.default}."
                vars(parameter).update(metavar=f"<{'|'.join(kinds)}>", help=" ".join(text.split()))
        super().format_help(ctx, formatter)


def parse_words(options: type[T], words: Sequence[str], command: str = "understudy") -> T:
    """Return the options of a command from the words of its command line.

    `--key VALUE`, `--key=VALUE` and `key=VALUE` set an option or a key of the config, with `-` or `_`. For a boolean,
    `--key` is `key=true` and `--no-key` is `key=false`. Other words, and all after `--`, are positional arguments.
    Settings of the config are added to the argument that takes them. Raise ConfigError for an unknown option or
    argument, and for one that is missing or has no value.
    """
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            rest += left
            break
        text, equals, value = word.partition("=")
        name = text.removeprefix("--")
        is_option = word.startswith("-") and word != "-"
        meanings = options.other_meanings
        if (is_option or equals) and (hint := meanings.get(name) or meanings.get(name.replace("-", "_"))):
            raise ConfigError(f"{text}: {hint}")
        if not is_option and (not _SETTING.match(word) or _has_metavar(options, "NAME=VALUE")):
            rest.append(word)
            continue
        owner, key, flag = _find_key(options, name)
        if owner is None and (is_option or _takes_config(options) or not Path(word).exists()):
            raise _unknown_option(options, text, command, rest)
        if owner is None:
            rest.append(word)
            continue
        if not equals:
            value = _next_value(word, left, flag)
        elif flag == "false":
            raise ConfigError(f"{text} takes no value, but {value!r} is given; leave it out")
        if (plain := name.replace("-", "_")) in _OTHER_NAMES and key == _OTHER_NAMES[plain]:
            print_message(f"{text} is --{key} here")
        if owner is options:
            given.setdefault(key, []).append(value)
        else:
            rest.append(value if key == "config" else f"{key}={value}")
    return _make_options(options, given, rest, command)


def option_name(options: type[Options], field: str) -> str:
    """Return the name of an option or argument on the command line, such as `--out`."""
    if _is_argument(options.model_fields[field]):
        return field
    return next(f"--{key.replace('_', '-')}" for key, name in _own_keys(options).items() if name == field)


def validate_unused_options(
    options: Options, fields: Iterable[str], beside: str = "the other options", needs: str = ""
) -> None:
    """Raise ConfigError if one of these options is given, since it has no effect `beside` others or without one."""
    why = f"without {needs}; add it, or leave this out" if needs else f"beside {beside}; leave it out"
    for field in fields:
        if field in options.model_fields_set and getattr(options, field) not in (None, ()):
            raise ConfigError(f"{option_name(type(options), field)} has no effect {why}")


def _find_key(options: type[Options], name: str) -> tuple[type[Record] | None, str, str]:
    """Return the record that has a key (None if none has), the full key, and for a boolean the value of `--name`.

    A name of another library is returned as it is, because its value may have to be converted.
    """
    from understudy.core.settings import find_field, is_known_name, is_other_name

    own = {**_own_keys(options), **options.abbreviations}
    for word, flag in ((name, "true"), (re.sub("^no[-_]", "", name), "false")):
        plain = word.replace("-", "_")
        key = own.get(plain) or own.get(_OTHER_NAMES.get(plain, "")) or word
        for owner in _owners(options):
            full, field = find_field(owner, key)
            is_flag = field is not None and bool in (field.annotation, *get_args(field.annotation))
            if is_flag or (flag == "true" and (field or is_known_name(owner, plain))):
                return owner, key if is_other_name(owner, key) else full, flag if is_flag else ""
    section, dot, _ = name.partition(".")
    if dot and section in options.model_fields:  # the record explains its unknown keys, and so does the config
        return options, name, ""
    if _takes_config(options) and (dot or name == "config"):
        return _owners(options)[-1], name, ""
    return None, name, ""


def _owners(options: type[Options]) -> Sequence[type[Record]]:
    """Return the records whose keys a command takes."""
    if not _takes_config(options):
        return (options,)
    from understudy.runs.config import TrainConfig

    return options, TrainConfig


def _next_value(word: str, left: list[str], flag: str) -> str:
    """Return the value of an option without `=`: the next word, which is removed, or that of a boolean."""
    if flag and left[:1] not in (["true"], ["false"]):
        return flag
    if not left or left[0].startswith("--"):
        raise ConfigError(f"{word} has no value; give {word} VALUE, or {word.removeprefix('--')}=VALUE")
    return left.pop(0)


def _make_options(options: type[T], given: Mapping[str, Sequence[str]], rest: list[str], command: str) -> T:
    """Return the options of overrides, and of the words that are left: arguments, and settings of the config."""
    from understudy.core.settings import parse_overrides

    overrides = []
    for key, values in given.items():
        kind = get_origin(options.model_fields[key].annotation) if key in options.model_fields else None
        chosen = values if kind is dict else [",".join(values)] if kind is tuple else values[-1:]
        overrides += [f"{key}={value}" for value in chosen]
    arguments: dict[str, Any] = {}
    for key, field in options.model_fields.items():
        if _is_argument(field) and get_origin(field.annotation) is tuple:
            if _takes_config(options):
                _validate_given_once(options, given, rest)
            arguments[key], rest = rest, []
        elif _is_argument(field) and key not in given:
            names = (word for word in rest if not (_takes_config(options) and _SETTING.match(word)))
            if (word := next(names, None)) is not None:
                arguments[key] = word
                rest.remove(word)
        if field.is_required() and key not in given and not arguments.get(key):
            metavar = getattr(_typer_info(field), "metavar", None)
            raise ConfigError(f"{metavar or option_name(options, key)} is missing; see {command} --help")
    if rest:
        hint = _explain_program(options, [*map(str, arguments.values()), *rest])
        raise ConfigError(f"unexpected argument {rest[0]!r}; {hint}see {command} --help")
    return parse_overrides(options, overrides, {key: value for key, value in arguments.items() if value != []})


def _validate_given_once(options: type[Options], given: Mapping[str, Sequence[str]], rest: Sequence[str]) -> None:
    """Raise ConfigError if an argument that `KEY=VALUE` sets is given as a word too, which is no config then."""
    for key in (key for key in given if key in options.model_fields and _is_argument(options.model_fields[key])):
        from understudy.runs.targets import is_config

        for word in rest:
            if not _SETTING.match(word) and not is_config(word):
                raise ConfigError(f"{key} is given twice, as {word} and as {key}={given[key][-1]}; give one of them")


def _explain_program(options: type[Options], words: Sequence[str]) -> str:
    """Return a hint if one of the words begins another command, which is pasted or lacks quotes."""
    from understudy.runs.targets import PROGRAMS

    word = next((word for word in words if word.removeprefix("mcp:") in PROGRAMS), None)
    if word is None:
        return ""
    if word.startswith("mcp:"):
        return "mcp: takes a TOML file that has the command of a server, which `understudy new mcp` writes; "
    if _takes_config(options):
        return f"{word!r} begins another command: leave it out; "
    return f"quote a command that is one argument, such as '{word} …'; "


def _unknown_option(options: type[Options], text: str, command: str, before: Sequence[str]) -> ConfigError:
    """Return the error for an unknown option or key: it names the nearest option or key. `before` are the words before
    it."""
    known = [*_own_keys(options), *options.abbreviations]
    known += [key for owner in _owners(options)[1:] for key in owner.model_fields]
    close = difflib.get_close_matches(text.removeprefix("--").replace("-", "_"), known, n=1)
    spellings = [f"--{key.replace('_', '-')}" if text.startswith("-") else f"{key}=VALUE" for key in close]
    hint = _explain_program(options, before) or "".join(f"did you mean {key}? " for key in spellings)
    keys = "; `understudy train --keys` prints the keys of the config" if _takes_config(options) else ""
    return ConfigError(f"unknown option {text!r}; {hint}`{command} --help` lists the options{keys}")


def _own_keys(options: type[Options]) -> dict[str, str]:
    """Return the field of each option and single argument by its name on the command line, with `_`."""
    found = {}
    for name, field in options.model_fields.items():
        info = _typer_info(field)
        if not _is_argument(field):
            declared = str(info.default) if info else name
            found[declared.partition("/")[0].removeprefix("--").replace("-", "_")] = name
        elif get_origin(field.annotation) is not tuple:
            found[name] = name
    return found


def _parameters(options: type[Options]) -> Iterator[inspect.Parameter]:
    """Yield the options and arguments as parameters of a function, as typer reads them."""
    for name, field in options.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Record):
            for key, each in inner.model_fields.items():
                yield _parameter(f"{name}_{key}", each, typer.Option(f"--{name}.{key}"))
        else:
            yield _parameter(name, field, _typer_info(field) or typer.Option(f"--{name.replace('_', '-')}"))
    for name in options.abbreviations:
        yield _parameter(name, FieldInfo(annotation=str, default=None), typer.Option(f"--{name}"))


def _parameter(name: str, field: FieldInfo, info: ParameterInfo) -> inspect.Parameter:
    """Return a field as a parameter of a type that typer knows."""
    info = copy(info)
    info.help = info.help or " ".join((field.description or "").split())
    bounds = {at: getattr(each, at) for each in field.metadata for at in ("ge", "le") if hasattr(each, at)}
    info.min, info.max = bounds.get("ge"), bounds.get("le")
    kind: Any = field.annotation
    if get_origin(kind) in (tuple, dict):
        kind = list[get_args(kind)[0]]  # type: ignore[misc]
    elif Decimal in get_args(kind):
        kind = float | None
    default = None if field.default in ((), {}, "") else field.default
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else default,
        annotation=Annotated[kind, info],
    )


def _typer_info(field: FieldInfo) -> ParameterInfo | None:
    return next((each for each in field.metadata if isinstance(each, ParameterInfo)), None)


def _is_argument(field: FieldInfo) -> bool:
    return isinstance(_typer_info(field), ArgumentInfo)


def _takes_config(options: type[Options]) -> bool:
    return _has_metavar(options, "KEY=VALUE")


def _has_metavar(options: type[Options], part: str) -> bool:
    """Return whether the metavar of an argument has a part, such as KEY=VALUE."""
    infos = map(_typer_info, options.model_fields.values())
    return any(part in (info.metavar or "") for info in infos if info)
