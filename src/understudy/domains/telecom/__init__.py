"""Telecom: the desk of a mobile operator. The customer has tools too, those of a phone that the desk cannot see."""

from understudy.domains.base import Domain
from understudy.domains.telecom.families import FAMILIES
from understudy.domains.telecom.phone import PhoneTools
from understudy.domains.telecom.tasks import generate, make
from understudy.domains.telecom.tools import TelecomTools
from understudy.domains.telecom.world import world

DOMAIN = Domain(
    __name__,
    world,
    TelecomTools,
    generate,
    tuple(FAMILIES),
    device=PhoneTools,
    shared=("plans", "areas", "desk"),
    make=make,
)
