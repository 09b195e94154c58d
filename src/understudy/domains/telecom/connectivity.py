"""Connectivity: what works, as a pure function of line and phone. The tools of agent and user report it."""

from dataclasses import dataclass
from typing import Literal

from understudy.domains.telecom.state import Area, Line, Phone, Plan

Signal = Literal["airplane mode", "no SIM", "no service", "good"]


@dataclass(frozen=True, slots=True)
class Connectivity:
    """What a phone can do at its location. Calls need a good signal; fast internet needs internet."""

    signal: Signal
    internet: bool
    fast: bool

    @property
    def can_call(self) -> bool:
        """Whether calls work."""
        return self.signal == "good"


def compute_connectivity(line: Line, plan: Plan, phone: Phone, area: Area) -> Connectivity:
    """Return what works for this phone, line and area."""
    signal = _signal(line, phone, area)
    internet = signal == "good" and _internet(line, phone, area)
    return Connectivity(signal, internet, internet and _fast(line, plan, phone))


def _signal(line: Line, phone: Phone, area: Area) -> Signal:
    if phone.airplane_mode:
        return "airplane mode"
    if phone.sim != "ok":
        return "no SIM"
    out = phone.radio != "ok" or line.suspended or area.outage == "network"
    return "no service" if out else "good"


def _internet(line: Line, phone: Phone, area: Area) -> bool:
    roams = not area.abroad or (line.roaming and phone.roaming)
    return roams and phone.mobile_data and phone.apn != "outdated" and not area.outage


def _fast(line: Line, plan: Plan, phone: Phone) -> bool:
    left = plan.data + line.data_added - line.data_used
    return left > 0 and phone.network_mode == "automatic" and not phone.data_saver and not phone.vpn
