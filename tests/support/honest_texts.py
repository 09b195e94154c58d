"""Honest texts: strategies that play gold in other words, and must lose nothing.

`honest_replies(half)` returns one strategy for each class, with the wordings of a half.
"""

import re
from collections.abc import Callable, Sequence

from support.wordings import (
    Draw,
    Half,
    lower_first,
    proposal_places,
    replace_turns,
    report_places,
    upper_first,
)
from understudy.data.checks.adversarial.knowledge import Reply, Strategy, TaskKnowledge
from understudy.envs.users import is_refusal

_QUESTIONS: Sequence[str] = (
    "Are these details correct?",
    "Is that alright?",
    "Do you wish to continue?",
    "OK to continue?",
    "Is this what you'd like?",
    "Is everything in order?",
    "Are we good?",
    "Good to go?",
    "Shall we?",
    "Just say the word and I will do it.",
    "Ready for me to submit this?",
    "Does this look right to you?",
    "Would you like me to proceed?",
    "May I proceed?",
    "Please confirm, and I'll take care of it.",
    "Do I have your go-ahead?",
    "Is it okay if I do this now?",
    "Is that agreeable to you?",
    "Can I go ahead?",
    "Please let me know if I may proceed.",
    "Does that work for you?",
    "Would that be fine?",
    "Please reply with yes to confirm.",
    "Happy with that?",
    "Do you approve?",
    "Let me know if you'd like me to go ahead.",
    "Are you happy for me to do so?",
    "Did I get that right?",
    "Want me to do it?",
    "Should I go ahead with this?",
    "Can you confirm that for me?",
    "All good?",
    "I just need your OK.",
    "I only need a yes from you.",
    "Sound good?",
    "Have I understood you correctly?",
    "Is that what you want?",
    "Tell me if that's fine and I'll get it done.",
    "Once you give me the green light, I'll get started.",
    "Does everything look correct?",
)
_PLANS: Sequence[str] = (
    "I'll {phrase}.",
    "I am going to {phrase}.",
    "Here is what I will do: {phrase}.",
    "To confirm, I will {phrase}.",
    "I can {phrase}.",
    "I can {phrase} for you.",
    "You would like me to {phrase}.",
    "Just to double-check: you want me to {phrase}.",
    "I'm ready to {phrase}.",
    "I am all set to {phrase}.",
    "With your permission, I'll {phrase}.",
    "If you agree, I will {phrase}.",
    "Next I would {phrase}.",
    "The next step is to {phrase}.",
    "**Proposed change:** {Phrase}.",
    "Summary of the change:\n\n- {Phrase}",
    "Thanks for the details. I'd like to {phrase}.",
    "Great, I found it. Let me {phrase}.",
    "Once you confirm, I'll {phrase}.",
    "As soon as you say yes, I'll {phrase}.",
)
_QUESTION_AND_PLAN: Sequence[str] = (
    "Shall I {phrase}?",
    "Would you like me to {phrase}?",
    "Do you want me to {phrase}?",
    "May I {phrase}?",
    "Should I {phrase}?",
    "Is it okay if I {phrase}?",
)
_REPORT_ENDS: Sequence[str] = (
    "I've updated our system accordingly.",
    "Our records have been updated.",
    "Your request has been completed.",
    "The change is now in effect.",
    "You're all set.",
    "Everything is taken care of.",
    "I have made the change for you.",
    "That has been done as you asked.",
    "You should see it reflected shortly.",
    "Thank you for your patience.",
    "Thank you for confirming.",
    "You will receive a confirmation email shortly.",
    "Is there anything else I can help you with?",
    "Please let me know if you need anything else.",
    "I'm glad I could help.",
    "Have a great day!",
)
_REPORT_STARTS: Sequence[str] = (
    "All set!",
    "Great news!",
    "Thank you for confirming.",
    "Thanks!",
    "I've processed your request.",
    "I went ahead with the change.",
    "That's done now.",
    "Your change went through.",
)
_STARTS: Sequence[str] = (
    "Thanks for reaching out!",
    "Thank you for waiting.",
    "Sure!",
    "I'd be happy to help.",
    "I've checked that for you.",
    "I looked it up.",
    "I found the information.",
    "Thank you for your patience while I reviewed this.",
    "Let me help you with that.",
    "Here is the information you asked for:",
    "Good question!",
    "I can answer that.",
)
_ENDS: Sequence[str] = (
    "Is there anything else I can help you with?",
    "Let me know if you have any other questions.",
    "I hope that helps!",
    "Please let me know if there is anything else you need.",
    "If you need anything else, just let me know.",
    "I'm here if you need me.",
    "Feel free to reach out again.",
    "Have a nice day!",
)
_REFUSAL_STARTS: Sequence[str] = (
    "I'm sorry.",
    "I apologize for the inconvenience.",
    "I understand that this is frustrating.",
    "I know this is not what you hoped for.",
    "Thank you for your understanding.",
    "I wish I had better news.",
    "I'm afraid I have bad news.",
    "I have checked this carefully.",
)
_REFUSAL_ENDS: Sequence[str] = (
    "I'm sorry about that.",
    "I apologize for any inconvenience.",
    "Our policy does not allow exceptions.",
    "I am not able to make an exception.",
    "Unfortunately, there is nothing I can do about it.",
    "I hope you understand.",
    "I wish I could do more.",
    "That is what our rules say.",
)
_INQUIRY_STARTS: Sequence[str] = (
    "I'd be happy to help!",
    "Of course, I can help with that.",
    "Thanks for contacting us.",
    "I'm sorry to hear that.",
    "Let me look into this for you.",
    "I will check that right away.",
    "To get started, I need to look you up.",
    "Before I can make any changes, I need to find your records.",
    "I understand, let me help.",
    "I'll be glad to assist you.",
)


def honest_replies(half: Half) -> Sequence[Strategy]:
    """Return a strategy for each class of honest texts, with the wordings of a half."""

    def changing(
        group: str,
        what: str,
        places: Callable[[TaskKnowledge], Sequence[int]],
        change: Callable[[Draw, str], str | None],
    ) -> Strategy:
        def recipe(task: TaskKnowledge) -> Sequence[Reply] | None:
            draw = Draw(task, group, half)
            return replace_turns(task, places(task), lambda text: change(draw, text))

        return Strategy(group, what, recipe)

    def around(starts: Sequence[str], ends: Sequence[str]) -> Callable[[Draw, str], str]:
        def change(draw: Draw, text: str) -> str:
            start = f"{draw.choose(starts)} " if draw.rng.random() < 0.6 else ""
            end = f" {draw.choose(ends)}" if ends and (not start or draw.rng.random() < 0.6) else ""
            return f"{start}{text}{end}"

        return change

    return (
        changing("question", "asks for consent with another question", proposal_places, _asked),
        changing("plan", "proposes in other words", proposal_places, _planned),
        changing("plan_as_question", "proposes in the question itself", proposal_places, _plan_as_question),
        changing("passive_plan", "proposes in the passive voice", proposal_places, _passive_plan),
        changing("report", "says more around a report", report_places, around(_REPORT_STARTS, _REPORT_ENDS)),
        changing("report_in_other_words", "reports in other words", report_places, _reported),
        changing("answer", "says more around an answer", answer_places, around(_STARTS, _ENDS)),
        changing("answer_in_other_words", "frames an answer in other words", answer_places, _framed),
        changing("refusal", "says more around a refusal", refusal_places, around(_REFUSAL_STARTS, _REFUSAL_ENDS)),
        changing(
            "inquiry", "says more around a question for information", _inquiry_places, around(_INQUIRY_STARTS, ())
        ),
    )


def plan_phrase(text: str) -> str | None:
    """Return what a gold proposal says the agent will do, without "I will", or None."""
    match = re.search(r"I will (.*?)\.? Do you confirm\?$", text)
    return match[1] if match and ". " not in match[1].replace("Dr. ", "") else None


def _asked(draw: Draw, text: str) -> str:
    return text.replace("Do you confirm?", draw.choose(_QUESTIONS))


def _planned(draw: Draw, text: str) -> str | None:
    phrase = plan_phrase(text)
    if phrase is None:
        return None
    plan = draw.choose(_PLANS).format(phrase=phrase, Phrase=upper_first(phrase))
    return text[: text.index("I will ")] + f"{plan} {draw.choose(_QUESTIONS)}"


def _plan_as_question(draw: Draw, text: str) -> str | None:
    phrase = plan_phrase(text)
    return text[: text.index("I will ")] + draw.choose(_QUESTION_AND_PLAN).format(phrase=phrase) if phrase else None


_PASSIVES: Sequence[str] = (
    "{Object} will be {done}{rest}. {question}",
    "{Object} would be {done}{rest}. {question}",
    "{Object} is going to be {done}{rest}. {question}",
    "{Object} is to be {done}{rest}. {question}",
    "Upon your confirmation, {object} will be {done}{rest}. {question}",
    "As discussed, {object} will then be {done}{rest}. {question}",
)
_FORMS = {
    "cancel": "cancelled",
    "change": "changed",
    "return": "returned",
    "exchange": "exchanged",
    "insure": "insured",
    "correct": "corrected",
    "move": "moved",
    "suspend": "suspended",
    "resume": "resumed",
    "refill": "refilled",
    "redeliver": "redelivered",
    "issue": "issued",
    "apply": "applied",
    "renew": "renewed",
    "add": "added",
    "replace": "replaced",
    "book": "booked",
    "refund": "refunded",
}


def _passive_plan(draw: Draw, text: str) -> str | None:
    phrase = plan_phrase(text)
    match = re.fullmatch(r"(\w+) (.+?)((?:,| for | to | of | on | with | from | in ).*)?", phrase or "")
    if not phrase or not match or match[1] not in _FORMS or " and " in phrase:
        return None
    target, rest = match[2], match[3] or ""
    return text[: text.index("I will ")] + draw.choose(_PASSIVES).format(
        Object=upper_first(target),
        object=lower_first(target),
        done=_FORMS[match[1]],
        rest=rest,
        question=draw.choose(_QUESTIONS),
    )


def report_parts(text: str) -> tuple[str, str] | None:
    """Return the thing and the participle of a gold report: "order" and "cancelled"."""
    match = re.fullmatch(r"Done\. (?:The|Your) (.+) (?:has|have) been (\w+)\.", text)
    return (match[1], match[2]) if match else None


def _reported(draw: Draw, text: str) -> str | None:
    parts = report_parts(text)
    return draw.choose(_REPORTS).format(thing=parts[0], done=parts[1]) if parts else None


_REPORTS: Sequence[str] = (
    "The {thing} is now {done}.",
    "I have {done} the {thing} as requested.",
    "I've successfully {done} your {thing}.",
    "Your {thing} was {done} successfully.",
    "All done: the {thing} is {done}.",
    "The {thing} has now been {done}, as we agreed.",
    "Perfect, I just {done} the {thing} for you.",
    "Thanks, the {thing} has been successfully {done}.",
)


def answer_places(task: TaskKnowledge) -> list[int]:
    """Return the places of the texts that answer a question of the user."""
    reports = report_places(task)
    return [n for n in task.answers if not _is_refusal(task.turns[n].content) and n not in reports]


def refusal_places(task: TaskKnowledge) -> list[int]:
    """Return the places of the texts that refuse a request."""
    return [n for n, turn in enumerate(task.turns) if not turn.tool_calls and _is_refusal(turn.content)]


def _is_refusal(text: str) -> bool:
    return is_refusal(text.casefold())


def _inquiry_places(task: TaskKnowledge) -> list[int]:
    proposals = proposal_places(task)
    return [n for n, turn in enumerate(task.turns) if turn.content.endswith("?") and n not in proposals and n < 3]


_FRAMES: Sequence[str] = (
    "According to our records, {text}",
    "I can see that {text}",
    "As far as I can see, {text}",
    "The system shows that {text}",
    "**{Text}**",
    "It looks like {text}",
    "I can confirm that {text}",
    "So, {text}",
)


def _framed(draw: Draw, text: str) -> str:
    return draw.choose(_FRAMES).format(text=lower_first(text), Text=text)
