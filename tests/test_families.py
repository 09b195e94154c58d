"""Every family's format beside its own template and tokenizer, rendered by transformers.

What is appended turn by turn has to be, token for token, what transformers renders of the whole conversation. Where a
family's template rewrites earlier turns, what the module that serves it says to deviate is taken out of both first, and
only that.
"""

import asyncio
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import families
from understudy.agent import DemonstrationAgent
from understudy.certify.tokens import check_format
from understudy.domains.retail import DOMAIN
from understudy.errors import ConfigError
from understudy.formats import ChatFormat, Vocabulary, find
from understudy.formats import parse as dialects
from understudy.formats.told import instructions
from understudy.messages import Message, ToolCall, ToolSpec, spec_to_wire
from understudy.rollout import Limits, play

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
Same = Callable[[str], str]

EXACT = {
    "qwen2.5": False,
    "qwen3": True,
    "qwen3-2507": False,
    "qwen3.8": False,
    "llama3.1": False,
    "llama3.2": False,
    "llama4": False,
    "lfm2": False,
    "glm-4.5": False,
    "glm-4.5-thinking": True,
}
"""Families whose template can be appended to, and whether they think."""
ENDS = {
    "qwen2.5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3.6": "<|im_end|>",
    "llama3.1": "<|eot_id|>",
    "llama4": "<|eot|>",
    "mistral-nemo": "</s>",
    "deepseek-v3": "<｜end▁of▁sentence｜>",
    "gpt-oss": "<|return|>",
    "nemotron3": "<|im_end|>",
    "glm-4.5": "<|user|>",
}
TEXT_ONLY = {"llama3": "json", "gemma3": "react", "phi3": "xml", "deepseek-r1-distill": "hermes"}
"""Families whose templates have no calls, and a dialect to write them in."""


def folder(name: str) -> Any:
    return families.install() / name.removesuffix("-thinking")


@cache
def format_of(name: str, thinking: bool = False, dialect: str = "") -> ChatFormat:
    return find(folder(name), thinking=thinking, dialect=dialect)


@cache
def vocabulary_of(name: str) -> Vocabulary:
    return Vocabulary.load(folder(name) / "tokenizer.json")


@cache
def tokenizer_of(name: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder(name))


def template(name: str, messages: list[Message], tools: list[ToolSpec], **options: Any) -> list[int]:
    """The whole conversation as transformers renders it, up to the reply that follows."""
    ids: list[int] = tokenizer_of(name).apply_chat_template(
        [wire(message, text_arguments=name == "deepseek-v3") for message in messages],
        tools=[spec_to_wire(tool) for tool in tools] or None,
        add_generation_prompt=True,
        return_dict=False,
        **options,
    )
    return ids


def wire(message: Message, text_arguments: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": f"call{i:05}",
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


def turns(several: bool, system: bool, rounds: int = 2) -> Turns:
    """What is new, and the reply to it, in turn."""
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


def several(name: str) -> bool:
    return name not in ("llama3.1", "llama3.2", "gpt-oss")


def appended(format: ChatFormat, parts: Turns, tools: list[ToolSpec]) -> list[tuple[list[Message], list[int]]]:
    """Each prompt: the messages before it, and its tokens."""
    tokens: list[int] = []
    messages: list[Message] = []
    prompts = []
    for part in parts:
        replied = part[0].role == "assistant"
        tokens += format.render(part[0]) if replied else format.encode(part, tools, tokens)
        messages += part
        if not replied:
            prompts.append((list(messages), list(tokens)))
    return prompts


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("name", EXACT)
def test_what_is_appended_is_token_for_token_what_the_template_renders(name: str, system: bool) -> None:
    thinking = EXACT[name]
    for messages, tokens in appended(format_of(name, thinking), turns(several(name), system), TOOLS):
        theirs = template(name, messages, TOOLS, enable_thinking=thinking)
        assert tokenizer_of(name).decode(tokens) == tokenizer_of(name).decode(theirs)
        assert tokens == theirs


def without_thoughts(text: str) -> str:
    return re.sub(r"(<think>\s*)?</think>\s*|<think>\s*", "", text)


def without_tools(text: str) -> str:
    """Mistral's template moves the tools and the system text to the user's last message."""
    return re.sub(r"\[AVAILABLE_TOOLS\].*?\[/AVAILABLE_TOOLS\]", "", text, flags=re.DOTALL).replace("Be brief.\n\n", "")


@pytest.mark.parametrize(
    ("name", "thinking", "same", "rounds"),
    [
        ("qwen3", False, without_thoughts, 2),
        ("qwen3.6", False, without_thoughts, 2),
        ("qwen3.6", True, without_thoughts, 2),
        ("qwen3.8", True, str, 2),  # the tokens of what a prompt ends and a reply begins with are not joined
        ("nemotron3", False, without_thoughts, 2),
        ("nemotron3", True, without_thoughts, 2),
        ("gpt-oss", False, lambda text: text.replace("<|return|>", "<|end|>"), 2),
        ("mistral-nemo", False, without_tools, 2),
    ],
)
def test_templates_that_rewrite_earlier_turns_agree_but_for_that(
    name: str, thinking: bool, same: Same, rounds: int
) -> None:
    prompts = appended(format_of(name, thinking), turns(several(name), system=True, rounds=rounds), TOOLS)
    decode = tokenizer_of(name).decode
    for at, (messages, tokens) in enumerate(prompts):
        theirs = template(name, messages, TOOLS, enable_thinking=thinking)
        assert at or tokens == theirs, decode(tokens)
        assert same(decode(tokens)) == same(decode(theirs))


def test_deepseek_agrees_as_far_as_its_template_is_sound() -> None:
    """Its template shows no tools, and leaves out marks from the second round of calls on."""
    prompts = appended(format_of("deepseek-v3"), turns(several=True, system=True, rounds=1), [])
    decode = tokenizer_of("deepseek-v3").decode
    for messages, tokens in prompts:
        assert without_thoughts(decode(tokens)) == without_thoughts(decode(template("deepseek-v3", messages, [])))
    shown = decode(format_of("deepseek-v3").encode([SYSTEM, Message(role="user", content="x")], TOOLS, []))
    assert f"<｜begin▁of▁sentence｜>Be brief.\n\n{instructions(TOOLS, 'deepseek')}<｜User｜>x<｜Assistant｜>" == shown


@pytest.mark.parametrize("name", [*ENDS, "lfm2", "qwen3-2507", "qwen3.8", "llama3.2"])
def test_replies_are_read_as_they_are_written(name: str) -> None:
    format = format_of(name)
    replies = [Message(role="assistant", content="Hello 世界"), Message(role="assistant", tool_calls=(CALL,))]
    replies += [Message(role="assistant", tool_calls=(OTHER,))]
    if several(name):
        replies.append(Message(role="assistant", tool_calls=(CALL, OTHER, CALL)))
    for reply in replies:
        parsed = format.parse(format.render(reply), TOOLS)
        assert (parsed.message, dict(parsed.repairs), dict(parsed.faults)) == (reply, {}, {})


@pytest.mark.parametrize("name", ENDS)
def test_replies_end_with_the_familys_token(name: str) -> None:
    format, added = format_of(name), vocabulary_of(name).added
    assert format.render(Message(role="assistant", content="Hi."))[-1] == added[ENDS[name]]
    assert added[ENDS[name]] in format.stop_tokens
    assert format.render(Message(role="assistant", tool_calls=(CALL,)))[-1] in format.stop_tokens


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("llama3.1", ["<|eot_id|>", "<|eom_id|>"]),
        ("gpt-oss", ["<|return|>", "<|call|>"]),
        ("glm-4.5", ["<|user|>", "<|observation|>"]),
    ],
)
def test_families_with_several_stop_tokens(name: str, ends: list[str]) -> None:
    assert {vocabulary_of(name).added[end] for end in ends} <= format_of(name).stop_tokens


@pytest.mark.parametrize("name", [*ENDS, "lfm2"])
def test_text_never_becomes_a_token_of_its_own(name: str) -> None:
    format, added = format_of(name), vocabulary_of(name).added
    text = "".join(token for token in added if "reserved" not in token and "place" not in token)

    def tokens(text: str) -> list[int]:
        new = [Message(role=role, content=text) for role in ("system", "user")]
        ids = format.encode(new, [TOOLS[0].replace(description=text)], [])
        ids += format.encode([Message(role="tool", content=text, tool_call_id="call00000")], TOOLS, ids)
        return [token for token in ids if token in added.values()]

    assert tokens(text) == tokens("x")
    assert text in vocabulary_of(name).decode(format.encode([Message(role="user", content=text)], [], []))


@pytest.mark.parametrize("name", TEXT_ONLY)
def test_a_template_without_calls_is_refused_and_told_in_words_where_a_dialect_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"without calls|format\.dialect"):
        find(folder(name))
    dialect = TEXT_ONLY[name]
    for messages, tokens in appended(format_of(name, dialect=dialect), turns(True, system=True), TOOLS):
        theirs = tokenizer_of(name).decode(template(name, texts(messages, dialect), []))
        assert without_thoughts(tokenizer_of(name).decode(tokens)) == without_thoughts(theirs)
        if name == "phi3":  # whose tokens take white space, which a text does not show
            assert tokens == template(name, texts(messages, dialect), [])


def texts(messages: list[Message], dialect: str) -> list[Message]:
    """The conversation as text alone; written apart from `formats.told`, which does it for any template."""
    made = [SYSTEM.replace(content=f"{SYSTEM.content}\n\n{instructions(TOOLS, dialect)}")]
    for message in messages[1:]:
        if message.role == "assistant":
            text = dialects.render(message.content, message.tool_calls, dialect)
            made.append(Message(role="assistant", content=text))
            continue
        text = message.content
        if message.role == "tool":
            text = f"Observation: {text}" if dialect == "react" else f"<tool_response>\n{text}\n</tool_response>"
        if made[-1].role == "user":
            made[-1] = made[-1].replace(content=f"{made[-1].content}\n\n{text}")
        else:
            made.append(Message(role="user", content=text))
    return made


@pytest.mark.parametrize("dialect", dialects.DIALECTS)
def test_calls_can_be_written_in_any_dialect(dialect: str) -> None:
    for name in ("qwen2.5", "llama3"):
        format = format_of(name, dialect=dialect)
        for made in ((CALL,), (CALL, OTHER)):
            reply = Message(role="assistant", tool_calls=made)
            parsed = format.parse(format.render(reply), TOOLS)
            assert (parsed.message, dict(parsed.repairs)) == (reply, {})


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("llama3.1", "This is a test sentence.", [2028, 374, 264, 1296, 11914, 13]),
        ("qwen3", "hello world", [14990, 1879]),
        ("gpt-oss", "hello world", [24912, 2375]),
    ],
)
def test_tokenizers_are_the_families_own(name: str, text: str, ids: list[int]) -> None:
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
def test_results_have_the_name_or_id_that_the_model_wrote(name: str, reply: str, said: str) -> None:
    """Whatever the messages before it say, and whatever id the call has in the transcript."""
    format, vocabulary = format_of(name), vocabulary_of(name)
    user = Message(role="user", content=f"Say {reply.replace('air_2', 'weather').replace('aB3', 'XXX')}")
    start = format.encode([SYSTEM, user], TOOLS, [])
    result = Message(role="tool", content="5", tool_call_id="call_0_0")
    sampled = split(vocabulary, reply)
    assert format.parse(sampled, TOOLS).message.tool_calls == (ToolCall(name="air_2", arguments={"city": "x"}),)
    assert said in vocabulary.decode(format.encode([result], TOOLS, [*start, *sampled]))


def split(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of a text, control tokens among them."""
    parts = re.split("(" + "|".join(map(re.escape, sorted(vocabulary.added, key=len, reverse=True))) + ")", text)
    return [
        token
        for part in parts
        for token in ([vocabulary.added[part]] if part in vocabulary.added else vocabulary.encode(part))
    ]


@pytest.mark.parametrize(("name", "text"), [("llama3.1", "I look."), ("gpt-oss", "I look.")])
def test_what_a_template_leaves_out_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match="which the chat template leaves out"):
        format_of(name).render(Message(role="assistant", content=text, tool_calls=(CALL,)))
    with pytest.raises(ConfigError, match="2 calls, where the chat template takes one"):
        format_of(name).render(Message(role="assistant", tool_calls=(CALL, OTHER)))


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3.6", "deepseek-v3", "glm-4.5", "lfm2"])
def test_what_is_said_beside_calls_is_read_again(name: str) -> None:
    reply = Message(role="assistant", content="I look that up.", tool_calls=(CALL,))
    assert format_of(name).parse(format_of(name).render(reply), TOOLS).message == reply


@pytest.mark.parametrize("name", ["qwen3.6", "nemotron3", "glm-4.5", "qwen3"])
def test_a_thought_is_not_said(name: str) -> None:
    format, vocabulary = format_of(name, True), vocabulary_of(name)
    opened = vocabulary.decode(format.encode([Message(role="user", content="x")], TOOLS, [])).endswith("<think>\n")
    thought = "" if opened else "<think>"
    text = f'{thought}So.\n<tool_call>{{"name": "f", "arguments": {{}}}}</tool_call>\n</think>\n\nHello.'
    parsed = format.parse(split(vocabulary, text), TOOLS)
    assert (parsed.message.content, parsed.message.tool_calls) == ("Hello.", ())
    cut = format.parse(split(vocabulary, f"{thought}So, it"), TOOLS)
    assert (cut.message.content, cut.status) == ("", "empty")


EPISODES = {**EXACT, "qwen3.6": True, "nemotron3": False, "gpt-oss": False, "mistral-nemo": False, "deepseek-v3": False}


@pytest.mark.parametrize("name", EPISODES)
def test_whole_episodes_are_written_as_the_template_renders_them(name: str) -> None:
    """Gold episodes of a domain, with its policy, tools, and results."""
    format = format_of(name, EPISODES[name])
    for task in DOMAIN.tasks("validation")[:3]:
        episode = asyncio.run(play(DOMAIN, task, DemonstrationAgent(format), Limits(max_turns=60), seed=0))
        assert episode.score
        assert episode.score.reward == 1.0
        last = max(at for at, message in enumerate(episode.messages) if message.role == "assistant")
        tools = DOMAIN.environment(task).tools
        tokens = episode.tokens[: -len(format.render(episode.messages[last]))]
        if name in EXACT:
            assert tokens == template(name, list(episode.messages[:last]), tools, enable_thinking=EXACT[name])


@pytest.mark.parametrize(
    ("name", "thinking", "dialect"),
    [*((name, thinking, "") for name, thinking in EPISODES.items()), *((n, False, d) for n, d in TEXT_ONLY.items())],
)
def test_every_family_is_certified(name: str, thinking: bool, dialect: str) -> None:
    checks, _ = asyncio.run(check_format(folder(name), format_of(name, thinking, dialect), thinking))
    assert [check for check in checks if not check.ok] == []
