"""What the page asks of single episodes, as values of the answers."""

from collections.abc import Mapping
from typing import Any

from understudy.errors import ConfigError
from understudy.viewer.episode import page
from understudy.viewer.group import members
from understudy.viewer.library import Library
from understudy.viewer.repairs import readings
from understudy.viewer.shelf import Shelf, of_evaluation, of_step
from understudy.viewer.tokens import tokens
from understudy.viewer.trainer import second

EVALUATION = "eval"
"""What stands in the place of a step where an episode is an evaluation's."""
Values = Mapping[str, str]


def episode(library: Library, values: Values) -> dict[str, Any]:
    """One episode, with the numbers of those before and after it and the command that forks it."""
    shelf, number = _shelf(library, values), _number(values, "number")
    scene = shelf.scene(number)
    order = sorted(shelf.episodes)
    place = order.index(number)
    return page(scene).model_dump(mode="json") | {
        "advantage": shelf.advantages().get(number),
        "before": order[place - 1] if place else None,
        "after": order[place + 1] if place + 1 < len(order) else None,
        "of": len(order),
        "fork": shelf.fork(number),
        "tokens": len(scene.episode.tokens),
        "group": len(shelf.group(number)),
    }


def episode_tokens(library: Library, values: Values) -> Any:
    """The tokens of one episode."""
    shelf, number = _shelf(library, values), _number(values, "number")
    return tokens(shelf.episode(number), shelf.voice(), shelf.advantages().get(number))


def episode_readings(library: Library, values: Values) -> dict[str, Any]:
    """How each reply of an episode was read out of its tokens, by its place."""
    shelf, number = _shelf(library, values), _number(values, "number")
    voice = shelf.voice()
    if isinstance(voice, str):
        return {"readings": {}, "why": voice}
    scene = shelf.scene(number)
    return {"readings": readings(scene.episode, scene.tools, voice), "why": ""}


def group(library: Library, values: Values) -> Any:
    """The episodes of the same task beside one."""
    shelf, number = _shelf(library, values), _number(values, "number")
    return members(shelf.group(number), number, shelf.advantages())


def trainer(library: Library, values: Values) -> Any:
    """The trainer's log-probabilities of a run's episode; this loads the weights."""
    step, number = _number(values, "at"), _number(values, "episode")
    return second(library.run(values["run"]), step, of_step(library.run(values["run"]), step).episode(number))


def _shelf(library: Library, values: Values) -> Shelf:
    if values["step"] == EVALUATION:
        return of_evaluation(library.evaluation(values["key"]))
    return of_step(library.run(values["key"]), _number(values, "step"))


def _number(values: Values, name: str) -> int:
    text = values[name]
    if not text.isdecimal():
        raise ConfigError(f"{name} {text!r} is no number")
    return int(text)
