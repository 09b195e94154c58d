"""Choose what an agent must tell in a task whose recorded conversation only reads: facts of its last text.

A fact is a number, or an identifier: a word with both letters and digits, in capitals, or after "#". It counts if

- the result of a call that looks something up states it, and neither the arguments of that call nor the user do;
- it is no small number (up to `MAX_SMALL_NUMBER`) and no part of a date, which are in many results by chance;
- it does not stand in a block of code.

Of these the first `MAX_FACTS` are required: precise numbers and identifiers; if there are none, whole numbers below
`MIN_PRECISE_NUMBER`; if there are none, words in capitals, but not a single one, which may name a quantity.

The gold answer is the recorded text if it earns the reward, which needs a text with few other numbers (`envs.rewards`).
Otherwise it is those of its sentences that state the facts, or only the facts.
"""

import re
from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.envs.dates import normalize_dates
from understudy.envs.rewards import is_number, missing_facts, states_fact
from understudy.envs.users import answer_text
from understudy.sources.task_files.inferred_tools import looks_up

MAX_FACTS = 3
MAX_SMALL_NUMBER = 12
MIN_PRECISE_NUMBER = 1000
_YEARS = range(1900, 2101)
_CODE = re.compile(r"```(?!json\b).*?(?:```|\Z)", re.DOTALL)
_FACT = re.compile(
    r"(?<![\w.])(?<!\d-)-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w-])"
    r"|#[A-Za-z][\w-]*\w"
    r"|\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z0-9][\w-]*\w\b"
    r"|\b[A-Z]{3,}\b"
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")


def choose_facts(calls: Sequence[Message], text: str, request: str, otherwise: str) -> tuple[list[str], str]:
    """Return the facts of a last text that an agent must tell, and a gold answer that tells them.

    `calls` are the gold calls and their results. If no result states a fact, there are none, and the answer is
    `otherwise`.
    """
    shown = list(dict.fromkeys(_shown_facts(calls, _CODE.sub(" ", text), request)))
    facts = _most_precise(shown)[:MAX_FACTS]
    if not facts:
        return [], otherwise
    sentences = _SENTENCE_END.split(text)
    telling = " ".join(each for each in sentences if any(states_fact(fact, each) for fact in facts))
    for answer in (text, telling):
        if not missing_facts([*calls, Message(role="assistant", content=answer)], facts) and is_final(answer, request):
            return facts, answer
    return facts, "; ".join(facts)


def is_final(text: str, request: str) -> bool:
    """Return whether the user leaves after a text."""
    return answer_text(text, request) is None


def without_questions(text: str, request: str) -> str:
    """Return the sentences of a text after which the user leaves."""
    return " ".join(each for each in _SENTENCE_END.split(text) if each and is_final(each, request))


def _shown_facts(calls: Sequence[Message], text: str, request: str) -> Iterator[str]:
    shown, undated = list(_looked_up(calls)), normalize_dates(text.casefold())
    for fact in _FACT.findall(text):
        if _is_common(fact) or not states_fact(fact, undated) or states_fact(fact, request):
            continue
        if any(states_fact(fact, result) and not states_fact(fact, arguments) for arguments, result in shown):
            yield fact


def _looked_up(calls: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield the arguments and the result of each call that looks something up."""
    made = {call.id: call for message in calls for call in message.tool_calls}
    for message in calls:
        call = made.get(message.tool_call_id) if message.role == "tool" else None
        if call and looks_up(call.name):
            yield "\n".join(map(str, call.arguments.values())), message.content


def _is_common(fact: str) -> bool:
    """Return whether a fact is a small number or a year."""
    value = _whole_number(fact)
    return value is not None and (abs(value) <= MAX_SMALL_NUMBER or (value in _YEARS and "," not in fact))


def _most_precise(facts: Sequence[str]) -> list[str]:
    words = [fact for fact in facts if fact.isalpha()]
    small = [fact for fact in facts if abs(_whole_number(fact) or MIN_PRECISE_NUMBER) < MIN_PRECISE_NUMBER]
    precise = [fact for fact in facts if fact not in words and fact not in small]
    return precise or small or (words if len(words) > 1 else [])


def _whole_number(fact: str) -> int | None:
    return int(fact.replace(",", "")) if is_number(fact) and "." not in fact else None
