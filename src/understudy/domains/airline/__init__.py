"""Airline: the service desk of an airline, where trips are booked, changed, cancelled, compensated and asked about."""

from understudy.domains.airline.families import FAMILIES
from understudy.domains.airline.tasks import generate, make
from understudy.domains.airline.tools import AirlineTools
from understudy.domains.airline.world import world
from understudy.domains.base import Domain

SHARED = ("flights", "days", "airports")

DOMAIN = Domain(__name__, world, AirlineTools, generate, tuple(FAMILIES), shared=SHARED, make=make)
