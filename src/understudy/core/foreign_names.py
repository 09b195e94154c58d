"""Names of the public API that other libraries spell otherwise, and what to write instead.

The libraries are TRL, verl, SkyRL, verifiers, tau-bench, tau2-bench, inspect_ai and transformers.
"""

import difflib
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from understudy.core.errors import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_SIMILARITY_OF_TYPOS = 0.8
"""Similarity of two names (difflib's ratio) of which one is probably a typo of the other."""
NAMES_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("Fact", "SuccessCheck", "UserAction", "Score", "TaskLimits"), "core.tasks"),
    **dict.fromkeys(("affirms_fact", "extract_numbers"), "envs.rewards"),
    **dict.fromkeys(("TaskSource", "Slice"), "envs.task_source"),
    **dict.fromkeys(("User", "ScriptedUser"), "envs.users"),
    **dict.fromkeys(("Agent", "EngineAgent", "NoopAgent", "DemonstrationAgent"), "rollouts.agent"),
    "ConfigError": "core.errors",
    "EpisodeLimits": "rollouts.rollout",
    "ToolSpec": "core.messages",
    "load_tool_examples": "data.tool_examples",
}
"""Names of the package that are not among those of `understudy`, and their modules."""
_MEANT: Mapping[str, str] = {
    r"\w*trainer|train|fit|learn|run": "train with run_training([TARGET, 'key=value']), or `understudy train TARGET`",
    r"\w*(config|arguments|args)": "write settings as 'key=value' of run_training, or make a TrainConfig",
    r"\w*(reward|rubric|scorer|grader|judge|compute_score)\w*": (
        "write the method reward(self, transcript) of a ToolEpisode, or name a function with data.reward"
    ),
    r"\w*tools?": "plain functions are tools, as in ToolDataset(…, tools=[f]), and so are methods of a ToolEpisode",
    r"load_\w+|get_\w+": "load tasks with load(TARGET)",
    r"\w*env(ironment)?s?": "derive the class of episodes from ToolEpisode, or make a Domain if there is a database",
    r"\w*(dataset|samples?|taskdata|example)": "make a ToolDataset of ToolExamples",
    r"(run_)?eval\w*": "call evaluate(source, agent, tasks), or `understudy eval TARGET`",
    r"(\w*agent|\w*user\w*|orchestrator)": "docs/extending.md has agents, users and sources of one's own",
    r"(llm|\w*model|tokenizer|sampling_?params)\w*": "name a model with the setting model=OWNER/NAME",
}
"""What to write in place of a name of another library, by a pattern of the name in lower case."""

_ANSWERS = (
    *("completion", "expected", "expected_answer", "expected_output", "final_answer", "ground_truth", "label"),
    *("output", "reference", "response", "solution", "target"),
)
_PROMPTS = ("input", "instruction", "messages", "opening", "problem", "query", "question", "text", "user", "user_query")
_SYSTEM = ("instructions", "system", "system_message", "system_prompt")
FOREIGN_FIELDS: Mapping[str, Mapping[str, str]] = {
    "ToolExample": {
        **dict.fromkeys(_PROMPTS, "write prompt"),
        **dict.fromkeys(_ANSWERS, "write answer"),
        **dict.fromkeys(("policy", *_SYSTEM), "write domain_policy"),
        **dict.fromkeys(("actions", "calls", "expected_calls", "gold", "tool_calls"), "write gold_calls"),
        **dict.fromkeys(("data", "extra_info", "kwargs", "metadata", "row", "state"), "write info={…}"),
        **dict.fromkeys(("name", "task_id", "uid"), "write id"),
        **dict.fromkeys(("category", "task", "type"), "write family"),
        "level": "write difficulty",
        "outputs": "write answer: outputs is a field of Task, for a Domain",
        "tools": "give the tools to the ToolDataset: tools=[f]",
    },
    "ToolDataset": {
        **dict.fromkeys(("policy", *_SYSTEM), "write domain_policy"),
        **dict.fromkeys(("data", "dataset", "rows", "tasks", "train_dataset"), "give examples, a list of ToolExample"),
        **dict.fromkeys(("env_class", "environment", "environment_factory", "episode"), "write episode_class"),
        **dict.fromkeys(
            ("reward", "reward_fn", "reward_func", "reward_funcs", "rubric"),
            "the method reward of the episode_class is the reward",
        ),
        **dict.fromkeys(("user", "users"), "write user_factory"),
    },
    "Domain": {
        **dict.fromkeys(("domain_policy", *_SYSTEM), "write policy"),
        **dict.fromkeys(("data", "database", "db", "initial_state", "state", "world"), "write build_world, a function"),
        **dict.fromkeys(("tools", "tool_class"), "write toolkit, the class of the agent's tools"),
        **dict.fromkeys(("dataset", "examples", "tasks"), "write task_list=[Task(…), …], or generate={'FAMILY': f}"),
        **dict.fromkeys(("reward", "reward_fn", "reward_func", "grader"), "write grade"),
        **dict.fromkeys(("user", "users"), "write user_factory"),
        "name": "write own_name, after __name__ as the first argument",
    },
    "Task": {
        **dict.fromkeys(("instruction", "prompt", "question", "user", "user_scenario"), "write scenario=Scenario(…)"),
        **dict.fromkeys(
            ("actions", "evaluation_criteria", "expected_actions", "gold_calls", "gold_turns"),
            "write gold=(gold_call(…), gold_text(…), …)",
        ),
        **dict.fromkeys(("answer", "communicate_info", "facts_to_tell"), "write outputs"),
        **dict.fromkeys(("db", "initial_state", "state"), "write setup={TABLE: {ID: fields}}"),
    },
    "Scenario": {
        **dict.fromkeys(("first_message", "message", "prompt", "question"), "write opening"),
        **dict.fromkeys(("description", "instruction", "system_prompt", "task_instructions"), "write instructions"),
        **dict.fromkeys(("known", "known_info"), "write facts"),
        **dict.fromkeys(("goal", "reason_for_call"), "write goals"),
    },
    "UserGoal": {
        **dict.fromkeys(("description", "goal", "name"), "write text"),
        **dict.fromkeys(("keywords", "terms"), "write required_terms"),
        "type": "write kind",
    },
    "Fact": {"terms": "write keywords", **dict.fromkeys(("fact", "value"), "write text")},
    "UserAction": {"terms": "write required_terms", **dict.fromkeys(("action", "tool"), "write call=ToolCall(…)")},
    "SuccessCheck": {"expected": "write expected_output", "tool": "write call=ToolCall(…)"},
    "Message": {
        **dict.fromkeys(("body", "message", "text"), "write content"),
        **dict.fromkeys(("calls", "function_call"), "write tool_calls"),
    },
    "ToolCall": {
        **dict.fromkeys(("args", "input", "kwargs", "parameters", "params"), "write arguments"),
        **dict.fromkeys(("function", "function_name", "tool", "tool_name"), "write name"),
    },
}
"""What to write in place of an argument that a class does not have, by the name of the class."""


def explain_name(name: str, public: Collection[str]) -> str:
    """Return an error text for a name that `understudy` does not have: where it is, or what to use instead."""
    if name in NAMES_ELSEWHERE:
        return f"understudy has no {name!r}; write `from understudy.{NAMES_ELSEWHERE[name]} import {name}`"
    lower = {known.lower(): known for known in public}
    close = difflib.get_close_matches(name.lower(), lower, 1, cutoff=_SIMILARITY_OF_TYPOS)
    meant = next((text for pattern, text in _MEANT.items() if re.fullmatch(pattern, name.lower())), "")
    if meant and not close:
        return f"understudy has no {name!r}; {meant}; docs/migration.md compares other libraries"
    return f"understudy has no {did_you_mean(name, public)}"


def explain_field(owner: str, name: str, known: Collection[str]) -> str:
    """Return what to write in place of the argument `name` of a class, which has the arguments `known`."""
    if meant := FOREIGN_FIELDS.get(owner, {}).get(name):
        return meant
    return did_you_mean(name, known).removeprefix(repr(name)).removeprefix("; ")


def explained_arguments(*, positional: str = "", keyword: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that explains the TypeError for arguments that a function does not take.

    `positional` and `keyword` say what to write in place of too many arguments, and of a keyword that is no typo and
    has a plain value. `keyword` is formatted with its `name` and `value`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                result = function(*args, **kwargs)
            except TypeError:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as e:
                    problem = _explain_arguments(signature, str(e), kwargs, positional, keyword)
                    raise TypeError(f"{function.__name__}: {problem}") from None
                raise
            # A caller who forgets `await` is told so at the first use of the result.
            return cast(R, AwaitedCall(function.__name__, result)) if inspect.iscoroutine(result) else result

        return call

    return decorate


class AwaitedCall(Coroutine[Any, Any, Any]):
    """A coroutine that says how to await it where a caller uses it as its result, or drops it."""

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine, self._is_awaited = coroutine, False
        self._remedy = f"write `await {name}(…)` in a coroutine or a notebook, or asyncio.run({name}(…))"
        self._problem = f"{name}(…) was not awaited, so nothing has run"

    def __getattr__(self, attribute: str) -> Any:
        """Raise AttributeError, which says how to get the result."""
        raise AttributeError(f"there is no {attribute!r} before the result is awaited: {self._remedy}")

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the coroutine."""
        self._is_awaited = True
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """Continue the coroutine with a value."""
        self._is_awaited = True
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Continue the coroutine with an exception."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __del__(self) -> None:
        """Warn if the coroutine was never started, in place of Python, which does not say what to write."""
        if not self._is_awaited and inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CREATED:
            self._coroutine.close()
            warnings.warn(f"{self._problem}: {self._remedy}", RuntimeWarning, stacklevel=2)


def _explain_arguments(
    signature: inspect.Signature, error: str, given: Mapping[str, object], positional: str, keyword: str
) -> str:
    known = list(signature.parameters)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    wrong = next((name for name in given if name not in known and not takes_any), None)
    if wrong is None:
        remedy = positional if error.startswith("too many") else ""
    elif difflib.get_close_matches(wrong, known, 1, cutoff=_SIMILARITY_OF_TYPOS):
        return f"there is no argument {did_you_mean(wrong, known)}"
    else:
        error, value = f"there is no argument {wrong!r}", given[wrong]
        remedy = keyword.format(name=wrong, value=value) if isinstance(value, str | int | float) else positional
    return "; ".join(filter(None, (error, remedy, f"it takes {', '.join(known)}")))
