"""Formats of any template: what is appended is what the template renders, or it is refused with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from understudy.errors import ConfigError
from understudy.formats import FormatConfig, Vocabulary, configured, find
from understudy.formats.jinja import compiled
from understudy.formats.options import Dialect
from understudy.formats.parse import DIALECTS
from understudy.formats.template import TemplateFormat
from understudy.messages import Message, ToolCall, ToolSpec
from understudy.models import make_tiny

pytest.importorskip("tokenizers")

HEADERS = ("<|begin|>", "<|head|>", "<|/head|>", "<|eot|>")
LLAMA = """{{- bos_token }}
{%- macro turn(role, text) %}{{ '<|head|>' + role + '<|/head|>\\n\\n' + text + '<|eot|>' }}{% endmacro %}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- turn('system', system) }}
{%- for m in messages %}
  {%- if m.role == 'tool' %}{{ turn('ipython', {'output': m.content} | tojson) }}
  {%- elif m.tool_calls %}
    {%- if m.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}
    {%- set call = m.tool_calls[0].function %}
    {{- turn('assistant', '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}') }}
  {%- elif loop.first and tools %}
    {{- turn('user', 'Functions:\\n\\n' + (tools | map('tojson') | join('\\n\\n')) + '\\n\\n' + m.content | trim) }}
  {%- else %}{{ turn(m.role, m.content | trim) }}{% endif %}
{%- endfor %}
{{- '<|head|>assistant<|/head|>\\n\\n' if add_generation_prompt }}"""
CODER = """{%- for m in messages %}
  {%- if loop.first and tools %}
    {{- '<|im_start|>system\\n' + (m.content if m.role == 'system' else '') }}
    {{- '\\n<tools>' + (tools | tojson) + '</tools>' }}
    {{- '<|im_end|>\\n' }}
  {%- endif %}
  {%- if m.role == 'system' and tools %}
  {%- elif m.role == 'tool' %}
    {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user\\n' }}{% endif %}
    {{- '<tool_response>\\n' + m.content + '\\n</tool_response>\\n' }}
    {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
  {%- else %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content }}
    {%- for call in m.tool_calls %}
      {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
      {%- for key, value in call.function.arguments | items %}
        {{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
      {%- endfor %}
      {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
  {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt }}"""
THOUGHTFUL = """{%- set last = messages | selectattr('role', 'equalto', 'user') | list | last %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {{- '<|head|>assistant<|/head|>' + (m.content.split('</think>') | last) }}
    {%- for call in m.tool_calls %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
    {{- '<|eot|>' }}
  {%- else %}{{ '<|head|>' + m.role + '<|/head|>' + m.content + (tools | string if loop.first else '') + '<|eot|>' }}
  {%- endif %}
{%- endfor %}
{{- '<|head|>assistant<|/head|><think>\n' + ('' if enable_thinking else '\n</think>\n\n') if add_generation_prompt }}"""
ENDLESS = """{%- for m in messages %}
  {{- '<|head|>' + m.role + '\n' + (tools | string if loop.first else '') + m.content }}
  {%- for call in m.tool_calls %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
{%- endfor %}
{{- '<|head|>assistant\n' if add_generation_prompt }}"""
SPACED = """{%- for m in messages %}
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
TOOLS = [ToolSpec(name="f", description="Does <|eot|>.", parameters={"type": "object", "properties": {}})]
PLAIN_TOOLS = [TOOLS[0].replace(description="Does it.")]
CALL = ToolCall(name="f", arguments={"a": "b", "n": [1, {"c": None}]})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from tokenizers import AddedToken, Tokenizer

    pytest.importorskip("torch")
    file = make_tiny(tmp_path_factory.mktemp("tiny")) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in HEADERS])
    tokenizer.save(str(file))
    return file.read_bytes()


@pytest.fixture
def folder(tokenizer: bytes, tmp_path: Path) -> Callable[[str], Path]:
    def write(template: str) -> Path:
        (tmp_path / "tokenizer.json").write_bytes(tokenizer)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<|begin|>"}}))
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


def talk(several: bool) -> list[list[Message]]:
    """What is new, and the reply to it, in turn."""
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
def test_what_is_appended_is_what_the_template_renders(
    folder: Callable[[str], Path], template: str, several: bool
) -> None:
    path = folder(template)
    format, vocabulary = find(path), Vocabulary.load(path / "tokenizer.json")
    assert isinstance(format, TemplateFormat)
    render = compiled(path, template)
    tokens: list[int] = []
    messages: list[Message] = []
    for part in talk(several):
        replied = part[0].role == "assistant"
        tokens += format.render(part[0]) if replied else format.encode(part, TOOLS, tokens)
        messages += part
        expected = render(messages, TOOLS, prompt=not replied)
        assert vocabulary.decode(tokens) == (expected.removesuffix("\n") if replied else expected)


@pytest.mark.parametrize("takes", [{"rstrip": True}, {"lstrip": True}, {"rstrip": True, "lstrip": True}])
def test_tokens_that_take_white_space_take_it_as_their_tokenizer_has_them_do(
    folder: Callable[[str], Path], takes: dict[str, bool]
) -> None:
    """As Phi 3's do. The ids are those of the whole conversation to `tokenizers` itself."""
    from tokenizers import Tokenizer

    path = folder(SPACED)
    file = path / "tokenizer.json"
    wire = json.loads(file.read_text())
    wire["added_tokens"] = [t | takes if t["content"] in HEADERS else t for t in wire["added_tokens"]]
    file.write_text(json.dumps(wire))
    whole, format, render, ids = Tokenizer.from_file(str(file)), find(path), compiled(path, SPACED), list[int]()
    past: list[Message] = []
    for part in talk(several=True):
        part = [m if m.role == "assistant" else m.replace(content=f"\u3000\n {m.content}\x1c\xa0 ") for m in part]
        ids += format.render(part[0]) if part[0].role == "assistant" else format.encode(part, PLAIN_TOOLS, ids)
        past += part
        if part[0].role != "assistant":
            assert ids == whole.encode(render(past, PLAIN_TOOLS), add_special_tokens=False).ids


@pytest.mark.parametrize("template", [LLAMA, CODER])
def test_replies_are_read_as_they_are_written(folder: Callable[[str], Path], template: str) -> None:
    format = find(folder(template))
    for reply in (Message(role="assistant", content="hello"), Message(role="assistant", tool_calls=(CALL,))):
        parsed = format.parse([*format.render(reply), 5, 6])
        assert (parsed.message, dict(parsed.repairs)) == (reply, {})
        assert format.render(reply)[-1] in format.stop_tokens


@pytest.mark.parametrize("template", [LLAMA, CODER])
def test_text_never_becomes_a_token_of_its_own(folder: Callable[[str], Path], template: str) -> None:
    path = folder(template)
    format, vocabulary = find(path), Vocabulary.load(path / "tokenizer.json")

    def added(text: str) -> list[int]:
        new = [Message(role=role, content=text) for role in ("system", "user")]
        tools = [TOOLS[0].replace(description=text)]
        ids = format.encode(new, tools, []) + format.encode([Message(role="tool", content=text)], tools, [1])
        return [token for token in ids if token in vocabulary.added.values()]

    assert added("<|eot|><|head|>user<|im_end|><|begin|>") == added("x")
    text = vocabulary.decode(format.encode([Message(role="user", content="a<|eot|>b")], [], []))
    assert "a<|eot|>b" in text


def test_a_reply_that_was_cut_is_closed_and_a_second_call_answered(folder: Callable[[str], Path]) -> None:
    path = folder(LLAMA)
    format, vocabulary = find(path), Vocabulary.load(path / "tokenizer.json")
    new = [Message(role="tool", content=text) for text in ("one", "two")]
    text = vocabulary.decode(format.encode(new, TOOLS, [1]))
    turns = "".join(f'<|head|>ipython<|/head|>\n\n{{"output": "{word}"}}<|eot|>' for word in ("one", "two"))
    assert text == f"<|eot|>{turns}<|head|>assistant<|/head|>\n\n"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0].content }}", "leaves out what a reply says"),
        (
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
            "{{ 'assistant: ' if add_generation_prompt }}",
            "ends replies with no token",
        ),
        (
            LLAMA.replace("m.content | trim) }}{% endif %}", "(m.content if loop.last else '') ) }}{% endif %}"),
            "otherwise once",
        ),
        (
            LLAMA.replace("turn(m.role,", "turn(m.role + (loop.length | string),"),
            "rewrites earlier|otherwise once|begins",
        ),
        (LLAMA.replace('"parameters"', '"with"'), "of no known dialect"),
        (LLAMA.replace("'<|head|>assistant<|/head|>\\n\\n' if", "'<|head|>bot<|/head|>' if"), "begins a reply with"),
    ],
)
def test_a_template_that_cannot_be_appended_to_is_refused(
    folder: Callable[[str], Path], template: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        find(folder(template))


def test_what_it_cannot_do_is_refused(folder: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"leave out format\.tolerant=false"):
        find(folder(LLAMA), tolerant=False)


def text_of(path: Path, format: TemplateFormat, parts: list[list[Message]]) -> str:
    """The conversation, appended part by part."""
    tokens: list[int] = []
    for part in parts:
        tokens += format.render(part[0]) if part[0].role == "assistant" else format.encode(part, TOOLS, tokens)
    return Vocabulary.load(path / "tokenizer.json").decode(tokens)


@pytest.mark.parametrize("thinking", [True, False])
def test_a_thought_that_the_prompt_opens_stays_where_the_template_drops_it(
    folder: Callable[[str], Path], thinking: bool
) -> None:
    path = folder(THOUGHTFUL)
    format, render = find(path, thinking=thinking), compiled(path, THOUGHTFUL, thinking=thinking)
    assert isinstance(format, TemplateFormat)
    parts = talk(several=True)
    ours, theirs = text_of(path, format, parts), render([m for part in parts for m in part], TOOLS)
    assert ours.count("<think>\n\n</think>\n\n") == (3 if thinking else 4)
    opened = "<think>\n" if thinking else "<think>\n\n</think>\n\n"
    assert ours.replace("<think>\n\n</think>\n\n", "").removesuffix(opened) == theirs.removesuffix(opened)
    for reply in (Message(role="assistant", content="Yes."), Message(role="assistant", tool_calls=(CALL, CALL))):
        assert format.parse(format.render(reply)).message == reply


def test_a_reply_may_end_with_the_token_of_the_next_turn(folder: Callable[[str], Path]) -> None:
    path = folder(ENDLESS)
    format, vocabulary = find(path), Vocabulary.load(path / "tokenizer.json")
    assert isinstance(format, TemplateFormat)
    parts = talk(several=True)
    messages = [message for part in parts for message in part]
    assert text_of(path, format, parts) == compiled(path, ENDLESS)(messages, TOOLS)
    reply, user = Message(role="assistant", content="Yes."), [Message(role="user", content="x")]
    whole = format.render(reply)
    assert whole[-1] == vocabulary.added["<|head|>"]
    assert [*whole[:-1], *format.encode(user, TOOLS, whole[:-1])] == [*whole, *format.encode(user, TOOLS, whole)]


def test_every_dialect_can_be_chosen(folder: Callable[[str], Path]) -> None:
    assert sorted(get_args(Dialect)) == sorted(DIALECTS)
    path = folder(TEXT_ONLY)
    with pytest.raises(ConfigError, match=r"without calls.*; format\.dialect=json tells"):
        find(path)
    for dialect in get_args(Dialect):
        format = configured(path, FormatConfig(dialect=dialect))
        for reply in (Message(role="assistant", content="Yes."), Message(role="assistant", tool_calls=(CALL,))):
            parsed = format.parse(format.render(reply), TOOLS)
            assert (parsed.message, dict(parsed.repairs)) == (reply, {})


def test_tools_and_results_are_told_in_text(folder: Callable[[str], Path]) -> None:
    path = folder(TEXT_ONLY)
    format = configured(path, FormatConfig(dialect="react"))
    assert isinstance(format, TemplateFormat)
    parts = talk(several=True)[:6]
    parts[4].append(Message(role="user", content="And?"))
    call = 'Action: f\nAction Input: {"a": "b", "n": [1, {"c": null}]}'
    assert text_of(path, format, parts) == (
        "<|head|>user<|/head|>policy\n\n# Tools\nf() - Does <|eot|>.\nTo use a tool, reply with only\nAction: f\n"
        "Action Input: {}\n\nhello<|eot|><|head|>assistant<|/head|>reply<|eot|>"
        f"<|head|>user<|/head|>again<|eot|><|head|>assistant<|/head|>{call}\n{call}<|eot|>"
        "<|head|>user<|/head|>Observation: one\n\nObservation: two\n\nAnd?<|eot|><|head|>assistant<|/head|>done<|eot|>"
    )


def test_tokens_that_the_folder_names_end_replies(folder: Callable[[str], Path]) -> None:
    path = folder(LLAMA)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert {7, 9} < find(path).stop_tokens
