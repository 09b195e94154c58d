"""Vocabulary: the words of acts, and the plain words, which say nothing about an act.

Words of one group may name the same act: "swap" names what `exchange_items` does. Words that are neither acts nor plain
are known only if the user, a result, a tool or gold has them, so the list of acts need not be complete. Forms of a word
share its stem, so the lists have one form of each.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

_IRREGULAR_LIST = (
    "sent-send resent-resend gave-give given-give paid-pay repaid-repay withdrew-withdraw withdrawn-withdraw put-put "
    "note-memo notes-memo actioned-process made-make began-begin begun-begin froze-freeze frozen-freeze bought-buy "
    "brought-bring forgave-forgive forgiven-forgive set-set reset-reset held-hold"
)
_IRREGULAR = dict(pair.split("-") for pair in _IRREGULAR_LIST.split())
"""Past forms of acts, each with its verb."""
_ENDING = re.compile(r"(?:'s|(?<!e)ed|ing|(?<!s)s)$")
_FINAL_VOWEL = re.compile(r"(?:ie|e|i|(?<=[^aeiou])y)$")
_BRITISH = re.compile(r"(?<=\w{3})is$")
_DOUBLED = re.compile(r"([^aeiou])\1$")


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Return what all forms of a word share: "carri" of "carries", "carried" and "carrying"."""
    word = word.replace("-", "")
    word = _IRREGULAR.get(word, word)
    if (ending := _ENDING.search(word)) and re.search("[aeiouy]", word[: ending.start()]):
        word = word[: ending.start()]
    word = _BRITISH.sub("iz", _FINAL_VOWEL.sub("", word) if len(word) > 2 else word)
    return _DOUBLED.sub(r"\1", word)


_GROUPS: Mapping[str, str] = {
    "end": "cancel close void annul revoke nullify scrap stop abort | cancellation cancelation",
    "refund": "refund reimburse repay credit return compensate | reimbursement compensation moneyback refund",
    "change": "exchange replace swap switch change update modify correct reschedule move fix amend adjust raise lower "
    "upgrade downgrade alter edit increase decrease reduce shift rename convert double triple redirect reroute "
    "postpone set put relocate send transfer reset | modification correction replacement adjustment alteration",
    "delete": "delete close terminate deactivate remove erase wipe drop purge | closure deletion removal termination",
    "charge": "charge debit deduct levy withdraw bill pay collect invoice owe | fee surcharge deduction",
    "suspend": "suspend block pause freeze lock disable deactivate ban | suspension",
    "resume": "resume activate reactivate unblock enable unlock restore reinstate lift unsuspend | suspension "
    "resumption reactivation restoration activation",
    "transfer": "transfer connect escalate forward handover pass refer | escalation",
    "renew": "renew refill extend prolong request fill | renewal extension",
    "insure": "insure add | insurance",
    "give": "provide offer issue compensate give grant award credit gift reward throw treat | voucher coupon bonus "
    "discount compensation certificate freebie rebate perk",
    "send": "ship send mail email deliver redeliver dispatch resend address bring | redelivery",
    "book": "book reserve hold schedule order place buy purchase arrange rebook |",
    "add": "add apply redeem attach include put top | addition topup",
    "join": "sign enroll subscribe register |",
    "ask": "request open reopen file create |",
    "waive": "waive forgive | waiver",
    "return": "return |",
    "do": "handle process complete fulfill execute perform accomplish resolve settle start begin finish submit "
    "initiate finalize implement carry launch manage make action sort |",
    "release": "release approve authorize override save match cover record enter prescribe share limit restrict |",
    "report": "report notify alert contact sue flag blacklist |",
}
"""Verbs by group and, after a bar, nouns."""
_PLAIN = (
    "not await hereby honest joy value protect treat spend spent dig load deserve lend strive plain agreed "
    "guaranteed going propose prepare aim have see look check find read review verify know need want like help assist "
    "say explain answer inform understand hear hope wish wait try let get come stay remain leave last end expire "
    "arrive depart land show reflect appear receive believe think guess mean happen work depend contain confirm "
    "clarify apologize appreciate thank suggest recommend mention notice locate retrieve pull fetch identify "
    "calculate estimate compare count list describe discuss ensure guarantee assure promise recall remember repeat "
    "respond "
    "listen consider decide agree accept allow permit require expect support relate base regard concern please "
    "interest delight welcome search access view browse examine inspect track follow continue proceed take prefer "
    "intend plan point walk guide sell cost total equal deny refuse decline reject avoid date spell fit belong worry "
    "matter own live lie sit stand wonder learn figure determine double-check gather summarize outline state specify "
    "quote measure test join feel sound seem become grow fall rise miss lose break hurt cause reach delay involve "
    "entitle qualify solve meet enjoy celebrate remind succeed fail rest was were been had did done saw seen found "
    "knew known said understood heard left shown thought meant came went gone took taken got gotten ran lost chose "
    "chosen sold felt became fell fallen drove flew broke broken stood sat lay wrote written pending outstanding "
    "willing ongoing tied mine myself our you your yourself him his she her its itself they them their this that "
    "these those one someone somebody anyone anybody everyone everybody nobody something anything everything nothing "
    "none all both each every either neither any some few many much more most least several other another same such "
    "enough whole couple bit lot plenty zero two three four five six seven eight nine ten eleven twelve once twice "
    "first second third next single pair for from with without within into onto upon over under above below between "
    "among through during before after until till since about around across along against toward beside near behind "
    "beyond inside outside down off out away back per via than then and but nor yet whether because while whereas "
    "although though however therefore thus hence otherwise instead except despite due according can cannot could "
    "might must shall should would ought are being has does doesn didn isn aren wasn weren won wouldn couldn shouldn "
    "haven hasn hadn ain yes yep yeah okay alright sure sorry hello hey dear well now today tonight tomorrow "
    "yesterday soon later already just still again always never often sometimes right straight there where when what "
    "which who whom whose why how too also very quite rather even else almost perhaps maybe together apart altogether "
    "overall indeed likewise furthermore moreover meanwhile good great fine nice perfect happy glad afraid bad wrong "
    "true false clear certain necessary important easy quick simple full partial final effective additional further "
    "extra new old current present recent earlier late different similar general usual normal standard regular long "
    "short big small large little far high low better best worse worst frustrating entire actual official affected "
    "valid invalid incorrect accurate original initial relevant convenient ahead copy aware appointment arrangement "
    "transaction assistant active inactive afterwards ago special safe online background realize regret sympathize "
    "empathize assume hesitate hurry imagine love hate hard patient satisfied appropriate mandatory optional "
    "incomplete separate anyway bear common difficult resolution subject wrap consult"
)
"""Words that name no thing, and verbs of what changes nothing: an agent looks, finds and explains."""
_REFERRING = (
    "keep kept time moment minute hour day week month year morning noon afternoon night monday tuesday wednesday "
    "thursday friday saturday sunday weekend january february march april june july august september october november "
    "december thing way part question problem issue trouble step request situation patience inconvenience apologies "
    "success detail approval consent permission instruction okay confirmation agreement convenience preference "
    "baggage proposal fact reason answer policy information customer case card account payment profile system record "
    "trip visit word recap reference conversation chat session sir madam customer tell told ask call speak spoke "
    "spoken talk"
)
"""Nouns of the request, of its times and of the conversation."""
_NOUNS = (
    "memo visit restart reboot insert plug unplug toggle swipe scroll click press tap turn drive travel run act use "
    "pick choose select prevent serve pass disposal name amount lookup price rate may deadline topic rule guideline "
    "exception go-ahead task trust pleasure assistance desk side progress result outcome effect number sum info data "
    "database entry line overview summary status version form option choice alternative chance message text "
    "luck hand mind sense doubt fault mistake error item kind type difference breakdown unit "
    "feedback subtotal sake team colleague slot experience human user prof mrs terms conditions "
    "restriction purpose balance tip example instance title description response prompt period heads"
)
"""Other words of any conversation of a service."""


def _read_groups() -> Mapping[str, frozenset[str]]:
    words = dict[str, set[str]]()
    for group, listed in _GROUPS.items():
        for word in listed.replace("|", " ").split():
            words.setdefault(stem(word), set()).add(group)
    return {word: frozenset(groups) for word, groups in words.items()}


def _stems(text: str) -> frozenset[str]:
    return frozenset(map(stem, text.split()))


_ACTS = _read_groups()
"""The stems of words of acts, each with its groups."""
_ACT_NOUNS = _stems(" ".join(listed.partition("|")[2] for listed in _GROUPS.values()))
TOOL_NOUNS = frozenset(("order", "address", "bill"))
"""Words of acts that are nouns in the names of tools."""
GOODS = _stems(f"{_GROUPS['give'].partition('|')[2]} gift reward replacement upgrade insurance")
"""Stems of what is given to a user: unlike other words of acts, they are not plain."""
GENERIC = _stems(
    "update change modify adjust apply set put switch modification adjustment alteration correction do handle process "
    "complete fulfill execute perform accomplish resolve settle start begin finish submit initiate finalize implement "
    "carry make sort save"
)
"""Stems of acts that any write may be: "your changes have been applied"."""
SUBMITS = GENERIC | _stems("send request arrange place file open schedule register book issue add apply")
"""Stems of acts whose object may be the request: "your request has been sent"."""
INFORMATION = _stems("information detail answer help assistance overview summary explanation option name number")
"""Stems of what an agent gives by saying it."""
MESSAGES = _stems("email mail receipt confirmation message notification sms summary reminder details copy update")
"""Stems of messages about a write, which a service sends without a call."""
PLAIN = (_stems(f"{_PLAIN} {_REFERRING} {_NOUNS}") | _ACTS.keys()) - GOODS
"""Stems of words of any conversation of a service, which name no goods, persons or services."""
_HARMLESS = _stems(_PLAIN) - _ACTS.keys()
"""Stems of verbs of what changes nothing, and of words that name no thing."""
_REFERS = _stems(_REFERRING) | GENERIC
_QUALITY = re.compile(r"(?:ful|less|ous|able|ible|ness|ity|(?<!fami)(?<!re)(?<!sup)ly)$")
"""The end of a word that names a quality or a manner."""
_COMPARED = re.compile(r"(?:est|er)$")


def is_plain(word: str) -> bool:
    """Return whether a word names nothing, as pronouns and adverbs do."""
    return (
        len(word) <= 2
        or _QUALITY.search(word) is not None
        or not PLAIN.isdisjoint((stem(word), stem(_COMPARED.sub("", word))))
    )


def is_harmless(word: str) -> bool:
    """Return whether a word is a verb of what changes nothing, or names nothing."""
    return len(word) <= 2 or _QUALITY.search(word) is not None or stem(word) in _HARMLESS


def refers(word: str) -> bool:
    """Return whether a word names nothing, or the request, its time or the conversation."""
    return is_harmless(word) or stem(word) in _REFERS


def is_act(word: str) -> bool:
    """Return whether a word may name an act."""
    return stem(word) in _ACTS


def is_past_form(word: str) -> bool:
    """Return whether a word of an act may be a participle or a past form."""
    return word in _IRREGULAR or (word.endswith("ed") and word != stem(word))


def is_noun(word: str) -> bool:
    """Return whether a word of an act is a noun, such as "refund" or "cancellation"."""
    return stem(word) in _ACT_NOUNS | GOODS and not word.endswith(("ed", "ing"))


@lru_cache(maxsize=2048)
def act_groups(word: str) -> frozenset[str]:
    """Return the groups of the acts that a word may name; that of a word in no group is the start of its stem."""
    return _ACTS.get(stem(word)) or frozenset((stem(word)[:5],))


@lru_cache(maxsize=512)
def find_act_groups(words: frozenset[str]) -> frozenset[str]:
    """Return the groups of those words that name acts, and the first letters of all: a verb may be in no list."""
    words -= TOOL_NOUNS
    return frozenset().union(*map(act_groups, words)) | {word[:5] for word in words}


@lru_cache(maxsize=512)
def tool_groups(tool: str) -> frozenset[str]:
    """Return the groups of the acts in a tool's name, or the first letters of its words if it has none."""
    parts = [part for part in tool.casefold().split("_") if part not in TOOL_NOUNS]
    return frozenset().union(*(act_groups(part) for part in parts if is_act(part))) or find_act_groups(frozenset(parts))


def find_tool(tool: str, text: str) -> int | None:
    """Return the place of the first word in a case-folded text that names what a tool does, or None."""
    groups = tool_groups(tool)
    return next((match.start() for match in _WORD.finditer(text) if act_groups(match[0]) & groups), None)


def means_tool(tool: str, text: str) -> bool:
    """Return whether a case-folded text names what a tool does."""
    return find_tool(tool, text) is not None


_WORD = re.compile(r"[a-z]+")
