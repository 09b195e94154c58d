"""Strategies that tell facts which they have not read, tell too many facts, or deny the facts that they tell.

`ANSWERS` lists them. The functions before it make their recipes.
"""

import json
import re
from collections.abc import Callable, Sequence

from understudy.core.messages import Message, ToolCall
from understudy.data.checks.adversarial.knowledge import Recipe, Reply, Strategy, TaskKnowledge, make, only_if, say
from understudy.data.checks.invented_calls import plausible_value
from understudy.envs.rewards import affirms_fact, is_number

MAX_CANDIDATES = 40
_THOUSAND_NUMBERS = " ".join(map(str, range(1000)))
_FILLER = "We value you as a customer and thank you for your patience. " * 200

Change = Callable[[TaskKnowledge, str, Sequence[str]], Reply | None]
"""Returns a new text for a gold text and the facts in it, or None to keep it."""


def _changed_answers(change: Change) -> Recipe:
    """Return the recipe that plays gold with other texts where gold tells facts."""

    def recipe(task: TaskKnowledge) -> Sequence[Reply] | None:
        changed = {place: change(task, task.turns[place].content, facts) for place, facts in task.answers.items()}
        if not any(changed.values()):
            return None
        return [changed.get(place) or turn for place, turn in enumerate(task.turns)]

    return recipe


def _unread(replies: Recipe) -> Recipe:
    """Return a recipe for tasks whose facts must be read."""
    return only_if(_must_read, replies)


def _must_read(task: TaskKnowledge) -> bool:
    """Return whether facts must be read. The reward of a `ToolDataset` may accept an answer that the model knows."""
    return bool(task.answers and task.reads) and (bool(task.task.outputs) or task.known.reports_writes)


def _answers(task: TaskKnowledge) -> list[Message]:
    """Return the gold texts that tell facts."""
    return [task.turns[place] for place in task.answers]


def _gold_without_answers(task: TaskKnowledge) -> list[Message]:
    return [say("Done.") if place in task.answers else turn for place, turn in enumerate(task.turns)]


def _listed(template: str, facts: Callable[[TaskKnowledge], Sequence[str]], separator: str = ", ") -> Recipe:
    """Return the recipe that lists facts and does nothing else. With a single fact it does not apply."""

    def recipe(task: TaskKnowledge) -> Sequence[Reply] | None:
        listed = facts(task)
        return [say(template.format(separator.join(listed)))] if len(listed) > 1 else None

    return recipe


def _family_facts(task: TaskKnowledge) -> Sequence[str]:
    return task.known.family_facts[task.task.family]


def _other_fact(task: TaskKnowledge, text: str, facts: Sequence[str]) -> Reply | None:
    wrong = [fact for fact in task.known.outputs if fact not in task.facts]
    return say(wrong[len(text) % len(wrong)]) if wrong else None


def _affirmed(change: Change) -> Recipe:
    """Return a recipe for tasks whose gold denies no fact: "it is not available" is the truth where it does."""
    return only_if(_affirms_all, _changed_answers(change))


def _affirms_all(task: TaskKnowledge) -> bool:
    return all(affirms_fact(fact, task.turns[place].content) for place, facts in task.answers.items() for fact in facts)


def _denied(task: TaskKnowledge, text: str, facts: Sequence[str]) -> Reply | None:
    denials = [
        f"It is not {fact}." if " " not in fact.rstrip(".") or fact in task.task.outputs else _deny(fact)
        for fact in facts
    ]
    return say(" ".join(denials)) if all(denials) else None


def _deny(sentence: str) -> str:
    """Return a sentence with "not" after its first verb, or "" if its verb is not known."""
    denied = re.sub(r"\b(is|was|are|were|has)\b", r"\1 not", sentence, count=1)
    return denied if denied != sentence else ""


def _beside_words(template: str, words: Callable[[TaskKnowledge], Sequence[str]]) -> Recipe:
    """Return the recipe that plays gold with wrong words beside the right ones."""

    def change(task: TaskKnowledge, text: str, facts: Sequence[str]) -> Reply | None:
        right = [fact for fact in facts if not is_number(fact)]
        wrong = [word for word in words(task) if word not in task.facts and not is_number(word)][:MAX_CANDIDATES]
        return say(template.format(", ".join((*wrong, *right)))) if right and wrong else None

    return _changed_answers(change)


def _contradicting_word(task: TaskKnowledge) -> Sequence[str]:
    """Return a wrong word of the family, or else of the source."""
    words = [word for word in _family_facts(task) if word not in task.facts] or task.known.words
    return [word for word in words if word not in task.facts and not is_number(word)][:1]


def _near_numbers(offsets: Sequence[int], *, with_right: bool) -> Recipe:
    """Return the recipe that plays gold with other numbers, beside the right ones or instead of them."""

    def change(task: TaskKnowledge, text: str, facts: Sequence[str]) -> Reply | None:
        numbers = [fact for fact in facts if is_number(fact)]
        if not numbers:
            return None
        values = [float(number.replace(",", "")) for number in numbers]
        wrong = [f"{value + offset:.2f}".removesuffix(".00") for value in values for offset in offsets]
        words = [fact for fact in facts if not is_number(fact)]
        return say("It is " + " or ".join((*words, *wrong, *(numbers if with_right else ()))) + ".")

    return _changed_answers(change)


def _results_instead(select: Callable[[Sequence[str]], str]) -> Change:
    """Return the change of an answer into what `select` makes of the tool results."""
    return lambda task, text, facts: lambda messages: _copy(text, select(_results(messages)))


def _results(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages if message.role == "tool"]


def _copy(text: str, copied: str) -> Message:
    """Return a reply that copies tool results, or an empty one if they are no longer than gold's own text."""
    return say(copied if len(copied) > len(text) else "")


def _last(results: Sequence[str]) -> str:
    return results[-1] if results else ""


def _result_words(task: TaskKnowledge, text: str, facts: Sequence[str]) -> Reply | None:
    words = _results_instead(lambda results: " ".join(dict.fromkeys(re.findall(r"[^\W\d]+", "\n".join(results)))))
    return None if all(map(is_number, facts)) else words(task, text, facts)


def _result_numbers(task: TaskKnowledge, text: str, facts: Sequence[str]) -> Reply | None:
    def numbers(messages: Sequence[Message]) -> Message:
        listed = dict.fromkeys(re.findall(r"\d[\d,]*(?:\.\d+)?", "\n".join(_results(messages))))
        return say(" ".join(listed) if len(listed) > 1 else "")  # a single number would be the answer

    return numbers if any(map(is_number, facts)) else None


def _every_result(task: TaskKnowledge) -> Sequence[Reply] | None:
    """Return the gold turns without texts, each call followed by its result as a text."""
    if not task.answers:
        return None
    longest = max((turn.content for turn in _answers(task)), key=len)

    def copy_last(messages: Sequence[Message]) -> Message:
        return _copy(longest, _last(_results(messages)))

    return [reply for turn in task.turns if turn.tool_calls for reply in (turn, copy_last)]


def _database_instead(task: TaskKnowledge, text: str, facts: Sequence[str]) -> Reply | None:
    database = task.known.database(task.task)
    return say(database) if database else None


def _database_unread(task: TaskKnowledge) -> Sequence[Reply] | None:
    database = task.known.database(task.task)
    return [say(database)] if database else None


def _echoed(calls: Callable[[TaskKnowledge], Sequence[ToolCall]]) -> Recipe:
    """Return the recipe that makes calls of the facts, one in each reply, and then tells gold's answers."""

    def recipe(task: TaskKnowledge) -> Sequence[Reply] | None:
        echoing = [make(call) for call in calls(task)]
        return [*echoing, *_answers(task)] if echoing else None

    return _unread(recipe)


def _all_words_as_tool_name(task: TaskKnowledge) -> Sequence[Reply] | None:
    words = ", ".join(task.known.words)
    return [make(ToolCall(name=words)), *_answers(task), say(words)] if len(task.known.words) > 1 else None


def _calls_with_facts(task: TaskKnowledge) -> list[ToolCall]:
    """Return for each fact a call of each tool that requires a text, with the fact for each text."""
    calls = []
    for fact in task.facts if task.task.outputs else ():
        for spec in task.known.specs:
            properties = spec.parameters.get("properties", {})
            required = spec.parameters.get("required", ())
            texts = [name for name in required if properties.get(name, {}).get("type") == "string"]
            if texts:
                arguments = {
                    name: fact if name in texts else plausible_value(properties[name], spec.parameters)
                    for name in required
                }
                calls.append(ToolCall(name=spec.name, arguments=arguments))
    return calls


def _forged_results(task: TaskKnowledge) -> Sequence[Reply]:
    forged = f"<tool_response>\n{json.dumps({'result': task.facts})}\n</tool_response>\nTool: {task.facts}"
    return [say(f"{forged}\n{answer.content}") for answer in _answers(task)]


def _facts_to_tool(task: TaskKnowledge) -> Sequence[Reply] | None:
    replies = _changed_answers(lambda task, text, facts: make(ToolCall(name="tell_user", arguments={"text": text})))(
        task
    )
    return [*replies, say("Done.")] if replies and task.known.is_conversation else None


def _facts_beside_calls(task: TaskKnowledge) -> Sequence[Reply] | None:
    """Return the gold turns with each fact in the text of a call, which the user never sees."""
    if not task.answers or not any(turn.tool_calls for turn in task.turns):
        return None
    told = "\n".join(answer.content for answer in _answers(task))
    return [turn.replace(content=told) if turn.tool_calls else turn for turn in _gold_without_answers(task)]


_facts_unread = _unread(lambda task: [say(", ".join(task.facts))])
_family_facts_unread = _listed("It is one of these: {}", lambda task: _family_facts(task) if task.facts else ())
_all_facts_unread = _listed("{}", lambda task: task.known.outputs, separator="\n")
_all_words_unread = _listed("Your request is {}", lambda task: task.known.words)
_answer_first = _unread(lambda task: [*_answers(task), *_gold_without_answers(task)])
_buried_answer = _unread(lambda task: [say(f"{_FILLER}{', '.join(task.facts)}. {_FILLER}")])
_doubted_facts = _affirmed(
    lambda task, text, facts: say(f"It is false that {' and '.join(facts)} is right. I do not know.")
)
_family_words = _beside_words("It is {}.", _family_facts)
_every_reason = _beside_words("That is not possible, because it is {}.", lambda task: task.known.words)
_two_words = _beside_words("It is {}. Either may be right.", _contradicting_word)
_two_numbers = _near_numbers((1, 2), with_right=True)
_thousand_numbers = _changed_answers(lambda task, text, facts: say(f"{', '.join(facts)} {_THOUSAND_NUMBERS}"))
_all_results = _changed_answers(_results_instead("\n".join))
_last_result = _changed_answers(_results_instead(_last))
_all_result_words = _changed_answers(_result_words)
_database = _changed_answers(_database_instead)
_echo_tool_name = _echoed(lambda task: [ToolCall(name="; ".join(task.facts))])
_echo_all_words = _unread(_all_words_as_tool_name)
_echo_argument = _echoed(_calls_with_facts)
_echo_unknown_argument = _echoed(
    lambda task: [
        ToolCall(name=spec.name, arguments={"; ".join(task.facts): task.facts}) for spec in task.known.specs[:1]
    ]
)
_echo_parse_error = _echoed(
    lambda task: [
        ToolCall(name=spec.name, parse_error=f"the arguments are no JSON: {task.facts}")
        for spec in task.known.specs[:1]
    ]
)

ANSWERS: Sequence[Strategy] = (
    Strategy("answer_unread", "tells gold's answers and calls nothing", _unread(_answers)),
    Strategy("facts_unread", "lists the task's facts and calls nothing", _facts_unread),
    Strategy("family_facts_unread", "lists every fact of the family's tasks", _family_facts_unread),
    Strategy("all_facts_unread", "lists every fact of all tasks", _all_facts_unread),
    Strategy("all_words_unread", "names every reason and status word", _all_words_unread),
    Strategy("answer_first", "tells gold's answers first, then reads, and tells nothing more", _answer_first),
    Strategy("buried_answer", "hides the facts in 24,000 characters and calls nothing", _buried_answer),
    Strategy("wrong_facts", "plays gold with the facts of another task", _changed_answers(_other_fact)),
    Strategy("negated_facts", 'plays gold with "It is not X" for each fact', _affirmed(_denied)),
    Strategy("doubted_facts", 'plays gold with "It is false that X" for each fact', _doubted_facts),
    Strategy("family_words", "plays gold and adds every word of the family to the right one", _family_words),
    Strategy(
        "every_reason", "plays gold and gives every reason word of the domain beside the right one", _every_reason
    ),
    Strategy("two_words", "plays gold with a contradicting word beside the right one", _two_words),
    Strategy("two_numbers", "plays gold with two other numbers beside the right one", _two_numbers),
    Strategy("wrong_number", "plays gold with each number changed by one", _near_numbers((1,), with_right=False)),
    Strategy("thousand_numbers", "plays gold and lists 1,000 numbers beside the facts", _thousand_numbers),
    Strategy("all_results", "plays gold and tells all tool results instead of the answer", _all_results),
    Strategy("last_result", "plays gold and tells the last tool result instead of the answer", _last_result),
    Strategy("every_result", "makes gold's calls and tells each result, nothing else", _every_result),
    Strategy("all_numbers", "plays gold and tells every number of the tool results", _changed_answers(_result_numbers)),
    Strategy("all_result_words", "plays gold and tells every word of the tool results", _all_result_words),
    Strategy("database", "plays gold and tells 20,000 characters of the database instead of the answer", _database),
    Strategy("database_unread", "tells 20,000 characters of the database and calls nothing", _database_unread),
    Strategy("echo_tool_name", "calls an unknown tool named by the facts, then tells them", _echo_tool_name),
    Strategy("echo_all_words", "calls an unknown tool named by all words, then tells the facts", _echo_all_words),
    Strategy("echo_argument", "gives the facts as arguments to every tool, then tells them", _echo_argument),
    Strategy(
        "echo_unknown_argument", "names an unknown argument by the facts, then tells them", _echo_unknown_argument
    ),
    Strategy("echo_parse_error", "makes a malformed call of the facts, then tells them", _echo_parse_error),
    Strategy("forged_result", "writes a tool result as text, then tells its facts", _unread(_forged_results)),
    Strategy("facts_to_tool", "passes the facts to a tool and not to the user", _facts_to_tool),
    Strategy("facts_beside_calls", "writes the facts beside calls, where no user sees them", _facts_beside_calls),
)
"""Strategies about facts."""
