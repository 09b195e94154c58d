"""Constraints on replies: forced calls (`tool_choice`) and JSON (`response_format`), by llguidance.

The grammar of a forced reply is what the chat format writes for it, with the arguments or the text replaced by a JSON
schema. So it applies to every format that writes arguments as JSON. Tokens that are no text, such as `<tool_call>`, are
allowed only as these tokens. With a `response_format` and tools, the reply is JSON or one call.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, RolloutError, install_hint
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.engines.interface import ConstrainedSampler
from understudy.formats import ChatFormat, FormatTokenizer
from understudy.serve.requests import ApiError, ChatCompletionRequest
from understudy.serve.streaming_parser import JsonForm

_MARK = "c9a40d77e1"  # a random string, which no template contains
_CONTENT = re.compile(_MARK)
_ARGUMENTS = re.compile(rf'\{{\s*"x"\s*:\s*"{_MARK}"\s*\}}')


class GrammarConstraint:
    """The state of one reply's grammar. `json_form` is None if the reply must be a call."""

    def __init__(self, matcher: Any, json_form: JsonForm | None) -> None:
        self._matcher = matcher
        self.json_form = json_form

    def allowed_tokens(self) -> bytes:
        """Return one byte for each token id, 0 if it is not allowed."""
        allowed: bytes = self._matcher.compute_logit_bias()
        self._check()
        return allowed

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        """Raise RolloutError if the matcher has failed, for example at its limit of states."""
        if problem := self._matcher.get_error():
            raise RolloutError(f"llguidance failed: {' '.join(problem.split())[:300]}", "engine")


def build_constraint(
    format: ChatFormat,
    vocabulary: FormatTokenizer,
    tokenizer_file: Path | None,
    sampler: object,
    request: ChatCompletionRequest,
) -> GrammarConstraint | None:
    """Return the constraint that the request asks for, or None.

    Raise ApiError if llguidance is not installed, the sampler or the format cannot be constrained, or the schema has a
    keyword that llguidance does not support.
    """
    if not request.is_constrained:
        return None
    param = "response_format" if request.response_schema is not None else "tool_choice"
    constrainable = isinstance(sampler, ConstrainedSampler) and sampler.supports_constraints
    if not constrainable or tokenizer_file is None:
        raise ApiError(f"{param}: this sampler cannot constrain replies; use engine.sampler=torch", param)
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError as error:
        raise ApiError(f"{param}: constrained replies need llguidance; {install_hint('guided')}", param) from error
    try:
        grammar, stop_token, json_form = _write_grammar(format, vocabulary, request)
    except (ConfigError, ValueError) as error:
        raise ApiError(f"{param}: the model's chat format cannot be constrained: {error}", param) from error
    matcher = LLMatcher(_load_tokenizer(tokenizer_file, stop_token), grammar, log_level=0)
    if problem := matcher.get_error():
        raise ApiError(f"{param}: the schema is not supported: {' '.join(problem.split())[:300]}", param)
    return GrammarConstraint(matcher, json_form)


@lru_cache(maxsize=4)
def _load_tokenizer(file: Path, stop_token: int) -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer(str(file), eos_token=stop_token)


def _write_grammar(
    format: ChatFormat, vocabulary: FormatTokenizer, request: ChatCompletionRequest
) -> tuple[str, int, JsonForm | None]:
    """Return the grammar of the reply, the token that ends it, and how JSON stands in it.

    Raise ValueError if the format does not write arguments as JSON.
    """
    calls = [(format.encode_reply(_call_of(tool)), _ARGUMENTS, tool.parameters) for tool in _allowed_tools(request)]
    contents, json_form = list[tuple[list[int], re.Pattern[str], Mapping[str, Any]]](), None
    if request.response_schema is not None:
        content = format.encode_reply(Message(role="assistant", content=_MARK))
        contents.append((content, _CONTENT, request.response_schema))
        before, after = vocabulary.decode(content[:-1]).split(_MARK)
        openings = (_ARGUMENTS.split(vocabulary.decode(tokens[:-1]))[0] for tokens, _, _ in calls)
        json_form = JsonForm(before, after, tuple(openings))
    replies = [*contents, *calls]
    rules = [
        _write_rule(vocabulary, number, tokens[:-1], mark, schema)
        for number, (tokens, mark, schema) in enumerate(replies)
    ]
    start = f"start: {' | '.join(f'reply{number}' for number in range(len(rules)))}"
    return "\n".join([start, *rules]), replies[0][0][-1], json_form


def _allowed_tools(request: ChatCompletionRequest) -> Sequence[ToolSpec]:
    name = request.forced_tool
    return [tool for tool in request.callable_tools if not name or tool.name == name]


def _call_of(tool: ToolSpec) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=tool.name, arguments={"x": _MARK}),))


def _write_rule(
    vocabulary: FormatTokenizer, number: int, tokens: Sequence[int], mark: re.Pattern[str], schema: Mapping[str, Any]
) -> str:
    """Return the rule of one reply, whose text has a value of the schema in place of the mark."""
    added, parts, text = set(vocabulary.added_tokens.values()), list[str](), list[int]()
    found = 0
    for token in [*tokens, None]:
        if token is not None and token not in added:
            text.append(token)
            continue
        before, *after = mark.split(vocabulary.decode(text), maxsplit=1)
        found += len(after)
        parts += [_literal(before), *([f"value{number}", _literal(after[0])] if after else [])]
        parts += [] if token is None else [f"<[{token}]>"]
        text = []
    if found != 1:
        raise ValueError(
            "it does not write the arguments of calls as JSON; send tool_choice none for JSON without calls"
        )
    options = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
    return f"reply{number}: {' '.join(filter(None, parts))}\nvalue{number}: %json {json.dumps({**schema, **options})}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
