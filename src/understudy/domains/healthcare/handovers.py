"""What is not for the desk: symptoms that cannot wait, medical questions, and what no tool can do."""

from understudy.domains.drafts import Want, call, say
from understudy.domains.healthcare import phrases
from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.times import spoken


def urgent(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask for a visit because of symptoms that cannot wait: the caller goes to a nurse before anything else."""
    draft.identity = "urgent"
    name = draft.random.choice(draft.visits()).doctor
    symptom = draft.pick(phrases.URGENT)
    visit = draft.pick(phrases.BOOK_VAGUE, visit=draft.pick(phrases.MEET), doctor=name)
    if not easy and draft.likely(0.5):
        when = spoken(draft, draft.time(name, 60), easy)
        visit = draft.pick(phrases.BOOK, visit=draft.pick(phrases.MEET), doctor=name, when=when)
    text = " ".join(draft.random.sample((symptom, visit), 2))
    summary = f"{draft.patient.name}, born {draft.patient.born}: {symptom}"
    return _handed(text, "nurse", summary)


def advice(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask what only somebody with a medical training may answer."""
    drug, test = draft.random.choice(draft.own("prescriptions")).drug, draft.random.choice(draft.own("labs")).test
    text = draft.pick(phrases.ADVICE, drug=drug, test=test)
    return _handed(text, "nurse", text)


def outside(draft: Draft, ok: bool, easy: bool) -> Want:
    """Ask for what no tool can do."""
    text = draft.pick(phrases.OUTSIDE)
    return _handed(text, "staff", text)


def _handed(text: str, to: str, summary: str) -> Want:
    goes = "a nurse" if to == "nurse" else "our staff"
    turns = (call("transfer", to=to, summary=summary), say(f"You are transferred to {goes}."))
    return Want(text, turns=turns, names=("nurse|staff|transfer|transferred",))
