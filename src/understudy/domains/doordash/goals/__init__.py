"""Requests of delivery customers: each function draws one request as a `GoalSpec`."""
