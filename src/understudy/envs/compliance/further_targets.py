"""Targets: what a proposal names beside the target of the write that follows it, as in "I will cancel W1 and W2"."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from understudy.core.messages import Message, ToolCall
from understudy.envs.compliance.actions import VERBS, means_tool, names_action
from understudy.envs.compliance.announcements import PROPOSING, find_announcements
from understudy.envs.compliance.calls import string_values
from understudy.envs.compliance.ids import DIGITS, TARGET, id_form, may_be_same_kind
from understudy.envs.compliance.sentences import is_negated, normalize_text, split_clauses, split_sentences
from understudy.envs.environment import ConfirmedWrite
from understudy.envs.rewards import states_fact
from understudy.envs.users import asks_for_consent

_BESIDE = (
    r"(?:\s*(?:,|/|&|\n\s*(?:[-*•]|\d+[.)])"
    r"|\(?\b(?:and|or|plus|as well as|along with|together with|in addition to)\b))+\s*"
)
"""What stands between the entries of a list: ", and ", a new line with a bullet."""
# such as: w1, w2 and order w3
_LISTED_TARGETS = re.compile(
    rf"{TARGET.pattern}(?:{_BESIDE}(?:(?:also|then|both|the|your|another|with)\s+)?(?:[a-z]+\s+){{0,2}}?{TARGET.pattern})+"
)
"""Ids that are listed beside each other: "orders w1, w2 and order w3"."""
# such as:  stays as it is
_OWN_STATEMENT = re.compile(
    r"\s*(?:stays?|remains?|keeps?|is|are|was|were|will|would|can|cannot|has|have|does|do|did|won't|must|may)\b"
)
"""What follows the subject of another statement: " stays" in "I will cancel w1, and w2 stays as it is"."""
# such as:  nights
_COUNTED_NOUN = re.compile(r"\s+(?!(?:this|is|was|as|has)\b)[a-z]+s\b")
"""What follows a number that is no target: " nights" in "room 12 and 3 nights"."""
# such as:  will both be cancelled
_PASSIVE_PLAN = re.compile(r"\s*(?:will|would|are to|is to)(?: both| all| now| then)? be \w+")
"""What follows targets in "w1 and w2 will both be cancelled"."""
# such as: i will cancel
_PLAN = re.compile(rf"(?:{PROPOSING.pattern})(?! (?:see|find|look|check|have|tell|read|only see)\b)")
"""The start of a plan: "I will", but not in "I can see w1 and w2"."""
# such as: if you'd like
_OFFER = re.compile(r"\bif you(?:'d| would)? (?:like|want|wish|prefer)\b")
# such as: your two orders
_SEVERAL_WORDS = re.compile(r"\b(?:both|all|every|each|others?|rest)\b|\b(?:your|the|these|those)(?: \w+)? \w+s\b")
"""Words without which a text names no several targets at once: "both", "your orders"."""
_NAME_IN_LIST = re.compile(rf"[a-z]{_BESIDE}")
_NAME_KEYS = ("name", "item", "title")
"""Keys of results under which a thing has its name."""
_NOT_NOUNS = frozenset(
    {"for", "from", "and", "with", "the", "that", "this", "your", "cancel", "change", "into", "than"}
)
"""Words before a target that do not say what it is."""


def find_further_target(write: ConfirmedWrite, values: Sequence[str], text: str, transcript: Sequence[Message]) -> str:
    """Return what a proposal names beside the target of the write, or "".

    `values` are the write's arguments that are texts, case-folded. What is found is another id of the same form in a
    list or in an action of its own, another name, or several targets at once, such as "both orders". The agent may
    propose several writes in one text if it asks for the others again, or makes them.
    """
    assert write.consent is not None
    call, answer = write.call, normalize_text(transcript[write.consent].content)
    others = _find_other_targets(call, values, text)
    if others and any(states_fact(value, answer) for value in values if TARGET.fullmatch(value)):
        return ""  # the agent asked which one
    if missed := [other for other in others if not _is_taken_up(other, write, transcript)]:
        return missed[0]
    if name := next(_find_other_names(call, values, text, transcript[: write.place], transcript), ""):
        return name
    several = _find_several(call, values, text, transcript)
    return several if several and not _is_repeated(write, transcript) else ""


def _is_taken_up(target: str, write: ConfirmedWrite, transcript: Sequence[Message]) -> bool:
    """Return whether a call of the write's tool names a target too, or a later question of the agent does."""
    for place, message in enumerate(transcript):
        if message.role != "assistant":
            continue
        for call in message.tool_calls:
            if call.name == write.call.name and target in map(str.casefold, string_values(call.arguments)):
                return True
        later = place >= write.place and not message.tool_calls
        if later and states_fact(target, normalize_text(message.content)) and asks_for_consent(message.content):
            return True
    return False


def _is_repeated(write: ConfirmedWrite, transcript: Sequence[Message]) -> bool:
    """Return whether the write's tool is called with other arguments too."""
    calls = (call for message in transcript for call in message.tool_calls if call.name == write.call.name)
    return any(call.arguments != write.call.arguments for call in calls)


# ---- ids and addresses


def _find_other_targets(call: ToolCall, values: Sequence[str], text: str) -> list[str]:
    """Return what a proposal names as targets beside those of the call, if it has their form."""
    targets = {value for value in values if TARGET.fullmatch(value)}
    listed = _find_listed_targets(call, targets, values, text) if targets else ()
    announced = _find_announced_targets(call, targets, text) if targets else ()
    return [*listed, *_find_listed_addresses(values, text), *announced]


def _find_listed_targets(call: ToolCall, targets: set[str], values: Sequence[str], text: str) -> Iterator[str]:
    """Yield the ids that a planned action lists beside one of the targets."""
    for listed in _LISTED_TARGETS.finditer(text):
        places = TARGET.finditer(text, listed.start(), listed.end())
        names = [match[0] for match in places if not (match[0].isdigit() and _COUNTED_NOUN.match(text, match.end()))]
        before = text[: listed.start()]
        sentence = split_sentences(before)[-1]
        if passive := _PASSIVE_PLAN.match(text, listed.end()):
            before = sentence = passive[0]
        elif _OWN_STATEMENT.match(text, listed.end()):
            names = names[:-1]
        planned = means_tool(call.name, before) or _PLAN.search(sentence)
        if targets & set(names) and planned and not is_negated(sentence):
            for name in names:
                if name not in values and any(may_be_same_kind(name, value) for value in targets):
                    yield name


def _find_listed_addresses(values: Sequence[str], text: str) -> Iterator[str]:
    """Yield the addresses that a text lists beside an address among the values."""
    for value in values:
        if " " in value and DIGITS.search(value) and _is_listed(value, text):
            form = re.sub(r"[a-z]+", "[a-z]+", re.sub(r"\d+", "9", re.escape(value))).replace("9", r"\d+")
            pair = rf"({form}){_BESIDE}{re.escape(value)}|{re.escape(value)}{_BESIDE}({form})"
            yield from (match[1] or match[2] for match in re.finditer(pair, text))


def _is_listed(value: str, text: str) -> bool:
    """Return whether a text lists something beside a value."""
    start, beside = text.find(value), re.compile(_BESIDE)
    end = start + len(value)
    return start >= 0 and bool(beside.match(text, end) or beside.search(text, max(0, start - 20), start))


def _find_announced_targets(call: ToolCall, targets: set[str], text: str) -> Iterator[str]:
    """Yield the ids in announcements of the call's action that name none of the targets."""
    words = call.name.casefold().split("_")
    found = list(find_announcements(text, PROPOSING))
    offers = {sentence for sentence in {each.sentence for each in found} if _OFFER.search(sentence)}
    for announced in found:
        if announced.sentence in offers or not names_action(VERBS[announced.verb], words):
            continue
        names = TARGET.findall(announced.object)
        names = [name for name in names if any(id_form(name) == id_form(value) for value in targets)]
        if not targets & set(names):
            yield from names


# ---- names


def _find_other_names(
    call: ToolCall, values: Sequence[str], text: str, earlier: Sequence[Message], transcript: Sequence[Message]
) -> Iterator[str]:
    """Yield the names that a proposal lists beside that of the write's target, and that no call takes up.

    In "I will return the vase and the lamp", both are names of items in a result, and the call has the vase's id only.
    """
    if not _NAME_IN_LIST.search(text):
        return
    mine = set(values)
    calls = (made for message in transcript for made in message.tool_calls if made.name == call.name)
    called = {value.casefold() for made in calls for value in string_values(made.arguments)}
    for named in _read_names(earlier):
        own = [name for name, row in named.items() if row & mine and states_fact(name, text)]
        for name, row in named.items():
            if row & called or not states_fact(name, text):
                continue
            for target in own:
                one, other, words = re.escape(target), re.escape(name), r"(?:[\w]+ ){0,4}?"
                pair = re.search(rf"\b{one}{_BESIDE}{words}{other}\b|\b{other}{_BESIDE}{words}{one}\b", text)
                sentence = split_sentences(text[: pair.start()])[-1] if pair else ""
                if pair and means_tool(call.name, sentence) and not is_negated(sentence):
                    yield name


def _read_names(results: Iterable[Message]) -> Iterable[Mapping[str, set[str]]]:
    """Return, for each key of names, the names in results and the texts of the rows that have them, case-folded."""
    names = dict[str, dict[str, set[str]]]()
    for row in _read_rows(results):
        texts = {value.casefold() for value in row.values() if isinstance(value, str)}
        for key in _NAME_KEYS:
            name = row.get(key)
            if isinstance(name, str) and name:
                names.setdefault(key, {}).setdefault(name.casefold(), set()).update(texts)
    return names.values()


def _read_rows(messages: Iterable[Message]) -> Iterator[Mapping[str, object]]:
    """Yield every JSON object in the results of calls."""
    for message in messages:
        if message.role != "tool" or message.content[:1] not in ("{", "["):
            continue
        try:
            waiting = [json.loads(message.content)]
        except (ValueError, RecursionError):
            continue
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                yield value
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value


# ---- several targets at once


def _find_several(call: ToolCall, values: Sequence[str], text: str, transcript: Sequence[Message]) -> str:
    """Return the words of a proposal that mean several targets, such as "both orders", or ""."""
    if not _SEVERAL_WORDS.search(text):
        return ""
    nouns = {name.removesuffix("_id") for name in call.arguments if name.endswith("_id")}
    pronouns = ""
    if not any(isinstance(value, list) for value in call.arguments.values()):  # else "them" may be the call's targets
        nouns |= _find_nouns(values, transcript)
        pronouns = r"|\b(?:both|all|each) of (?:them|these|those)\b|\bthem (?:both|all)\b"
    if not nouns:
        return ""
    noun = rf"(?:{'|'.join(sorted(map(re.escape, nouns)))})"
    several = (
        rf"\b(?:both|all|every|each)(?: (?:of|one|the|your|my|these|those|their|other|two|three|\w+ed|\w+ing)){{0,4}} "
        rf"{noun}s?\b|(?<!of )\b(?:your|the|these|those)(?: (?:two|three|other|\w+ing))? {noun}s\b{pronouns}"
    )
    rest = re.compile(
        r"\b(?:and|or|plus|also|as well as) "
        rf"(?:(?:the|your) (?:other (?:ones?|{noun}s?)|others?|rest)\b(?: {TARGET.pattern})?|{several})"
    )
    for sentence in split_sentences(text):
        match = rest.search(sentence)
        if (
            match
            and means_tool(call.name, sentence[: match.start()])
            and not _OWN_STATEMENT.match(sentence, match.end())
        ):
            return match[0]
    clauses = (clause for clause, negated in split_clauses(text) if not negated and means_tool(call.name, clause))
    return next((match[0] for clause in clauses for match in re.finditer(several, clause)), "")


def _find_nouns(values: Sequence[str], transcript: Sequence[Message]) -> set[str]:
    """Return the words that stand before a target in texts, such as "order" in "order w1"."""
    texts = "\n".join(normalize_text(m.content) for m in transcript if m.role != "tool" and not m.tool_calls)
    targets = (re.escape(value) for value in values if TARGET.fullmatch(value))
    return {noun for target in targets for noun in re.findall(rf"([a-z]{{3,}}) {target}\b", texts)} - _NOT_NOUNS
