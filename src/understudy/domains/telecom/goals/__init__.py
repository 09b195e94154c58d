"""Requests of the mobile operator's customers: each function draws one request as a `GoalSpec`."""
