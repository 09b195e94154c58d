"""Tests of the choice of the chat format and of the control tokens that are trained."""

from pathlib import Path

import pytest

from support.untrained_calls import CALL_TOKENS, make_model_with_untrained_calls
from understudy.engines.models import find_model
from understudy.formats import chat_format_from_config
from understudy.runs.config import parse_config
from understudy.runs.model_format import ModelFormat, choose_format

TINKER = ["engine.kind=tinker", "engine.base_url=http://127.0.0.1:1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_with_untrained_calls(tmp_path_factory.mktemp("model"))


def choose(folder: Path, *settings: str) -> ModelFormat:
    return choose_format(folder, parse_config("", [f"model={folder}", *settings]))


@pytest.mark.parametrize(
    ("settings", "trained", "named"),
    [
        ([], [*CALL_TOKENS], "engine.train_control_tokens"),
        (["engine.finetune=lora"], [*CALL_TOKENS], "engine.train_control_tokens"),
        (["engine.train_control_tokens=all"], [257, 258, *CALL_TOKENS], "engine.train_control_tokens"),
        (["engine.train_control_tokens=none"], [], "engine.train_control_tokens=none"),
        (["engine.train_embeddings=true"], [], "all embeddings"),
    ],
)
def test_one_line_names_untrained_tokens_and_what_is_done(
    folder: Path, settings: list[str], trained: list[int], named: str
) -> None:
    found = choose(folder, *settings)
    (line,) = found.notes
    assert list(found.trained_tokens) == trained
    assert "<tool_call> </tool_call>" in line
    assert named in line


def test_text_calls_need_no_untrained_tokens(folder: Path) -> None:
    found = choose(folder, "format.tool_format=json")
    assert (list(found.trained_tokens), list(found.notes)) == ([], [])


@pytest.mark.parametrize(("settings", "tokens"), [([], []), (["engine.train_control_tokens=all"], [257, 258])])
def test_a_model_with_trained_tokens_has_no_line(settings: list[str], tokens: list[int]) -> None:
    found = choose(find_model("tiny"), *settings)
    assert (list(found.trained_tokens), list(found.notes)) == (tokens, [])


def test_an_engine_that_cannot_train_rows_writes_calls_as_text(folder: Path) -> None:
    found = choose(folder, *TINKER)
    (line,) = found.notes
    assert "format.tool_format=json" in line
    text = chat_format_from_config(folder, parse_config("", ["format.tool_format=json"]).format)
    assert found.format.template_deviation == text.template_deviation
