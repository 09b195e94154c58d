"""Multi-turn tasks of BFCL v4 (PyPI: bfcl-eval) from your own copy: `bfcl:PATH#multi_turn_base`.

PATH is the folder that has the package `bfcl_eval`, of which only the needed modules are imported. BFCL's classes run
the calls, and its two checkers compare the state and the results with those of its solution after each turn: all must
agree for a reward of 1. A call is a method of one of the row's classes; unlike BFCL, no text is evaluated.

Other differences: an exception of a tool is shown in this package's words, a call of a function that the row does not
offer is refused, and `limits` apply instead of 20 steps a turn. Functions that a row adds later are described in the
user's message, as for BFCL's models without function calling. BFCL has no splits, so a hash of the id gives them.
"""

import ast
import copy
import functools
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, ToolError, did_you_mean
from understudy.core.messages import HIDDEN_FIELDS, Message, ToolCall, ToolSpec
from understudy.core.tasks import SPLITS, assign_splits
from understudy.core.user_code import tool_code, user_code
from understudy.sources.benchmarks.checkout import import_submodule, register_package
from understudy.sources.environments.graded import GradedSource, list_specs

CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
_PACKAGE = "bfcl_eval"
_MULTI_TURN = f"{_PACKAGE}.eval_checker.multi_turn_eval"
_DONE = Message(role="assistant", content="Done.")


def open_domain(reference: str) -> GradedSource:
    """Return the tasks of `PATH#CATEGORY`. Raise ConfigError if they cannot be found."""
    path, _, category = reference.partition("#")
    folder = Path(os.path.expanduser(path)).resolve() / _PACKAGE
    if not path or not (folder / "data").is_dir():
        problem = f"{path or reference} has no folder {_PACKAGE}/data"
        raise ConfigError(
            f"bfcl:{reference}: {problem}; write bfcl:PATH#multi_turn_base, with the folder of the package"
        )
    if category not in CATEGORIES:
        raise ConfigError(f"bfcl:{reference}: unknown category {did_you_mean(category, CATEGORIES)}")
    register_package(_PACKAGE, folder)
    file = f"BFCL_v4_{category}.json"
    answers = {row["id"]: row["ground_truth"] for row in _read_rows(folder / "data/possible_answer" / file)}
    rows = {row["id"]: {**row, "ground_truth": answers[row["id"]]} for row in _read_rows(folder / "data" / file)}
    splits = assign_splits(dict.fromkeys(rows))
    documents = functools.cache(lambda name: _read_specs(folder / "data/multi_turn_func_doc", name))
    return GradedSource(
        f"bfcl-{category}",
        lambda row: _BFCLSession(row, documents),
        list_specs([_BFCLSession(row, documents) for row in rows.values()]),
        rows={split: {name: row for name, row in rows.items() if splits[name] == split} for split in SPLITS},
    )


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of BFCL, which has one a line."""
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as e:
        raise ConfigError(f"{file} cannot be read: {e}; install bfcl-eval again") from e


def _read_specs(folder: Path, name: str) -> list[ToolSpec]:
    """Return the tools of a class, as BFCL describes them to models."""
    files = import_submodule(f"{_PACKAGE}.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    types = import_submodule(f"{_PACKAGE}.constants.type_mappings").GORILLA_TO_OPENAPI
    hint = " Note that the provided function is in Python 3 syntax."
    return [
        ToolSpec(
            name=row["name"], description=row["description"] + hint, parameters=_to_schema(row["parameters"], types)
        )
        for row in _read_rows(folder / files[name])
    ]


def _to_schema(schema: Any, types: Mapping[str, str]) -> Any:
    """Return a schema of BFCL as JSON Schema."""
    if not isinstance(schema, dict):
        return schema
    found = {key: _to_schema(value, types) for key, value in schema.items()}
    if isinstance(found.get("type"), str):
        found["type"] = types.get(found["type"], found["type"])
    return found


class _World:
    """Objects of the classes of a row."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        backend = import_submodule(f"{_PACKAGE}.constants.executable_backend_config")
        is_long = "long_context" in row["id"]
        self.objects = dict[str, Any]()
        for name in row["involved_classes"]:
            made = getattr(import_submodule(backend.CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in backend.STATELESS_CLASSES:
                made._load_scenario(copy.deepcopy(row["initial_config"].get(name, {})), long_context=is_long)
            self.objects[name] = made

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the result of a method as BFCL shows it. Raise ToolError if it refuses the arguments, or fails."""
        method = self.method(name)
        try:
            inspect.signature(method).bind(**arguments)
        except TypeError as e:
            raise ToolError(f"{name}: {e}", "invalid_arguments") from e
        with tool_code(name):
            result = method(**copy.deepcopy(dict(arguments)))  # some methods change their arguments
            try:
                return (
                    result if isinstance(result, str) else json.dumps(result) if type(result) is dict else str(result)
                )
            except TypeError:  # some results hold objects
                return str(result)

    def method(self, name: str) -> Any:
        """Return the method of a name. As in BFCL, the last class that has one counts."""
        return [getattr(each, name) for each in self.objects.values() if inspect.ismethod(getattr(each, name, None))][
            -1
        ]


class _BFCLSession:
    """One episode of a row."""

    def __init__(self, row: Mapping[str, Any], documents: Any) -> None:
        self._row, self._documents = row, documents
        self._turn, self._is_valid = 0, True
        self._results, self._num_calls = list[str](), 0

    def specs(self) -> Sequence[ToolSpec]:
        """Return the tools that the row offers by now."""
        later = {name for turn, names in self._missed.items() if turn > self._turn for name in names}
        return [spec for spec in self._all_specs if spec.name not in later]

    def prompt(self) -> Sequence[Message]:
        """Return the user's first message."""
        return (Message(role="user", content=self._question(0)),)

    def gold(self) -> Sequence[Message]:
        """Return the calls of BFCL's solution, and a text after each turn."""
        world, turns = _World(self._row), list[Message]()
        for solution in self._row["ground_truth"]:
            for text in solution:
                call = ToolCall(**dict(zip(("name", "arguments"), _parse_solution(text, world), strict=True)))
                turns.append(Message(role="assistant", tool_calls=(call,)))
            turns.append(_DONE)
        return turns

    async def start(self) -> None:
        """Make the objects of the agent, and those of the solution."""
        with user_code("environment", "the classes of BFCL"):
            self._world, self._solved = _World(self._row), _World(self._row)

    async def call(self, call: ToolCall) -> str:
        """Run a call."""
        self._num_calls += 1
        try:
            result = self._world.call(call.name, call.arguments)
        except ToolError as e:
            self._results.append(str(e))
            raise
        self._results.append(result)
        return result

    async def reply(self, transcript: Sequence[Message]) -> str | None:
        """Check the turn, and return the user's next message, or None after the last one."""
        with user_code("grader", "the checkers of BFCL"):
            self._is_valid = self._is_valid and self._agrees()
        self._turn, self._num_calls = self._turn + 1, 0
        return self._question(self._turn) if self._turn < len(self._row["question"]) else None

    async def grade(self, written: Sequence[Message]) -> float:
        """Return 1 if all turns are played, and agree with the solution."""
        return float(self._is_valid and self._turn == len(self._row["question"]))

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _agrees(self) -> bool:
        """Return whether BFCL accepts the turn, as its `multi_turn_checker` does."""
        checker, solution = import_submodule(f"{_MULTI_TURN}.multi_turn_checker"), self._row["ground_truth"][self._turn]
        expected = [_solve(text, self._solved) for text in solution]
        if not solution:
            return True
        if not self._num_calls:
            return False
        state = checker.state_checker(self._world.objects, self._solved.objects)
        return bool(state["valid"] and checker.response_checker(self._results, expected, self._turn)["valid"])

    def _question(self, turn: int) -> str:
        """Return the user's message of a turn. Functions that are new in it are described."""
        texts = [message["content"] for message in self._row["question"][turn]]
        if names := self._missed.get(turn):
            added = [spec.model_dump(exclude=HIDDEN_FIELDS) for spec in self._all_specs if spec.name in names]
            prompts = import_submodule(f"{_PACKAGE}.constants.default_prompts")
            template: str = prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
            texts.append(template.replace("{functions}", json.dumps(added)))
        return "\n".join(texts)

    @property
    def _missed(self) -> Mapping[int, Sequence[str]]:
        """The functions that the row offers only from a turn on."""
        return {int(turn): names for turn, names in self._row.get("missed_function", {}).items()}

    @property
    def _all_specs(self) -> list[ToolSpec]:
        return [spec for name in self._row["involved_classes"] for spec in self._documents(name)]


def _parse_solution(text: str, world: _World) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a call of the solution, a Python call of literals."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ConfigError(f"BFCL's solution {text!r:.100} is no call of a function")
    positional = [ast.literal_eval(each) for each in call.args]
    named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    bound = inspect.signature(world.method(call.func.id)).bind(*positional, **named)
    return call.func.id, dict(bound.arguments)


def _solve(text: str, world: _World) -> str:
    name, arguments = _parse_solution(text, world)
    try:
        return world.call(name, arguments)
    except ToolError as e:
        return str(e)
