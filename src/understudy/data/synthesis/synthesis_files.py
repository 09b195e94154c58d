"""Write synthesized tasks to files: by rules, or by a language model."""

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import ValidationError

from understudy.core.errors import ConfigError, TaskError
from understudy.core.files import RETRY_HINT, os_errors_as_config_errors
from understudy.core.items import RowError
from understudy.core.messages import Message
from understudy.core.tasks import Task, read_tasks
from understudy.data.synthesis.limits import SynthesisConfig
from understudy.data.synthesis.synthesize import ChatClient, make_tasks, propose_tasks
from understudy.data.task_input import absolute_reference
from understudy.data.writer import (
    FILE_SUFFIXES,
    JsonlWriter,
    read_partial_lines,
    rows_to_parquet,
    validate_output_path,
)
from understudy.envs.task_source import TaskSource
from understudy.sources.readers import require_module
from understudy.sources.task_files.skyrl_rows import to_skyrl_row

if TYPE_CHECKING:
    from understudy.clients.chat import ChatModel

MAX_PROPOSAL_TOKENS = 8192
"""Longest proposal in tokens, including the model's thoughts."""

ProgressTracker = Callable[[Iterable[Any], str], Iterable[Any]]


class _Endpoint:
    """A `ChatModel` as a `ChatClient`."""

    def __init__(self, model: "ChatModel") -> None:
        self._model = model

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        """Return the text of the model's reply."""
        return (await self._model.generate(messages, seed=seed)).message.content


def open_chat_client(model: str, base_url: str, api_key_var: str, temperature: float | None = None) -> ChatClient:
    """Open a language model behind an OpenAI-compatible endpoint. Without a temperature, the endpoint's own is used."""
    from understudy.clients.chat import ChatModel, EndpointConfig

    config = EndpointConfig(
        model=model,
        base_url=base_url,
        api_key_var=api_key_var,
        max_tokens=MAX_PROPOSAL_TOKENS,
        temperature=temperature,
    )
    return _Endpoint(ChatModel(config, "agent"))


def validate_jsonl_path(out: Path) -> Path:
    """Return the path. Raise ConfigError unless it is a JSONL file."""
    if out.suffix != ".jsonl":
        raise ConfigError(f"{out}: samples are written as JSONL; give a name that ends in .jsonl")
    return out


@runtime_checkable
class FolderSource(Protocol):
    """Protocol of a task source that can be written as a folder of its own with other tasks: an MCP environment."""

    def write_folder(self, folder: Path, tasks: Sequence[Task]) -> None:
        """Write the folder, which must not exist."""


@dataclass(frozen=True)
class TaskOutput:
    """Where new tasks are written: a file of tasks (.jsonl), of SkyRL rows (.parquet), or an MCP environment's folder.

    A partial output is always a JSONL file of tasks, `NAME.partial`.
    """

    path: Path
    sources: Sequence[TaskSource]
    names: Sequence[str]
    """The references of the sources, as the user gave them."""

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"two sources are called {name!r}, and tasks name their source; make tasks of one at a time"
                )
        if self.path.suffix not in ("", *FILE_SUFFIXES):
            raise ConfigError(
                f"{self.path}: unknown suffix {self.path.suffix!r}; give a name that ends in .jsonl or .parquet, or a "
                "folder (no suffix) for the tasks of one MCP environment"
            )
        if self.is_folder and not (len(self.sources) == 1 and isinstance(self.sources[0], FolderSource)):
            raise ConfigError(
                f"{self.path} is a folder, and only the tasks of one MCP environment (mcp:FILE) make a folder; give a "
                "name that ends in .jsonl or .parquet"
            )
        if self.path.suffix == ".parquet":
            require_module("pyarrow.parquet", "writing parquet")

    @property
    def is_folder(self) -> bool:
        """Whether the output is an MCP environment of its own: a TOML file with its tasks and recorded answers."""
        return not self.path.suffix

    def finish(self, tasks: Path) -> None:
        """Turn the complete JSONL file of tasks into the output."""
        if self.path.suffix == ".jsonl":
            os.replace(tasks, self.path)
            return
        if self.is_folder:
            source = self.sources[0]
            assert isinstance(source, FolderSource)
            source.write_folder(self.path, read_tasks(tasks))
        else:
            self._write_rows(tasks)
        tasks.unlink()

    def _write_rows(self, tasks: Path) -> None:
        policies = {source.name: source.domain_policy for source in self.sources}
        references = {s.name: absolute_reference(name) for s, name in zip(self.sources, self.names, strict=True)}
        rows, made = (self.path.with_name(f"{self.path.name}.{kind}") for kind in ("rows", "new"))
        with os_errors_as_config_errors(self.path, RETRY_HINT):
            with rows.open("w", encoding="utf-8") as file:
                for task in read_tasks(tasks):
                    file.write(
                        f"{to_skyrl_row(task, policies[task.domain], references[task.domain]).model_dump_json()}\n"
                    )
            rows_to_parquet(rows, made)
            os.replace(made, self.path)
            rows.unlink()


async def write_new_tasks(
    output: TaskOutput, chat: ChatClient | None, config: SynthesisConfig, track: ProgressTracker, resume: bool
) -> Counter[str]:
    """Write tasks made by rules, or proposed by a model. Return the number of tasks, and of rejected ones by reason.

    Raise TaskError if there are too few. The partial output then remains for `resume`.
    """
    partial = output.path.with_name(f"{output.path.name}.partial")
    validate_output_path(output.path, resume)
    accepted, counts = _read_partial_tasks(output.path) if chat else [], Counter[str]()
    rejected = dict[str, RowError]()
    results = (
        make_tasks(output.sources, config) if chat is None else propose_tasks(chat, output.sources, config, accepted)
    )
    with os_errors_as_config_errors(output.path, RETRY_HINT):
        writer = JsonlWriter(partial)
    with contextlib.closing(writer) as made:
        progress = iter(track(itertools.count(), "tasks" if chat is None else "proposals"))
        try:
            async for result in results:
                next(progress)
                if isinstance(result, RowError):
                    counts[result.kind] += 1
                    rejected.setdefault(result.kind, result)
                else:
                    made.write(result.model_dump_json(exclude_defaults=True))
                    counts["kept"] += 1
            if counts["kept"] < config.count:
                raise TaskError(_too_few(output, counts, rejected, config, by_model=chat is not None))
            made.finish()
        finally:
            if not made.count and not partial.stat().st_size:
                partial.unlink()
    output.finish(partial)
    return counts


def _too_few(
    output: TaskOutput,
    counts: Counter[str],
    rejected: Mapping[str, RowError],
    config: SynthesisConfig,
    by_model: bool,
) -> str:
    """Return why the output is not complete. `rejected` is the first rejected proposal of each kind."""
    if by_model or counts.total() > counts["kept"]:
        kind = max(rejected, key=lambda each: counts[each], default=None)
        example = f" (the first: {rejected[kind]})" if kind else ""
        more = "repeat the command with --resume and more --max-attempts"
        return f"{format_proposal_counts(counts)}{example}, but {config.count} tasks are needed; {more}"
    whose, there = " and ".join(source.name for source in output.sources), counts["kept"]
    then = f"repeat the command with --resume --count {there}" if there else "choose another split or families"
    return f"{whose}: only {there} of {config.count} {config.split} tasks can be generated; {then}"


def format_proposal_counts(counts: Mapping[str, int]) -> str:
    """Summarize the proposals in one line."""
    total, accepted = sum(counts.values()), counts.get("kept", 0)
    reasons = [f"{kind} {count}" for kind, count in Counter(counts).most_common() if kind != "kept"]
    return f"kept {accepted} of {total} proposals" + (f"; rejected: {', '.join(reasons)}" if reasons else "")


def _read_partial_tasks(out: Path) -> list[Task]:
    """Return the tasks of an earlier attempt."""
    accepted = []
    for number, line in enumerate(read_partial_lines(out), 1):
        try:
            accepted.append(Task.model_validate_json(line))
        except ValidationError as e:
            raise ConfigError(f"{out}.partial:{number}: not a task; remove the file to start again") from e
    return accepted
