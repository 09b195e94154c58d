"""The endless supply of telecom tasks."""

from understudy.domains.supply import Supply
from understudy.domains.telecom.drafts import Draft
from understudy.domains.telecom.families import talk
from understudy.domains.telecom.talks import gold, person
from understudy.domains.telecom.world import customer_ids, world

SUPPLY = Supply("telecom", customer_ids, lambda rng, key: Draft(rng, world(), key), talk, person, gold)
generate, make = SUPPLY.generate, SUPPLY.make
