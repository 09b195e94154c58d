"""The endless supply of healthcare tasks."""

from understudy.domains.healthcare.drafts import Draft
from understudy.domains.healthcare.families import talk
from understudy.domains.healthcare.talks import gold
from understudy.domains.healthcare.world import patients, world
from understudy.domains.supply import Supply

SUPPLY = Supply("healthcare", patients, lambda rng, key: Draft(rng, world(), key), talk, lambda _, who: who, gold)
generate, make = SUPPLY.generate, SUPPLY.make
