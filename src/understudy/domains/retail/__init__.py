"""Retail: the support desk of a web shop, where orders are cancelled, changed, returned, exchanged and asked about."""

from understudy.domains.base import Domain
from understudy.domains.retail.families import FAMILIES
from understudy.domains.retail.tasks import generate, make
from understudy.domains.retail.tools import RetailTools
from understudy.domains.retail.world import world

DOMAIN = Domain(__name__, world, RetailTools, generate, tuple(FAMILIES), shared=("products",), make=make)
