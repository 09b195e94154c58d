"""The page of view in a real Chromium: from a server and as a file, by mouse and by keyboard, dark and light."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import accessibility, browser, expect
from test_viewer_index import episode, keep
from understudy.messages import Message
from understudy.trajectory import Trajectory
from understudy.viewer.answers import ANSWERS, Values, overview
from understudy.viewer.export import export
from understudy.viewer.library import Library
from viewing import episodes, make_run, served, take_step

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]
HOSTILE = """<img src=x onerror="document.title='taken'"></script><script>document.title='taken'</script>${1}"""

INK = """(canvas, ink) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const far = (at) => ink.reduce((sum, value, i) => sum + Math.abs(data[at + i] - value), 0);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200 && far(at) < 12) found++;
  return found;
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "one", finished=True)
    make_run(folder / "two", seed=1)
    hostile = make_run(folder / "three", steps=1)
    played = Trajectory("a/b/" + HOSTILE, "a", HOSTILE, "easy", messages=[Message(role="assistant", content=HOSTILE)])
    played.counts[HOSTILE] = 1
    hostile.keep(2, [played, *episodes(count=1)])
    hostile.warn(1, {"check": "entropy", "text": HOSTILE, "remedy": HOSTILE})
    return folder


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_CACHE", str(tmp_path_factory.mktemp("cache")))
        with served(Library([folder])) as address:
            yield f"{address}/"


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page on which nothing may go wrong, nor be asked of anybody else."""
    with chromium.new_context(viewport={"width": 1300, "height": 800}) as context:
        shown, wrong = context.new_page(), list[str]()
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        shown.on("request", lambda asked: wrong.append(asked.url) if not _own(asked.url) else None)
        shown.set_default_timeout(30_000)
        yield shown
        assert wrong == []


def _own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:"))


def rows(page: Any) -> list[str]:
    """The tasks that are listed, once they are."""
    page.get_by_role("status").filter(has_text="episode").wait_for()
    return [text.strip() for text in page.locator(".rows .c-task a").all_inner_texts()]


def drawn(canvas: Any, ink: list[int]) -> bool:
    """Whether a colour is seen on a canvas within ten seconds: a chart is drawn after its label is written."""
    for _ in range(100):
        if canvas.evaluate(INK, ink) > 20:
            return True
        canvas.page.wait_for_timeout(100)
    return False


def test_runs_are_drawn_over_each_other(page: Any, address: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address)
    page.get_by_role("heading", name="Success").wait_for()
    told = ("one: 0.5 at first, 0.5 at last", "two: 0.5 at first", "one, base model at step 0: 0")
    label = re.compile("".join(f"(?=.*{re.escape(each)})" for each in told), re.DOTALL)
    expect(page.get_by_role("img", name=re.compile("^Success"))).to_have_attribute("aria-label", label)
    chart = page.locator(".chart").filter(has_text="Entropy").locator("canvas")
    assert drawn(chart, [36, 86, 201]), "the first run's curve is drawn in its colour"
    page.get_by_role("button", name="only two").click()
    page.get_by_role("heading", name="two", exact=True).wait_for()
    expect(page.get_by_role("img", name=re.compile("^Success.*one"))).to_have_count(0)
    assert page.url.endswith("runs=two"), "the address is what is shown"
    page.get_by_role("searchbox", name="find a metric").fill("entropy")
    expect(page.locator(".chart h3")).to_have_text(["train/entropy"])


def test_configs_are_compared(page: Any, address: str) -> None:
    page.goto(f"{address}#/?runs=one,two")
    table = page.get_by_role("group", name="config").get_by_role("row")
    table.first.wait_for()
    found = [row.replace("\t", " ") for row in table.all_inner_texts()]
    assert found[1:] == ["seed 0 1", "steps 3 6"]


def test_a_run_that_goes_on_is_followed(page: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "live", steps=2)
    with served(Library([run.folder])) as address:
        page.goto(f"{address}/")
        page.get_by_text("step 2 of 4").wait_for()
        take_step(run, 3)
        page.get_by_text("step 3 of 4").wait_for()
        page.locator(".chart").filter(has_text="Seconds of a step").get_by_role("button").click()
        numbers = page.get_by_role("dialog", name="Seconds of a step").locator("tbody tr")
        numbers.nth(2).wait_for()
        assert numbers.all_inner_texts() == ["1\t12", "2\t12", "3\t12"]
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")  # a hidden one keeps the focus for a frame


def test_an_overview_that_takes_longer_than_it_is_asked_for_appears(
    page: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(library: Library, values: Values) -> Any:
        time.sleep(3)
        return overview(library, values)

    monkeypatch.setitem(ANSWERS, "/api/overview", slow)
    with served(Library([folder])) as address:
        page.goto(f"{address}/#/episodes/one")
        page.get_by_role("status").filter(has_text="27 episodes").wait_for()


def test_evaluations_that_come_are_followed(page: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "live", steps=1)
    text = (run.folder / "evaluations" / "000000 base model.json").read_text()
    with served(Library([run.folder])) as address:
        page.goto(f"{address}/#/evaluations")
        page.get_by_role("rowheader", name="base model, step 0").wait_for()
        run.write("evaluations/000001 warm start.json", text)
        page.get_by_role("rowheader", name="warm start, step 1").wait_for()
        page.get_by_role("link", name="live").click()
        page.get_by_role("heading", name="live").wait_for()
        run.write("evaluations/000002 trained.json", text)
        page.get_by_role("rowheader", name="trained, step 2").wait_for()


def test_a_question_that_fails_once_leaves_the_page(page: Any, address: str) -> None:
    page.goto(f"{address}#/")
    page.get_by_role("heading", name="Success").wait_for()
    page.route("**/api/overview*", lambda route: route.fulfill(body="not what was asked for"))
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("heading", name="Success").is_visible()
    page.unroute("**/api/overview*")
    page.get_by_role("alert").wait_for(state="detached")
    assert page.get_by_role("heading", name="Success").is_visible()


def test_episodes_are_filtered_searched_and_sorted(page: Any, address: str) -> None:
    page.goto(f"{address}#/episodes/one")
    assert len(rows(page)) == 27
    page.locator(".facet", has_text="success").click()
    page.get_by_role("status").filter(has_text="12 episodes, 100% successful").wait_for()
    page.get_by_role("searchbox").fill('"no such words at all"')
    page.get_by_text("No episode is like that.").wait_for()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("status").filter(has_text="12 episodes").wait_for()
    page.get_by_role("button", name="without outcome success").click()
    page.get_by_role("status").filter(has_text="27 episodes").wait_for()
    page.get_by_role("button", name="reward", exact=True).click()
    page.locator("[aria-sort=descending]", has_text="reward").wait_for()
    expect(page.locator(".rows .tr").first.locator(".c-reward")).to_have_text("1")


def test_the_keyboard_is_enough(page: Any, address: str) -> None:
    page.goto(f"{address}#/")
    page.get_by_role("heading", name="Success").wait_for()
    page.keyboard.press("e")
    page.wait_for_url("**/#/episodes")
    second = rows(page)[1]
    page.keyboard.press("j")
    expect(page.locator(".tr.chosen")).to_contain_text(second.rpartition("/")[2])
    page.keyboard.press("k")
    page.keyboard.press("/")
    page.keyboard.type("gone")
    page.get_by_role("status").filter(has_text="3 episodes").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").locator("kbd").nth(6).wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")  # a hidden one keeps the focus for a frame
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"#/episode/one/3/9\?text=gone&at=0"))
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("gone")  # the way back keeps the filters


def test_as_many_episodes_as_one_likes_are_scrolled_through(page: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "many", steps=0)
    for step in range(1, 5):
        keep(run.folder, step, range(1000))
    assert episode(999).task == "toy/train/cancel/easy/999"
    with served(Library([run.folder])) as address:
        page.goto(f"{address}/#/episodes")
        page.get_by_role("status").filter(has_text="4,000 episodes, 25% successful").wait_for()
        assert page.locator(".rows .tr").count() < 80, "only what is seen is drawn"
        page.get_by_role("table", name="episodes").evaluate("table => (table.scrollTop = table.scrollHeight)")
        page.get_by_text("cancel/easy/999").wait_for()
        expect(page.locator(".rows .tr").last).to_have_attribute("aria-rowindex", "4001")


def test_what_a_model_wrote_is_text(page: Any, address: str, folder: Path, tmp_path: Path) -> None:
    export(Library([folder]), tmp_path / "page.html")
    for start in (address, (tmp_path / "page.html").as_uri()):
        for where in ("#/?runs=three", "#/episodes/three"):
            page.goto("about:blank")
            page.goto(start + where)
            page.get_by_text("onerror").first.wait_for()
            assert page.locator("img").count() == 0
            assert "taken" not in page.title()


def test_the_file_opens_offline(page: Any, folder: Path, tmp_path: Path) -> None:
    export(Library([folder]), tmp_path / "page.html", most=30)
    page.context.set_offline(True)
    page.goto((tmp_path / "page.html").as_uri())
    page.get_by_role("heading", name="Success").wait_for()
    page.keyboard.press("e")
    assert len(rows(page)) == 10
    page.get_by_text("This file does not hold all").click()
    assert page.locator(".left-out li").all_inner_texts() == [
        f"{run}: of {count} episodes this file holds 10, the newest"
        for run, count in (("one", 27), ("three", 12), ("two", 27))
    ]
    page.locator(".facet", has_text="failure").click()
    page.get_by_role("status").filter(has_text="4 episodes, 0% successful").wait_for()
    page.get_by_role("button", name="turns").click()
    page.locator("[aria-sort=descending]", has_text="turns").wait_for()
    assert len(rows(page)) == 4


@pytest.mark.parametrize(("theme", "width"), [("light", 1300), ("dark", 390)])
@pytest.mark.parametrize("where", ["#/", "#/?runs=one", "#/episodes/one?family=cancel"])
def test_nobody_is_kept_out(page: Any, address: str, theme: str, width: int, where: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address + where)
    page.get_by_text("Seconds of a step" if "episodes" not in where else "what went wrong").first.wait_for()
    if "episodes" in where:
        rows(page)
    assert accessibility(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the window"


def test_the_theme_is_kept(page: Any, address: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address)
    page.get_by_role("heading", name="Success").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("t")
    page.keyboard.press("t")
    page.reload()
    page.get_by_role("heading", name="Success").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
