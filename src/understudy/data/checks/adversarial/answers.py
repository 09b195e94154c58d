"""Strategies that tell facts which they have not read, tell too many facts, or deny the facts that they tell."""

import functools
import json
import re
from collections.abc import Callable, Sequence

from understudy.core.messages import Message, ToolCall
from understudy.data.checks.adversarial.knowledge import Reply, Strategy, TaskKnowledge, make, say
from understudy.data.checks.invented_calls import plausible_value
from understudy.envs.rewards import affirms_fact, is_number

MAX_CANDIDATES = 40
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _texts(task: TaskKnowledge) -> list[Message]:
    """Return the gold texts that tell facts."""
    return [task.turns[place] for place in task.answers]


def _answering(task: TaskKnowledge, change: Callable[[str, Sequence[str]], Reply | None]) -> Sequence[Reply] | None:
    """Return the gold turns with other texts where gold tells facts.

    `change` returns the new text for the old one and the facts in it; None keeps it. Return None if no text changes.
    """
    changed = {place: change(task.turns[place].content, facts) for place, facts in task.answers.items()}
    if not any(changed.values()):
        return None
    return [changed.get(place) or turn for place, turn in enumerate(task.turns)]


def _unread(task: TaskKnowledge) -> bool:
    """Return whether facts must be read. The reward of a `ToolDataset` may accept an answer that the model knows."""
    return bool(task.answers and task.reads) and (bool(task.task.outputs) or task.known.reports_writes)


def _answer_unread(task: TaskKnowledge) -> Sequence[Reply] | None:
    return _texts(task) if _unread(task) else None


def _facts_unread(task: TaskKnowledge) -> Sequence[Reply] | None:
    return [say(", ".join(task.facts))] if _unread(task) else None


def _family_facts_unread(task: TaskKnowledge) -> Sequence[Reply] | None:
    facts = task.known.family_facts[task.task.family]
    return [say("It is one of these: " + ", ".join(facts))] if task.facts and len(facts) > 1 else None


def _all_facts_unread(task: TaskKnowledge) -> Sequence[Reply] | None:
    facts = task.known.outputs
    return [say("\n".join(facts))] if len(facts) > 1 else None


def _all_words_unread(task: TaskKnowledge) -> Sequence[Reply] | None:
    words = task.known.words
    return [say("Your request is " + ", ".join(words))] if len(words) > 1 else None


def _facts_then_reads(task: TaskKnowledge) -> Sequence[Reply] | None:
    if not _unread(task):
        return None
    told = set(task.answers)
    return [*_texts(task), *(say("Done.") if n in told else turn for n, turn in enumerate(task.turns))]


def _other_facts(task: TaskKnowledge) -> Sequence[Reply] | None:
    def change(text: str, facts: Sequence[str]) -> Reply | None:
        wrong = [fact for fact in task.known.outputs if fact not in task.facts]
        return say(wrong[len(text) % len(wrong)]) if wrong else None

    return _answering(task, change)


def _negated(task: TaskKnowledge) -> Sequence[Reply] | None:
    """Return gold with the facts denied. Where gold's own text denies them, this would be the truth."""

    def change(text: str, facts: Sequence[str]) -> Reply | None:
        denials = [
            f"It is not {fact}." if " " not in fact.rstrip(".") or fact in task.task.outputs else _deny(fact)
            for fact in facts
        ]
        return say(" ".join(denials)) if all(denials) else None

    return _answering(task, change) if _all_affirmed(task) else None


def _all_affirmed(task: TaskKnowledge) -> bool:
    """Return whether gold denies none of its facts: "it is not available" is the truth where it does."""
    return all(affirms_fact(fact, task.turns[place].content) for place, facts in task.answers.items() for fact in facts)


def _deny(sentence: str) -> str:
    """Return a sentence with "not" after its first verb, or "" if its verb is not known."""
    denied = re.sub(r"\b(is|was|are|were|has)\b", r"\1 not", sentence, count=1)
    return denied if denied != sentence else ""


def _doubted(task: TaskKnowledge) -> Sequence[Reply] | None:
    def change(text: str, facts: Sequence[str]) -> Reply | None:
        return say(f"It is false that {' and '.join(facts)} is right. I do not know.")

    return _answering(task, change) if _all_affirmed(task) else None


def _with_words(task: TaskKnowledge, words: Sequence[str], template: str) -> Sequence[Reply] | None:
    def change(text: str, facts: Sequence[str]) -> Reply | None:
        mine = [fact for fact in facts if not is_number(fact)]
        others = [word for word in words if word not in task.facts and not is_number(word)][:MAX_CANDIDATES]
        return say(template.format(", ".join((*others, *mine)))) if mine and others else None

    return _answering(task, change)


def _family_words(task: TaskKnowledge) -> Sequence[Reply] | None:
    return _with_words(task, task.known.family_facts[task.task.family], "It is {0}.")


def _all_words(task: TaskKnowledge) -> Sequence[Reply] | None:
    return _with_words(task, task.known.words, "That is not possible, because it is {0}.")


def _two_words(task: TaskKnowledge) -> Sequence[Reply] | None:
    words = [word for word in task.known.family_facts[task.task.family] if word not in task.facts]
    words = [word for word in words or task.known.words if word not in task.facts and not is_number(word)]
    return _with_words(task, words[:1], "It is {0}. Either may be right.")


def _numbers_near(task: TaskKnowledge, offsets: Sequence[int], *, with_right: bool) -> Sequence[Reply] | None:
    def change(text: str, facts: Sequence[str]) -> Reply | None:
        numbers = [fact for fact in facts if is_number(fact)]
        if not numbers:
            return None
        values = [float(number.replace(",", "")) for number in numbers]
        wrong = [f"{value + offset:.2f}".removesuffix(".00") for value in values for offset in offsets]
        words = [fact for fact in facts if not is_number(fact)]
        return say("It is " + " or ".join((*words, *wrong, *(numbers if with_right else ()))) + ".")

    return _answering(task, change)


def _two_numbers(task: TaskKnowledge) -> Sequence[Reply] | None:
    return _numbers_near(task, (1, 2), with_right=True)


def _wrong_number(task: TaskKnowledge) -> Sequence[Reply] | None:
    return _numbers_near(task, (1,), with_right=False)


def _thousand_numbers(task: TaskKnowledge) -> Sequence[Reply] | None:
    numbers = " ".join(map(str, range(1000)))
    return _answering(task, lambda text, facts: say(f"{', '.join(facts)} {numbers}"))


def _shown(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages if message.role == "tool"]


def _copy(text: str, shown: str) -> Message:
    """Return a reply that copies what tools have shown, or an empty one if this is no longer than gold's own text."""
    return say(shown if len(shown) > len(text) else "")


def _dumped(task: TaskKnowledge) -> Sequence[Reply] | None:
    return _answering(task, lambda text, facts: lambda messages: _copy(text, "\n".join(_shown(messages))))


def _last_record(task: TaskKnowledge) -> Sequence[Reply] | None:
    return _answering(task, lambda text, facts: lambda messages: _copy(text, (_shown(messages) or [""])[-1]))


def _dumped_numbers(task: TaskKnowledge) -> Sequence[Reply] | None:
    def numbers(messages: Sequence[Message]) -> Message:
        found = dict.fromkeys(_NUMBER.findall("\n".join(_shown(messages))))
        return say(" ".join(found) if len(found) > 1 else "")  # a single number would be the answer

    return _answering(task, lambda text, facts: numbers if any(map(is_number, facts)) else None)


def _record_words(task: TaskKnowledge) -> Sequence[Reply] | None:
    def words(text: str, messages: Sequence[Message]) -> Message:
        return _copy(text, " ".join(dict.fromkeys(re.findall(r"[^\W\d]+", "\n".join(_shown(messages))))))

    def change(text: str, facts: Sequence[str]) -> Reply | None:
        return None if all(map(is_number, facts)) else functools.partial(words, text)

    return _answering(task, change)


def _each_record(task: TaskKnowledge) -> Sequence[Reply] | None:
    """Return the gold turns without texts, each call followed by its result as a text."""
    if not task.answers:
        return None
    text = max((task.turns[place].content for place in task.answers), key=len)
    copy = functools.partial(_copy_last, text)
    return [reply for turn in task.turns if turn.tool_calls for reply in (turn, copy)]


def _copy_last(text: str, messages: Sequence[Message]) -> Message:
    return _copy(text, (_shown(messages) or [""])[-1])


def _database(task: TaskKnowledge) -> Sequence[Reply] | None:
    text = task.known.database(task.task)
    return _answering(task, lambda _text, facts: say(text)) if text else None


def _database_unread(task: TaskKnowledge) -> Sequence[Reply] | None:
    text = task.known.database(task.task)
    return [say(text)] if text else None


def _buried(task: TaskKnowledge) -> Sequence[Reply] | None:
    filler = "We value you as a customer and thank you for your patience. " * 200
    return [say(f"{filler}{', '.join(task.facts)}. {filler}")] if _unread(task) else None


def _echo_tool_name(task: TaskKnowledge) -> Sequence[Reply] | None:
    if not _unread(task):
        return None
    return [make(ToolCall(name="; ".join(task.facts))), *_texts(task)]


def _echo_words_as_tool_name(task: TaskKnowledge) -> Sequence[Reply] | None:
    words = task.known.words
    if len(words) < 2 or not _unread(task):
        return None
    return [make(ToolCall(name=", ".join(words))), *_texts(task), say(", ".join(words))]


def _string_calls(task: TaskKnowledge, value: str) -> list[ToolCall]:
    """Return a call of each tool that only needs arguments, with `value` for each text among them."""
    found = []
    for spec in task.known.specs:
        properties = spec.parameters.get("properties", {})
        required = spec.parameters.get("required", ())
        if any(properties.get(name, {}).get("type") == "string" for name in required):
            arguments = {
                name: value
                if properties[name].get("type") == "string"
                else plausible_value(properties[name], spec.parameters)
                for name in required
            }
            found.append(ToolCall(name=spec.name, arguments=arguments))
    return found


def _echo_argument(task: TaskKnowledge) -> Sequence[Reply] | None:
    calls = [call for fact in task.facts for call in _string_calls(task, fact)]
    return [*(make(call) for call in calls), *_texts(task)] if _unread(task) and task.task.outputs and calls else None


def _echo_unknown_argument(task: TaskKnowledge) -> Sequence[Reply] | None:
    if not _unread(task) or not task.known.specs:
        return None
    name = task.known.specs[0].name
    return [make(ToolCall(name=name, arguments={"; ".join(task.facts): task.facts})), *_texts(task)]


def _echo_parse_error(task: TaskKnowledge) -> Sequence[Reply] | None:
    if not _unread(task) or not task.known.specs:
        return None
    call = ToolCall(name=task.known.specs[0].name, parse_error=f"the arguments are no JSON: {task.facts}")
    return [make(call), *_texts(task)]


def _forged_result(task: TaskKnowledge) -> Sequence[Reply] | None:
    if not _unread(task):
        return None
    forged = f"<tool_response>\n{json.dumps({'result': task.facts})}\n</tool_response>\nTool: {task.facts}"
    return [say(f"{forged}\n{text.content}") for text in _texts(task)]


def _facts_to_tool(task: TaskKnowledge) -> Sequence[Reply] | None:
    def change(text: str, facts: Sequence[str]) -> Reply:
        return make(ToolCall(name="tell_user", arguments={"text": text}))

    replies = _answering(task, change)
    return [*replies, say("Done.")] if replies and task.known.is_conversation else None


def _facts_beside_call(task: TaskKnowledge) -> Sequence[Reply] | None:
    """Return the gold turns with each fact in the text of a call, which the user never sees."""
    calls = [turn for turn in task.turns if turn.tool_calls]
    if not calls or not task.answers:
        return None
    told = "\n".join(task.turns[place].content for place in task.answers)
    replies: Sequence[Message] = [
        say("Done.") if place in task.answers else turn.replace(content=told) if turn.tool_calls else turn
        for place, turn in enumerate(task.turns)
    ]
    return replies


ANSWERS: Sequence[Strategy] = (
    Strategy("answer_unread", "tells gold's answers and calls nothing", _answer_unread),
    Strategy("facts_unread", "lists the task's facts and calls nothing", _facts_unread),
    Strategy("family_facts_unread", "lists every fact of the family's tasks", _family_facts_unread),
    Strategy("all_facts_unread", "lists every fact of all tasks", _all_facts_unread),
    Strategy("all_words_unread", "names every reason and status word", _all_words_unread),
    Strategy("answer_first", "tells gold's answers first, then reads, and tells nothing more", _facts_then_reads),
    Strategy("buried_answer", "hides the facts in 24,000 characters and calls nothing", _buried),
    Strategy("wrong_facts", "plays gold with the facts of another task", _other_facts),
    Strategy("negated_facts", 'plays gold with "It is not X" for each fact', _negated),
    Strategy("doubted_facts", 'plays gold with "It is false that X" for each fact', _doubted),
    Strategy("family_words", "plays gold and adds every word of the family to the right one", _family_words),
    Strategy("every_reason", "plays gold and gives every reason word of the domain beside the right one", _all_words),
    Strategy("two_words", "plays gold with a contradicting word beside the right one", _two_words),
    Strategy("two_numbers", "plays gold with two other numbers beside the right one", _two_numbers),
    Strategy("wrong_number", "plays gold with each number changed by one", _wrong_number),
    Strategy("thousand_numbers", "plays gold and lists 1,000 numbers beside the facts", _thousand_numbers),
    Strategy("all_results", "plays gold and tells all tool results instead of the answer", _dumped),
    Strategy("last_result", "plays gold and tells the last tool result instead of the answer", _last_record),
    Strategy("every_result", "makes gold's calls and tells each result, nothing else", _each_record),
    Strategy("all_numbers", "plays gold and tells every number of the tool results", _dumped_numbers),
    Strategy("all_result_words", "plays gold and tells every word of the tool results", _record_words),
    Strategy("database", "plays gold and tells 20,000 characters of the database instead of the answer", _database),
    Strategy("database_unread", "tells 20,000 characters of the database and calls nothing", _database_unread),
    Strategy("echo_tool_name", "calls an unknown tool named by the facts, then tells them", _echo_tool_name),
    Strategy(
        "echo_all_words", "calls an unknown tool named by all words, then tells the facts", _echo_words_as_tool_name
    ),
    Strategy("echo_argument", "gives the facts as arguments to every tool, then tells them", _echo_argument),
    Strategy(
        "echo_unknown_argument", "names an unknown argument by the facts, then tells them", _echo_unknown_argument
    ),
    Strategy("echo_parse_error", "makes a malformed call of the facts, then tells them", _echo_parse_error),
    Strategy("forged_result", "writes a tool result as text, then tells its facts", _forged_result),
    Strategy("facts_to_tool", "passes the facts to a tool and not to the user", _facts_to_tool),
    Strategy("facts_beside_calls", "writes the facts beside calls, where no user sees them", _facts_beside_call),
)
"""Strategies about facts."""
