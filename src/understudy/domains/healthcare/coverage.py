"""What insurance plans cover. An HMO wants a referral to specialists, and only a PPO covers doctors out of network."""

from collections.abc import Sequence
from decimal import Decimal

from understudy.domains.healthcare.state import TODAY, Doctor, Plan, Referral, Setting, Specialty
from understudy.domains.healthcare.views import Coverage


def letters(plan: str) -> str:
    """What a plan's member ids begin with: CH for Cedar HMO."""
    return "".join(word[0] for word in plan.split())


def needs_referral(plan: str, specialty: Specialty) -> bool:
    """Whether a plan pays for such a doctor only with a referral."""
    return plan.endswith("HMO") and specialty != "family medicine"


def valid_referral(referrals: Sequence[Referral], specialty: Specialty) -> Referral | None:
    """The first one that is signed, not expired and not used up."""
    valid = (r for r in referrals if r.status == "signed" and r.until >= TODAY and r.visits > 0)
    return next((r for r in valid if r.specialty == specialty), None)


def covered(
    plan: str, costs: Plan, name: str, doctor: Doctor, setting: Setting, known: bool, referrals: Sequence[Referral]
) -> Coverage:
    """What a visit to Dr. `name` costs; `known` says whether the patient has seen the doctor before."""
    network, needed = plan in doctor.plans, needs_referral(plan, doctor.specialty)
    referral = valid_referral(referrals, doctor.specialty) if needed else None
    problem = ""
    if setting == "telehealth" and not doctor.telehealth:
        problem = f"Dr. {name} has no telehealth visits"
    elif setting == "telehealth" and not known:
        problem = f"the first visit to Dr. {name} has to be in person"
    elif not network and costs.out_of_network is None:
        problem = f"Dr. {name} is out of network, and {plan} does not cover that"
    elif needed and referral is None:
        problem = f"{plan} needs a valid referral to {doctor.specialty}"
    return Coverage(
        network="in" if network else "out",
        copay=_copay(costs, doctor, setting) if network else costs.out_of_network,
        referral_until=referral.until if referral else "",
        problem=problem,
    )


def _copay(costs: Plan, doctor: Doctor, setting: Setting) -> Decimal:
    if setting == "telehealth":
        return costs.telehealth
    return costs.primary if doctor.specialty == "family medicine" else costs.specialist
