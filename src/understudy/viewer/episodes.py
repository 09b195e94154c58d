"""What the page asks of single episodes, as values of the answers."""

from collections.abc import Mapping
from typing import Any

from understudy.errors import ConfigError
from understudy.viewer.episode import page
from understudy.viewer.group import members
from understudy.viewer.library import Library
from understudy.viewer.repairs import readings
from understudy.viewer.shelf import Shelf, shelf
from understudy.viewer.tokens import tokens
from understudy.viewer.trainer import second

EVALUATION = "eval"
"""What stands in the place of a step, or of a run's evaluation, where an episode is in an evaluation's own folder."""
Values = Mapping[str, str]


def episode(library: Library, values: Values) -> dict[str, Any]:
    """One episode, with the numbers of those before and after it and the command that forks it."""
    found, number = shelf_of(library, values), _number(values, "number")
    scene = found.scene(number)
    order = sorted(found.stored.episodes)
    place = order.index(number)
    return page(scene).model_dump(mode="json") | {
        "advantage": found.advantages().get(number),
        "before": order[place - 1] if place else None,
        "after": order[place + 1] if place + 1 < len(order) else None,
        "of": len(order),
        "fork": found.fork(number),
        "tokens": len(scene.episode.tokens),
        "group": len(found.group(number)),
    }


def episode_tokens(library: Library, values: Values) -> Any:
    """The tokens of one episode."""
    found, number = shelf_of(library, values), _number(values, "number")
    return tokens(found.stored.episode(number), found.voice(), found.advantages().get(number))


def episode_readings(library: Library, values: Values) -> dict[str, Any]:
    """How each reply of an episode was read out of its tokens, by its place."""
    found, number = shelf_of(library, values), _number(values, "number")
    voice = found.voice()
    if isinstance(voice, str):
        return {"readings": {}, "why": voice}
    scene = found.scene(number)
    return {"readings": readings(scene.episode, scene.tools, voice), "why": ""}


def group(library: Library, values: Values) -> Any:
    """The episodes of the same task beside one."""
    found, number = shelf_of(library, values), _number(values, "number")
    return members(found.group(number), number, found.advantages())


def trainer(library: Library, values: Values) -> Any:
    """The trainer's log-probabilities of a run's episode; this loads the weights."""
    run, step, number = library.run(values["run"]), _number(values, "at"), _number(values, "episode")
    return second(run, step, shelf(run, str(step)).stored.episode(number))


def shelf_of(library: Library, values: Values) -> Shelf:
    """The episodes that `key` and `step` name."""
    if values["step"] == EVALUATION:
        return shelf(library.evaluation(values["key"]))
    return shelf(library.run(values["key"]), values["step"])


def _number(values: Values, name: str) -> int:
    text = values[name]
    if not text.isdecimal():
        raise ConfigError(f"{name} {text!r} is no number")
    return int(text)
