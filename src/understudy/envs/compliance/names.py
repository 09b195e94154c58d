"""Names: what a proposal names beside the target of the write that follows it, as in "return the vase and the lamp"."""

import re
from collections.abc import Collection, Iterable

from understudy.envs.compliance.sentences import NEGATION, split_sentences
from understudy.envs.compliance.vocabulary import means_tool
from understudy.envs.rewards import states_fact

_OBJECT = re.compile(r"\{[^{}]*\}")
"""A JSON object without others in it."""
_NAME = re.compile(r'"(name|item|title)": ?"([^"]+)"')
_TEXT = re.compile(r'"([^"]*)"')
_BESIDE = (
    r"(?: (?:for|at|of|worth) [$\u20ac\u00a3]?\d[\d,.]{0,20}| \([^()]{1,40}\))?"
    r"(?:\s*(?:,|/|&|\n\s*(?:[-*\u2022]|\d+[.)])"
    r"|\(?\b(?:and|or|plus|as well as|along with|together with|in addition to)\b))+\s*(?:\w+ ){0,4}?"
)
"""What stands between two names of a list, the price of the first too: " for 20.00 and the "."""


def find_other_name(
    tool: str, mine: Collection[str], called: Collection[str], text: str, results: Iterable[str]
) -> str:
    """Return a name that a normalized proposal lists beside one of the write's targets, or "".

    `mine` are the write's arguments that are texts, `called` those of all calls of its tool, both case-folded. A thing
    in the case-folded `results` has its name and its id in one JSON object.
    """
    rows = dict[tuple[str, str], set[str]]()
    for row in (match[0] for result in results for match in _OBJECT.finditer(result)):
        for key, name in _NAME.findall(row):
            rows.setdefault((key, name), set()).update(_TEXT.findall(row))
    told = {named: row for named, row in rows.items() if states_fact(named[1], text)}
    own = [named for named, row in told.items() if not row.isdisjoint(mine)]
    for key, other in [named for named, row in told.items() if row.isdisjoint(called)]:
        for name in [name for own_key, name in own if own_key == key]:
            for one, two in ((name, other), (other, name)):
                match = re.search(rf"\b{re.escape(one)}{_BESIDE}{re.escape(two)}\b", text)
                sentence = split_sentences(text[: match.start()])[-1] if match else ""
                if means_tool(tool, sentence) and not NEGATION.search(sentence):
                    return other
    return ""
