"""Test that replaced identifiers do not return, that class names are unique, and that patterns fit each Python."""

import ast
import io
import re
import tokenize
from collections import defaultdict

from support.source import ROOT, TREES

FORMER_NAMES = {
    *(
        "Crew",
        "crew",
        "Ranks",
        "Purse",
        "purse",
        "Payer",
        "Kept",
        "Hands",
        "Deed",
        "deeds",
        "Wish",
        "wishes",
        "Attempt",
    ),
    *("Cast", "inhabited", "retold", "spelled", "dialects", "Reading", "players", "named_agent", "teaches", "lessons"),
    *(
        "Exam",
        "exam",
        "Sitting",
        "Outcome",
        "situations",
        "of_step",
        "of_start",
        "guesses",
        "fresh_optimizer",
        "settle",
    ),
    *("keep_reference", "move_reference", "forget_reference", "LocalConfig", "withdraw", "recall", "Shelf", "Voice"),
    *(
        "Journal",
        "Slots",
        "Judged",
        "as_text",
        "importance_cap",
        "refill",
        "unwanted_weight",
        "whole_file",
        "write_whole",
    ),
    *("equal_groups", "pending_metrics", "TinkerConfig", "SkyRLConfig", "test_slice", "updates_per_step", "loss_per"),
    *("HastyAgent", "HealthIssue", "TrainedEpisode", "frozen_policy_steps", "names_target", "weights_of"),
    *("count_foreign_format", "pop_unshared", "text_calls_template", "unsharded_gradients"),
    *(
        "discard_stored",
        "validate_tasks_by_playing",
        "find_playthrough_issue",
        "ConvertTarget",
        "SpecSample",
        "format_yields",
    ),
    *("launch_bench", "launch_certify", "SHADOW_VARIABLE", "EntityReference", "FURTHER_REQUESTS", "KNOWS_NUMBER"),
    *("resolve_goals", "draw_booked", "search_same_flights", "set_over", "MakeTask", "charge_payment"),
}
"""Identifiers that were replaced by standard terms."""
DOMAINS = ROOT / "domains"


def test_replaced_names_are_not_used() -> None:
    found = defaultdict(list)
    for path in TREES:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.NAME and token.string in FORMER_NAMES:
                found[token.string].append(f"{path.relative_to(ROOT)}:{token.start[0]}")
    assert found == {}


def test_class_names_are_unique() -> None:
    """Table rows of the domains are excepted: several domains have a `Customer`."""
    places = defaultdict(list)
    for path, tree in TREES.items():
        if DOMAINS not in path.parents:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_patterns_have_atomic_groups_and_no_possessive_ones() -> None:
    """Python before 3.11.5, such as Debian 12's, repeats a possessive group of alternatives too often."""
    possessive = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+")
    strings = (
        (path, node) for path, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.Constant)
    )
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in strings
        if isinstance(node.value, str) and possessive.search(node.value)
    ]
    assert found == []
