"""The endless supply of retail tasks."""

from understudy.domains.retail.drafts import Draft
from understudy.domains.retail.families import talk
from understudy.domains.retail.talks import gold, person
from understudy.domains.retail.world import emails, world
from understudy.domains.supply import Supply

SUPPLY = Supply("retail", emails, lambda rng, email: Draft(rng, world(), email), talk, person, gold)
generate, make = SUPPLY.generate, SUPPLY.make
