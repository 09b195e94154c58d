"""Graders: pure functions of the final state, the gold changes and the transcript. Each returns a number in [0, 1].

Graders read the live final state; they replay no calls. The reward is the product of the strict parts. The rules for
telling a fact give no reward for guesses, denials, lists of candidates and for reading out complete records:

    every fact the text affirms it, and a result has shown it before. The result of a failed call shows nothing, and no
               result shows what the arguments of its call state. The text does not repeat a JSON result. A fact that
               answers two questions is told twice, or once of both;
    word       the text does not list other candidates;
    number     the text has no other value of its kind, see `told_facts`. A calculation shows its result if its terms
               are known.

`calls_match` compares calls instead of states. It is for tasks without a database.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, SupportsFloat

from understudy.core.errors import RolloutError, ToolError
from understudy.core.messages import ERROR_PREFIX, Message, ToolCall
from understudy.core.tasks import MAX_ROUNDING, Score
from understudy.core.user_code import locate_definition
from understudy.envs.calculator import evaluate_expression
from understudy.envs.dates import normalize_dates
from understudy.envs.state import State
from understudy.envs.told_facts import (
    is_assertion,
    is_denied,
    other_dates,
    other_numbers,
    other_times,
    reads_out,
    split_clauses,
    split_sentences,
    takes_back,
    values_of,
    without_general,
)
from understudy.envs.visible_text import visible_text

MAX_EXTRA_NUMBERS = 2
"""Numbers that a text may contain beyond the task's outputs. Two allow a sum to be shown with both of its terms."""

MAX_WORDS_IN_A_ROW = 12
"""Maximum number of words without punctuation in a text that states a fact, if they are a list: if fewer than one in
eight is a function word such as "the" or "is"."""

MAX_BARE_WORDS = 8
"""Maximum number of words without punctuation in a text that states a fact, if none of them is a function word."""

MAX_FREE_TERM = 12
"""Largest whole number that a calculation may contain although nothing has shown it: months, and numbers of persons."""

_OPERATOR = re.compile(r"[-+*/()$]")
_DENIAL = re.compile(
    r"(?:\b(?:not|never|neither|nor|no longer|cannot)|n['\N{RIGHT SINGLE QUOTATION MARK}]t)\s+"
    r"(?!only\b|just\b|(?:\w+ )?(?:more|over|above|than|exceeds?|beyond|past|until|before|after|later)\b)"
    r"(?:(?:cost|equal|total|amount to|come to|add up to)\s+)?"
    r"(?:(?:be|been|yet|a|an|the|in|actually|really|currently|at|for|is|it|worth|priced|exactly)\s+){0,2}"
    r"\$?[\w.,:-]*\w",
    re.IGNORECASE,
)
"""A negation with the word or number that it denies."""
_REJECTED = re.compile(
    r"\b(?:it|that)(?:'s| is) (?:false|untrue|wrong|incorrect|not true|not the case) that\b"
    r"[^.!?\n]*(?:\.(?=\d)[^.!?\n]*)*",
    re.IGNORECASE,
)
"""A sentence that says that what follows is false."""
_IMPOSSIBLE = re.compile(
    r"\b(?:cannot|can not|can['\N{RIGHT SINGLE QUOTATION MARK}]t) be "
    r"(?:changed|replaced|cancelled|canceled|returned|exchanged|moved|upgraded|modified|refunded)\b"
    r"|\b(?:is|are)(?: not|n['\N{RIGHT SINGLE QUOTATION MARK}]t) eligible\b",
    re.IGNORECASE,
)
"""What cannot be done with the thing that a clause is about."""
_OF_SEVERAL = re.compile(r"\b(?:both|all|each|every|neither|none)\b", re.IGNORECASE)
_FUNCTION_WORD = re.compile(
    r"\b(?:the|an?|is|are|was|were|be|been|has|have|will|to|of|for|with|in|on|at|by|and|or|that|it|you|your|i|my|we|not)\b",
    re.IGNORECASE,
)
_PUNCTUATION = re.compile(r"[.,;:!?()\n\-]")
_DATE_OR_TIME = re.compile(
    r"(?<![\w.-])\d{4}-\d\d-\d\d(?![\w-])|(?<![\w./-])\d{1,2}/\d{1,2}/\d{4}(?![\w/])"
    r"|(?<![\w.:])\d{1,2}:\d\d(?:[ap]m)?(?!\w|:\d)",
    re.IGNORECASE,
)
_CURRENCY = re.compile(r"\b(?:usd|eur|gbp)(?=\d)", re.IGNORECASE)
_LEADING_NUMBER = re.compile(r"[^\w\s]?(\d+)")
# A number is not part of a word or an id: "W1042", "i482" and "card_41" contain none.
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def state_match(state: State, gold: Mapping[str, Any]) -> float:
    """Return 1.0 if the changes of the state equal the gold changes, else 0.0."""
    return float(state.changes() == gold)


@dataclass(frozen=True)
class FactRules:
    """What counts as telling the outputs of one task."""

    evidence: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The facts that results must show before an output may be told, see `find_fact_rules`. An output that is not in it
    must be shown itself."""
    candidates: Collection[str] = ()
    """Outputs that the task could have had instead. A text that lists them beside the right one tells none."""
    words: Collection[str] = ()
    """All words that are outputs of the domain's tasks, case-folded."""
    denied: Collection[str] = ()
    """Outputs that are told by denying them, see `find_denied`."""
    gold_text: str = ""
    """What the gold agent says. The values in it may stand beside an output."""
    needs_call: bool = True
    """Whether some call must have succeeded before an output without evidence may be told."""


SHOWN_ONLY = FactRules()
"""Every output must be shown."""


def missing_facts(transcript: Sequence[Message], outputs: Sequence[str], rules: FactRules = SHOWN_ONLY) -> list[str]:
    """Return the outputs that the agent did not tell the user. The module docstring has the rules."""
    if not outputs:
        return []
    texts, results = _read_transcript(transcript)
    said = "\n".join(message.content for message in transcript if message.role == "user")
    policy = "\n".join(message.content for message in transcript if message.role == "system")
    others = [word for word in rules.candidates if not is_number(word) and not _DATE_OR_TIME.fullmatch(word)]
    allowed = "\n".join((said, rules.gold_text, *outputs))

    def is_told(output: str) -> bool:
        left = outputs.count(output)
        for text, count in texts:
            if (
                _asserts(output, text, denied=output in rules.denied)
                and not _is_ambiguous(output, text, others, allowed, policy)
                and not any(map(_is_word_list, _PUNCTUATION.split(text)))
                and not reads_out(text, [result.content for result in results[:count]], allowed)
                and _is_supported(output, results[:count], rules)
            ):
                left -= _count_statements(output, text)
                if left <= 0:
                    return True
        return False

    return [output for output in outputs if not is_told(output)]


def _asserts(output: str, text: str, *, denied: bool) -> bool:
    """Return whether a sentence of a text asserts an output. `denied` outputs are told by denying them."""
    states = states_fact if denied else affirms_fact
    return (
        states(output, text)
        and not takes_back(text)
        and any(
            states(output, sentence) and is_assertion(sentence) and (denied or not _denies(output, sentence))
            for sentence in split_sentences(text)
        )
    )


def _denies(output: str, sentence: str) -> bool:
    """Return whether each clause of a sentence that states an output denies something.

    "Basic economy reservations can't be changed" says no less about them than "it is basic economy".
    """
    clauses = [clause for clause in split_clauses(sentence) if states_fact(output, clause)]
    if not is_number(output):
        clauses = [_IMPOSSIBLE.sub("", clause) for clause in clauses]
    return bool(clauses) and not is_denied(output) and all(map(is_denied, clauses))


def _is_ambiguous(output: str, text: str, others: Sequence[str], allowed: str, policy: str) -> bool:
    """Return whether a text has another value of the kind of an output, except the `allowed` ones."""
    if is_number(output):
        own = extract_numbers(output.replace("|", " "))
        return bool(other_numbers(own, text, extract_numbers(allowed), extract_numbers(policy)))
    forms = output.replace("|", "\n")
    if values_of(forms).dates and other_dates(text, forms, (allowed, policy)):
        return True
    if values_of(forms).times and other_times(text, forms, (allowed, policy)):
        return True
    plain = without_general(text)
    if states_fact(output, text) and not states_fact(output, plain):
        return True
    return any(states_fact(word, plain) and not states_fact(word, allowed) for word in others)


def _count_statements(output: str, text: str) -> int:
    """Return how often a text that states an output states it. A text about several things says it of all of them."""
    if _OF_SEVERAL.search(text):
        return len(text)
    return 1 if is_number(output) else len(_find_words(output, text))


def find_fact_rules(
    transcript: Sequence[Message],
    outputs: Sequence[str],
    candidates: Collection[str] = (),
    words: Collection[str] = (),
) -> FactRules:
    """Return the rules for a task from the transcript of its gold turns.

    The evidence of an output is the output itself if it is a word, or if a gold result shows it before the agent tells
    it. It is the terms of a calculation if only this gives a number, and nothing if no gold result does, because the
    agent knows the number from the domain policy or works it out. Some call must have succeeded even then. If gold
    makes no call, nothing must be shown.
    """
    texts, results = _read_transcript(transcript)
    denied = find_denied((text for text, _ in texts), outputs)
    gold_text = "\n".join(text for text, _ in texts)
    if not results:
        return FactRules(dict.fromkeys(outputs, ()), candidates, words, denied, gold_text, needs_call=False)
    evidence = dict[str, tuple[str, ...]]()
    for output in outputs:
        count = next((count for text, count in reversed(texts) if states_fact(output, text)), len(results))
        giving = [result for result in results[:count] if states_fact(output, result.content)]
        expressions = [expression for result in giving if (expression := _calculation(result))]
        if not is_number(output) or any(_shows(output, result) for result in giving if _calculation(result) is None):
            evidence[output] = (output,)
        else:
            terms = {f"{term:.15g}" for expression in expressions[:1] for term in _terms(expression)}
            evidence[output] = tuple(sorted(term for term in terms if any(_shows(term, r) for r in results[:count])))
    return FactRules(evidence, candidates, words, denied, gold_text)


def find_denied(texts: Iterable[str], outputs: Sequence[str]) -> list[str]:
    """Return the outputs that gold's texts state in negations only, such as "available" in "it is not available"."""
    sentences = [sentence for text in texts for sentence in split_sentences(text)]
    return [
        output
        for output in outputs
        if not any(affirms_fact(output, sentence) and not _denies(output, sentence) for sentence in sentences)
    ]


def calls_match(made: Iterable[ToolCall], gold: Iterable[ToolCall]) -> float:
    """Return 1.0 if the calls made are the gold calls, each as often and in any order, else 0.0."""
    return float(count_calls(made) == count_calls(gold))


def calls_progress(made: Iterable[ToolCall], gold: Iterable[ToolCall]) -> tuple[int, int]:
    """Return how many gold calls were made, and the number of calls that are gold, made or both."""
    actual, expected = count_calls(made), count_calls(gold)
    return (actual & expected).total(), (actual | expected).total()


def count_calls(calls: Iterable[ToolCall]) -> Counter[str]:
    """Return how often each call occurs. Equal calls have the same key, see `call_key`."""
    return Counter(map(call_key, calls))


def call_key(call: ToolCall) -> str:
    """Return a text that is the same for equal calls.

    Calls are equal if their names are, and their arguments. Numbers are compared by value, texts ignore case and the
    amount of white space, an argument that is null counts as left out, and the order of a list matters.
    """
    return json.dumps([call.name, _normalized(call.arguments)], sort_keys=True)


def task_progress(state: State, gold: Mapping[str, Any], outputs: Sequence[str], missing: Sequence[str]) -> float:
    """Return the share of gold changes and outputs that the agent has made or told, in [0, 1].

    `missing` are the outputs that it has not told, see `missing_facts`.

    Every change that gold does not make adds one to the denominator, so superfluous changes cannot raise the progress.
    It is 1.0 only if no gold change and no output is missing and there is no other change. It is 0.0 if there are no
    changes and no outputs.
    """
    actual = flatten_changes(state.changes())
    expected = flatten_changes(gold)
    matching = sum(key in actual and actual[key] == row for key, row in expected.items())
    total = len(actual.keys() | expected.keys()) + len(outputs)
    return (matching + len(outputs) - len(missing)) / total if total else 0.0


def flatten_changes(changes: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return the changes of a state as one flat mapping: rows by `(table, id)`, values by `(name,)`."""
    rows = {
        (name, key): row for name, part in changes.items() if isinstance(part, Mapping) for key, row in part.items()
    }
    return rows | {(name,): value for name, value in changes.items() if not isinstance(value, Mapping)}


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a successful call."""

    content: str
    arguments: str
    """The values of the call's arguments, one a line."""
    known: frozenset[float]
    """The numbers of the system message, of the user's texts and of the results before this one. None are given if the
    result is no number, so that it cannot be calculated."""


def is_failure(message: Message) -> bool:
    """Return whether a tool message says that its call failed.

    A result that begins like a failure is one: tools of other frameworks return their errors as texts.
    """
    return message.role == "tool" and message.content.startswith(ERROR_PREFIX)


def _read_transcript(transcript: Sequence[Message]) -> tuple[list[tuple[str, int]], list[_Result]]:
    """Return each text sent to the user with the number of results before it, and the results of successful calls."""
    texts, results = list[tuple[str, int]](), list[_Result]()
    calls, said = list[ToolCall](), list[str]()
    for message in transcript:
        if message.role == "assistant":
            calls = list(message.tool_calls)
            if message.content and not calls:
                texts.append((visible_text(message.content), len(results)))
            continue
        call = calls.pop(0) if message.role == "tool" and calls else None
        if is_failure(message):
            continue
        if message.role == "tool":
            arguments = "\n".join(_argument_texts(call.arguments)) if call else ""
            may_be_calculated = is_number(message.content.strip())  # else nothing asks for the known numbers
            known = frozenset().union(*map(extract_numbers, said)) if may_be_calculated else frozenset()
            results.append(_Result(message.content, arguments, known))
        if message.role != "tool" or not _calculation(results[-1]):
            said.append(message.content)
    return texts, results


def _argument_texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _argument_texts(inner)
    else:
        yield str(value)


def _is_supported(output: str, results: Sequence[_Result], rules: FactRules) -> bool:
    """Return whether earlier results show an output, or the facts that it follows from."""
    if any(_shows(output, result) for result in results):
        return True
    facts = rules.evidence.get(output, (output,))
    if output in facts or (rules.needs_call and not results):
        return False
    return all(any(_shows(fact, result) for result in results) for fact in facts)


def _shows(fact: str, result: _Result) -> bool:
    if not states_fact(fact, result.content) or states_fact(fact, result.arguments):
        return False
    expression = _calculation(result)
    if expression is None:
        return True
    named = {term for term in _terms(expression) if not (term.is_integer() and term <= MAX_FREE_TERM)}
    return bool(named) and named <= result.known


def _terms(expression: str) -> frozenset[float]:
    return extract_numbers(_OPERATOR.sub(" ", expression))


def _calculation(result: _Result) -> str | None:
    """Return the expression that a call has calculated, or None if it has not calculated."""
    return _calculated(result.arguments, result.content) if is_number(result.content.strip()) else None


@lru_cache(maxsize=1024)
def _calculated(arguments: str, content: str) -> str | None:
    for text in arguments.splitlines():
        try:
            if _value(evaluate_expression(text)) == round(_value(content.strip()), 2):
                return text
        except ToolError:
            continue
    return None


def affirms_fact(fact: str, text: str) -> bool:
    """Return whether a text states a fact and does not deny it: "it is not 12.50" states 12.50 and denies it."""
    text = _REJECTED.sub(" ", text)
    if not states_fact(fact, text):
        return False
    return _is_negative(fact) or not _DENIAL.search(text) or states_fact(fact, _DENIAL.sub(" ", text))


def _is_negative(fact: str) -> bool:
    """Return whether a fact is itself a negation, such as "no telehealth" or "not on file"."""
    return any(_DENIAL.match(f"{word} x") for word in fact.split("|"))


def _is_word_list(text: str) -> bool:
    words, num_function_words = text.split(), len(_FUNCTION_WORD.findall(text))
    if not num_function_words and sum(not word.isnumeric() for word in words) > MAX_BARE_WORDS:
        return True
    return len(words) > MAX_WORDS_IN_A_ROW and 8 * num_function_words < len(words)


def states_fact(fact: str | float, text: str) -> bool:
    """Return whether a text states a fact.

    A number matches by value: "$1,200.50" states 1200.5, and "1200.5". Words match as complete words, ignoring case.
    Both may have alternatives: "cancel|cancellation", "0.3461|0.35". Dates and times match in any common form: "Mar 5,
    2026" states 2026-03-05, and "2:30 p.m." states 14:30.
    """
    if not isinstance(fact, str):
        return fact in extract_numbers(text)
    if is_number(fact):
        return not extract_numbers(text).isdisjoint(map(_value, fact.split("|")))
    return bool(_find_words(fact, text))


def _find_words(fact: str, text: str) -> list[str]:
    """Return each place where a text states a fact that is no number."""
    if found := _words(fact).findall(text.casefold()):
        return found
    normal = _normalize_dates(fact)
    return _words(normal).findall(_normalize_dates(text)) if _DATE_OR_TIME.search(normal) else []


@lru_cache(maxsize=512)
def extract_numbers(text: str) -> frozenset[float]:
    """Return the distinct numbers of a text by value. Ids, times and dates like 2026-03-05 are ignored."""
    text = _CURRENCY.sub(" ", _DATE_OR_TIME.sub(" ", text))
    return frozenset(_value(number) for number in _NUMBER.findall(text))


def to_score(graded: object, grader: object = None) -> Score:
    """Return what a grader returned as a `Score`: a score unchanged, a number as the reward of one.

    Raise RolloutError with fault "grader" if the reward is not a number from 0 to 1.
    """
    if isinstance(graded, Score):
        to_reward(graded.reward, grader)
        return graded
    return Score(reward=to_reward(graded, grader))


def to_reward(value: object, grader: object = None) -> float:
    """Return a reward as a float. Raise RolloutError with fault "grader" if it is not a number from 0 to 1.

    The error says where `grader` is defined, the function that returned the value.
    """
    try:
        reward = float(value) if isinstance(value, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array or a tensor of several numbers, or 10**400
        reward = math.nan
    if not 0.0 <= reward <= 1.0 + MAX_ROUNDING:
        where = locate_definition(grader) if grader else None
        rule = "a reward must be a number from 0 to 1" + (f" ({where})" if where else "")
        remedies = ((type(None), "; end the function with `return`"), (list | tuple, "; return one for the episode"))
        remedy = next((text for kind, text in remedies if isinstance(value, kind)), "")
        raise RolloutError(f"{rule}; it is {value!r:.100}{remedy}", "grader")
    return min(reward, 1.0)


def product_score(parts: Mapping[str, float], extra_parts: Mapping[str, float] | None = None) -> Score:
    """Return a score whose reward is the product of `parts`. `extra_parts` are reported but do not affect it."""
    return Score(reward=math.prod(parts.values()), parts={**parts, **(extra_parts or {})})


def is_number(fact: str) -> bool:
    """Return whether a fact is a number, such as "1,200.50", or alternatives that are all numbers."""
    return all(_NUMBER.fullmatch(each) for each in fact.split("|"))


def _normalized(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _normalized(inner) for key, inner in value.items() if inner is not None}
    return [_normalized(inner) for inner in value] if isinstance(value, list | tuple) else value


def _value(number: str) -> float:
    return float(number.replace(",", ""))


@lru_cache(maxsize=4096)
def _normalize_dates(text: str) -> str:
    return normalize_dates(text.casefold())


@lru_cache(maxsize=4096)
def _words(fact: str) -> re.Pattern[str]:
    return re.compile("|".join(_whole_word(word) for word in fact.casefold().split("|")))


def _whole_word(word: str) -> str:
    """Return a pattern of a word that is no part of another word or number, and does not follow "non-".

    "12.99" does not state "$12", nor does "12.5 kg" state "5 kg". "n't offer" may follow any verb.
    """
    if word.startswith("n't "):
        return rf"n['\N{{RIGHT SINGLE QUOTATION MARK}}]t {re.escape(word[4:])}(?!\w)"
    first = _LEADING_NUMBER.match(word)
    before = r"(?<!\d\.)" if first else r"(?<!\bnon[- ])"
    if first and len(first[1]) == 3:
        before += r"(?<!\d,)"
    after = r"(?!\.\d|,\d{3}(?!\d))" if word[-1:].isdigit() else ""
    return rf"(?<!\w){before}{re.escape(word)}(?!\w){after}"
