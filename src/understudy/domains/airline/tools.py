"""What the agent can do. Every tool acts on the identified customer's own data, and refuses what the policy forbids."""

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal

from understudy.domains.airline.desk import Desk, Done, Found
from understudy.domains.airline.itineraries import Offer, day, direct, off, one_stop
from understudy.domains.airline.state import (
    Cabin,
    Customer,
    FlightStatus,
    Payment,
    Reason,
    Reservation,
    Trip,
    Way,
)
from understudy.domains.airline.terms import (
    COOLING_OFF,
)
