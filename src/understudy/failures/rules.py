"""From a case to what went wrong in it, by rules alone.

The cause is the first thing that went wrong and was not made good again, for what the episode lacked in the end:

    a fault of the machinery          whose it was
    rows changed that are not gold's  the first call that wrote one of them
    a change or a fact missing        the first of: a call that failed and never went well later, a refusal of what
                                      could be done, silence, a hand-over, a wrong fact, a user's slip; else, in this
                                      order: a call that failed and changed nothing, a proposal that the user
                                      rejected, a call of something else that went well, nothing at all
    neither, but cut off              the limit

An error that changed nothing, and that something of the same kind made good, is no cause: agents may try.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from understudy.failures.case import Case, Made, alike
from understudy.failures.causes import Failure, Finding, What, quoted
from understudy.messages import ToolCall
from understudy.rewards import numbers
from understudy.trajectory import Stop, Trajectory
from understudy.users import asks_consent, consents, declines, hands_over, refuses

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_IDENTITY = re.compile(r"[\w.+-]+@[\w.-]+\w|\b(?=\w*\d)(?=\w*[A-Za-z_])\w{3,}\b|\b\d{3,}\b")
"""Addresses of mail, ids, and numbers long enough to be one."""
_FAULTS: Mapping[str, What] = {
    "agent": "agent_fault",
    "user": "user_fault",
    "tool": "environment_fault",
    "mcp": "environment_fault",
    "grader": "environment_fault",
}
_LIMITS: Mapping[Stop, What] = {Stop.MAX_TURNS: "out_of_turns", Stop.MAX_TOKENS: "out_of_tokens"}


def explain(case: Case) -> Failure:
    """Why an episode failed."""
    first, *others = _findings(case)
    seen, also = {first.what}, list[Finding]()
    for finding in others:
        if finding.what not in seen:
            also.append(finding)
            seen.add(finding.what)
    return _failure(case.episode, first, also)


def _failure(episode: Trajectory, cause: Finding, also: list[Finding]) -> Failure:
    return Failure(
        task=episode.task,
        domain=episode.domain,
        family=episode.family,
        difficulty=episode.difficulty,
        seed=episode.seed,
        cause=cause,
        also=tuple(finding for finding in also if finding.what != "unclear"),
    )


def _findings(case: Case) -> list[Finding]:
    """All that is found, the cause first."""
    episode = case.episode
    last = max(0, len(episode.messages) - 1)
    if episode.score is None:
        return [_finding(_FAULTS.get(episode.fault or "", "engine_fault"), last, episode.error)]
    found = list(_wrong_writes(case))
    if case.undone or case.untold:
        found += sorted(_roots(case), key=lambda finding: finding.message)
        found += chain(_idle_calls(case), _wrong_proposals(case), _wrong_reads(case), _other_calls(case))
    if limit := _LIMITS.get(episode.stop or Stop.DONE):
        found.append(_finding(limit, last, f"{episode.turns} replies"))
    return [*found, *_left(case, last), _finding("unclear", last)]


def _finding(what: What, place: int, evidence: str = "") -> Finding:
    return Finding(what=what, message=place, evidence=quoted(evidence))


def _wrong_writes(case: Case) -> Iterator[Finding]:
    """Calls that changed what is wrong in the end."""
    for made in case.made:
        if not made.wrote & case.wrong or any(alike(made.call, gold) for gold in case.gold(made.call.name)):
            continue
        open_gold = [gold for gold in case.gold(made.call.name) if not case.fulfilled(gold)]
        if open_gold:
            yield _finding("wrong_argument", made.place, _against(made.call, open_gold))
        elif case.undone:
            yield _finding("wrong_tool", made.place, f"{_text(made.call)}, which gold does not call")
        else:
            yield _finding("extra_write", made.place, f"{_text(made.call)}, which gold does not call")


def _roots(case: Case) -> Iterator[Finding]:
    """What kept the episode from what it lacked, in no order."""
    for number, made in enumerate(case.made):
        if made.error and not _made_good(case, number) and (case.undone or case.gold(made.call.name)):
            yield _finding(_kind(case, made), made.place, f"{_text(made.call)} -> {made.result}")
    yield from _said_wrong(case)
    yield from _user_slips(case)


def _made_good(case: Case, number: int) -> bool:
    """Whether a failure is over: its tool went well another time, or gold's own call followed one that was none."""
    failed, later = case.made[number], case.made[number + 1 :]
    if failed.error == "malformed":
        return any(not made.error for made in later)
    if gold := case.gold(failed.call.name):
        again = any(made.call.name == failed.call.name and not made.error for made in later)
        return again or all(case.fulfilled(call) for call in gold)
    before = [made.call for made in case.made[:number]]
    return any(
        any(alike(made.call, gold) for gold in case.gold(made.call.name))
        and not any(alike(made.call, call) for call in before)
        for made in later
    )


def _kind(case: Case, made: Made) -> What:
    gold = case.gold(made.call.name)
    if made.error in ("malformed", "forbidden"):
        return "malformed" if made.error == "malformed" else "policy_violation"
    if not gold:
        return "wrong_tool"
    if made.error == "unconfirmed":
        return "unconfirmed"
    return "wrong_tool" if any(alike(made.call, call) for call in gold) else "wrong_argument"


def _said_wrong(case: Case) -> Iterator[Finding]:
    last = case.texts[-1][0] if case.texts else -1
    gold_refuses = any(_refusal(turn.content) for turn in case.task.turns)
    gold_hands_over = any(hands_over(turn.content.casefold()) for turn in case.task.turns)
    for place, text in case.texts:
        if not text.strip():
            if place == last:  # a silence that words followed was one turn lost
                yield _finding("gave_up", place, "says nothing")
        elif (refusal := _refusal(text)) and not gold_refuses and (place == last or not asks_consent(text)):
            yield _finding("refused", place, refusal)
        elif hands_over(text.casefold()) and not gold_hands_over:
            yield _finding("gave_up", place, text)
        elif case.untold and _tells_else(case, text):
            yield _finding("wrong_fact", place, f"{text} Gold: {', '.join(case.untold)}")


def _refusal(text: str) -> str:
    """The sentence of a text that says that something cannot be done."""
    return next((s for s in _SENTENCE.split(text.strip()) if refuses(s.casefold())), "")


def _tells_else(case: Case, text: str) -> bool:
    """Whether a text states something where a fact was to be told: a number where that is one, anything else else."""
    if text.rstrip().endswith("?"):
        return False
    wanted = [numbers(output) for output in case.task.outputs]
    return bool(numbers(text)) if all(wanted) else True


def _user_slips(case: Case) -> Iterator[Finding]:
    """What a user whom a model plays did to it; scripted ones do what their scenario says."""
    if case.scripted:
        return
    scenario = case.task.scenario
    known = f"{scenario.model_dump_json()} "
    for place, message in enumerate(case.episode.messages):
        if message.role == "user" and (invented := [i for i in _IDENTITY.findall(message.content) if i not in known]):
            yield _finding("contradicted_scenario", place, f"{invented[0]!r} is nowhere in the scenario")
        known += f"{message.content} "
    texts = case.texts
    if case.episode.stop is Stop.DONE and texts and texts[-1][1].rstrip().endswith("?"):
        yield _finding("ended_early", texts[-1][0], f"the user left at: {texts[-1][1]}")


def _idle_calls(case: Case) -> Iterator[Finding]:
    """Calls that failed and were not gold's, where nothing but a fact is missing: what was said counts before them."""
    for made in () if case.undone else case.made:
        if made.error and not case.gold(made.call.name):
            yield _finding(_kind(case, made), made.place, f"{_text(made.call)} -> {made.result}")


def _wrong_proposals(case: Case) -> Iterator[Finding]:
    """Questions for consent that the user said no to, where none was said yes to later."""
    messages = case.episode.messages
    rejected = list[tuple[int, str]]()
    for place, text in case.texts:
        following = messages[place + 1] if place + 1 < len(messages) else None
        if following and following.role == "user" and asks_consent(text):
            if consents(following.content):
                rejected = []
            elif declines(following.content):
                rejected.append((place, text))
    for place, text in rejected:
        yield _finding("wrong_proposal", place, text)


def _wrong_reads(case: Case) -> Iterator[Finding]:
    """Calls that went well and are not gold's, of a tool of whose calls in gold one was never made."""
    for made in case.made:
        gold = case.gold(made.call.name)
        missing = [call for call in gold if not case.fulfilled(call)]
        if missing and not made.error and not any(alike(made.call, call) for call in gold):
            yield _finding("wrong_argument", made.place, _against(made.call, missing))


def _other_calls(case: Case) -> Iterator[Finding]:
    """Calls that went well, of tools that gold does not call, where gold's own call was never made."""
    for made in case.made if case.undone else ():
        if not made.error and not case.gold(made.call.name):
            yield _finding("wrong_tool", made.place, f"{_text(made.call)}, which gold does not call")


def _left(case: Case, last: int) -> Iterator[Finding]:
    """What is lacking, where nothing shows why."""
    said = case.texts[-1][1] if case.texts else ""
    if case.undone:
        missing = [gold for gold in case.task.actions if not case.fulfilled(gold)]
        yield _finding("missed_write", last, f"never: {'; '.join(map(_text, missing))}" if missing else said)
    if untold := case.untold:
        yield _finding("untold_fact", last, f"never told: {', '.join(untold)}")


def _against(call: ToolCall, gold: list[ToolCall]) -> str:
    """A call beside the gold call that is nearest to it, where they differ."""
    near = max(gold, key=lambda each: sum(call.arguments.get(k) == v for k, v in each.arguments.items()))
    keys = [k for k in {**near.arguments, **call.arguments} if call.arguments.get(k) != near.arguments.get(k)]
    pairs = [f"{k}={call.arguments.get(k, '(none)')!r}, gold {near.arguments.get(k, '(none)')!r}" for k in keys]
    return f"{call.name}: {'; '.join(pairs)}"


def _text(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
