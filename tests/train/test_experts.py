"""Tests of the line that a run of a mixture of experts starts with."""

import json
from pathlib import Path
from typing import Any

import pytest

from understudy.runs.config import parse_config
from understudy.train.experts import expert_notes


def notes(folder: Path, about: dict[str, Any], *settings: str) -> list[str]:
    (folder / "config.json").write_text(json.dumps(about), encoding="utf-8")
    return [*expert_notes(parse_config("", settings), folder)]


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_mixture_of_experts_is_named(key: str, tmp_path: Path) -> None:
    (line,) = notes(tmp_path, {key: 16, "output_router_logits": True, "router_aux_loss_coef": 0.25})
    for said in ("16 experts", "no router loss", "router_aux_loss_coef = 0.25", "algorithm.tis_cap"):
        assert said in line
    assert "adapters" not in line


def test_line_names_what_applies(tmp_path: Path) -> None:
    about = {"text_config": {"num_experts": 8, "router_aux_loss_coef": 0.25}}
    (line,) = notes(tmp_path, about, "engine.finetune=lora", "engine.sampler=torch")
    assert "adapters do not reach the experts" in line
    assert "router_aux_loss_coef" not in line
    assert "vLLM" not in line


def test_other_models_and_engines_have_no_line(tmp_path: Path) -> None:
    assert not notes(tmp_path, {"hidden_size": 64})
    assert not notes(tmp_path, {"num_experts": 8}, "steps=0", "sft.steps=0")
    assert not notes(tmp_path, {"num_experts": 8}, "engine.kind=skyrl")
