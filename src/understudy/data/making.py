"""Synthesis into files: tasks of a generator, of a language model, and samples of specs."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from understudy.data.items import Bad, strict
from understudy.data.read import read
from understudy.data.specs import samples
from understudy.data.synthesize import Chat, Wanted, generated, proposed
from understudy.data.write import output, partial_lines, refuse_existing
from understudy.domains.base import Domain
from understudy.errors import ConfigError, TaskError
from understudy.messages import Message
from understudy.tasks import Split, Task

if TYPE_CHECKING:
    from understudy.chat import ChatModel

LONGEST_REPLY = 8192
"""Tokens of a proposal, with what the model thinks before it."""

Watch = Callable[[Iterable[Any], str], Iterable[Any]]


class _Endpoint:
    """A `ChatModel` as a `Chat`."""

    def __init__(self, model: "ChatModel") -> None:
        self._model = model

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        """The text of the model's reply."""
        return (await self._model.reply(messages, seed=seed)).message.content


def endpoint(model: str, url: str, key_variable: str) -> Chat:
    """A language model behind an OpenAI-compatible endpoint."""
    from understudy.chat import ChatConfig, ChatModel

    config = ChatConfig(model=model, base_url=url, key_variable=key_variable, max_tokens=LONGEST_REPLY)
    return _Endpoint(ChatModel(config, "agent"))


def lines_file(out: Path) -> Path:
    """The path, which has to be that of a JSONL file."""
    if out.suffix != ".jsonl":
        raise ConfigError(f"{out}: tasks are written as .jsonl")
    return out


def generate(
    domains: Sequence[Domain], out: Path, split: Split, count: int, seed: int, watch: Watch, resume: bool
) -> int:
    """Write `count` tasks of the domains' generators; where they give fewer, that is a `TaskError`."""
    with output(out, resume=resume) as made:
        for task in watch(itertools.islice(generated(domains, split, seed), count), "making"):
            made.write(task)
        if (there := sum(made.counts.values())) < count:
            whose = " and ".join(domain.name for domain in domains)
            then = f"take those by --resume --count {there}" if there else "name another split, or more families"
            raise TaskError(f"{whose}: {there} {split} tasks are to be had, where {count} are wanted; {then}")
    return count


async def propose(
    chat: Chat, domains: Sequence[Domain], out: Path, wanted: Wanted, watch: Watch, resume: bool
) -> Counter[str]:
    """Write tasks that a model proposes; how many were kept, and why others were not.

    Where too few were good, what there is stays as a partial output, and it is a `TaskError`.
    """
    refuse_existing(out, resume)
    kept, counts = _kept(out), Counter[str]()
    with output(out, resume=resume) as made:
        progress = iter(watch(itertools.count(), "proposals"))
        async for result in proposed(chat, domains, wanted, kept):
            next(progress)
            if isinstance(result, Bad):
                counts[result.kind] += 1
            else:
                made.write(result)
                counts["kept"] += 1
        if counts["kept"] < wanted.count:
            raise TaskError(f"{as_text(counts)}: fewer than {wanted.count}; --resume with more --attempts goes on")
    return counts


def from_specs(specs: Path, out: Path, watch: Watch, resume: bool) -> int:
    """Write the samples of dependent specs; a bad one is a `TaskError`, and nothing is written."""
    refuse_existing(out, resume)
    if not sum(1 for _ in strict(samples(watch(read(specs), "checking")))):
        raise TaskError(f"{specs} holds no tasks")
    with output(out, resume=resume) as made:
        for item in strict(samples(watch(read(specs), "writing"))):
            made.write(item.value)
    return sum(made.counts.values())


def as_text(yields: Mapping[str, int]) -> str:
    """What became of the proposals, in one line."""
    total, kept = sum(yields.values()), yields.get("kept", 0)
    reasons = [f"{kind} {count}" for kind, count in Counter(yields).most_common() if kind != "kept"]
    return f"kept {kept} of {total} proposals" + (f"; refused: {', '.join(reasons)}" if reasons else "")


def _kept(out: Path) -> list[Task]:
    """The tasks of an earlier attempt."""
    kept = []
    for number, line in enumerate(partial_lines(out), 1):
        try:
            kept.append(Task.model_validate_json(line))
        except ValidationError as e:
            raise ConfigError(f"{out}.partial:{number}: not a task; remove the file to begin anew") from e
    return kept
