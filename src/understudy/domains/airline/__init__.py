"""Airline: the service desk of an airline, where trips are booked, changed, cancelled, compensated and asked about."""

from understudy.domains.airline.families import FAMILIES
from understudy.domains.airline.tasks import generate
from understudy.domains.airline.tools import AirlineTools
from understudy.domains.airline.world import world
from understudy.domains.base import Domain

DOMAIN = Domain(__name__, world, AirlineTools, generate, tuple(FAMILIES), shared=("flights", "days", "airports"))
