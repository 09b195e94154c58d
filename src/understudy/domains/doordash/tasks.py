"""The endless supply of delivery tasks."""

from understudy.domains.doordash.drafts import Draft
from understudy.domains.doordash.families import talk
from understudy.domains.doordash.talks import gold, person
from understudy.domains.doordash.world import emails, world
from understudy.domains.supply import Supply

SUPPLY = Supply("doordash", emails, lambda rng, email: Draft(rng, world(), email), talk, person, gold)
generate, make = SUPPLY.generate, SUPPLY.make
