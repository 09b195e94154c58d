"""Requests of the store's customers: each function draws one request as a `GoalSpec`."""
