"""Rows of tasks that have calls and no world, in the styles of five domains and of the shapes that projects use."""

import json
from typing import Any

ACTIONS: dict[str, list[dict[str, Any]]] = {
    "retail": [
        {"name": "find_user_id_by_email", "kwargs": {"email": "mia@mail.com"}},
        {"name": "get_order_details", "kwargs": {"order_id": "#W17"}},
        {"name": "cancel_pending_order", "kwargs": {"order_id": "#W17", "reason": "no longer needed"}},
    ],
    "airline": [
        {"name": "get_reservation_details", "kwargs": {"reservation_id": "VA5SGQ"}},
        {"name": "update_reservation_baggages", "kwargs": {"reservation_id": "VA5SGQ", "total_baggages": 2}},
    ],
    "telecom": [
        {"name": "get_customer_info", "kwargs": {"user_id": "TC140", "email": "rob@mail.com"}},
        {"name": "think", "kwargs": {"thought": "The line is lost."}},
        {"name": "suspend_line", "kwargs": {"line_id": "L7", "reason": "lost"}},
        {"name": "transfer_to_human_agents", "kwargs": {"summary": "The customer lost a phone."}},
    ],
    "healthcare": [
        {"name": "search_patients", "kwargs": {"name": "Ann Lee"}},
        {"name": "book_appointment", "kwargs": {"patient_id": "P1", "doctor_id": "D2", "date": "2026-05-04"}},
    ],
    "doordash": [
        {"name": "search_restaurants", "kwargs": {"cuisine": "thai"}},
        {"name": "create_order", "kwargs": {"restaurant_id": "R3", "items": [{"id": "I1", "quantity": 2}]}},
    ],
}
"""Gold calls by domain. The last one or two write."""
REQUESTS = {
    "retail": "Cancel order #W17; you are mia@mail.com.",
    "airline": "Reservation VA5SGQ needs two bags.",
    "telecom": "You are TC140. Suspend line L7, which is lost.",
    "healthcare": "You are patient P1. Book doctor D2 on May 4, 2026.",
    "doordash": "Order item I1 twice from the thai restaurant R3.",
}
"""What the user wants, with the ids that the writes need, by domain."""
OUTPUTS: dict[str, list[str]] = {"retail": ["19.95"], "healthcare": ["Dr. Wu"], "telecom": []}
"""Outputs by domain."""


def tau_row(domain: str, /, **changes: Any) -> dict[str, Any]:
    """Return a task with an instruction, actions and outputs."""
    return {
        "user_id": "u1",
        "instruction": f"You are a customer of {domain}. {REQUESTS[domain]}",
        "actions": ACTIONS[domain],
        "outputs": OUTPUTS.get(domain, []),
        "domain": domain,
        "complexity": 2,
        **changes,
    }


def skyrl_row(domain: str, /, **changes: Any) -> dict[str, Any]:
    """Return a row for SkyRL with nested columns, whose ground truth has actions and outputs."""
    task = tau_row(domain)
    return {
        "data_source": f"tau_bench/{domain}",
        "env_class": "tau_bench",
        "prompt": [
            {"role": "system", "content": f"You serve {domain}."},
            {"role": "user", "content": task["instruction"]},
        ],
        "reward_spec": {
            "method": "tau_bench_reward",
            "ground_truth": {"actions": task["actions"], "outputs": task["outputs"]},
        },
        "extra_info": {"domain": domain, "instruction": task["instruction"], "split": "train", "complexity": 2},
        "user_strategy": "llm",
        **changes,
    }


def json_columns_row(domain: str) -> dict[str, Any]:
    """Return a row for SkyRL whose columns are JSON text, and whose ground truth is the list of actions."""
    row = skyrl_row(domain)
    row["reward_spec"] = {"method": "tau_bench_reward", "ground_truth": ACTIONS[domain]}
    row["extra_info"] = {**row["extra_info"], "outputs": OUTPUTS.get(domain, [])}
    return {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}


def verl_row(domain: str) -> dict[str, Any]:
    """Return a row for verl, whose actions have the keys of OpenAI's calls, with arguments as text."""
    row = skyrl_row(domain)
    actions = [{"function": {"name": a["name"], "arguments": json.dumps(a["kwargs"])}} for a in ACTIONS[domain]]
    truth = {"actions": actions, "outputs": OUTPUTS.get(domain, [])}
    row["reward_model"] = {"style": "rule", "ground_truth": json.dumps(truth)}
    del row["reward_spec"], row["user_strategy"]
    return row


def padded_row(domain: str) -> dict[str, Any]:
    """Return a row as a table gives it: each object has the keys of all others, as nulls."""
    row = skyrl_row(domain)
    names = {key for action in ACTIONS[domain] for key in action["kwargs"]}
    actions = [{**a, "kwargs": dict.fromkeys(sorted(names)) | a["kwargs"]} for a in ACTIONS[domain]]
    row["reward_spec"]["ground_truth"] = {"actions": actions, "outputs": OUTPUTS.get(domain, [])}
    return row


def named_row(domain: str) -> dict[str, Any]:
    """Return a row whose prompt is an object, and whose fields say that they are the truth. It has no method."""
    row = skyrl_row(domain)
    truth = {"ground_truth_actions": ACTIONS[domain], "ground_truth_outputs": OUTPUTS.get(domain, [])}
    del row["data_source"]
    return {**row, "prompt": {"messages": row["prompt"]}, "reward_spec": truth}


SHAPES = {
    "tau": tau_row,
    "named": named_row,
    "SkyRL": skyrl_row,
    "JSON columns": json_columns_row,
    "verl": verl_row,
    "padded": padded_row,
}
"""Makers of the row of a domain, by shape."""
