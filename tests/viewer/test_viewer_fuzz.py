"""Test the viewer's routes with random parameters, paths and bodies: none is an error of the server."""

import json
import random
import urllib.parse
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from support.viewing import cache_without_indexes, make_run, serve_viewer
from understudy.viewer import query
from understudy.viewer.api import ANNOTATION_PATHS, ROUTES
from understudy.viewer.library import RunLibrary

PARAMETERS = (
    *("text", "task", "sort", "offset", "limit", "tag", "noted", "min_step", "max_step", "min_reward", "max_reward"),
    *(*query.FILTER_COLUMNS, *query.MULTI_VALUE_COLUMNS, "run", "key", "step", "number", "new_row", "unknown"),
)
VALUES = (
    *("", "0", "1", "-1", "+1", "1.5", "1e5", "1e999", "nan", "inf", "0x10", "1_000", " 1", "9" * 16, "9" * 5000),
    *("²", "٣", "½", "\x00", "a\x00b", "\x1b[31m", "\u2028", "\ud83d", "\U0001f600", "é" * 300, "x" * 20_000),
    *("..", ".", "../..", "/etc/passwd", "%2e%2e", "~", "a\\b", "'", '"', '"a', "-", '-"', "* OR 1", "("),
    *("eval", "one", "step 1", "000000 base", "true", "null", "[]", "{}", "a,b", "," * 3000, "-reward", "yes"),
)  # fmt: skip
"""Values of parameters and of parts of paths. A lone surrogate is sent as its three bytes."""
NUM_REQUESTS = 400


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_CACHE", cache_without_indexes(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("runs")
        make_run(folder / "one", steps=1)
        with (
            serve_viewer(RunLibrary([folder])) as address,
            httpx2.Client(base_url=address, timeout=60, verify=False) as opened,
        ):
            yield opened


def quoted(text: str) -> str:
    return urllib.parse.quote(text.encode("utf-8", "surrogatepass"), safe="")


def filled(draw: random.Random, path: str) -> str:
    """Return a route with a value in place of each parameter; the first is often the run."""
    for name in [part[1:-1] for part in path.split("/") if part.startswith("{")]:
        known = name in ("run", "key", "new", "old") and draw.random() < 0.7
        path = path.replace(f"{{{name}}}", "one" if known else quoted(draw.choice(VALUES)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_requests_are_answered(client: httpx2.Client, seed: int) -> None:
    draw, found = random.Random(seed), set[int]()
    for _ in range(NUM_REQUESTS):
        given = [(draw.choice(PARAMETERS), draw.choice(VALUES)) for _ in range(draw.randint(0, 4))]
        asked = "&".join(f"{name}={quoted(value)}" for name, value in given)
        path = f"{filled(draw, draw.choice(list(ROUTES)))}?{asked}"
        answer = client.get(path)
        assert answer.status_code in (200, 307, 400, 404, 431), (path[:300], answer.text[:300])
        found.add(answer.status_code)
    assert {200, 400, 404} <= found


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/episode/one/1/²", 400),
        ("/api/episode/one/1/-1", 400),
        ("/api/episode/one/1/x/tokens", 400),
        (f"/api/episode/one/1/{'9' * 16}/group", 400),
        ("/api/episode/one/1/99", 404),
        ("/api/comparison/one/²/one/0", 400),
        ("/api/runs/one/episodes?offset=²", 400),
        ("/api/runs/one/episodes?limit=-1", 400),
        ("/api/runs/one/episodes?min_reward=nan", 400),
        ("/api/runs/one/episodes?sort=x", 400),
        ("/api/runs/one/episodes?task=%00", 400),
        ("/api/runs/one/facets?min_step=two", 400),
        ("/api/runs/none", 404),
    ],
)
def test_wild_parameters_are_answered_with_400(client: httpx2.Client, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]


def random_json(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(8 if depth < 4 else 5)
    if kind < 2:
        return draw.choice(VALUES)
    if kind < 5:
        return draw.choice((None, True, -1, 10**400, 1.5, ""))
    if kind < 6:
        return [random_json(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    return {draw.choice(("note", "tags", "item", "x")): random_json(draw, depth + 1) for _ in range(draw.randint(0, 3))}


@pytest.mark.slow
def test_random_bodies_are_answered(client: httpx2.Client) -> None:
    draw = random.Random(0)
    fixed = [
        b"",
        b"{",
        b"\xff",
        b"[" * 20_000,
        b'{"note": ' * 5000,
        b"NaN",
        b"1" * 5000,
        b'{"note": "\\ud800"}',
        b"\x00",
    ]
    for number in range(200):
        body = fixed[number] if number < len(fixed) else json.dumps(random_json(draw)).encode()
        path = filled(draw, draw.choice(ANNOTATION_PATHS))
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400, 404, 405, 413), (path, body[:200], answer.text[:300])
