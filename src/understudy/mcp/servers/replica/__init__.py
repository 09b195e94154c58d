"""Replicas of the four services on loopback: they answer as the services' documentation says, with made-up data.

Nothing in them is real: no company, price, person or page. The same version gives the same data, so that tasks and
cassettes made from it can be checked, and a model can be trained without a key.
"""
