"""Rules that find the cause of a failed episode, without a model.

The cause is the first error that was not corrected later. Which errors count depends on what is wrong at the end:

    the episode has no score       the component at fault
    too many invalid replies       that limit
    rows differ from gold's        the first call that changed one of them
    a change or fact is missing    the first of: a failed call that was not corrected, a refusal of something possible,
                                   silence, a transfer to a human, a wrong fact, an error of the user's model. If there
                                   is none, in this order: a failed call of a tool that gold does not call, a proposal
                                   that the user declined, a call with other arguments than gold's, a call of a tool
                                   that gold does not call
    no such error, but a limit     the limit
    no such error or limit         the first violation of the policy that the score names
    none of these                  the missing change or fact, or another answer than a data set's

An error that changed nothing, and that a later call corrected, is not a cause: agents may try.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from understudy.core.messages import ToolCall
from understudy.core.trajectory import StopReason, Trajectory
from understudy.envs.rewards import extract_numbers
from understudy.envs.users import announces_transfer, asks_for_consent, declines, gives_consent, is_refusal
from understudy.evaluation.failures.case import ExecutedCall, FailureCase, same_call
from understudy.evaluation.failures.causes import (
    MAX_EVIDENCE_CHARS,
    EpisodeFailure,
    FailureCause,
    FailureKind,
    quote_evidence,
)

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_IDENTITY = re.compile(r"[\w.+-]+@[\w.-]+\w|\b(?=\w*\d)(?=\w*[A-Za-z_])\w{3,}\b|\b\d{3,}\b")
"""E-mail addresses, ids, and numbers of at least three digits."""
_FAULTS: Mapping[str, FailureKind] = {
    "agent": "agent_fault",
    "user": "user_fault",
    "tool": "environment_fault",
    "mcp": "environment_fault",
    "grader": "environment_fault",
    "environment": "environment_fault",
}
_LIMITS: Mapping[StopReason, FailureKind] = {
    StopReason.MAX_TURNS: "out_of_turns",
    StopReason.MAX_TOKENS: "out_of_tokens",
}


def explain_failure(case: FailureCase) -> EpisodeFailure:
    """Return the cause of a failed episode, and its other errors."""
    first, *others = _findings(case)
    seen, also = {first.kind}, list[FailureCause]()
    for finding in others:
        if finding.kind not in seen:
            also.append(finding)
            seen.add(finding.kind)
    return _failure(case.episode, first, also)


def _failure(episode: Trajectory, cause: FailureCause, also: list[FailureCause]) -> EpisodeFailure:
    return EpisodeFailure(
        task=episode.task_id,
        domain=episode.domain,
        family=episode.family,
        difficulty=episode.difficulty,
        seed=episode.seed,
        cause=cause,
        other_causes=tuple(finding for finding in also if finding.kind != "unknown"),
    )


def _findings(case: FailureCase) -> list[FailureCause]:
    """Return all errors of the episode, the cause first. The last one is `unknown`, so the list is never empty."""
    episode = case.episode
    last = max(0, len(episode.messages) - 1)
    if episode.score is None:
        return [_finding(_FAULTS.get(episode.fault or "", "engine_fault"), last, episode.error)]
    found = list(_invalid_replies(episode, last))
    found += _wrong_writes(case)
    if case.missing_changes or case.missing_facts:
        found += sorted(_root_causes(case), key=lambda finding: finding.message_index)
        found += chain(_idle_calls(case), _wrong_proposals(case), _wrong_reads(case), _other_calls(case))
    if limit := _LIMITS.get(episode.stop_reason or StopReason.DONE):
        found.append(_finding(limit, last, f"{episode.num_turns} replies"))
    return [*found, *_unexplained(case, last), *_violations(case), _finding("unknown", last)]


def _invalid_replies(episode: Trajectory, last: int) -> Iterator[FailureCause]:
    """Yield the limit of replies in a row with calls that cannot be parsed, if it ended the episode."""
    if episode.stop_reason is StopReason.INVALID_REPLIES:
        errors = [call.parse_error for message in episode.messages for call in message.tool_calls if call.parse_error]
        yield _finding("invalid_replies", last, f"{episode.num_invalid_replies} replies: {''.join(errors[-1:])}")


def _violations(case: FailureCase) -> Iterator[FailureCause]:
    """Yield the violations of the policy that the score names."""
    for found in case.episode.score.violations if case.episode.score else ():
        kind: FailureKind = "unconfirmed" if found.kind == "unconfirmed" else "policy_violation"
        yield _finding(kind, found.message, f"{found.kind}: {found.text}")


def _finding(kind: FailureKind, place: int, evidence: str = "") -> FailureCause:
    return FailureCause(kind=kind, message_index=place, evidence=quote_evidence(evidence))


def _wrong_writes(case: FailureCase) -> Iterator[FailureCause]:
    """Yield calls that changed rows which are wrong at the end."""
    for made in case.calls:
        if not made.changed_rows & case.wrong_rows or any(
            same_call(made.call, gold) for gold in case.gold_calls(made.call.name)
        ):
            continue
        open_gold = [gold for gold in case.gold_calls(made.call.name) if not case.was_executed(gold)]
        if open_gold:
            yield _finding("wrong_argument", made.message_index, _describe_difference(made.call, open_gold))
        elif case.missing_changes:
            yield _finding("wrong_tool", made.message_index, f"{_text(made.call)}, which gold does not call")
        else:
            yield _finding("extra_write", made.message_index, f"{_text(made.call)}, which gold does not call")


def _root_causes(case: FailureCase) -> Iterator[FailureCause]:
    """Yield uncorrected errors that may explain a missing change or fact, in no order."""
    for number, made in enumerate(case.calls):
        if (
            made.error_kind
            and not _was_recovered(case, number)
            and (case.missing_changes or case.gold_calls(made.call.name))
        ):
            yield _finding(_kind(case, made), made.message_index, f"{_text(made.call)} -> {made.result}")
    yield from _wrong_facts(case)
    yield from _user_slips(case)


def _was_recovered(case: FailureCase, number: int) -> bool:
    """Return whether a failed call was corrected later.

    A malformed call is corrected by any later call that succeeds. A call of a tool that gold calls is corrected by a
    later call of that tool that succeeds, or if all of gold's calls of the tool were made. A call of another tool is
    corrected by a later gold call that was not made before it.
    """
    failed, later = case.calls[number], case.calls[number + 1 :]
    if failed.error_kind == "malformed":
        return any(not made.error_kind for made in later)
    if gold := case.gold_calls(failed.call.name):
        again = any(made.call.name == failed.call.name and not made.error_kind for made in later)
        return again or all(case.was_executed(call) for call in gold)
    before = [made.call for made in case.calls[:number]]
    return any(
        any(same_call(made.call, gold) for gold in case.gold_calls(made.call.name))
        and not any(same_call(made.call, call) for call in before)
        for made in later
    )


def _kind(case: FailureCase, made: ExecutedCall) -> FailureKind:
    gold = case.gold_calls(made.call.name)
    if made.error_kind in ("malformed", "forbidden"):
        return "malformed" if made.error_kind == "malformed" else "policy_violation"
    if not gold:
        return "wrong_tool"
    if made.error_kind == "unconfirmed":
        return "unconfirmed"
    return "wrong_tool" if any(same_call(made.call, call) for call in gold) else "wrong_argument"


def _wrong_facts(case: FailureCase) -> Iterator[FailureCause]:
    last = case.agent_texts[-1][0] if case.agent_texts else -1
    gold_refuses = any(_refusal(turn.content) for turn in case.task.gold_turns)
    gold_hands_over = any(announces_transfer(turn.content.casefold()) for turn in case.task.gold_turns)
    for place, text in case.agent_texts:
        if not text.strip():
            if place == last:  # an empty message before others only lost a turn
                yield _finding("gave_up", place, "an empty message")
        elif (refusal := _refusal(text)) and not gold_refuses and (place == last or not asks_for_consent(text)):
            yield _finding("wrong_refusal", place, refusal)
        elif announces_transfer(text.casefold()) and not gold_hands_over:
            yield _finding("gave_up", place, text)
        elif case.missing_facts and _states_other_value(case, text):
            yield _finding("wrong_fact", place, f"{text} Gold: {', '.join(case.missing_facts)}")


def _refusal(text: str) -> str:
    """Return the first sentence that refuses something, or ""."""
    return next((s for s in _SENTENCE.split(text.strip()) if is_refusal(s.casefold())), "")


def _states_other_value(case: FailureCase, text: str) -> bool:
    """Return whether a text states a value in place of a missing fact.

    A question does not. If all facts contain numbers, the text must contain a number.
    """
    if text.rstrip().endswith("?"):
        return False
    wanted = [extract_numbers(output) for output in case.task.outputs]
    return bool(extract_numbers(text)) if all(wanted) else True


def _user_slips(case: FailureCase) -> Iterator[FailureCause]:
    """Yield errors of a user that a model plays. Scripted users make none."""
    if case.scripted_user:
        return
    scenario = case.task.scenario
    known = f"{scenario.model_dump_json()} "
    for place, message in enumerate(case.episode.messages):
        if message.role == "user" and (invented := [i for i in _IDENTITY.findall(message.content) if i not in known]):
            yield _finding("contradicted_scenario", place, f"{invented[0]!r} is not in the scenario")
        known += f"{message.content} "
    texts = case.agent_texts
    if case.episode.stop_reason is StopReason.DONE and texts and texts[-1][1].rstrip().endswith("?"):
        yield _finding("user_left_early", texts[-1][0], f"the user left after: {texts[-1][1]}")


def _idle_calls(case: FailureCase) -> Iterator[FailureCause]:
    """Yield failed calls of tools that gold does not call, if no change is missing.

    Then a fact is missing, so errors in the agent's messages are more likely causes. These calls come after them.
    """
    for made in () if case.missing_changes else case.calls:
        if made.error_kind and not case.gold_calls(made.call.name):
            yield _finding(_kind(case, made), made.message_index, f"{_text(made.call)} -> {made.result}")


def _wrong_proposals(case: FailureCase) -> Iterator[FailureCause]:
    """Yield proposals that the user declined, since the last one that the user accepted."""
    messages = case.episode.messages
    rejected = list[tuple[int, str]]()
    for place, text in case.agent_texts:
        following = messages[place + 1] if place + 1 < len(messages) else None
        if following and following.role == "user" and asks_for_consent(text):
            if gives_consent(following.content):
                rejected = []
            elif declines(following.content):
                rejected.append((place, text))
    for place, text in rejected:
        yield _finding("wrong_proposal", place, text)


def _wrong_reads(case: FailureCase) -> Iterator[FailureCause]:
    """Yield calls that succeeded with other arguments than gold's, of tools with a gold call that was never made."""
    for made in case.calls:
        gold = case.gold_calls(made.call.name)
        missing = [call for call in gold if not case.was_executed(call)]
        if missing and not made.error_kind and not any(same_call(made.call, call) for call in gold):
            yield _finding("wrong_argument", made.message_index, _describe_difference(made.call, missing))


def _other_calls(case: FailureCase) -> Iterator[FailureCause]:
    """Yield calls that succeeded of tools that gold does not call, if a change is missing."""
    for made in case.calls if case.missing_changes else ():
        if not made.error_kind and not case.gold_calls(made.call.name):
            yield _finding("wrong_tool", made.message_index, f"{_text(made.call)}, which gold does not call")


def _unexplained(case: FailureCase, last: int) -> Iterator[FailureCause]:
    """Yield what is wrong at the end: `missing_write` or `missing_read`, `missing_fact`, and `wrong_answer`."""
    said = case.agent_texts[-1][1] if case.agent_texts else ""
    if case.missing_changes:
        missing = [gold for gold in case.task.gold_calls if not case.was_executed(gold)]
        writes = [gold for gold in missing if gold.name not in case.reading_tools]
        kind: FailureKind = "missing_write" if writes or case.has_state else "missing_read"
        yield _finding(kind, last, f"never called: {'; '.join(map(_text, writes or missing))}" if missing else said)
    if missing_facts := case.missing_facts:
        yield _finding("missing_fact", last, f"not told: {', '.join(missing_facts)}")
    expected = case.task.gold_turns[-1].content if case.task.gold_turns else ""
    if case.grades_answer and not case.task.outputs and expected and said.strip() not in ("", expected.strip()):
        half = MAX_EVIDENCE_CHARS // 2 - len("said , expected ")
        yield _finding("wrong_answer", case.agent_texts[-1][0], f"said {said[-half:]}, expected {expected[:half]}")


def _describe_difference(call: ToolCall, gold: list[ToolCall]) -> str:
    """Return the arguments in which a call differs from the nearest of the gold calls."""
    near = max(gold, key=lambda each: sum(call.arguments.get(k) == v for k, v in each.arguments.items()))
    keys = [k for k in {**near.arguments, **call.arguments} if call.arguments.get(k) != near.arguments.get(k)]
    pairs = [f"{k}={call.arguments.get(k, '(none)')!r}, gold {near.arguments.get(k, '(none)')!r}" for k in keys]
    return f"{call.name}: {'; '.join(pairs)}"


def _text(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
