"""Retail: the support desk of a web shop. Orders are cancelled, changed, returned and exchanged; questions are answered."""

from understudy.domains.base import Domain
from understudy.domains.retail.families import FAMILIES
from understudy.domains.retail.tasks import generate
from understudy.domains.retail.tools import RetailTools
from understudy.domains.retail.world import world

DOMAIN = Domain(__name__, world, RetailTools, generate, tuple(FAMILIES), shared=("products",))
