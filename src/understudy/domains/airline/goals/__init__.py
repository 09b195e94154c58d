"""Requests of the airline's customers: each function draws one request as a `GoalSpec`."""
