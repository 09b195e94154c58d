"""Replicas of four web services on loopback. They answer as the services' documentation specifies, with made-up data.

No company, price, person or page is real. One version of the replicas always gives the same data. So tasks and
cassettes made from it can be checked, and a model can be trained without an API key.
"""
