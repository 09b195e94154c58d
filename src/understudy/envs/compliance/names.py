"""Names: what a proposal names beside the target of the write that follows it, as in "return the vase and the lamp"."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from understudy.envs.compliance.sentences import NEGATION, split_sentences
from understudy.envs.compliance.vocabulary import means_tool
from understudy.envs.rewards import states_fact

_NAME_KEYS = ("name", "item", "title")
"""Keys of results under which a thing has its name."""
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
    in `results` has its name and its id in one JSON object.
    """
    for named in _read_names(results):
        told = {name: row for name, row in named.items() if states_fact(name, text)}
        own = [name for name, row in told.items() if not row.isdisjoint(mine)]
        for other in [name for name, row in told.items() if row.isdisjoint(called)]:
            for pair in (
                rf"\b{re.escape(a)}{_BESIDE}{re.escape(b)}\b" for n in own for a, b in ((n, other), (other, n))
            ):
                match = re.search(pair, text)
                sentence = split_sentences(text[: match.start()])[-1] if match else ""
                if means_tool(tool, sentence) and not NEGATION.search(sentence):
                    return other
    return ""


def _read_names(results: Iterable[str]) -> Iterable[Mapping[str, set[str]]]:
    """Return, for each key of names, the names in results and the texts of the objects that have them."""
    names = dict[str, dict[str, set[str]]]()
    for row in _read_rows(results):
        texts = {value.casefold() for value in row.values() if isinstance(value, str)}
        for key in _NAME_KEYS:
            name = row.get(key)
            if isinstance(name, str) and name:
                names.setdefault(key, {}).setdefault(name.casefold(), set()).update(texts)
    return names.values()


def _read_rows(results: Iterable[str]) -> Iterator[Mapping[str, object]]:
    """Yield every JSON object in the results of calls."""
    for result in results:
        if result[:1] not in ("{", "["):
            continue
        try:
            waiting = [json.loads(result)]
        except (ValueError, RecursionError):
            continue
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                yield value
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
