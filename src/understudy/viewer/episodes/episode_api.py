"""The API's handlers for single episodes."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from understudy.core.errors import ConfigError
from understudy.core.records import Record
from understudy.runs.storage.annotations import (
    MAX_NOTE_CHARS,
    MAX_TAGS,
    RUN_ITEM,
    Annotation,
    Tag,
    episode_item,
    write_annotation,
)
from understudy.viewer.episodes.episode_source import EpisodeSource, open_episode_source
from understudy.viewer.episodes.episode_view import build_episode_view
from understudy.viewer.episodes.group import group_members
from understudy.viewer.episodes.repairs import explain_parses
from understudy.viewer.episodes.tokens import build_token_view
from understudy.viewer.library import RunLibrary
from understudy.viewer.query import QueryError
from understudy.viewer.run_api import annotation_to_dict

STANDALONE_EVAL_STEP = "eval"
"""The `step` of episodes in an evaluation's own folder. Elsewhere, `step` is a training step or the name of a run's
evaluation.
"""
RouteParams = Mapping[str, str]
_MAX_DIGITS, _MAX_NAME_CHARS = 15, 200


def episode_handler(library: RunLibrary, values: RouteParams) -> dict[str, Any]:
    """Return one episode, with its note and tags, the numbers of the previous and the next one and the command that
    forks it.
    """
    found, number = episode_source_of(library, values), _number(values, "number")
    context = found.context(number)
    item = episode_item(found.stored.name or STANDALONE_EVAL_STEP, number)
    order = sorted(found.stored.episodes)
    place = order.index(number)
    return build_episode_view(context).model_dump(mode="json") | {
        "annotation": annotation_to_dict(found.stored.folder, item),
        "training": found.training_view(number).model_dump(mode="json"),
        "before": order[place - 1] if place else None,
        "after": order[place + 1] if place + 1 < len(order) else None,
        "total": len(order),
        "fork": found.fork_command(number),
        "num_tokens": context.episode.num_tokens,
        "group_size": len(found.group(number)),
    }


def tokens_handler(library: RunLibrary, values: RouteParams) -> Any:
    """Return the tokens of one episode."""
    found, number = episode_source_of(library, values), _number(values, "number")
    return build_token_view(found.stored.episode(number), found.decoder(), found.training_data.get(number))


def parses_handler(library: RunLibrary, values: RouteParams) -> dict[str, Any]:
    """Return how each reply of each sequence was parsed, by message index. If this cannot be shown, `note` says why."""
    found, number = episode_source_of(library, values), _number(values, "number")
    decoder = found.decoder()
    if isinstance(decoder, str):
        return {"parses": [], "note": decoder}
    context = found.context(number)
    parses = [explain_parses(sequence, context.tools, decoder) for sequence in context.episode.sequences]
    return {"parses": parses, "note": ""}


def group_handler(library: RunLibrary, values: RouteParams) -> Any:
    """Return the group of an episode."""
    found, number = episode_source_of(library, values), _number(values, "number")
    return group_members(found.group(number), number, found.training_data)


def episode_source_of(library: RunLibrary, values: RouteParams) -> EpisodeSource:
    """Return the stored episodes that `key` and `step` name. Raise ConfigError if there are none."""
    if len(values["step"]) > _MAX_NAME_CHARS:
        raise ConfigError(
            f"there are no episodes of {values['step'][:40]!r}…; give a step or the name of an evaluation"
        )
    if values["step"] == STANDALONE_EVAL_STEP:
        return open_episode_source(library.evaluation(values["key"]))
    return open_episode_source(library.run(values["key"]), values["step"])


def parse_annotation(body: bytes) -> Annotation:
    """Return the annotation of a request, which has a `note` and `tags`. Raise ValidationError if it is invalid."""
    given = _AnnotationRequest.model_validate_json(body)
    return Annotation(item=RUN_ITEM, note=given.note, tags=tuple(dict.fromkeys(given.tags)))


class _AnnotationRequest(Record):
    note: str = Field(default="", max_length=MAX_NOTE_CHARS)
    tags: tuple[Tag, ...] = Field(default=(), max_length=MAX_TAGS)


def annotate_handler(library: RunLibrary, values: RouteParams, annotation: Annotation) -> dict[str, Any]:
    """Store the note and the tags of a run or, with `step` and `number`, of an episode. Return what is stored.

    Raise ConfigError if there is no such run or episode, if its evaluation is a single file, or if the disk refuses.
    """
    if "number" in values:
        stored, number = episode_source_of(library, values).stored, _number(values, "number")
        stored.episode(number)
        folder, item = stored.folder, episode_item(stored.name or STANDALONE_EVAL_STEP, number)
    else:
        folder, item = library.run(values["key"]), RUN_ITEM
    write_annotation(folder, annotation.replace(item=item))
    return annotation_to_dict(folder, item)


def _number(values: RouteParams, name: str) -> int:
    text = values[name]
    if not (text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise QueryError(f"{name} is {text[:40]!r}; it must be a whole number")
    return int(text)
