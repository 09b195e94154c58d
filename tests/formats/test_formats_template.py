"""Test formats derived from a chat template: appended turns equal the template, or it is rejected with a reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from support.chat_templates import CODER, HEADERS, LLAMA, OLMO, OLMO_TOKENS
from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall, ToolSpec
from understudy.engines.models import make_tiny_model
from understudy.formats import FormatConfig, FormatTokenizer, chat_format_from_config, load_chat_format
from understudy.formats.jinja import compile_template
from understudy.formats.options import ToolFormat
from understudy.formats.parsing.parse import TOOL_FORMATS
from understudy.formats.template import TemplateFormat

DROPS_THINKING = """{%- set last = messages | selectattr('role', 'equalto', 'user') | list | last %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {{- '<|head|>assistant<|/head|>' + (m.content.split('</think>') | last) }}
    {%- for call in m.tool_calls %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
    {{- '<|eot|>' }}
  {%- else %}{{ '<|head|>' + m.role + '<|/head|>' + m.content + (tools | string if loop.first else '') + '<|eot|>' }}
  {%- endif %}
{%- endfor %}
{{- '<|head|>assistant<|/head|><think>\n' + ('' if enable_thinking else '\n</think>\n\n') if add_generation_prompt }}"""
NO_END_TOKEN = """{%- for m in messages %}
  {{- '<|head|>' + m.role + '\n' + (tools | string if loop.first else '') + m.content }}
  {%- for call in m.tool_calls %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
{%- endfor %}
{{- '<|head|>assistant\n' if add_generation_prompt }}"""
WITH_NEWLINES = """{%- for m in messages %}
  {{- '<|head|>' + m.role + '<|/head|>\n' + (tools | string if loop.first else '') + m.content }}
  {%- for call in m.tool_calls %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
  {{- '<|eot|>\n' }}
{%- endfor %}
{{- '<|head|>assistant<|/head|>\n' if add_generation_prompt }}"""
TEXT_ONLY = """{%- if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}
{%- for m in messages %}
  {%- if m.role not in ['user', 'assistant'] or (m.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('turns must alternate') }}
  {%- endif %}
  {{- '<|head|>' + m.role + '<|/head|>' + m.content + '<|eot|>' }}
{%- endfor %}
{{- '<|head|>assistant<|/head|>' if add_generation_prompt }}"""
CLOSES_THINKING = """{%%- for m in messages %%}
  {{- '<|head|>' + m.role + '<|/head|>' + (tools | string if loop.first else '') }}
  {%%- if m.role == 'assistant' and '</think>' not in m.content %%}{{ '%s' }}{%% endif %%}
  {{- m.content }}
  {%%- for call in m.tool_calls %%}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%% endfor %%}
  {{- '<|eot|>' }}
{%%- endfor %%}
{{- '<|head|>assistant<|/head|>' + ('%s' if enable_thinking else '</think>') if add_generation_prompt }}"""
MIXED_SYNTAX = """{%- for m in messages %}
  {{- '<|head|>' + m.role + '<|/head|>' + (tools | string if loop.first else '') + m.content }}
  {%- for call in m.tool_calls %}{{ '[' + call.function.name + '(' }}
    {%- for name, x in call.function.arguments.items() %}
      {{- name + '=' + ("'" + x + "'" if x is string else x | tojson if x is mapping else x | string) }}
      {{- ', ' if not loop.last }}
    {%- endfor %}{{ ')]' }}
  {%- endfor %}
  {{- '<|eot|>' }}
{%- endfor %}
{{- '<|head|>assistant<|/head|>' if add_generation_prompt }}"""
TOOLS = [ToolSpec(name="f", description="Does <|eot|>.", parameters={"type": "object", "properties": {}})]
PLAIN_TOOLS = [TOOLS[0].replace(description="Does it.")]
CALL = ToolCall(name="f", arguments={"a": "b", "n": [1, {"c": None}]})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from tokenizers import AddedToken, Tokenizer

    pytest.importorskip("torch")
    file = make_tiny_model(tmp_path_factory.mktemp("tiny")) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in (*HEADERS, *OLMO_TOKENS)])
    tokenizer.save(str(file))
    return file.read_bytes()


@pytest.fixture
def write_model_folder(tokenizer: bytes, tmp_path: Path) -> Callable[[str], Path]:
    def write(template: str) -> Path:
        (tmp_path / "tokenizer.json").write_bytes(tokenizer)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<|begin|>"}}))
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


def make_turns(several: bool) -> list[list[Message]]:
    """Return new messages and replies in turn."""
    results = [Message(role="tool", content=text, tool_call_id="") for text in ("one", "two")][: 2 if several else 1]
    return [
        [Message(role="system", content="policy"), Message(role="user", content="hello")],
        [Message(role="assistant", content="reply")],
        [Message(role="user", content="again")],
        [Message(role="assistant", tool_calls=(CALL,) * len(results))],
        results,
        [Message(role="assistant", content="done")],
        [Message(role="user", content="bye")],
    ]


@pytest.mark.parametrize(("template", "several"), [(LLAMA, False), (CODER, True)])
def test_appended_turns_equal_the_template(
    write_model_folder: Callable[[str], Path], template: str, several: bool
) -> None:
    path = write_model_folder(template)
    format, vocabulary = load_chat_format(path), FormatTokenizer.load(path / "tokenizer.json")
    assert isinstance(format, TemplateFormat)
    render = compile_template(path, template)
    tokens: list[int] = []
    messages: list[Message] = []
    for part in make_turns(several):
        replied = part[0].role == "assistant"
        tokens += format.encode_reply(part[0]) if replied else format.encode(part, TOOLS, tokens)
        messages += part
        expected = render(messages, TOOLS, prompt=not replied)
        assert vocabulary.decode(tokens) == (expected.removesuffix("\n") if replied else expected)


@pytest.mark.parametrize("stripping", [{"rstrip": True}, {"lstrip": True}, {"rstrip": True, "lstrip": True}])
def test_whitespace_stripping_tokens_match_the_tokenizer(
    write_model_folder: Callable[[str], Path], stripping: dict[str, bool]
) -> None:
    """Phi 3 has such tokens; the ids must equal those of `tokenizers` for the whole conversation."""
    from tokenizers import Tokenizer

    path = write_model_folder(WITH_NEWLINES)
    file = path / "tokenizer.json"
    wire = json.loads(file.read_text())
    wire["added_tokens"] = [t | stripping if t["content"] in HEADERS else t for t in wire["added_tokens"]]
    file.write_text(json.dumps(wire))
    whole, format, render, ids = (
        Tokenizer.from_file(str(file)),
        load_chat_format(path),
        compile_template(path, WITH_NEWLINES),
        list[int](),
    )
    past: list[Message] = []
    for part in make_turns(several=True):
        part = [m if m.role == "assistant" else m.replace(content=f"\u3000\n {m.content}\x1c\xa0 ") for m in part]
        ids += format.encode_reply(part[0]) if part[0].role == "assistant" else format.encode(part, PLAIN_TOOLS, ids)
        past += part
        if part[0].role != "assistant":
            assert ids == whole.encode(render(past, PLAIN_TOOLS), add_special_tokens=False).ids


@pytest.mark.parametrize(("opened", "empty"), [("<think>", "</think>"), ("<think>\n", "<think></think>")])
@pytest.mark.parametrize(
    "reply", [Message(role="assistant", content="hi"), Message(role="assistant", tool_calls=(CALL,))]
)
def test_thought_that_prompt_and_reply_open_is_written_once(
    write_model_folder: Callable[[str], Path], opened: str, empty: str, reply: Message
) -> None:
    """GLM 4.7 writes `</think>` before a reply without a thought, and Nemotron 3 `<think></think>`."""
    format = load_chat_format(write_model_folder(CLOSES_THINKING % (empty, opened)), enable_thinking=True)
    vocabulary = FormatTokenizer.load(write_model_folder("") / "tokenizer.json")
    assert vocabulary.decode(format.encode([Message(role="user", content="hello")], TOOLS, [])).endswith(opened)
    sampled = format.encode_reply(reply)
    assert vocabulary.decode(sampled).startswith("</think>" + (reply.content or "<tool_call>"))
    assert format.parse(sampled, TOOLS).message == reply
    thought = vocabulary.decode(format.encode_reply(reply.replace(content="<think>hm</think>" + reply.content)))
    assert thought.startswith("hm</think>" + (reply.content or "<tool_call>"))


def test_nested_arguments_of_mixed_syntax_are_read_back(write_model_folder: Callable[[str], Path]) -> None:
    """LFM2.5 writes objects as JSON, lists as Python, and strings in single quotes without escapes."""
    format = load_chat_format(write_model_folder(MIXED_SYNTAX))
    nested = {"o": {"it's": [True, None, "<|eot|>"], "q": 'a "b"'}, "l": [["it's", None, {"k": False}], 'q"', -1.5]}
    reply = Message(role="assistant", tool_calls=(ToolCall(name="f", arguments={"s": "it's", **nested}),))
    sampled = format.encode_reply(reply)
    assert format.parse(sampled, TOOLS).message == reply
    assert [token for token in sampled if token in format.stop_token_ids] == sampled[-1:]


def test_template_that_changes_a_list_is_refused_as_by_transformers(
    write_model_folder: Callable[[str], Path],
) -> None:
    """So does a template of Kimi K2."""
    path = write_model_folder("{%- set _ = messages.append(messages[0]) %}" + LLAMA)
    with pytest.raises(ConfigError, match=r"'append' of 'list'.*ns\.ids \+ \[x\]") as refused:
        load_chat_format(path)
    assert str(refused.value).count(str(path)) == 1


STRINGS = ["C:\\new", "it's", 'say "x"', "two\nlines\r\n", "ends\\", "', n='2", "\\'", "\\\\n", "", "<|eot|>\\"]


@pytest.mark.parametrize(
    "template", [MIXED_SYNTAX, MIXED_SYNTAX.replace("""("'" + x + "'" if""", """('"' + x + '"' if"""), OLMO]
)
def test_strings_of_python_calls_are_read_back(write_model_folder: Callable[[str], Path], template: str) -> None:
    """Also those that the template writes between quotes as they are, as LFM2.5's does."""
    path = write_model_folder(template)
    format, vocabulary = load_chat_format(path), FormatTokenizer.load(path / "tokenizer.json")
    for text in STRINGS:
        call = ToolCall(name="f", arguments={"a": text, "list": [text], "object": {"k": text}})
        read = format.parse(format.encode_reply(Message(role="assistant", tool_calls=(call,))))
        assert (read.message.tool_calls, dict(read.repairs)) == ((call,), {})
        history = [Message(role="user", content="x"), Message(role="assistant", tool_calls=(call,))]
        shown = vocabulary.decode(format.encode([*history, Message(role="tool", content="y")], (), ()))
        assert vocabulary.decode(format.encode_reply(history[1])[:-1]) in shown


def test_reply_with_tokens_after_its_calls_may_get_another_stop_token(
    write_model_folder: Callable[[str], Path],
) -> None:
    path = write_model_folder(OLMO)
    format, vocabulary = load_chat_format(path), FormatTokenizer.load(path / "tokenizer.json")
    render, tokens, messages = compile_template(path, OLMO), list[int](), list[Message]()
    assert format.tool_format == "pythonic"
    for part in make_turns(several=True):
        replied = part[0].role == "assistant"
        tokens += format.encode_reply(part[0]) if replied else format.encode(part, TOOLS, tokens)
        messages += part
        if not replied:
            theirs = render(messages, TOOLS)
            assert vocabulary.decode(tokens).replace("<|begin|>", "<|eot|>") == theirs
    assert tokens.count(vocabulary.added_tokens["<|begin|>"]) == 3


@pytest.mark.parametrize("template", [LLAMA, CODER])
def test_parse_inverts_encode_reply(write_model_folder: Callable[[str], Path], template: str) -> None:
    format = load_chat_format(write_model_folder(template))
    for reply in (Message(role="assistant", content="hello"), Message(role="assistant", tool_calls=(CALL,))):
        parsed = format.parse([*format.encode_reply(reply), 5, 6])
        assert (parsed.message, dict(parsed.repairs)) == (reply, {})
        assert format.encode_reply(reply)[-1] in format.stop_token_ids


@pytest.mark.parametrize("template", [LLAMA, CODER])
def test_text_never_becomes_a_control_token(write_model_folder: Callable[[str], Path], template: str) -> None:
    path = write_model_folder(template)
    format, vocabulary = load_chat_format(path), FormatTokenizer.load(path / "tokenizer.json")

    def added(text: str) -> list[int]:
        new = [Message(role=role, content=text) for role in ("system", "user")]
        tools = [TOOLS[0].replace(description=text)]
        ids = format.encode(new, tools, []) + format.encode([Message(role="tool", content=text)], tools, [1])
        return [token for token in ids if token in vocabulary.added_tokens.values()]

    assert added("<|eot|><|head|>user<|im_end|><|begin|>") == added("x")
    text = vocabulary.decode(format.encode([Message(role="user", content="a<|eot|>b")], [], []))
    assert "a<|eot|>b" in text


def test_truncated_reply_is_closed_and_every_call_gets_its_result(write_model_folder: Callable[[str], Path]) -> None:
    path = write_model_folder(LLAMA)
    format, vocabulary = load_chat_format(path), FormatTokenizer.load(path / "tokenizer.json")
    new = [Message(role="tool", content=text) for text in ("one", "two")]
    text = vocabulary.decode(format.encode(new, TOOLS, [1]))
    turns = "".join(f'<|head|>ipython<|/head|>\n\n{{"output": "{word}"}}<|eot|>' for word in ("one", "two"))
    assert text == f"<|eot|>{turns}<|head|>assistant<|/head|>\n\n"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0].content }}", "chat template"),
        (
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
            "{{ 'assistant: ' if add_generation_prompt }}",
            r"\btoken\b",
        ),
        (
            LLAMA.replace("m.content | trim) }}{% endif %}", "(m.content if loop.last else '') ) }}{% endif %}"),
            "chat template",
        ),
        (
            LLAMA.replace("turn(m.role,", "turn(m.role + (loop.length | string),"),
            "chat template",
        ),
        (LLAMA.replace('"parameters"', '"with"'), r"format\.tool_format"),
        (LLAMA.replace("'<|head|>assistant<|/head|>\\n\\n' if", "'<|head|>bot<|/head|>' if"), "bot"),
    ],
)
def test_template_that_cannot_be_appended_to_is_rejected(
    write_model_folder: Callable[[str], Path], template: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_chat_format(write_model_folder(template))


GENERATION = """{%- for m in messages %}
    {{- bos_token + unk_token + pad_token + '<|' + m.role + '|>\n' }}
    {%- if m.role == 'assistant' %}
        {%- set mark = 'a' %}
        {%- generation %}{%- set mark = 'b' %}
            {{- m.content + mark }}
        {% endgeneration %}{{- mark + '\n' }}
    {%- else %}{{- m.content }}{%- endif %}
{%- endfor %}"""


def test_generation_tags_and_special_tokens_render_as_in_transformers(tmp_path: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "<s>", "pad_token": {"content": "<pad>"}, "extra_special_tokens": {"image_token": "<image>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens))
    messages = [Message(role="user", content="Hi."), Message(role="assistant", content="Hello.")]
    conversation = [{"role": m.role, "content": m.content} for m in messages]
    known = {"bos_token": "<s>", "pad_token": "<pad>", "unk_token": ""}
    wanted = render_jinja_template(conversations=[conversation], chat_template=GENERATION, **known)[0][0]
    assert "Hello.b\na" in wanted, "what a block sets stays in it"
    assert compile_template(tmp_path, GENERATION)(messages, (), False) == wanted
    assert compile_template(tmp_path, "{{ image_token }}")(messages) == "<image>"


@pytest.mark.parametrize(
    "code",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ strftime_now.__self__.__class__.__mro__[1] }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% include '/etc/passwd' %}",
        "{{ range(1000000000) | length }}",
    ],
)
def test_template_cannot_reach_python(tmp_path: Path, code: str) -> None:
    with pytest.raises(ConfigError, match="chat template that fails"):
        compile_template(tmp_path, code)([Message(role="user", content="Hi.")])


def render_turns(path: Path, format: TemplateFormat, parts: list[list[Message]]) -> str:
    """Encode the conversation turn by turn and decode it."""
    tokens: list[int] = []
    for part in parts:
        tokens += format.encode_reply(part[0]) if part[0].role == "assistant" else format.encode(part, TOOLS, tokens)
    return FormatTokenizer.load(path / "tokenizer.json").decode(tokens)


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_opened_by_the_prompt_stays_in_earlier_turns(
    write_model_folder: Callable[[str], Path], thinking: bool
) -> None:
    path = write_model_folder(DROPS_THINKING)
    format, render = (
        load_chat_format(path, enable_thinking=thinking),
        compile_template(path, DROPS_THINKING, enable_thinking=thinking),
    )
    assert isinstance(format, TemplateFormat)
    parts = make_turns(several=True)
    ours, theirs = render_turns(path, format, parts), render([m for part in parts for m in part], TOOLS)
    assert ours.count("<think>\n\n</think>\n\n") == (3 if thinking else 4)
    opened = "<think>\n" if thinking else "<think>\n\n</think>\n\n"
    assert ours.replace("<think>\n\n</think>\n\n", "").removesuffix(opened) == theirs.removesuffix(opened)
    for reply in (Message(role="assistant", content="Yes."), Message(role="assistant", tool_calls=(CALL, CALL))):
        assert format.parse(format.encode_reply(reply)).message == reply


def test_reply_may_end_with_the_first_token_of_the_next_turn(write_model_folder: Callable[[str], Path]) -> None:
    path = write_model_folder(NO_END_TOKEN)
    format, vocabulary = load_chat_format(path), FormatTokenizer.load(path / "tokenizer.json")
    assert isinstance(format, TemplateFormat)
    parts = make_turns(several=True)
    messages = [message for part in parts for message in part]
    assert render_turns(path, format, parts) == compile_template(path, NO_END_TOKEN)(messages, TOOLS)
    reply, user = Message(role="assistant", content="Yes."), [Message(role="user", content="x")]
    whole = format.encode_reply(reply)
    assert whole[-1] == vocabulary.added_tokens["<|head|>"]
    assert [*whole[:-1], *format.encode(user, TOOLS, whole[:-1])] == [*whole, *format.encode(user, TOOLS, whole)]


def test_every_tool_format_can_be_configured(write_model_folder: Callable[[str], Path]) -> None:
    assert sorted(get_args(ToolFormat)) == sorted(TOOL_FORMATS)
    path = write_model_folder(TEXT_ONLY)
    with pytest.raises(ConfigError, match=r"format\.tool_format=json"):
        load_chat_format(path)
    for tool_format in get_args(ToolFormat):
        format = chat_format_from_config(path, FormatConfig(tool_format=tool_format))
        for reply in (Message(role="assistant", content="Yes."), Message(role="assistant", tool_calls=(CALL,))):
            parsed = format.parse(format.encode_reply(reply), TOOLS)
            assert (parsed.message, dict(parsed.repairs)) == (reply, {})


def test_tools_and_results_are_rendered_as_text(write_model_folder: Callable[[str], Path]) -> None:
    path = write_model_folder(TEXT_ONLY)
    format = chat_format_from_config(path, FormatConfig(tool_format="react"))
    assert isinstance(format, TemplateFormat)
    parts = make_turns(several=True)[:6]
    parts[4].append(Message(role="user", content="And?"))
    call = 'Action: f\nAction Input: {"a": "b", "n": [1, {"c": null}]}'
    assert render_turns(path, format, parts) == (
        "<|head|>user<|/head|>policy\n\n# Tools\nf() - Does <|eot|>.\nTo use a tool, reply with only\nAction: f\n"
        "Action Input: {}\n\nhello<|eot|><|head|>assistant<|/head|>reply<|eot|>"
        f"<|head|>user<|/head|>again<|eot|><|head|>assistant<|/head|>{call}\n{call}<|eot|>"
        "<|head|>user<|/head|>Observation: one\n\nObservation: two\n\nAnd?<|eot|><|head|>assistant<|/head|>done<|eot|>"
    )


def test_eos_tokens_of_generation_config_are_stop_tokens(write_model_folder: Callable[[str], Path]) -> None:
    path = write_model_folder(LLAMA)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert {7, 9} < load_chat_format(path).stop_token_ids


def test_a_reply_that_only_ends_its_thought_gets_the_closing_token(
    write_model_folder: Callable[[str], Path],
) -> None:
    from tokenizers import AddedToken, Tokenizer

    keeps = DROPS_THINKING.replace("(m.content.split('</think>') | last)", "m.content")
    path = write_model_folder(keeps)
    vocabulary = Tokenizer.from_file(str(path / "tokenizer.json"))
    vocabulary.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    vocabulary.save(str(path / "tokenizer.json"))
    chat = load_chat_format(path, enable_thinking=True)
    ids = chat.encode_reply(Message(role="assistant", content="because\n</think>\n\nhello"))
    assert ids.count(vocabulary.token_to_id("</think>")) == 1
    assert vocabulary.token_to_id("<think>") not in ids
    assert vocabulary.decode(ids, skip_special_tokens=False) == "because\n</think>\n\nhello<|eot|>"
    assert chat.parse(ids).message.content == "hello"
