"""Actions: the verbs with which texts name them, and what a tool does by its name.

A root is the start that all forms of a word share, such as "cancel" of "cancelled" and "cancellation".
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

VERBS: Mapping[str, str] = {
    "cancel": "cancel",
    "refund": "refund",
    "reimburse": "reimburs",
    "exchange": "exchang",
    "replace": "replac",
    "swap": "swap",
    "change": "chang",
    "update": "updat",
    "modify": "modif",
    "correct": "correct",
    "reschedule": "reschedul",
    "delete": "delet",
    "close": "clos",
    "terminate": "terminat",
    "deactivate": "deactivat",
    "remove": "remov",
    "charge": "charg",
    "debit": "debit",
    "deduct": "deduct",
    "suspend": "suspen",
    "block": "block",
    "resume": "resum",
    "reactivate": "reactivat",
    "enable": "enabl",
    "disable": "disabl",
    "transfer": "transfer",
    "renew": "renew",
    "refill": "refill",
    "upgrade": "upgrad",
    "downgrade": "downgrad",
    "insure": "insur",
    "issue": "issu",
    "compensate": "compensat",
    "ship": "ship",
    "send": "send",
    "redeliver": "redeliver",
    "move": "mov",
    "book": "book",
    "credit": "credit",
    "return": "return",
    "waive": "waiv",
    "give": "giv",
    "grant": "grant",
    "pay": "pay",
    "add": "add",
    "apply": "appl",
}
"""Verbs of actions, and their roots."""
ANY_VERB = "|".join(VERBS)
"""A pattern of all verbs."""

HARMLESS_OBJECT = re.compile(
    r"\b(?:e-?mails?|confirmations?|receipts?|links?|messages?|notifications?|sms|text|summary|reminder|notes?|"
    r"feedback|details|information|copy|requests?|"
    r"you (?:on|back|know|shortly|a moment|an? (?:answer|update|overview|minute))|"
    r"to you|on to|attention|hand|try|look|search|status|update|answer)\b|^\s*my\b"
)
"""An object with which a verb is no action: "send you a receipt", "update you shortly"."""

_SYNONYMS: tuple[tuple[str, ...], ...] = tuple(
    tuple(group.split())
    for group in (
        "cancel",
        "refund reimburs repay credit return compensat",
        "exchang replac swap switch chang updat modif correct reschedul mov set fix amend adjust rais lower upgrad "
        "downgrad",
        "delet clos terminat deactivat remov eras",
        "charg bill debit deduct fee fare cost pric pay paid",
        "suspen block paus freez lock disabl deactivat",
        "resum activat reactivat unblock enabl",
        "transfer connect escalat forward",
        "renew refill extend request",
        "insur add",
        "issu compensat giv grant offer credit refund certificate",
        "ship send sent mail deliver redeliver dispatch address",
        "book reserv schedul order plac buy purchas",
        "add appl redeem includ",
        "request ask submit open",
        "waiv",
    )
)
"""Groups of roots of verbs that may name the same action, and of nouns that go with it."""
_NOUNS = frozenset({"order", "address", "fee", "fare", "cost", "pric"})
"""Roots that are nouns in the names of tools."""
_WORD = re.compile(r"[a-z]+")


def names_action(root: str, words: Iterable[str]) -> bool:
    """Return whether one of the words may name the action whose verb has this root."""
    synonyms = _find_synonyms(root)
    verbs = tuple(synonym for synonym in synonyms if synonym != "add")
    return any(
        word.startswith(verbs if word.startswith("address") else synonyms)
        for word in words
        if not word.startswith("setting")  # a noun, and not the verb "set"
    )


def may_mean_tool(tool: str, text: str) -> bool:
    """Return whether a text may name what a tool does.

    It has a synonym of a synonym of a verb in the tool's name, or, if the name has no verb, the start of one of its
    words.
    """
    words = _WORD.findall(text)
    return any(names_action(root, words) for root in _find_possible_verbs(tool))


def means_tool(tool: str, text: str) -> bool:
    """Return whether a text names what a tool does.

    It has a synonym of a verb in the tool's name, or, if the name has no verb, the start of its first word.
    """
    return any(word.startswith(_find_verbs(tool)) for word in _WORD.findall(text))


@lru_cache(maxsize=512)
def _find_synonyms(root: str) -> tuple[str, ...]:
    """Return the roots that may name the same action as `root`."""
    return tuple(dict.fromkeys([root, *(other for group in _SYNONYMS if root in group for other in group)]))


@lru_cache(maxsize=512)
def _find_possible_verbs(tool: str) -> tuple[str, ...]:
    parts = tool.casefold().split("_")
    roots = {root for part in parts for group in _SYNONYMS for root in group if names_action(root, [part])}
    return tuple(sorted(roots - _NOUNS)) or tuple(part[:5] for part in parts)


@lru_cache(maxsize=512)
def _find_verbs(tool: str) -> tuple[str, ...]:
    parts = tool.casefold().split("_")
    known = {root for group in _SYNONYMS for root in group} - _NOUNS
    roots = [root for part in parts for root in known if part.startswith(root)]
    return tuple({other for root in roots for other in _find_synonyms(root)} - _NOUNS) or (parts[0][:5],)
