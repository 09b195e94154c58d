"""Insurance coverage. An HMO requires referrals to specialists, and only a PPO covers out-of-network doctors."""

from collections.abc import Sequence
from decimal import Decimal

from understudy.domains.healthcare.state import TODAY, Doctor, Plan, Referral, Specialty, VisitSetting
from understudy.domains.healthcare.tool_results import VisitCoverage


def plan_initials(plan: str) -> str:
    """Return the prefix of a plan's member ids: CH for Cedar HMO."""
    return "".join(word[0] for word in plan.split())


def needs_referral(plan: str, specialty: Specialty) -> bool:
    """Return whether a plan requires a referral to the specialty."""
    return plan.endswith("HMO") and specialty != "family medicine"


def find_valid_referral(referrals: Sequence[Referral], specialty: Specialty) -> Referral | None:
    """Return the first referral that is signed, not expired and not used up."""
    valid = (r for r in referrals if r.status == "signed" and r.until >= TODAY and r.visits > 0)
    return next((r for r in valid if r.specialty == specialty), None)


def compute_coverage(
    plan: str, costs: Plan, name: str, doctor: Doctor, setting: VisitSetting, known: bool, referrals: Sequence[Referral]
) -> VisitCoverage:
    """Return the cost of a visit to Dr. `name`. `known`: the patient has seen the doctor before."""
    network, needed = plan in doctor.plans, needs_referral(plan, doctor.specialty)
    referral = find_valid_referral(referrals, doctor.specialty) if needed else None
    problem = ""
    if setting == "telehealth" and not doctor.telehealth:
        problem = f"Dr. {name} has no telehealth visits"
    elif setting == "telehealth" and not known:
        problem = f"the first visit to Dr. {name} must be in person"
    elif not network and costs.out_of_network is None:
        problem = f"Dr. {name} is out of network, and {plan} does not cover that"
    elif needed and referral is None:
        problem = f"{plan} requires a valid referral to {doctor.specialty}"
    return VisitCoverage(
        network="in" if network else "out",
        copay=_copay(costs, doctor, setting) if network else costs.out_of_network,
        referral_until=referral.until if referral else "",
        problem=problem,
    )


def _copay(costs: Plan, doctor: Doctor, setting: VisitSetting) -> Decimal:
    if setting == "telehealth":
        return costs.telehealth
    return costs.primary if doctor.specialty == "family medicine" else costs.specialist
