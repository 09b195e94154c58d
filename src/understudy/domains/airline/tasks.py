"""The endless supply of airline tasks."""

from understudy.domains.airline.drafts import Draft
from understudy.domains.airline.families import talk
from understudy.domains.airline.talks import gold, person
from understudy.domains.airline.world import emails, world
from understudy.domains.supply import Supply

SUPPLY = Supply("airline", emails, lambda rng, email: Draft(rng, world(), email), talk, person, gold)
generate, make = SUPPLY.generate, SUPPLY.make
