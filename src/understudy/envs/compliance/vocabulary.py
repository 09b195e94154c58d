"""Vocabulary: the words of acts in all their forms, and the words that say nothing about an act.

Words of one group may name the same act: "swap" names what `exchange_items` does. Words that are neither acts nor plain
are known only if the user, a result, a tool or gold has them, so the list of acts need not be complete.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

_GROUPS: Mapping[str, str] = {
    "end": "cancel close void annul revoke nullify scrap | cancellation cancellations cancelation cancelations",
    "refund": "refund reimburse repay credit return compensate | repaid refunds reimbursement reimbursements credits "
    "compensation moneyback",
    "change": "exchange replace swap switch change update modify correct reschedule move fix amend adjust raise lower "
    "upgrade downgrade alter edit increase decrease reduce shift rename convert double triple redirect reroute "
    "postpone set put relocate send transfer | sent modification correction replacement replacements adjustment "
    "alteration upgrades reset",
    "delete": "delete close terminate deactivate remove erase wipe drop purge | closure deletion removal termination",
    "charge": "charge debit deduct levy withdraw bill pay collect invoice | fee fees surcharge surcharges paid "
    "deduction withdrew withdrawn charges owe owes",
    "suspend": "suspend block pause freeze lock disable deactivate ban | suspension froze frozen",
    "resume": "resume activate reactivate unblock enable unlock restore reinstate lift unsuspend | suspension "
    "resumption reactivation restoration activation",
    "transfer": "transfer connect escalate forward handover | escalation",
    "renew": "renew refill extend prolong request fill | renewal renewals extension",
    "insure": "insure add | insurance",
    "give": "issue compensate give grant award credit gift reward | gave given voucher vouchers coupon coupons bonus "
    "discount discounts compensation certificate certificates freebie rebate",
    "send": "ship send mail deliver redeliver dispatch resend address bring | sent resent redelivery brought",
    "book": "book reserve schedule order place buy purchase arrange rebook | bought",
    "add": "add apply redeem attach include put",
    "join": "sign enroll enrol subscribe register",
    "ask": "request ask open file create",
    "waive": "waive forgive | waiver forgave forgiven",
    "return": "return | returns",
    "report": "report notify alert contact sue flag blacklist",
}
"""Verbs by group and, after a bar, irregular forms and nouns."""
_NEEDS_VERB_PLACE_LIST = (
    "close open set lower raise issue place report drop mail correct order double bill lock fix address reward file "
    "contact include arrange gift request return book add apply put bring fill ask create flag alert lift collect "
    "register charge credit ban transfer schedule change exchange"
)
_NEEDS_VERB_PLACE = frozenset(_NEEDS_VERB_PLACE_LIST.split())
"""Verbs whose first form may be a noun or an adjective: they are acts only where a verb stands."""
_HARMLESS = (
    "propose prepare aim be have do see look check find read review verify know need want like help assist tell say "
    "explain answer inform note understand hear hope wish wait hold try let get go come keep stay remain leave last "
    "begin end expire arrive depart land show reflect appear receive believe think guess mean happen work depend "
    "contain confirm clarify apologize apologise appreciate thank suggest recommend mention notice locate retrieve "
    "pull fetch identify calculate compare count list describe discuss ensure guarantee assure promise recall "
    "remember repeat respond reply listen speak talk call name consider decide agree accept allow permit approve "
    "require expect support relate base regard concern please interest delight welcome search access enter view "
    "browse examine inspect monitor track follow continue proceed start stop finish complete submit process handle "
    "manage perform execute carry finalize finalise implement take make run act use pick choose select prefer intend "
    "plan offer provide share point walk guide sell cost total amount equal serve deny refuse decline reject avoid "
    "prevent limit restrict date spell reopen fit match belong worry care matter own live lie sit stand wonder ask "
    "learn figure determine double-check gather summarize summarise outline state specify quote measure test join "
    "turn press tap restart reboot insert plug unplug toggle swipe scroll click feel sound seem become grow fall rise "
    "drive fly travel pass miss lose break hurt cause cover reach delay involve entitle record save fulfill fulfil "
    "sort accomplish resolve qualify solve meet enjoy celebrate rely action actioned remind succeed fail rest settle "
    "lookup prescribe release price rate"
)
_IRREGULAR_PAST = (
    "was were been had did done saw seen found read knew known told said understood heard held kept left began begun "
    "showed shown thought meant came went gone took taken made got gotten let ran lost chose chosen spoke spoken sold "
    "felt became fell fallen drove flew broke broken hurt understood stood sat lay began wrote written"
)
_IRREGULAR_LIST = (
    "sent gave given took taken got made did done put set cut let went paid sold bought drew drawn wrote written "
    "spoke told said brought forgave forgiven froze frozen withdrew withdrawn built cast struck hit shut threw thrown "
    "sued banned reset hung held won lent spent rid"
)
_IRREGULAR = frozenset(_IRREGULAR_LIST.split())
"""Past forms that do not end in -ed."""


def _inflect(base: str) -> set[str]:
    """Return the forms of a regular verb, also wrong ones, which do no harm."""
    stem = base.removesuffix("e")
    forms = {base, f"{base}s", f"{stem}ed", f"{stem}ing", f"{base}ing"}
    if base[-1] == "y" and base[-2] not in "aeiou":
        forms |= {f"{base[:-1]}ies", f"{base[:-1]}ied"}
    if base[-1] in "sxzh":
        forms.add(f"{base}es")
    if base[-1] not in "aeiouwxyh":
        forms |= {f"{base}{base[-1]}ed", f"{base}{base[-1]}ing"}
    return forms


def _read_groups() -> Mapping[str, frozenset[str]]:
    words = dict[str, set[str]]()
    for group, listed in _GROUPS.items():
        verbs, _, others = listed.partition("|")
        forms = {form for base in verbs.split() for form in _inflect(base)} | set(others.split())
        for form in forms:
            words.setdefault(form, set()).add(group)
    return {word: frozenset(groups) for word, groups in words.items()}


ACT_WORDS = _read_groups()
"""The words of acts, each with its groups."""
VERBS = frozenset(base for listed in _GROUPS.values() for base in listed.partition("|")[0].split())
HARMLESS = frozenset(form for base in _HARMLESS.split() for form in _inflect(base)) | set(
    f"{_IRREGULAR_PAST} pending missing outstanding remaining willing ongoing tied".split()
)
GENERIC = frozenset(
    form
    for base in ["update", "change", "modify", "adjust", "apply", "set", "put", "switch"]
    for form in _inflect(base)
) | {"modification", "modifications", "adjustment", "adjustments", "alteration", "correction"}
"""Words of acts that any write may be: "your changes have been applied"."""
_PLAIN = (
    "i me my mine myself we us our ours you your yours yourself he him his she her hers it its itself they them their "
    "theirs this that these those one ones someone somebody anyone anybody everyone everybody nobody something "
    "anything everything nothing none all both each every either neither any some few many much more most less least "
    "several other others another same such own enough whole rest couple bit lot lots plenty a an the zero two three "
    "four five six seven eight nine ten eleven twelve once twice first second third last next previous single pair of "
    "to in on at by for from with without within into onto upon over under above below between among through during "
    "before after until till since about around across along against toward towards beside besides near behind beyond "
    "inside outside up down off out away back forward per via as like than then so and or but nor yet if unless "
    "whether because while whereas although though however therefore thus hence otherwise instead except despite due "
    "according accordingly regarding concerning can cannot could may might must shall should will would ought be am "
    "is are was were been being have has had having do does did doing done don doesn didn isn aren wasn weren won "
    "wouldn couldn shouldn haven hasn hadn ain ll ve re not no yes yep yeah ok okay alright sure please kindly thanks "
    "thank sorry hello hi hey dear welcome well now today tonight tomorrow yesterday soon shortly later already just "
    "still again always never ever often sometimes usually currently immediately instantly directly right straight "
    "quickly promptly here there where when what which who whom whose why how too also very really quite rather only "
    "even else almost nearly exactly simply actually perhaps maybe together apart altogether overall indeed likewise "
    "additionally furthermore moreover meanwhile finally fortunately unfortunately hopefully truly certainly "
    "definitely absolutely completely fully entirely totally properly smoothly safely correctly successfully "
    "officially automatically personally separately individually respectively initially good great fine nice perfect "
    "excellent wonderful lovely fantastic awesome amazing happy glad pleased delighted proud afraid sad bad wrong "
    "true false clear certain able ready available possible impossible necessary important easy quick simple full "
    "partial complete final successful effective additional further extra new old current present recent latest "
    "earlier early late different similar exact precise specific particular general usual normal standard regular "
    "long short big small large little far close high low better best worse worst frustrating annoying inconvenient "
    "disappointing understandable happily gladly entire actual official related affected valid invalid eligible "
    "ineligible correct incorrect accurate original initial respective relevant convenient time times moment moments "
    "minute minutes hour hours day days week weeks month months year years morning noon afternoon evening night date "
    "dates deadline monday tuesday wednesday thursday friday saturday sunday weekend january february march april "
    "june july august september october november december pm thing things way ways fact part parts question questions "
    "answer answers problem problems issue issues trouble matter topic reason reasons rule rules policy policies "
    "guideline guidelines exception exceptions permission consent approval confirmation go-ahead ahead step steps "
    "task tasks action actions operation process procedure request requests query inquiry enquiry concern concerns "
    "situation patience understanding cooperation business trust inconvenience apologies apology pleasure help "
    "assistance support customer customers desk side end success progress result results outcome effect value amount "
    "number numbers sum figure figures count price prices detail details information info data record records file "
    "files system database entry entries note notes line lines list lists overview summary status state version form "
    "option options choice choices alternative possibility chance news update updates change changes message messages "
    "mail email emails text chat conversation contact name names sir madam luck hand hands mind word words sense "
    "doubt hesitation worry worries hassle fault mistake error typo spelling wish wishes need needs preference "
    "preferences instruction instructions item items kind type sort total difference copy breakdown quantity unit "
    "reference check look feedback subtotal aware sake account accounts profile team colleague order appointment "
    "booking purchase arrangement transaction modification correction cancellation adjustment slot experience "
    "assistant human user active inactive afterwards ago asap anytime onwards valued special smooth seamless safe "
    "online background dr prof mr mrs ms clarify elaborate outline recap spot realize apologise regret sympathize "
    "empathize bother bet guess assume wonder encourage cooperate glance straighten hesitate rush hurry imagine love "
    "hate occur arise vary differ frustration disappointment confusion delay delays interruption follow insight "
    "context scenario circumstance circumstances occasion point view perspective terms conditions restriction "
    "timeframe timeline timing basis nature purpose goal aim intention suggestion recommendation advice tip example "
    "instance title description reply response prompt finding strict firm fixed unclear straightforward tricky tough "
    "hard helpful useful gentle polite brief concise thorough careful patient grateful thankful curious confused "
    "worried upset angry annoyed disappointed satisfied comfortable confident responsible fair reasonable suitable "
    "appropriate applicable mandatory optional visible incomplete separate remaining outdated genuinely sincerely "
    "honestly frankly basically typically specifically especially essentially eventually beforehand nevertheless "
    "nonetheless anyway obviously apparently evidently roughly approximately warmly deeply solely merely purely "
    "mostly mainly primarily extremely incredibly meantime period reminder heads bear swift transparent painless "
    "quality standards common difficult tedious stressful worrying unpleasant effort role aspect factor impact share "
    "moving appreciated noted understood resolution"
)
_GOODS = (
    "replacement replacements upgrade upgrades insurance voucher vouchers coupon coupons bonus discount discounts "
    "certificate certificates freebie rebate gift gifts reward rewards compensation"
)
_THINGS = (
    "website app page screen phone bank statement statements receipt inbox meal trip journey travel travels visit "
    "health case cases person people service security identity privacy code format field safety label section event "
    "events window schedule limit limitation requirement verification plan"
)
GENERIC_OBJECTS = (frozenset(_PLAIN.split()) | HARMLESS) - {"hold"}
"""Words that may name or describe the object of any act."""
PLAIN = (GENERIC_OBJECTS | frozenset(_THINGS.split()) | {"hold"} | ACT_WORDS.keys()) - frozenset(_GOODS.split())
"""Words of any conversation of a service, which name no goods, persons or services."""
_SUFFIX = re.compile(r"(?:'s|ies|ied|ing|ed|es|s|ly|y|e)$")


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Return a word without its ending."""
    return _SUFFIX.sub("", word) or word


PLAIN_STEMS = frozenset(map(stem, PLAIN))
_PAST_FORM = re.compile(r"[a-z]+(?:[^e]ed|eed)")
_NOT_PARTICIPLES_LIST = "need indeed feed speed seed red bed exceed proceed succeed hundred"
_NOT_PARTICIPLES = frozenset(_NOT_PARTICIPLES_LIST.split())


def is_ambiguous(word: str) -> bool:
    """Return whether a word of an act may also be a noun or an adjective: "close", "orders"."""
    return word in _NEEDS_VERB_PLACE or (word.endswith("s") and word[:-1] in VERBS)


def is_past_form(word: str) -> bool:
    """Return whether a word may be a participle or a past form."""
    return word in _IRREGULAR or (_PAST_FORM.fullmatch(word) is not None and word not in _NOT_PARTICIPLES)


@lru_cache(maxsize=2048)
def act_groups(word: str) -> frozenset[str]:
    """Return the groups of the acts that a word may name; that of a word in no group is its first letters."""
    if word == "back":
        return frozenset(("refund",))
    return ACT_WORDS.get(word) or frozenset((word[:5],))


@lru_cache(maxsize=512)
def find_act_groups(words: frozenset[str]) -> frozenset[str]:
    """Return the groups of those words that name acts, and the first letters of all: a verb may be in no list."""
    words -= NOUNS
    return find_groups(words & ACTS) | {word[:5] for word in words}


def find_groups(words: Iterable[str]) -> frozenset[str]:
    """Return the groups of all words."""
    return frozenset().union(*map(act_groups, words))


_WORD = re.compile(r"[a-z]+")
NOUNS = frozenset(("order", "address", "bill"))
"""Words of acts that are nouns in the names of tools."""
ACTS = frozenset(ACT_WORDS) - NOUNS


@lru_cache(maxsize=512)
def tool_groups(tool: str) -> frozenset[str]:
    """Return the groups of the acts in a tool's name, or the first letters of its words if it has none."""
    parts = tool.casefold().split("_")
    named = [act_groups(part) for part in parts if part in ACT_WORDS and part not in NOUNS]
    return frozenset().union(*named) or frozenset(part[:5] for part in parts)


def means_tool(tool: str, text: str) -> bool:
    """Return whether a case-folded text names what a tool does."""
    groups = tool_groups(tool)
    return any(act_groups(word) & groups for word in _WORD.findall(text))
