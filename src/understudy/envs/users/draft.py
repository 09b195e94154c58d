"""Parser of the replies of a model that plays the user.

Such models make mistakes: they write tool calls, the agent's lines, their own thoughts, or a stop token within a
message. The parser then reports a problem, as an instruction that the model gets with the next request.
"""

import re
from dataclasses import dataclass

from understudy.clients.completions import ChatCompletion

STOP_TOKEN = "###STOP###"
"""A message that is only this token ends the conversation."""

PROBLEM_EMPTY = "write what the customer says next; do not leave the message empty"
PROBLEM_REFUSAL = "stay in the customer's role and answer the agent"
PROBLEM_TRUNCATED = "be brief, one or two sentences"
PROBLEM_TOOL_CALL = "write plain words; a customer makes no calls and shows no data or code"
PROBLEM_AGENT_SPEECH = "write the customer's words only, nothing that the agent says"
PROBLEM_STRAY_STOP = f"to leave, write {STOP_TOKEN} and nothing else; to say something, write that without it"
PROBLEM_WRONG_FORMAT = "keep to the form that was asked for"

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_THINKING_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_STOP = re.compile(r"(?<!#)#{2,}\s?STOP\s?#{2,}", re.IGNORECASE)
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
class UserDraft:
    """A message, the end of the conversation, or a `problem`. A draft with a problem must not be sent."""

    text: str = ""
    ends_conversation: bool = False
    has_stray_stop: bool = False
    """Whether a stop token was removed from the text. It did not end the conversation."""
    problem: str = ""


def parse_user_message(reply: ChatCompletion) -> UserDraft:
    """Parse a reply that is the user's message and nothing else."""
    problem = _failure(reply)
    return UserDraft(problem=problem) if problem else _spoken(reply.message.content)


def parse_marked_message(reply: ChatCompletion) -> UserDraft:
    """Parse a reply with a thought and a message, each after a label.

    The message is the text after the label `Message:`, which must be the last label and occur once. Otherwise the
    draft has the problem `PROBLEM_WRONG_FORMAT`.
    """
    problem = _failure(reply)
    if problem:
        return UserDraft(problem=problem)
    text = strip_thinking(reply.message.content)
    marks = list(_MARK.finditer(text))
    if [m[1].lower() for m in marks].count("message") != 1 or marks[-1][1].lower() != "message":
        return UserDraft(problem=PROBLEM_WRONG_FORMAT)
    return _spoken(text[marks[-1].end() :])


def _failure(reply: ChatCompletion) -> str:
    """Return the problem of a reply that was refused, has tool calls or reached the token limit. Return "" for
    others.
    """
    if reply.refusal:
        return PROBLEM_REFUSAL
    if reply.message.tool_calls:
        return PROBLEM_TOOL_CALL
    return PROBLEM_TRUNCATED if reply.finish_reason == "length" else ""


def strip_thinking(text: str) -> str:
    """Return the text without the `<think>` blocks of a reasoning model."""
    ends = [found.end() for found in _THINKING_END.finditer(text)]
    end = ends[-1] if ends else 0  # a block without an end is text, and looking for its end takes quadratic time
    return _THINKING.sub("", text[:end]) + text[end:]


def _spoken(text: str) -> UserDraft:
    text = strip_thinking(text)
    if _STOP.fullmatch(text.strip(_DECORATION)):
        return UserDraft(ends_conversation=True)
    rest = _STOP.sub("", text)
    said = _unquoted(_OWN_LABEL.sub("", rest, count=1).strip())
    problem = _problem(said)
    return UserDraft(problem=problem) if problem else UserDraft(said, has_stray_stop=rest != text)


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1]
    return text[1:-1].strip() if quoted else text


def _problem(text: str) -> str:
    if not text.strip(_DECORATION):
        return PROBLEM_EMPTY
    if _CALL.search(text):
        return PROBLEM_TOOL_CALL
    plain = text.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return PROBLEM_AGENT_SPEECH if _LABEL.search(text) or _AGENT.search(plain) else ""
