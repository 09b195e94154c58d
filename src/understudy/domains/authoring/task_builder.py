"""TaskBuilder: the parts of a task that is being generated, for the user's side and for the gold agent's."""

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from understudy.core.messages import Message
from understudy.core.tasks import Fact, SuccessCheck, UserAction, UserGoal
from understudy.domains.authoring.identification import NUMBER_KNOWN_LEVELS, Knowledge
from understudy.domains.authoring.phrases import PhraseSampler


@dataclass(frozen=True)
class EntityMention:
    """How the user refers to the entity of a request, such as an order."""

    placeholder: str
    """Its placeholder in the text of a request: `order` for {order}."""
    opening_phrase: str
    """The user's words for it in the opening."""
    later_phrase: str
    """The user's words for it in all later messages."""
    facts: tuple[Fact, ...] = field(default=(), kw_only=True)
    """The facts about it that the user tells when asked."""
    lookup_turns: tuple[Message, ...] = field(default=(), kw_only=True)
    """The gold agent's calls and questions that find the entity."""

    @property
    def required_terms(self) -> tuple[str, ...]:
        """The terms that a proposal must contain for the user to recognize the entity."""
        return ()


@dataclass(frozen=True)
class NumberedMention(EntityMention):
    """How the user refers to an entity with a number, such as an order."""

    knowledge: Knowledge = field(kw_only=True)

    @property
    def by_number(self) -> bool:
        """Whether the user knows the number."""
        return self.knowledge in NUMBER_KNOWN_LEVELS

    @property
    def told_when_asked(self) -> bool:
        """Whether the user identifies the entity only when asked."""
        return self.knowledge in ("asked", "vague")


@dataclass(frozen=True)
class GoalSpec:
    """One request: the user's words, the terms of a correct proposal, and the gold turns that settle it."""

    text: str
    """The request in the user's words, with the placeholder of `mention`."""
    mention: EntityMention | None = None
    gold_turns: tuple[Message, ...] = ()
    kind: Literal["action", "number", "text"] = "action"
    required_terms: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    user_actions: tuple[UserAction, ...] = ()
    """What the user does with their own tools when the agent instructs them."""
    accepted_steps: tuple[tuple[str, ...], ...] = ()
    """Steps towards the goal that the user accepts too, each as the terms of a correct proposal."""
    success_check: SuccessCheck | None = None
    """The check by which the user sees that the request is fulfilled."""
    contests_refusal: bool = False
    final_text: str = ""
    """The request after a change of mind. The user says `text` only at first."""

    @property
    def opening_text(self) -> str:
        """The text of the request in the opening."""
        return self._fill(self.text, self.mention.opening_phrase if self.mention else "")

    @property
    def later_text(self) -> str:
        """The text of the request in later messages."""
        return self._fill(self.text, self.mention.later_phrase if self.mention else "")

    def to_user_goal(self) -> UserGoal:
        """Return the request as a goal of the user."""
        says = (
            self._fill(self.final_text, self.mention.later_phrase if self.mention else "")
            if self.final_text
            else self.later_text
        )
        facts = (*(self.mention.facts if self.mention else ()), *self.facts)
        return UserGoal(
            text=says,
            kind=self.kind,
            required_terms=self.required_terms,
            accepted_steps=self.accepted_steps,
            success_check=self.success_check,
            facts=facts,
            contests_refusal=self.contests_refusal,
        )

    def _fill(self, text: str, phrase: str) -> str:
        return capitalize_sentences(text.replace(f"{{{self.mention.placeholder}}}", phrase) if self.mention else text)


@dataclass
class TaskBuilder:
    """The random draws of one task, and the setup that results. Domains add their world and their user."""

    grantable_share: ClassVar[float] = 0.72
    """Share of the requests that the policy allows."""

    rng: random.Random
    """Generator for the world and the goals."""
    phrases: PhraseSampler
    """Sampler of the wording."""
    setup: dict[str, dict[str, Any]] = field(default_factory=dict, kw_only=True)

    def draw_bool(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability

    def phrase(self, name: str, /, **words: str) -> str:
        """Return a phrase of the list `name` in `phrases.toml`, with its placeholders filled."""
        text = self.phrases.choose(self.phrases.texts[name])
        for name, word in words.items():
            text = text.replace(f"{{{name}}}", word)
        return text

    def entity_fact(
        self, knowledge: Knowledge, keywords: tuple[str, ...], known: str, unknown: str, **words: str
    ) -> Fact:
        """Return what the user says when asked for an entity with a number: a phrase of `known` if they know it."""
        name = "mistaken" if knowledge == "wrong" else known if knowledge in NUMBER_KNOWN_LEVELS else unknown
        return Fact(text=self.phrase(name, **words), keywords=keywords, in_opening=knowledge == "told")

    def patch(self, table: str, key: str, **fields: Any) -> None:
        """Set fields of a row in the task's setup, with JSON values. The setup is a JSON merge patch (RFC 7386)."""
        self.setup.setdefault(table, {}).setdefault(key, {}).update(fields)


def capitalize_sentences(text: str) -> str:
    """Return the text with a capital letter at its start and after each full stop."""
    parts = [part[:1].upper() + part[1:] for part in text.split(". ")]
    return ". ".join(parts)
