"""The user's profile and the gold turns of telecom tasks."""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message
from understudy.core.tasks import Fact
from understudy.domains.authoring.dialogue import QUESTION_WORDS, gold_turns_of_goals
from understudy.domains.authoring.scenarios import UserProfile
from understudy.domains.authoring.task_builder import GoalSpec, capitalize_sentences
from understudy.domains.telecom.task_builder import Caller, FaultMention, LineMention, TelecomTaskBuilder
from understudy.envs.gold import gold_call, gold_text

_NUMBER, _BIRTH = ("your number", "phone number", "telephone number"), ("birth", "born")


def build_user_profile(b: TelecomTaskBuilder, caller: Caller) -> UserProfile:
    """Return the customer's profile."""
    name, born = b.customer.name, f"{b.customer.birth_date}"
    if caller.identification == "other":
        number = b.phrase("no_own_number", name=name, born=born)
    else:
        number = b.phrase("own_number", number=caller.number)
    facts = (
        Fact(text=number, keywords=_NUMBER, in_opening=caller.identification == "opened"),
        Fact(text=b.phrase("name", name=name), keywords=QUESTION_WORDS["name"]),
        Fact(text=b.phrase("born", born=born), keywords=_BIRTH),
    )
    return UserProfile(name, "a customer of a mobile operator", facts)


def generate_gold_turns(b: TelecomTaskBuilder, caller: Caller, goals: Sequence[GoalSpec]) -> Iterator[Message]:
    """Yield the gold turns: ask for what is missing, find the customer, and settle each request in order."""
    mention, last = goals[0].mention, goals[-1].mention
    line = mention.line if isinstance(mention, FaultMention) else mention
    told = mention.number_in_opening if isinstance(mention, LineMention) else ""
    questions = [] if told or caller.identification == "opened" else ["what is your phone number"]
    if isinstance(line, LineMention) and line.told_when_asked:
        questions.append("which line is it")
    if isinstance(mention, FaultMention) and mention.asks_location:
        questions.append("which city or country are you in right now")
    if questions:
        *others, final = questions
        text = f"{', '.join(others)}, and {final}?" if others else f"{final}?"
        yield gold_text(capitalize_sentences(text))
    if caller.identification == "other" and not told:
        yield gold_call("find_customer_by_name", name=b.customer.name, birth_date=f"{b.customer.birth_date}")
    else:
        yield gold_call("find_customer", number=told or caller.number)
    yield from gold_turns_of_goals(goals)
    if isinstance(last, FaultMention) and last.repaired:
        yield gold_text("I am glad it works now.")
