"""Harmony, of gpt-oss: `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`.

What is said in the channel `analysis` is a thought; in `final`, and in `commentary` to nobody, it is said.
"""

import re

from understudy.formats.dialects.plain import dumped
from understudy.formats.scan import Scan
from understudy.messages import ToolCall

OPENINGS = (("<", r"\|channel\|>"), ("<", r"\|start\|>assistant"), ("<", r"\|(?:call|end|return)\|>"))
_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?(?P<before>[^<]{0,200}+)<\|channel\|>(?P<channel>\w++)(?P<after>[^<]{0,200}+)"
    r"(?:<\|constrain\|>[^<]{0,40}+)?<\|message\|>"
)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]++)")
_ADDRESSED = re.compile(r"[ \t]to=(?:functions\.)?([\w.-]++)\s*+\Z")
_END = re.compile(r"<\|(?:end|start|call|return|channel)\|>")


def read(scan: Scan, mark: re.Match[str]) -> int:
    """One message of the agent: a thought, a call, or something that is said."""
    said = scan.said.pop() or ""  # the prompt may have begun the header, and the reply goes on with it
    addressed = _ADDRESSED.search(said, max(0, len(said) - 200))
    scan.said.append(said[: addressed.start()] if addressed else said)
    scan.cut()
    header = _HEADER.match(scan.text, mark.start())
    if header is None:
        return mark.end()
    recipient = addressed or _RECIPIENT.search(f"{header['before']} {header['after']}")
    if recipient:
        scan.foreign("harmony")
        return scan.arguments(recipient[1], header.end())
    if header["channel"] != "analysis":
        return header.end()
    scan.thought = True
    end = _END.search(scan.text, header.end())
    return end.start() if end else len(scan.text)


def write(content: str, calls: tuple[ToolCall, ...]) -> str:
    """What is said goes to the channel `final`, or before calls to `commentary`."""
    channel = "commentary" if calls else "final"
    said = [f"<|channel|>{channel}<|message|>{content}{'<|end|>' if calls else '<|return|>'}"] if content else []
    made = [
        f"<|channel|>commentary to=functions.{c.name} <|constrain|>json<|message|>{dumped(c.arguments)}<|call|>"
        for c in calls
    ]
    return "<|start|>assistant".join([*said, *made])
