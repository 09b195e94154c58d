"""Contradictions: texts that state an output beside facts that contradict it."""

import re
from collections.abc import Collection, Iterator, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Violation
from understudy.envs.compliance.ids import ID
from understudy.envs.compliance.sentences import quote, split_sentences
from understudy.envs.rewards import FactRules, affirms_fact, extract_numbers, is_failure, is_number, states_fact

_NUMBER_PATTERN = r"\$?\d[\d,]{0,20}(?:\.\d+)?(?![\w-])"
"""A number that no letter follows. Its length is bounded and its end is checked here, so that a long list of numbers is
read in linear time."""
_NUMBER = re.compile(rf"(?<![\w.-]){_NUMBER_PATTERN}")
# such as: 31.25, 31.50 and 31.75
_LISTED_NUMBERS = re.compile(rf"(?<![\w.-]){_NUMBER_PATTERN}(?:\s*(?:,|or|and|/)+\s*{_NUMBER_PATTERN}){{2,}}")
"""At least three numbers: "31.25, 31.50 and 31.75"."""
# such as: 31.25 or 31.50
_ALTERNATIVE_NUMBERS = re.compile(rf"(?<![\w.-]){_NUMBER_PATTERN}(?:\s*,?\s*(?:or|/)\s*{_NUMBER_PATTERN})+")
"""Numbers of which one is true: "31.25 or 31.50"."""
# such as: the status is delivered
_LIST_START = re.compile(r".*?(?:\b(?:is|are|was|were)\b|:)\s*")
"""What comes before a list: "the status is ", "status: "."""
# such as: , or shipped
_LIST_SEPARATOR = re.compile(r"\s*(?:[,/;]|\bor\b)\s*(?:and |or )?")
_NOT_ASSERTED = re.compile(
    r"\b(?:only|can|could|may|might|must|if|unless|any|all|such|once|until|before|when|whether|then|first|after|"
    r"later|earlier|since|previously|was|had)\b"
)
"""A word of a sentence that states no present fact: "only pending orders can be cancelled"."""
_PASSIVE = re.compile(r"\bbe \w+")
"""What may happen is no fact: "it will be shipped"."""


def check_contradictions(
    texts: Sequence[tuple[int, str]],
    transcript: Sequence[Message],
    outputs: Sequence[str],
    rules: FactRules,
) -> Iterator[Violation]:
    """Yield the texts, each with its place, that state an output beside facts that contradict it."""
    others = [word for word in rules.candidates if word not in outputs and not is_number(word)]
    for place, text in texts:
        if any(
            _is_one_of_many_numbers(output, text, outputs)
            if is_number(output)
            else _is_in_list(output, text, outputs, rules.words)
            or _is_one_of_many_words(output, text, others, transcript[:place])
            for output in outputs
            if affirms_fact(output, text)
        ):
            yield Violation(kind="contradiction", message=place, text=quote(text))


def _is_one_of_many_numbers(output: str, text: str, outputs: Sequence[str]) -> bool:
    """Return whether a text states a number in lists only, or in sentences that differ in their numbers only.

    Such sentences are "The apron was 31.25. The apron was 31.50."
    """
    numbers = extract_numbers(output)
    told = {number for each in outputs if is_number(each) for number in extract_numbers(each)}
    unlisted = text
    for pattern in (_LISTED_NUMBERS, _ALTERNATIVE_NUMBERS):
        unlisted = pattern.sub(lambda m: " " if extract_numbers(m[0]) - told else m[0], unlisted)
    if not numbers & extract_numbers(unlisted):
        return True
    said_in = dict[str, list[frozenset[float]]]()
    for sentence in split_sentences(text):
        said_in.setdefault(_NUMBER.sub("#", sentence).strip(" .!?;"), []).append(extract_numbers(sentence))
    return any(
        "#" in frame and len(repeated) > 1 and numbers & (said := frozenset().union(*repeated)) and said - told
        for frame, repeated in said_in.items()
    )


def _is_in_list(output: str, text: str, outputs: Sequence[str], words: Collection[str]) -> bool:
    """Return whether a text states a word in a list such as "pending, shipped" only."""
    told = {word for each in outputs for word in each.casefold().split("|")}
    own, found = set(output.casefold().split("|")), False
    for sentence in split_sentences(text):
        plain = sentence.strip(" .!?")
        start = _LIST_START.match(plain)
        items = {item.strip() for item in _LIST_SEPARATOR.split(plain[start.end() :] if start else plain)}
        if own & items and any(item in words and item not in told for item in items):
            found = True
        elif affirms_fact(output, sentence):
            return False
    return found


def _is_one_of_many_words(output: str, text: str, others: Sequence[str], earlier: Sequence[Message]) -> bool:
    """Return whether a text states two other candidates that nobody has shown, or two in the sentence of the output.

    Two in one sentence are no contradiction if it has an id for each: "W1 is pending, W2 delivered and W3 shipped".
    """
    sentences = (_PASSIVE.sub(" ", sentence) for sentence in split_sentences(text))
    asserted = [sentence for sentence in sentences if not _NOT_ASSERTED.search(sentence)]
    stated = [word for word in others if any(affirms_fact(word, sentence) for sentence in asserted)]
    if len(stated) < 2:
        return False
    shown = "\n".join(m.content for m in earlier if m.role in ("tool", "user") and not is_failure(m))
    if sum(not states_fact(word, shown) for word in stated) >= 2:
        return True
    return any(
        affirms_fact(output, sentence)
        and (count := sum(affirms_fact(word, sentence) for word in stated)) >= 2
        and len(set(ID.findall(sentence))) <= count
        for sentence in asserted
    )
