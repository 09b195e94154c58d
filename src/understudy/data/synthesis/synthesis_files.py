"""Write synthesized tasks to files: from a generator or from a language model."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from understudy.core.errors import ConfigError, TaskError
from understudy.core.items import RowError
from understudy.core.messages import Message
from understudy.core.tasks import Split, Task
from understudy.data.synthesis.synthesize import ChatClient, SynthesisConfig, generate_tasks, propose_tasks
from understudy.data.writer import open_output, read_partial_lines, validate_output_path
from understudy.envs.domains.base import Domain

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


def open_chat_client(model: str, base_url: str, api_key_var: str) -> ChatClient:
    """Open a language model behind an OpenAI-compatible endpoint."""
    from understudy.clients.chat import ChatModel, EndpointConfig

    config = EndpointConfig(model=model, base_url=base_url, api_key_var=api_key_var, max_tokens=MAX_PROPOSAL_TOKENS)
    return _Endpoint(ChatModel(config, "agent"))


def validate_jsonl_path(out: Path) -> Path:
    """Return the path. Raise ConfigError unless it is a JSONL file."""
    if out.suffix != ".jsonl":
        raise ConfigError(f"{out}: tasks are written as JSONL; give a name that ends in .jsonl")
    return out


def write_generated_tasks(
    domains: Sequence[Domain], out: Path, split: Split, count: int, seed: int, track: ProgressTracker, resume: bool
) -> int:
    """Write `count` tasks of the domains' generators. Raise TaskError if they yield fewer."""
    with open_output(out, resume=resume) as made:
        for task in track(itertools.islice(generate_tasks(domains, split, seed), count), "making"):
            made.write(task)
        if (there := sum(made.counts.values())) < count:
            whose = " and ".join(domain.name for domain in domains)
            then = f"repeat the command with --resume --count {there}" if there else "choose another split or families"
            raise TaskError(f"{whose}: only {there} of {count} {split} tasks can be generated; {then}")
    return count


async def write_proposed_tasks(
    chat: ChatClient,
    domains: Sequence[Domain],
    out: Path,
    config: SynthesisConfig,
    track: ProgressTracker,
    resume: bool,
) -> Counter[str]:
    """Write tasks that a model proposes. Return the number of accepted proposals, and of rejected ones by reason.

    Raise TaskError if too few proposals are accepted. The partial output then remains for `resume`.
    """
    validate_output_path(out, resume)
    accepted, counts = _read_partial_tasks(out), Counter[str]()
    with open_output(out, resume=resume) as made:
        progress = iter(track(itertools.count(), "proposals"))
        async for result in propose_tasks(chat, domains, config, accepted):
            next(progress)
            if isinstance(result, RowError):
                counts[result.kind] += 1
            else:
                made.write(result)
                counts["kept"] += 1
        if counts["kept"] < config.count:
            raise TaskError(
                f"{format_proposal_counts(counts)}, but {config.count} tasks are needed; "
                "repeat the command with --resume and more --max-attempts"
            )
    return counts


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
