"""Shared parts of the airline's tests."""

from typing import Any

OTHER_DAY = "2025-05-22"
CHANGES: dict[str, dict[str, Any]] = {
    "cancel_reservation": {"reason": "change of plans"},
    "change_flights": {"way": "outbound", "flights": ["KA1"], "date": OTHER_DAY},
    "change_cabin": {"cabin": "business"},
    "correct_name": {"name": "Amy Lee", "new_name": "Amie Lee"},
    "add_bags": {"bags": 1},
    "add_insurance": {},
}
"""Every tool that changes a reservation, with valid arguments."""
