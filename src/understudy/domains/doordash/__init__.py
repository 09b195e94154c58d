"""Food delivery: a support desk where orders are placed, changed, cancelled, tracked and put right."""

from understudy.domains.base import Domain
from understudy.domains.doordash.families import FAMILIES
from understudy.domains.doordash.tasks import generate, make
from understudy.domains.doordash.tools import DoordashTools
from understudy.domains.doordash.world import world

SHARED = ("restaurants", "promotions", "couriers")

DOMAIN = Domain(__name__, world, DoordashTools, generate, tuple(FAMILIES), shared=SHARED, make=make)
