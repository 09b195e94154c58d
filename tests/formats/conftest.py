"""Fixtures of the tests of the families' formats."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from understudy.engines.models import cache_folder
from understudy.formats import FormatTokenizer


@pytest.fixture(autouse=True)
def _families_tokenizers_loaded_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the families' tokenizers. One takes half a second to load, and a second with transformers."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("families"):
            from transformers import AutoTokenizer

            patch.setattr(FormatTokenizer, "load", _once(FormatTokenizer.load))
            patch.setattr(AutoTokenizer, "from_pretrained", _once(AutoTokenizer.from_pretrained))
        yield


@cache
def _once(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return `load`, which keeps what it has loaded from the families' folders."""
    folder, kept = cache_folder() / "families", cache(load)
    return lambda path, **options: (kept if folder in Path(path).parents else load)(path, **options)
