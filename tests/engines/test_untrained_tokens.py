"""Tests of the search for tokens that a model was never trained on."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.untrained_calls import CALL_TOKENS, make_model_with_untrained_calls
from understudy.core.errors import ConfigError
from understudy.engines.models import find_model, make_tiny_model
from understudy.engines.models.untrained_tokens import find_untrained


@pytest.mark.parametrize("tied", [True, False])
def test_tokens_with_rows_of_unused_ones_are_found(tmp_path: Path, tied: bool) -> None:
    folder = make_model_with_untrained_calls(tmp_path, tied)
    assert find_untrained(folder, [257, 258, *CALL_TOKENS], CALL_TOKENS) == {*CALL_TOKENS}
    assert find_untrained(folder, [], []) == frozenset()
    assert find_untrained(folder, [257, 999], [999]) == frozenset(), "the model has no token 999"


def test_the_head_alone_can_show_it_for_sampled_tokens(tmp_path: Path) -> None:
    folder = make_model_with_untrained_calls(tmp_path, tied=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][259:] = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)) / 10
    save_file(weights, folder / "model.safetensors")
    assert find_untrained(folder, range(250, 264), [257, 259, 260]) == {259, 260}


@pytest.mark.parametrize(("distance", "found"), [(0.03, {257}), (0.1, set())])
def test_a_row_within_five_percent_of_another_is_untrained(tmp_path: Path, distance: float, found: set[int]) -> None:
    folder = make_tiny_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    rows[257] = rows[256]
    rows[257, 0] += distance * rows[256].norm()
    save_file(weights, folder / "model.safetensors")
    assert find_untrained(folder, [257, 258], [258]) == found


def test_control_tokens_of_smollm2_are_trained_and_its_unused_ones_are_not() -> None:
    """Its tokens 5 and 7 to 16, of code and of notebooks, are in no text that it was trained on."""
    assert find_untrained(find_model("smollm2-135m"), range(17), []) == {5, *range(7, 17)}


def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        find_untrained(folder, [257], [])
