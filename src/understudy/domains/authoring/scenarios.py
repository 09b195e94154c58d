"""The user's side of a task, built from its requests: first message, facts, goals and actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy.core.tasks import Difficulty, Fact, Persona, Scenario, UserAction, UserGoal
from understudy.domains.authoring.task_builder import GoalSpec, TaskBuilder

PERSONAS: Mapping[Difficulty, Sequence[Persona]] = {
    "easy": ("plain", "plain", "terse"),
    "medium": ("plain", "chatty", "terse"),
    "hard": ("plain", "chatty", "terse"),
}


@dataclass(frozen=True)
class UserProfile:
    """The user's identity: a name, a role such as "a customer of an online store", and facts that identify them."""

    name: str
    role: str
    facts: tuple[Fact, ...]
    """Facts with `in_opening` are part of the first message, at its start or end."""


def build_scenario(
    builder: TaskBuilder, profile: UserProfile, goals: Sequence[GoalSpec], difficulty: Difficulty
) -> Scenario:
    """Return the user's side of a task."""
    user_goals = tuple(goal.to_user_goal() for goal in goals)
    opening = _opening(builder, profile, goals)
    return Scenario(
        instructions=_instructions(profile, opening, goals, user_goals),
        opening=opening,
        facts=profile.facts,
        goals=user_goals,
        user_actions=_user_actions(goals),
        persona=builder.rng.choice(PERSONAS[difficulty]),
        patience=3 + (difficulty != "easy") + any(goal.final_text for goal in goals),
    )


def collect_outputs(goals: Sequence[GoalSpec]) -> tuple[str, ...]:
    """Return all facts that the agent must tell."""
    return tuple(output for goal in goals for output in goal.outputs)


def _opening(builder: TaskBuilder, profile: UserProfile, goals: Sequence[GoalSpec]) -> str:
    """Return the first message: the first request, sometimes the others, and the identification."""
    texts = [goals[0].opening_text]
    for goal in goals[1:] if builder.draw_bool(0.5) else ():
        texts.append(builder.phrase("further_request") + _lower(goal.later_text))
    for fact in profile.facts:
        if fact.in_opening:
            texts.insert(builder.rng.choice((0, len(texts))), fact.text)
    return builder.phrase("greeting") + " ".join(texts)


def _lower(text: str) -> str:
    """Return a request as it continues after "Also, ". Names and ids keep their capital letter."""
    first = text.partition(" ")[0]
    return (
        text
        if first in ("I", "I'm", "I'd", "I've", "I'll") or not first.isalpha() or first.isupper()
        else text[0].lower() + text[1:]
    )


def _instructions(profile: UserProfile, opening: str, goals: Sequence[GoalSpec], user_goals: Sequence[UserGoal]) -> str:
    """Return the scenario in prose, for a user played by a language model or a person."""
    known = " ".join(fact.text for fact in (*profile.facts, *(fact for goal in user_goals for fact in goal.facts)))
    wanted = " ".join(f"({i}) {goal.text}" for i, goal in enumerate(user_goals, 1))
    refusal = (
        "If the agent refuses, object once. Accept a second refusal."
        if any(w.contests_refusal for w in user_goals)
        else "If the agent refuses, accept it."
    )
    return (
        f"You are {profile.name}, {profile.role}. Your first message is: {opening!r} "
        f"Your requests, one after the other: {wanted} "
        f"Say this only when asked: {known} {_user_tools_text(goals)}"
        f"Say yes only if the agent proposes exactly what you want{_accepted_steps_text(goals)}. "
        f"Otherwise repeat your request. {refusal} When everything is settled, end the conversation."
    )


def _user_actions(goals: Sequence[GoalSpec]) -> tuple[UserAction, ...]:
    """Return the user's possible actions for all requests, without repetitions."""
    actions: list[UserAction] = []
    for goal in goals:
        actions += [action for action in goal.user_actions if action not in actions]
    return tuple(actions)


def _user_tools_text(goals: Sequence[GoalSpec]) -> str:
    if not any(goal.user_actions for goal in goals):
        return ""
    text = "When the agent asks you to do something on your side, do it and report what happened. "
    return text + "You are satisfied once it works. " * any(goal.success_check for goal in goals)


def _accepted_steps_text(goals: Sequence[GoalSpec]) -> str:
    steps = [" ".join(name.partition("|")[0] for name in names) for goal in goals for names in goal.accepted_steps]
    return f", or a step towards it ({'; '.join(steps)})" if steps else ""
