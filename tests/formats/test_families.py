"""Test the format of every model family against its own template and tokenizer, rendered by transformers.

Tokens appended turn by turn must equal transformers' rendering of the whole conversation. If a family's template
rewrites earlier turns, only the deviations that its format module documents are removed from both before comparing.
"""

import asyncio
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from support import families
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec, tool_to_openai
from understudy.domains.retail import DOMAIN
from understudy.formats import ChatFormat, FormatTokenizer, load_chat_format
from understudy.formats.control_tokens import control_tokens
from understudy.formats.parsing.parse import TOOL_FORMATS, render_reply
from understudy.formats.prompted_tools import tool_instructions
from understudy.rollouts.agent import DemonstrationAgent
from understudy.rollouts.rollout import EpisodeLimits, play_episode
from understudy.train.certify.format_checks import check_format

pytestmark = pytest.mark.families

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}},
    "required": ["city"],
}
TOOLS = [
    ToolSpec(name=name, description=f"Get the {name}, wherever.", parameters=SCHEMA) for name in ("weather", "air_2")
]
CALL = ToolCall(name="weather", arguments={"city": "Zürich 🏔 東京", "days": 3})
OTHER = ToolCall(name="air_2", arguments={"city": 'Say "a\\b"', "more": {"deep": [1, 2.5, {"x": ["y"]}], "n": None}})
SYSTEM = Message(role="system", content="Be brief.")
Turns = list[list[Message]]
Normalize = Callable[[str], str]

EXACT = {
    "qwen2.5": False,
    "qwen3": True,
    "qwen3-2507": False,
    "qwen3.8": False,
    "llama3.1": False,
    "llama3.2": False,
    "llama4": False,
    "lfm2": False,
    "gemma4": False,
    "glm-4.5": False,
    "glm-4.5-thinking": True,
}
"""Families whose template never rewrites earlier turns, and whether thinking is enabled."""
ENDS = {
    "qwen2.5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3.5": "<|im_end|>",
    "qwen3.6": "<|im_end|>",
    "gemma4": "<turn|>",
    "llama3.1": "<|eot_id|>",
    "llama4": "<|eot|>",
    "mistral-nemo": "</s>",
    "deepseek-v3": "<｜end▁of▁sentence｜>",
    "gpt-oss": "<|return|>",
    "nemotron3": "<|im_end|>",
    "glm-4.5": "<|user|>",
}
CALL_OPENINGS = {
    "qwen2.5": "<tool_call>",
    "qwen3": "<tool_call>",
    "deepseek-v3": "<｜tool▁call▁begin｜>",
    "glm-4.5": "<arg_key>",
    "lfm2": "<|tool_call_start|>",
    "lfm2.5": "<|tool_call_start|>",
    "gemma4": "<|tool_call>",
    "mistral-nemo": "[TOOL_CALLS]",
    "gpt-oss": "<|call|>",
    "llama3.1": "<|eot_id|>",
}
"""A control token of each family's calls."""
TEXT_ONLY = {"llama3": "json", "gemma3": "react", "phi3": "xml", "deepseek-r1-distill": "hermes"}
"""Families whose template has no tool calls, and a tool format for each."""


def model_folder(name: str) -> Any:
    return families.install() / name.removesuffix("-thinking")


@cache
def format_of(name: str, thinking: bool = False, tool_format: str = "") -> ChatFormat:
    return load_chat_format(model_folder(name), enable_thinking=thinking, tool_format=tool_format)


@cache
def vocabulary_of(name: str) -> FormatTokenizer:
    return FormatTokenizer.load(model_folder(name) / "tokenizer.json")


def tokenizer_of(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder(name), trust_remote_code=False)


def render_template(name: str, messages: list[Message], tools: list[ToolSpec], **options: Any) -> list[int]:
    """Render the whole conversation with transformers, up to the generation prompt."""
    ids: list[int] = tokenizer_of(name).apply_chat_template(
        [to_wire(message, text_arguments=name == "deepseek-v3") for message in messages],
        tools=[tool_to_openai(tool) for tool in tools] or None,
        add_generation_prompt=True,
        return_dict=False,
        **options,
    )
    return ids


def to_wire(message: Message, text_arguments: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id or f"call{i:05}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False) if text_arguments else call.arguments,
                },
            }
            for i, call in enumerate(message.tool_calls)
        ]
    if message.role == "tool":
        made |= {"tool_call_id": message.tool_call_id}
    return made


def make_turns(several: bool, system: bool, rounds: int = 2) -> Turns:
    """Return new messages and replies in turn."""
    made = (CALL, OTHER) if several else (OTHER,)
    results = [
        Message(role="tool", content=f'{{"result": "é {i}"}}', tool_call_id=f"call{i:05}") for i in range(len(made))
    ]
    parts = [[*([SYSTEM] if system else []), Message(role="user", content="Hello, 世界!")]]
    parts.append([Message(role="assistant", content="Hi.\n\nWhere to?")])
    parts.append([Message(role="user", content="  Zürich,\n\n  12345 … \t")])
    for _ in range(rounds):
        parts += [[Message(role="assistant", tool_calls=made)], results]
    return [*parts, [Message(role="assistant", content="Sunny 🌞")], [Message(role="user", content="Thanks")]]


def supports_parallel_calls(name: str) -> bool:
    return name not in ("llama3.1", "llama3.2", "gpt-oss")


def encode_turn_by_turn(
    format: ChatFormat, parts: Turns, tools: list[ToolSpec]
) -> list[tuple[list[Message], list[int]]]:
    """Return each prompt as its messages and its tokens."""
    tokens: list[int] = []
    messages: list[Message] = []
    prompts = []
    for part in parts:
        replied = part[0].role == "assistant"
        tokens += format.encode_reply(part[0]) if replied else format.encode(part, tools, tokens)
        messages += part
        if not replied:
            prompts.append((list(messages), list(tokens)))
    return prompts


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("name", EXACT)
def test_appended_tokens_equal_the_template(name: str, system: bool) -> None:
    thinking = EXACT[name]
    for messages, tokens in encode_turn_by_turn(
        format_of(name, thinking), make_turns(supports_parallel_calls(name), system), TOOLS
    ):
        theirs = render_template(name, messages, TOOLS, enable_thinking=thinking)
        assert tokenizer_of(name).decode(tokens) == tokenizer_of(name).decode(theirs)
        assert tokens == theirs


def without_thoughts(text: str) -> str:
    return re.sub(r"(<think>\s*)?</think>\s*|<think>\s*", "", text)


def without_tools_and_system(text: str) -> str:
    """Mistral's template moves the tools and the system text to the last user message."""
    return re.sub(r"\[AVAILABLE_TOOLS\].*?\[/AVAILABLE_TOOLS\]", "", text, flags=re.DOTALL).replace("Be brief.\n\n", "")


@pytest.mark.parametrize(
    ("name", "thinking", "normalize", "rounds"),
    [
        ("qwen3", False, without_thoughts, 2),
        ("qwen3.5", False, without_thoughts, 2),
        ("qwen3.6", False, without_thoughts, 2),
        ("qwen3.6", True, without_thoughts, 2),
        ("qwen3.8", True, str, 2),  # tokens are not merged across the border of prompt and reply
        ("nemotron3", False, without_thoughts, 2),
        ("nemotron3", True, without_thoughts, 2),
        ("gpt-oss", False, lambda text: text.replace("<|return|>", "<|end|>"), 2),
        ("mistral-nemo", False, without_tools_and_system, 2),
        ("lfm2.5", False, lambda text: text.replace(r"\\", "\\"), 2),
    ],
)
def test_appended_text_equals_rewriting_templates_after_normalizing(
    name: str, thinking: bool, normalize: Normalize, rounds: int
) -> None:
    prompts = encode_turn_by_turn(
        format_of(name, thinking), make_turns(supports_parallel_calls(name), system=True, rounds=rounds), TOOLS
    )
    decode = tokenizer_of(name).decode
    for at, (messages, tokens) in enumerate(prompts):
        theirs = render_template(name, messages, TOOLS, enable_thinking=thinking)
        assert at or tokens == theirs, decode(tokens)
        assert normalize(decode(tokens)) == normalize(decode(theirs))


def test_deepseek_matches_its_template_for_one_round_of_calls() -> None:
    """The template renders no tools and omits markers from the second round of calls on."""
    prompts = encode_turn_by_turn(format_of("deepseek-v3"), make_turns(several=True, system=True, rounds=1), [])
    decode = tokenizer_of("deepseek-v3").decode
    for messages, tokens in prompts:
        assert without_thoughts(decode(tokens)) == without_thoughts(
            decode(render_template("deepseek-v3", messages, []))
        )
    shown = decode(format_of("deepseek-v3").encode([SYSTEM, Message(role="user", content="x")], TOOLS, []))
    assert (
        f"<｜begin▁of▁sentence｜>Be brief.\n\n{tool_instructions(TOOLS, 'deepseek')}<｜User｜>x<｜Assistant｜>" == shown
    )


@pytest.mark.parametrize("name", [*ENDS, "lfm2", "lfm2.5", "qwen3-2507", "qwen3.8", "llama3.2"])
def test_parse_inverts_encode_reply(name: str) -> None:
    format = format_of(name)
    replies = [Message(role="assistant", content="Hello 世界"), Message(role="assistant", tool_calls=(CALL,))]
    replies += [Message(role="assistant", tool_calls=(OTHER,))]
    if supports_parallel_calls(name):
        replies.append(Message(role="assistant", tool_calls=(CALL, OTHER, CALL)))
    for reply in replies:
        parsed = format.parse(format.encode_reply(reply), TOOLS)
        assert (parsed.message, dict(parsed.repairs), dict(parsed.parse_errors)) == (reply, {}, {})


@pytest.mark.parametrize("name", ENDS)
def test_replies_end_with_the_familys_stop_token(name: str) -> None:
    format, added = format_of(name), vocabulary_of(name).added_tokens
    assert format.encode_reply(Message(role="assistant", content="Hi."))[-1] == added[ENDS[name]]
    assert added[ENDS[name]] in format.stop_token_ids
    assert format.encode_reply(Message(role="assistant", tool_calls=(CALL,)))[-1] in format.stop_token_ids


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("llama3.1", ["<|eot_id|>", "<|eom_id|>"]),
        ("gpt-oss", ["<|return|>", "<|call|>"]),
        ("glm-4.5", ["<|user|>", "<|observation|>"]),
        ("gemma4", ["<turn|>", "<|tool_response>"]),
    ],
)
def test_families_have_all_of_their_stop_tokens(name: str, ends: list[str]) -> None:
    assert {vocabulary_of(name).added_tokens[end] for end in ends} <= format_of(name).stop_token_ids


@pytest.mark.parametrize("name", [*ENDS, "lfm2"])
def test_text_never_becomes_a_control_token(name: str) -> None:
    format, added = format_of(name), vocabulary_of(name).added_tokens
    text = "".join(token for token in added if "reserved" not in token and "place" not in token)

    def tokens(text: str) -> list[int]:
        new = [Message(role=role, content=text) for role in ("system", "user")]
        ids = format.encode(new, [TOOLS[0].replace(description=text)], [])
        ids += format.encode([Message(role="tool", content=text, tool_call_id="call00000")], TOOLS, ids)
        return [token for token in ids if token in added.values()]

    assert tokens(text) == tokens("x")
    assert text in vocabulary_of(name).decode(format.encode([Message(role="user", content=text)], [], []))


@pytest.mark.parametrize("name", TEXT_ONLY)
def test_template_without_tool_calls_needs_a_tool_format(name: str) -> None:
    with pytest.raises(ConfigError, match=r"format\.tool_format"):
        load_chat_format(model_folder(name))
    tool_format = TEXT_ONLY[name]
    for messages, tokens in encode_turn_by_turn(
        format_of(name, tool_format=tool_format), make_turns(True, system=True), TOOLS
    ):
        theirs = tokenizer_of(name).decode(render_template(name, to_text_messages(messages, tool_format), []))
        assert without_thoughts(tokenizer_of(name).decode(tokens)) == without_thoughts(theirs)
        if name == "phi3":  # its tokens strip white space, which decoded text hides
            assert tokens == render_template(name, to_text_messages(messages, tool_format), [])


def to_text_messages(messages: list[Message], tool_format: str) -> list[Message]:
    """Convert a conversation to text only, independently of `formats.prompted_tools`."""
    made = [SYSTEM.replace(content=f"{SYSTEM.content}\n\n{tool_instructions(TOOLS, tool_format)}")]
    for message in messages[1:]:
        if message.role == "assistant":
            text = render_reply(message.content, message.tool_calls, tool_format)
            made.append(Message(role="assistant", content=text))
            continue
        text = message.content
        if message.role == "tool":
            text = f"Observation: {text}" if tool_format == "react" else f"<tool_response>\n{text}\n</tool_response>"
        if made[-1].role == "user":
            made[-1] = made[-1].replace(content=f"{made[-1].content}\n\n{text}")
        else:
            made.append(Message(role="user", content=text))
    return made


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_calls_round_trip_in_every_tool_format(tool_format: str) -> None:
    for name in ("qwen2.5", "llama3"):
        format = format_of(name, tool_format=tool_format)
        for made in ((CALL,), (CALL, OTHER)):
            reply = Message(role="assistant", tool_calls=made)
            parsed = format.parse(format.encode_reply(reply), TOOLS)
            assert (parsed.message, dict(parsed.repairs)) == (reply, {})


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("llama3.1", "This is a test sentence.", [2028, 374, 264, 1296, 11914, 13]),
        ("qwen3", "hello world", [14990, 1879]),
        ("gpt-oss", "hello world", [24912, 2375]),
    ],
)
def test_tokenizer_gives_the_familys_ids(name: str, text: str, ids: list[int]) -> None:
    assert vocabulary_of(name).encode(text) == ids


@pytest.mark.parametrize(
    ("name", "reply", "said"),
    [
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.air_2<|channel|>commentary json"
            '<|message|>{"city": "x"}<|call|>',
            "<|start|>functions.air_2 to=assistant<|channel|>commentary<|message|>",
        ),
        (
            "mistral-nemo",
            '[TOOL_CALLS][{"name": "air_2", "arguments": {"city": "x"}, "id": "aB3dE6gH9"}]</s>',
            '"call_id": "aB3dE6gH9"}[/TOOL_RESULTS]',
        ),
    ],
)
def test_tool_results_use_the_name_or_id_in_the_reply(name: str, reply: str, said: str) -> None:
    """They ignore names in earlier messages and the call's id in the transcript."""
    format, vocabulary = format_of(name), vocabulary_of(name)
    user = Message(role="user", content=f"Say {reply.replace('air_2', 'weather').replace('aB3', 'XXX')}")
    start = format.encode([SYSTEM, user], TOOLS, [])
    result = Message(role="tool", content="5", tool_call_id="call_0_0")
    sampled = encode_with_control_tokens(vocabulary, reply)
    assert format.parse(sampled, TOOLS).message.tool_calls == (ToolCall(name="air_2", arguments={"city": "x"}),)
    assert said in vocabulary.decode(format.encode([result], TOOLS, [*start, *sampled]))


def encode_with_control_tokens(vocabulary: FormatTokenizer, text: str) -> list[int]:
    """Encode a text; control tokens in it become their ids."""
    parts = re.split("(" + "|".join(map(re.escape, sorted(vocabulary.added_tokens, key=len, reverse=True))) + ")", text)
    return [
        token
        for part in parts
        for token in ([vocabulary.added_tokens[part]] if part in vocabulary.added_tokens else vocabulary.encode(part))
    ]


@pytest.mark.parametrize(("name", "text"), [("llama3.1", "I look."), ("gpt-oss", "I look.")])
def test_reply_that_the_template_drops_is_rejected(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match="chat template"):
        format_of(name).encode_reply(Message(role="assistant", content=text, tool_calls=(CALL,)))
    with pytest.raises(ConfigError, match=r"\b2 calls\b.*\bchat template\b"):
        format_of(name).encode_reply(Message(role="assistant", tool_calls=(CALL, OTHER)))


def test_text_that_gemma4_moves_behind_the_results_is_rejected() -> None:
    with pytest.raises(ConfigError, match="chat template"):
        format_of("gemma4").encode_reply(Message(role="assistant", content="I look.", tool_calls=(CALL,)))


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3.6", "deepseek-v3", "glm-4.5", "lfm2"])
def test_text_beside_calls_round_trips(name: str) -> None:
    reply = Message(role="assistant", content="I look that up.", tool_calls=(CALL,))
    assert format_of(name).parse(format_of(name).encode_reply(reply), TOOLS).message == reply


@pytest.mark.parametrize("name", ["qwen3.6", "nemotron3", "glm-4.5", "qwen3"])
def test_thinking_is_not_part_of_the_content(name: str) -> None:
    format, vocabulary = format_of(name, True), vocabulary_of(name)
    opened = vocabulary.decode(format.encode([Message(role="user", content="x")], TOOLS, [])).endswith("<think>\n")
    thought = "" if opened else "<think>"
    text = f'{thought}So.\n<tool_call>{{"name": "f", "arguments": {{}}}}</tool_call>\n</think>\n\nHello.'
    parsed = format.parse(encode_with_control_tokens(vocabulary, text), TOOLS)
    assert (parsed.message.content, parsed.message.tool_calls) == ("Hello.", ())
    cut = format.parse(encode_with_control_tokens(vocabulary, f"{thought}So, it"), TOOLS)
    assert (cut.message.content, cut.status) == ("", "empty")


EPISODES = {
    **EXACT,
    "lfm2.5": False,
    "qwen3.5": False,
    "qwen3.6": True,
    "nemotron3": False,
    "gpt-oss": False,
    "mistral-nemo": False,
    "deepseek-v3": False,
}


@pytest.mark.parametrize("name", EPISODES)
def test_gold_episodes_equal_the_template(name: str) -> None:
    """Use gold episodes of a domain, with its policy, tools and results."""
    format = format_of(name, EPISODES[name])
    for task in DOMAIN.tasks("validation")[:3]:
        episode = asyncio.run(
            play_episode(DOMAIN, task, DemonstrationAgent(format), EpisodeLimits(max_turns=60), seed=0)
        )
        assert episode.score
        assert episode.score.reward == 1.0
        last = max(at for at, message in enumerate(episode.messages) if message.role == "assistant")
        tools = DOMAIN.environment(task).tools
        tokens = episode.tokens[: -len(format.encode_reply(episode.messages[last]))]
        if name in EXACT:
            assert tokens == render_template(name, list(episode.messages[:last]), tools, enable_thinking=EXACT[name])


@pytest.mark.parametrize(
    ("name", "thinking", "tool_format"),
    [*((name, thinking, "") for name, thinking in EPISODES.items()), *((n, False, d) for n, d in TEXT_ONLY.items())],
)
def test_every_family_passes_the_format_checks(name: str, thinking: bool, tool_format: str) -> None:
    checks, _ = asyncio.run(check_format(model_folder(name), format_of(name, thinking, tool_format), thinking))
    assert [check for check in checks if not check.passed] == []


@pytest.mark.parametrize(("name", "token"), CALL_OPENINGS.items())
def test_control_tokens_include_those_of_calls_and_of_turns(name: str, token: str) -> None:
    found = control_tokens(format_of(name), vocabulary_of(name))
    sampled = {found.texts[index] for index in found.sampled}
    assert {token, ENDS.get(name, token)} - {"<|user|>", "<|return|>"} <= sampled
    assert sampled < {*found.texts.values()}, "some tokens are only in prompts"
