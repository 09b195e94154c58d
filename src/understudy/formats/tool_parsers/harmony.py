"""Harmony, of gpt-oss: `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`.

Text in the channel `analysis` is a thought. Text in `final`, and in `commentary` without a recipient, is the reply.
"""

import re

from understudy.core.messages import ToolCall
from understudy.formats.parsing.scan import ReplyScan
from understudy.formats.tool_parsers.plain import dump_json

OPENINGS = (
    ("<", r"\|channel\|>"),
    ("<", r"\|start\|>assistant"),
    # such as: <|return|>
    ("<", r"\|(?:call|end|return)\|>"),
)
# such as: <|channel|>commentary to=functions.search <|constrain|>json<|message|>{}
_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?(?P<before>[^<]{0,200}+)<\|channel\|>(?P<channel>\w++)(?P<after>[^<]{0,200}+)"
    r"(?:<\|constrain\|>[^<]{0,40}+)?<\|message\|>"
)
# such as: to=functions.search
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]++)")
# such as:  to=functions.search
_ADDRESSED = re.compile(r"[ \t]to=(?:functions\.)?([\w.-]++)\s*+\Z")
# such as: <|call|>
_END = re.compile(r"<\|(?:end|start|call|return|channel)\|>")


def read_calls(scan: ReplyScan, mark: re.Match[str]) -> int:
    """Read one message of the agent: a thought, a call or text."""
    before = scan.text_parts.pop() or ""  # contains the recipient if the prompt ends within the header
    addressed = _ADDRESSED.search(before, max(0, len(before) - 200))
    scan.text_parts.append(before[: addressed.start()] if addressed else before)
    scan.add_break()
    header = _HEADER.match(scan.text, mark.start())
    if header is None:
        return mark.end()
    recipient = addressed or _RECIPIENT.search(f"{header['before']} {header['after']}")
    if recipient:
        scan.count_format_mismatch("harmony")
        return scan.add_call_at(recipient[1], header.end())
    if header["channel"] != "analysis":
        return header.end()
    scan.has_thinking = True
    end = _END.search(scan.text, header.end())
    return end.start() if end else len(scan.text)


def render_reply_text(content: str, calls: tuple[ToolCall, ...]) -> str:
    """Write text to the channel `final`, or to `commentary` if calls follow it."""
    channel = "commentary" if calls else "final"
    text = [f"<|channel|>{channel}<|message|>{content}{'<|end|>' if calls else '<|return|>'}"] if content else []
    texts_of_calls = [
        f"<|channel|>commentary to=functions.{c.name} <|constrain|>json<|message|>{dump_json(c.arguments)}<|call|>"
        for c in calls
    ]
    return "<|start|>assistant".join([*text, *texts_of_calls])
