"""Tests of the kit for requests: wording, terms, facts and gold turns, and the dialogue around them."""

import random
from dataclasses import dataclass, replace

import pytest

from understudy.core.messages import Message
from understudy.core.tasks import SPLITS
from understudy.domains.authoring.dialogue import CustomerDialogue, gold_turns_of_goals
from understudy.domains.authoring.identification import Knowledge
from understudy.domains.authoring.phrases import PhraseSampler
from understudy.domains.authoring.request import (
    Detail,
    Draw,
    answer,
    change_mind,
    draw_goal,
    extend,
    grant,
    plain_request,
    refuse,
    request,
    tell,
    transfer,
)
from understudy.domains.authoring.task_builder import GoalSpec, NumberedMention, TaskBuilder
from understudy.envs.compliance.vocabulary import is_act, is_noun, is_past_form
from understudy.envs.gold import gold_call, gold_text
from understudy.sources.references import list_domains, load_domain

TEXTS = {
    "send": ["Send {order} to {place}."],
    "send_vague": ["Send {order} elsewhere."],
    "place": ["It is {place}."],
    "email": ["I am {email}."],
    "no_email": ["I am {name} of {zip}."],
    "name": ["My name is {name}."],
    "zip": ["My zip is {zip}."],
}
PLACE = Detail("send", "send_vague", "place", "What is the place?", ("place",))
CALL, READ = gold_call("send", place="Rome"), gold_call("get_order", order_id="W1")


@dataclass(frozen=True)
class _Mention(NumberedMention):
    @property
    def required_terms(self) -> tuple[str, ...]:
        return ("W1",)


def mention(knowledge: Knowledge = "told") -> _Mention:
    return _Mention("order", "order W1", "order W1", knowledge=knowledge, lookup_turns=(READ,))


def builder(seed: int = 0) -> TaskBuilder:
    return TaskBuilder(random.Random(seed), PhraseSampler("a", "train", TEXTS))


def texts(*messages: Message) -> list[str]:
    return [message.content or message.tool_calls[0].name for message in messages]


def test_vague_request_leaves_out_its_detail_and_gold_asks_for_it() -> None:
    stated, vague = (request(builder(), PLACE, mention(), vague, "Rome", place="Rome") for vague in (False, True))
    assert (stated.text, stated.gold_turns) == ("Send {order} to Rome.", ())
    assert (vague.text, vague.gold_turns) == ("Send {order} elsewhere.", (gold_text("What is the place?"),))
    assert stated.required_terms == vague.required_terms == ("W1", "Rome")
    facts = [goal.facts[0] for goal in (stated, vague)]
    assert [(fact.text, fact.keywords, fact.in_opening) for fact in facts] == [
        ("It is Rome.", ("place",), True),
        ("It is Rome.", ("place",), False),
    ]


def test_sentence_is_part_of_the_request_or_an_answer() -> None:
    goal = extend(plain_request("Cancel it.", mention(), "cancel"), "It must be free.", "free")
    told, asked = (tell(goal, "I am ill.", "Why?", ("why",), vague=vague) for vague in (False, True))
    assert (told.text, told.gold_turns) == ("Cancel it. It must be free. I am ill.", ())
    assert (asked.text, asked.gold_turns) == ("Cancel it. It must be free.", (gold_text("Why?"),))
    assert told.required_terms == ("W1", "cancel", "free")
    assert [fact.in_opening for goal in (told, asked) for fact in goal.facts] == [True, False]


def test_settled_request_has_reads_proposal_call_and_report_after_its_question() -> None:
    goal = request(builder(), PLACE, None, True, "Rome", place="Rome")
    settled = grant(goal, "send it", CALL, "Sent.", [READ], terms=("5.00",), outputs=("5.00",))
    assert texts(*settled.gold_turns) == [
        "What is the place?", "get_order", "I will send it. Do you confirm?", "send", "Done. Sent.",
    ]  # fmt: skip
    assert (settled.required_terms, settled.outputs) == (("Rome", "5.00"), ("5.00",))


def test_change_of_mind_comes_after_the_first_proposal() -> None:
    goal = change_mind(plain_request("Cancel it.", mention(), "Rome"), "cancel it", "No, send it to Rome.")
    settled = grant(goal, "send it", CALL, "Sent.")
    assert texts(*settled.gold_turns)[:2] == ["I will cancel it. Do you confirm?", "I will send it. Do you confirm?"]
    assert settled.to_user_goal().text == "No, send it to Rome."


def test_half_of_the_users_who_are_not_easy_contest_a_refusal() -> None:
    goal = request(builder(), PLACE, None, True, place="Rome")
    refused = [refuse(builder(seed), goal, "No: shipped.", "shipped", easy=False, reads=[READ]) for seed in range(200)]
    contested = [texts(*goal.gold_turns)[2:] for goal in refused if goal.contests_refusal]
    assert 80 < len(contested) < 120
    assert contested[0] == ["No: shipped.", "No: shipped."]
    easy = [refuse(builder(seed), goal, "No: shipped.", "shipped", easy=True, reads=[READ]) for seed in range(20)]
    assert {goal.contests_refusal for goal in easy} == {False}
    assert (texts(*easy[0].gold_turns), easy[0].outputs) == (
        ["What is the place?", "get_order", "No: shipped."],
        ("shipped",),
    )


def test_answer_and_transfer_end_a_request() -> None:
    told = answer(GoalSpec("How much?", kind="number"), "It was 5.00.", "5.00", reads=[READ])
    assert (texts(*told.gold_turns), told.outputs) == (["get_order", "It was 5.00."], ("5.00",))
    moved = transfer(GoalSpec("I want an invoice."), "invoice")
    assert moved.gold_turns[0] == gold_call("transfer_to_human", summary="invoice")
    assert moved.required_terms == ("human|transfer|transfers|transferred|transferring",)


def test_goals_are_drawn_with_the_share_of_the_builder() -> None:
    class Builder(TaskBuilder):
        grantable_share = 0.25

    def make(_: Builder, draw: Draw[str]) -> GoalSpec:
        assert (draw.entity, draw.knowledge, draw.easy) == ("W1", "told", True)
        return GoalSpec(f"{draw.grantable}")

    drawn = [
        draw_goal(Builder(random.Random(seed), PhraseSampler("a", "train")), [make], "W1", "told", easy=True).text
        for seed in range(400)
    ]
    assert 70 < drawn.count("True") < 130


DIALOGUE = CustomerDialogue[TaskBuilder](
    "a customer", "order number", lambda _: {"email": "a@b.c", "name": "Amy Lee", "zip": "80202"}
)


def test_customer_gives_the_email_at_once_when_asked_or_not_at_all() -> None:
    profiles = [DIALOGUE.build_profile(builder(), mode) for mode in ("opened", "asked", "other")]
    assert [(p.name, p.role) for p in profiles] == [("Amy Lee", "a customer")] * 3
    assert [p.facts[0].text for p in profiles] == ["I am a@b.c.", "I am a@b.c.", "I am Amy Lee of 80202."]
    assert [[fact.in_opening for fact in p.facts] for p in profiles] == [[True, False, False], *[[False] * 3] * 2]
    assert [fact.text for fact in profiles[0].facts[1:]] == ["My name is Amy Lee.", "My zip is 80202."]


def test_gold_asks_for_what_is_missing_and_finds_the_customer() -> None:
    def first_turns(mode: str, knowledge: Knowledge) -> list[str]:
        goal = GoalSpec("Cancel {order}.", mention(knowledge), (gold_text("Done."),))
        return texts(*DIALOGUE.generate_gold_turns(builder(), mode, [goal]))  # type: ignore[arg-type]

    assert first_turns("opened", "told") == ["find_customer", "get_order", "Done."]
    assert first_turns("asked", "told")[0] == "What is your email?"
    assert first_turns("opened", "vague")[0] == "What is your order number?"
    assert first_turns("other", "asked")[:2] == ["What are your email and your order number?", "find_customer_by_name"]


def test_gold_makes_each_lookup_once_and_repeats_reads_unless_told_otherwise() -> None:
    first = GoalSpec("Price?", mention(), (gold_call("get_user"), gold_text("5.00")))
    goals = [first, replace(first, text="Total?")]
    assert texts(*gold_turns_of_goals(goals)) == ["get_order", "get_user", "5.00", "get_user", "5.00"]
    assert texts(*gold_turns_of_goals(goals, ("get_",))) == ["get_order", "get_user", "5.00", "5.00"]


IRREGULAR = {
    "pay": "paid",
    "put": "put",
    "resend": "resent",
    "freeze": "frozen",
    "take": "taken",
    "unfreeze": "unfrozen",
}


def other_forms(verb: str) -> list[set[str]]:
    """Return the accepted spellings of the participle, and of the form in -ing."""
    stem, double = verb.removesuffix("e"), verb + verb[-1]
    plain = f"{verb[:-1]}ied" if verb.endswith("y") else f"{stem}ed"
    return [{IRREGULAR.get(verb, plain), f"{double}ed"}, {f"{stem}ing", f"{double}ing"}]


def is_base(word: str) -> bool:
    """Return whether a word is a verb without an ending."""
    return not (is_past_form(word) or is_noun(word) or word.endswith(("ing", "s")))


@pytest.mark.parametrize("name", list_domains())
def test_required_verbs_may_have_any_form(name: str) -> None:
    domain = load_domain(name)
    goals = [goal for split in SPLITS for task in domain.tasks(split) for goal in task.scenario.goals]
    terms = {frozenset(term.split("|")) for goal in goals for term in sum(goal.accepted_steps, goal.required_terms)}
    actions = [forms for forms in terms if any(word.endswith(("ed", "ing")) for word in forms)]
    verbs = [(w, forms) for forms in actions for w in forms if "-" not in w and is_act(w) and is_base(w)]
    lacking = {verb for verb, forms in verbs if not all(map(forms.intersection, other_forms(verb)))}
    assert verbs
    assert lacking == set()
