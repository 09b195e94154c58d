"""The parts of a request that are the same in every domain: its details, a refusal, an answer, and the gold turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.task_builder import EntityMention, GoalSpec, TaskBuilder
from understudy.envs.gold import gold_call, gold_change, gold_proposal, gold_text

VAGUE_SHARE = 0.3
"""Share of the medium and hard requests whose first message leaves out a detail."""
CANCEL_TERMS = "cancel|cancels|cancelled|canceled|cancelling|canceling|cancellation"

BuilderT = TypeVar("BuilderT", bound=TaskBuilder)
EntityT = TypeVar("EntityT")


@dataclass(frozen=True)
class Draw(Generic[EntityT]):
    """What is drawn before a request is made: its entity, what the user knows, and what the policy says."""

    entity: EntityT
    """The row that the request is about, such as an order."""
    knowledge: Knowledge
    """How the user refers to the entity."""
    grantable: bool
    """Whether the policy allows the request. The first message does not reveal it; only reading the entity does."""
    easy: bool
    """Whether the first message states everything about the request."""


GoalFunction = Callable[[BuilderT, Draw[EntityT]], GoalSpec]
"""A function that makes one request from what was drawn for it."""


@dataclass(frozen=True)
class Detail:
    """A detail of a request, such as a new address, that the first message may leave out.

    `stated`, `vague` and `answer` are lists of phrases: the request with the detail, the request without it, and the
    answer of the user to `question`, which the user recognizes by one of `keywords`.
    """

    stated: str
    vague: str
    answer: str
    question: str
    keywords: tuple[str, ...]


def request(
    builder: TaskBuilder, detail: Detail, mention: EntityMention | None, vague: bool, *terms: str, **words: str
) -> GoalSpec:
    """Return a request with its detail. If it is `vague`, its gold turns begin with the question for the detail.

    `terms` are the terms of a correct proposal beside those of the entity, and `words` fill the phrases.
    """
    text = builder.phrase(detail.vague if vague else detail.stated, **words)
    goal = plain_request(text, mention, *terms)
    return add_detail(goal, builder.phrase(detail.answer, **words), detail.question, detail.keywords, vague=vague)


def plain_request(text: str, mention: EntityMention | None, *terms: str) -> GoalSpec:
    """Return a request without a detail. `terms` are the terms of a correct proposal beside those of the entity."""
    known = mention.required_terms if mention else ()
    return GoalSpec(text, mention, required_terms=(*known, *terms))


def extend(goal: GoalSpec, text: str, *terms: str) -> GoalSpec:
    """Return the request with one more sentence, and its terms."""
    return replace(goal, text=f"{goal.text} {text}", required_terms=(*goal.required_terms, *terms))


def add_detail(goal: GoalSpec, text: str, question: str, keywords: tuple[str, ...], *, vague: bool) -> GoalSpec:
    """Return the request with the user's answer to `question`. If it is `vague`, the gold agent asks it."""
    asks = (gold_text(question),) if vague else ()
    fact = Fact(text=text, keywords=keywords, in_opening=not vague)
    return replace(goal, facts=(*goal.facts, fact), gold_turns=(*goal.gold_turns, *asks))


def tell(goal: GoalSpec, sentence: str, question: str, keywords: tuple[str, ...], *, vague: bool) -> GoalSpec:
    """Return the request with one more sentence. If it is `vague`, the user says it only as an answer to `question`."""
    goal = add_detail(goal, sentence, question, keywords, vague=vague)
    return goal if vague else extend(goal, sentence)


def change_mind(goal: GoalSpec, proposal: str, meant: str) -> GoalSpec:
    """Return the request of a user who asks for something else, `meant`, when the agent makes the first proposal."""
    return replace(goal, gold_turns=(*goal.gold_turns, gold_proposal(proposal)), final_text=meant)


def grant(
    goal: GoalSpec,
    proposal: str,
    call: Message,
    report: str,
    reads: Sequence[Message] = (),
    *,
    terms: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> GoalSpec:
    """Return the request with the gold turns that grant it: reads, proposal, call and report.

    `terms` are further terms of a correct proposal, such as an amount, and `outputs` the facts to tell.
    """
    return replace(
        goal,
        gold_turns=(*goal.gold_turns, *reads, *gold_change(proposal, call, report)),
        required_terms=(*goal.required_terms, *terms),
        outputs=(*goal.outputs, *outputs),
    )


def refuse(
    builder: TaskBuilder, goal: GoalSpec, reason: str, *outputs: str, easy: bool, reads: Sequence[Message] = ()
) -> GoalSpec:
    """Return the request with a refusal, which tells `outputs`. Half of the users who are not `easy` contest it.

    As in `grant` and `answer`, the gold turns of the request come first, such as the question for a detail.
    """
    contests = not easy and builder.draw_bool(0.5)
    turns = (*goal.gold_turns, *reads, *[gold_text(reason)] * (1 + contests))
    return replace(goal, gold_turns=turns, outputs=outputs, contests_refusal=contests)


def transfer(goal: GoalSpec, summary: str) -> GoalSpec:
    """Return the request with the gold turns that transfer the user to a human agent, and the terms for it."""
    turns = (gold_call("transfer_to_human", summary=summary), gold_text("I have transferred you to a human agent."))
    return replace(
        goal,
        gold_turns=(*goal.gold_turns, *turns),
        required_terms=("human|transfer|transfers|transferred|transferring",),
    )


def answer(goal: GoalSpec, text: str, *outputs: str, reads: Sequence[Message] = ()) -> GoalSpec:
    """Return the request with a gold text that answers it, and changes nothing."""
    return replace(goal, gold_turns=(*goal.gold_turns, *reads, gold_text(text)), outputs=outputs)


def draw_goal(
    builder: BuilderT,
    functions: Sequence[GoalFunction[BuilderT, EntityT]],
    entity: EntityT,
    knowledge: Knowledge,
    *,
    easy: bool,
) -> GoalSpec:
    """Draw one of the requests about an entity, and whether it is grantable."""
    make = builder.rng.choice(functions)
    return make(builder, Draw(entity, knowledge, builder.draw_bool(builder.grantable_share), easy))


def status_variants(status: str) -> str:
    """Return the accepted forms of a status."""
    return "cancelled|canceled" if status == "cancelled" else status
