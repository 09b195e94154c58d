"""What a model wrote for a user, read as what the user says; or why it cannot be said.

Models that play a customer slip: they write calls, the agent's lines, their own thoughts, or a stop word in the middle
of a message. What is wrong with a draft is said in words that remind the model of its part.
"""

import re
from dataclasses import dataclass

from understudy.replies import Reply

STOP = "###STOP###"
"""Alone in a message: the user leaves."""

EMPTY = "write what the customer says next; do not leave the message empty"
REFUSED = "stay in the customer's role and answer the agent"
CUT = "be brief, one or two sentences"
CALLS = "write plain words; a customer makes no calls and shows no data or code"
AGENT = "write the customer's words only, nothing that the agent says"
NOT_ALONE = f"to leave, write {STOP} and nothing else; to say something, write that without it"
UNMARKED = "keep to the form that was asked for"

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_STOP = re.compile(r"#{2,}\s?STOP\s?#{2,}", re.IGNORECASE)
_DECORATION = " \t\r\n\"'`*_.!"
_OWN_LABEL = re.compile(r"^[\s*_]*(?:customer|user|me)[\s*_]*:[\s*_]*", re.IGNORECASE)
_LABEL = re.compile(
    r"^[ \t*_]*(?:customer|user|(?:support |service |ai )?(?:agent|assistant|representative)|"
    r"(?:customer )?(?:support|service)|system|(?:tool|api|function)(?: (?:call|output|result|response))?|"
    r"observation|action)[ \t*_]*:",
    re.IGNORECASE | re.MULTILINE,
)
_CALL = re.compile(
    r"</?(?:tool|function|think)|<\||\[/?TOOL|```|\"(?:name|arguments|parameters)\"\s*:|"
    r"^[{\[].*[}\]]$|^\w+\(.*\)$",
    re.IGNORECASE | re.DOTALL,
)
_AGENT = re.compile(
    r"\bhow (?:can|may) i (?:help|assist) you\b|\b(?:any|some)thing else (?:that )?i can (?:help|do|assist)\b|"
    r"\bi(?:'m| am|'d be| would be|'ll be| will be) (?:happy|glad|here|able|unable) to (?:help|assist|serve) you\b|"
    r"\b(?:will|can|to) (?:give|offer|issue|send) you (?:an?|the|your) (?:\w+ )?refund\b|"
    r"\bapologi[sz]e for (?:any|the) inconvenience\b|"
    r"\b(?:i|we)(?:'ve| have|'ll| will| can) (?:\w+ )?(?:cancel|refund|process|updat|exchang|return|issu)\w* your\b|"
    r"\bas an? (?:ai|language model|virtual assistant|support agent|customer (?:service|support))\b|"
    r"\bi(?:'m| am) (?:just |only )?(?:an? )?(?:ai|language model|chat ?bot|virtual assistant)\b",
)
_MARK = re.compile(r"^[ \t*_#>]*(thought|reflection|message)[ \t*_]*:[ \t*_]*", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Draft:
    """Something to say, or the wish to leave; or a `problem`, and then nothing of it may be said."""

    text: str = ""
    leaves: bool = False
    parting: bool = False
    """Whether the stop word stood beside the text, where it counts for nothing."""
    problem: str = ""


def read(reply: Reply) -> Draft:
    """A reply that is the user's message and nothing else."""
    problem = _failure(reply)
    return Draft(problem=problem) if problem else _spoken(reply.message.content)


def read_marked(reply: Reply) -> Draft:
    """A reply that thinks first: only what stands behind its one `Message:` is said."""
    problem = _failure(reply)
    if problem:
        return Draft(problem=problem)
    text = without_thinking(reply.message.content)
    marks = list(_MARK.finditer(text))
    if [m[1].lower() for m in marks].count("message") != 1 or marks[-1][1].lower() != "message":
        return Draft(problem=UNMARKED)
    return _spoken(text[marks[-1].end() :])


def _failure(reply: Reply) -> str:
    """What is wrong with a reply whatever it says."""
    if reply.refusal or reply.finish == "content_filter":
        return REFUSED
    if reply.message.tool_calls:
        return CALLS
    return CUT if reply.finish == "length" else ""


def without_thinking(text: str) -> str:
    """The text without what a reasoning model put between think tags."""
    return _THINKING.sub("", text)


def _spoken(text: str) -> Draft:
    text = without_thinking(text)
    if _STOP.fullmatch(text.strip(_DECORATION)):
        return Draft(leaves=True)
    rest = _STOP.sub("", text)
    said = _unquoted(_OWN_LABEL.sub("", rest, count=1).strip())
    problem = _problem(said)
    return Draft(problem=problem) if problem else Draft(said, parting=rest != text)


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1]
    return text[1:-1].strip() if quoted else text


def _problem(text: str) -> str:
    if not text.strip(_DECORATION):
        return EMPTY
    if _CALL.search(text):
        return CALLS
    plain = text.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return AGENT if _LABEL.search(text) or _AGENT.search(plain) else ""
