"""Requests of patients and their proxies: each function draws one request as a `GoalSpec`."""
