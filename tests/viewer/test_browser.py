"""Test the viewer's run and episode lists in Chromium: served and exported, by mouse and keyboard, dark and light."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import accessibility_problems, expect
from support.eval_results import make_result
from support.groups import make_groups
from support.run_evaluations import write_run_evaluation
from support.viewer_episodes import numbered_episode, write_numbered_episodes
from support.viewing import cache_without_indexes, make_run, play_episodes, serve_viewer, shop_tasks, write_step
from understudy.core.messages import Message
from understudy.core.trajectory import Trajectory
from understudy.evaluation.reports.files import read_run_report, write_run_report
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.request_logs import open_request_log
from understudy.evaluation.result import ResultRow, summarize_episodes
from understudy.evaluation.runner import write_report
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run
from understudy.runs.storage.locking import folder_lock
from understudy.runs.storage.status import StatusRecorder
from understudy.sources.loading import load_source
from understudy.viewer.api import ROUTES, RouteParams, overview
from understudy.viewer.export import export_page
from understudy.viewer.library import RunLibrary

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]
HOSTILE = """<img src=x onerror="document.title='taken'"></script><script>document.title='taken'</script>${1}"""

COUNT_PIXELS_OF_COLOR = """(canvas, ink) => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const far = (at) => ink.reduce((sum, value, i) => sum + Math.abs(data[at + i] - value), 0);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200 && far(at) < 12) found++;
  return found;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "one", finished=True)
    make_run(folder / "two", seed=1)
    hostile = make_run(folder / "three", steps=1)
    played = Trajectory("a/b/" + HOSTILE, "a", HOSTILE, "easy", messages=[Message(role="assistant", content=HOSTILE)])
    played.event_counts[HOSTILE] = 1
    hostile.save_groups(2, make_groups([played, *play_episodes(count=1)], shop_tasks(0)))
    hostile.log_warning(1, {"check": "entropy", "text": HOSTILE, "remedy": HOSTILE})
    return folder


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_CACHE", cache_without_indexes(tmp_path_factory.mktemp("cache")))
        with serve_viewer(RunLibrary([folder])) as address:
            yield f"{address}/"


def listed_tasks(page: Any) -> list[str]:
    """Wait until the list of episodes answers the page's filters and order, and return its tasks."""
    page.get_by_role("status").filter(has_text="episode").wait_for()
    page.locator("[role=table][aria-label=episodes][aria-busy=false]").wait_for()
    return [text.strip() for text in page.locator(".rows .c-task a").all_inner_texts()]


def color_is_drawn(canvas: Any, color: list[int], min_pixels: int = 20) -> bool:
    """Return whether a color appears on a canvas within a minute; a chart is drawn after its label is set."""
    for _ in range(600):
        if canvas.evaluate(COUNT_PIXELS_OF_COLOR, color) > min_pixels:
            return True
        canvas.page.wait_for_timeout(100)
    return False


def test_curves_of_several_runs_share_a_chart(page: Any, address: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address)
    page.get_by_role("heading", name="Success").wait_for()
    parts = ("one: first 0.5, last 0.5", "two: first 0.5", "one, base at step 0: 0")
    label = re.compile("".join(f"(?=.*{re.escape(each)})" for each in parts), re.DOTALL)
    expect(page.get_by_role("img", name=re.compile("^Success"))).to_have_attribute("aria-label", label)
    chart = page.locator(".chart").filter(has_text="Entropy").locator("canvas")
    assert color_is_drawn(chart, [36, 86, 201]), "the first run's curve is drawn in its colour"
    page.get_by_role("button", name="only two").click()
    page.get_by_role("heading", name="two", exact=True).wait_for()
    expect(page.get_by_role("img", name=re.compile("^Success.*one"))).to_have_count(0)
    assert page.url.endswith("runs=two"), "the address is what is shown"
    page.get_by_role("searchbox", name="find a metric").fill("entropy")
    expect(page.locator(".chart h3")).to_have_text(["train/entropy"])


def test_config_differences_of_two_runs_are_listed(page: Any, address: str) -> None:
    page.goto(f"{address}#/?runs=one,two")
    table = page.get_by_role("group", name="config").get_by_role("row")
    table.first.wait_for()
    found = [row.replace("\t", " ") for row in table.all_inner_texts()]
    assert found[1:] == ["seed 0 1", "steps 3 6"]


def test_page_follows_a_run_in_progress(page: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "live", steps=2)
    with serve_viewer(RunLibrary([run.folder])) as address:
        page.goto(f"{address}/")
        page.get_by_text("step 2 of 4").wait_for()
        write_step(run, 3)
        page.get_by_text("step 3 of 4").wait_for()
        page.locator(".chart").filter(has_text="Seconds per step").get_by_role("button").click()
        numbers = page.get_by_role("dialog", name="Seconds per step").locator("tbody tr")
        numbers.nth(2).wait_for()
        assert numbers.all_inner_texts() == ["1\t12", "2\t12", "3\t12"]
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")  # a hidden one keeps the focus for a frame


def test_slow_overview_still_appears(page: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(library: RunLibrary, values: RouteParams) -> Any:
        time.sleep(3)
        return overview(library, values)

    monkeypatch.setitem(ROUTES, "/api/overview", slow)
    with serve_viewer(RunLibrary([folder])) as address:
        page.goto(f"{address}/#/episodes/one")
        page.get_by_role("status").filter(has_text="27 episodes").wait_for()


def test_page_follows_new_evaluations(page: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "live", steps=1)
    shutil.rmtree(run.folder / "evaluations")
    write_run_evaluation(run, 0, "base", make_result((0.0,)))
    with serve_viewer(RunLibrary([run.folder])) as address:
        page.goto(f"{address}/#/evaluations")
        page.get_by_role("rowheader", name="base, step 0").wait_for()
        write_run_evaluation(run, 1, "sft", make_result((1.0,)))
        page.get_by_role("rowheader", name="sft, step 1").wait_for()
        page.get_by_role("link", name="live").click()
        page.get_by_role("heading", name="live").wait_for()
        write_run_evaluation(run, 2, "rl", make_result((1.0,)))
        page.get_by_role("rowheader", name="rl, step 2").wait_for()


def test_failed_request_keeps_the_page_and_recovers(page: Any, address: str) -> None:
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
    assert len(listed_tasks(page)) == 27
    page.locator(".facet", has_text="success").click()
    page.get_by_role("status").filter(has_text="12 episodes, 100% successful").wait_for()
    page.get_by_role("searchbox").fill('"no such words at all"')
    page.get_by_text("No episodes match the filters.").wait_for()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("status").filter(has_text="12 episodes").wait_for()
    page.get_by_role("button", name="remove filter outcome success").click()
    page.get_by_role("status").filter(has_text="27 episodes").wait_for()
    page.get_by_role("button", name="reward", exact=True).click()
    page.locator("[aria-sort=descending]", has_text="reward").wait_for()
    expect(page.locator(".rows .tr").first.locator(".c-reward")).to_have_text("1")


def test_keyboard_reaches_episodes_search_and_help(page: Any, address: str) -> None:
    page.goto(f"{address}#/")
    page.get_by_role("heading", name="Success").wait_for()
    page.keyboard.press("e")
    page.wait_for_url("**/#/episodes")
    second = listed_tasks(page)[1]
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
    expect(page.get_by_role("searchbox")).to_have_value("gone")  # going back keeps the filters


def test_long_episode_list_draws_only_visible_rows(page: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "many", steps=0)
    for step in range(1, 5):
        write_numbered_episodes(run.folder, step, range(1000))
    assert numbered_episode(999).task_id == "toy/train/cancel/easy/999"
    with serve_viewer(RunLibrary([run.folder])) as address:
        page.goto(f"{address}/#/episodes")
        page.get_by_role("status").filter(has_text="4,000 episodes, 25% successful").wait_for()
        assert page.locator(".rows .tr").count() < 80, "only what is seen is drawn"
        page.get_by_role("table", name="episodes").evaluate("table => (table.scrollTop = table.scrollHeight)")
        page.get_by_text("cancel/easy/999").wait_for()
        expect(page.locator(".rows .tr").last).to_have_attribute("aria-rowindex", "4001")


def test_hostile_model_text_is_not_executed(page: Any, address: str, folder: Path, tmp_path: Path) -> None:
    export_page(RunLibrary([folder]), tmp_path / "page.html")
    for start in (address, (tmp_path / "page.html").as_uri()):
        for where in ("#/?runs=three", "#/episodes/three"):
            page.goto("about:blank")
            page.goto(start + where)
            page.get_by_text("onerror").first.wait_for()
            assert page.locator("img").count() == 0
            assert "taken" not in page.title()


def test_exported_file_works_offline(page: Any, folder: Path, tmp_path: Path) -> None:
    export_page(RunLibrary([folder]), tmp_path / "page.html", max_episodes=30)
    page.context.set_offline(True)
    page.goto((tmp_path / "page.html").as_uri())
    page.get_by_role("heading", name="Success").wait_for()
    page.keyboard.press("e")
    assert len(listed_tasks(page)) == 10
    page.get_by_text("This file is incomplete").click()
    lines = page.locator(".left-out li").all_inner_texts()
    expected = [[run, count, "10"] for run, count in (("one", "27"), ("three", "12"), ("two", "27"))]
    assert [re.findall(r"^\w+|\d+", line) for line in lines] == expected
    page.locator(".facet", has_text="failure").click()
    page.get_by_role("status").filter(has_text="4 episodes, 0% successful").wait_for()
    page.get_by_role("button", name="turns").click()
    page.locator("[aria-sort=descending]", has_text="turns").wait_for()
    assert len(listed_tasks(page)) == 4


@pytest.mark.parametrize(("theme", "width"), [("light", 1300), ("dark", 390)])
@pytest.mark.parametrize("where", ["#/", "#/?runs=one", "#/episodes/one?family=cancel"])
def test_page_passes_accessibility_checks(page: Any, address: str, theme: str, width: int, where: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address + where)
    if "episodes" in where:
        listed_tasks(page)
    else:
        page.get_by_text("Seconds per step").first.wait_for()
    assert accessibility_problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the window"


def test_theme_survives_a_reload(page: Any, address: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address)
    page.get_by_role("heading", name="Success").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("t")
    page.keyboard.press("t")
    page.reload()
    page.get_by_role("heading", name="Success").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def chart_label(page: Any, title: str) -> str:
    image = page.get_by_role("img", name=re.compile(f"^{title}\\."))
    image.wait_for()
    return str(image.get_attribute("aria-label"))


def test_states_of_runs_are_told_apart(page: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "a-finished", steps=1, finished=True)
    live, stopped, crashed = (make_run(tmp_path / name, steps=1) for name in ("b-live", "c-stopped", "d-crashed"))
    with pytest.raises(KeyboardInterrupt), StatusRecorder(stopped.folder, 1):
        raise KeyboardInterrupt("stopped after step 1")
    with pytest.raises(ValueError, match="odd"), StatusRecorder(crashed.folder, 1):
        raise ValueError(f"odd {HOSTILE}")
    with (
        serve_viewer(RunLibrary([tmp_path])) as address,
        folder_lock(live.folder),
        StatusRecorder(live.folder, 1) as status,
    ):
        page.goto(f"{address}/#/?runs=b-live")
        rows = page.locator(".list li")
        expect(rows.locator("b")).to_have_text(["finished", "running", "stopped", "crashed"])
        expect(rows.nth(3)).to_contain_text("ValueError: odd <img")
        progress = page.get_by_role("group", name="progress")
        expect(progress).to_contain_text("RL, step 2 of 2")
        expect(progress).to_contain_text("starting")
        status.report("sample", 5, 8, {})
        expect(progress).to_contain_text("playing episodes: 5 of 8")
        status.report("evaluate step 2", 1, 20, {})
        expect(progress).to_contain_text("evaluating step 2: 1 of 20")
        page.goto(f"{address}/#/?runs=d-crashed")
        expect(page.locator(".head .problem")).to_have_text(f"ValueError: odd {HOSTILE}")
        page.goto(f"{address}/#/?runs=c-stopped")
        expect(page.locator(".head .warned")).to_have_text("stopped after step 1")
        page.get_by_role("searchbox", name="find runs").fill("crashed")
        expect(rows.locator(".dot + .name")).to_have_text(["d-crashed"])
        page.wait_for_url("**&find=crashed")
        assert accessibility_problems(page) == []


def test_phases_are_marked_and_their_losses_are_apart(page: Any, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="light")
    run = Run.create(tmp_path / "run", TrainConfig(sft={"steps": 3}, steps=60))
    for step in range(1, 61):
        values = {"train/loss": 5.0 if step <= 3 else 0.01, "train/entropy": 2.0 if step <= 3 else 1.0}
        run.log_metrics(step, values | ({"test/lonely": 7.0} if step == 30 else {}))
    with serve_viewer(RunLibrary([run.folder])) as address:
        page.goto(f"{address}/")
        label = "first 5, last 5, minimum 5, maximum 5; SFT: steps 1 to 3; RL: steps 4 to 63"
        assert label in chart_label(page, "SFT loss")
        assert "first 0.01, last 0.01" in chart_label(page, "RL loss")
        entropy = page.locator(".chart").filter(has=page.get_by_role("heading", name="Entropy", exact=True))
        assert color_is_drawn(entropy.locator("canvas"), [36, 86, 201])
        jump = entropy.locator("canvas").evaluate(COUNT_ROWS_BETWEEN, [36, 86, 201])
        assert jump < 5, "no line connects the phases"
        page.get_by_role("searchbox", name="find a metric").fill("lonely")
        assert color_is_drawn(page.locator(".chart canvas"), [36, 86, 201], 8), "one value is a dot"
        page.get_by_role("slider").fill("0.5")
        page.wait_for_url("**?metric=lonely&smooth=0.5")
        page.reload()
        expect(page.locator(".chart h3")).to_have_text(["test/lonely"])
        expect(page.get_by_role("slider")).to_have_value("0.5")


COUNT_ROWS_BETWEEN = """(canvas, ink) => {
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  const far = (at) => ink.reduce((sum, value, i) => sum + Math.abs(data[at + i] - value), 0);
  const drawn = (at) => data[at + 3] > 200 && far(at) < 12;
  let rows = 0;
  for (let y = Math.round(0.35 * height); y < 0.65 * height; y++)
    for (let x = 0; x < width; x++) if (drawn(4 * (y * width + x))) { rows++; break; }
  return rows;
}"""


def test_notes_and_tags_are_edited_shown_and_filtered(page: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_run(tmp_path / name, steps=1)
    with serve_viewer(RunLibrary([tmp_path])) as address:
        page.goto(f"{address}/#/?runs=one")
        page.get_by_role("button", name="add a note or tags").click()
        page.get_by_label("Note", exact=True).fill(f"the best {HOSTILE}")
        page.get_by_role("textbox", name="Tags").fill("keep, a b, ")
        assert accessibility_problems(page) == []
        page.get_by_role("button", name="save").click()
        notes = page.get_by_role("region", name="note and tags")
        expect(notes.locator(".tag")).to_have_text(["keep", "a b"])
        expect(notes).to_contain_text(f"the best {HOSTILE}")
        expect(page.locator(".list li").first.locator(".tag")).to_have_text(["keep", "a b"])
        page.get_by_role("searchbox", name="find runs").fill("keep")
        expect(page.locator(".list .dot + .name")).to_have_text(["one"])
        assert (tmp_path / "one" / "notes.jsonl").read_text().count("\n") == 1

        page.goto(f"{address}/#/episode/one/1/2")
        page.get_by_role("button", name="add a note or tags").click()
        page.get_by_role("textbox", name="Tags").fill("x" * 41)
        page.get_by_role("button", name="save").click()
        page.get_by_role("alert").wait_for()
        page.get_by_role("textbox", name="Tags").fill("odd")
        page.get_by_role("textbox", name="Tags").press("Enter")
        expect(page.locator(".notes .tag")).to_have_text(["odd"])
        page.get_by_role("button", name="next").click()
        expect(page.locator(".notes .tag")).to_have_count(0)
        page.goto(f"{address}/#/episodes/one?tag=odd")
        assert len(listed_tasks(page)) == 1
        expect(page.locator(".rows .tag", has_text="odd")).to_be_visible()
        assert accessibility_problems(page) == []
        export_page(RunLibrary([tmp_path]), tmp_path / "page.html")
        page.goto("about:blank")  # the page asks the server for news, which is an error after its end
    page.goto((tmp_path / "page.html").as_uri() + "#/episodes/one?tag=odd")
    assert len(listed_tasks(page)) == 1
    page.locator(".c-task a").click()
    expect(page.locator(".notes .tag")).to_have_text(["odd"])
    expect(page.get_by_role("button", name="edit note and tags")).to_have_count(0)
    page.context.clear_cookies()


def test_back_button_undoes_filters_and_links_reproduce_the_list(page: Any, address: str) -> None:
    page.goto(f"{address}#/episodes/one")
    listed_tasks(page)
    page.locator(".facet", has_text="success").click()
    page.get_by_role("status").filter(has_text="12 episodes").wait_for()
    page.get_by_role("button", name="turns").click()
    page.locator("[aria-sort=descending]", has_text="turns").wait_for()
    tasks = listed_tasks(page)
    page.reload()
    page.get_by_role("status").filter(has_text="12 episodes").wait_for()
    expect(page.locator(".rows .c-task a").first).to_contain_text(tasks[0].rpartition("/")[2])
    page.go_back()
    page.locator("[aria-sort=descending]", has_text="step").wait_for()
    page.go_back()
    page.get_by_role("status").filter(has_text="27 episodes").wait_for()
    page.go_forward()
    page.get_by_role("status").filter(has_text="12 episodes").wait_for()
    page.goto(f"{address}#/?runs=one,two")
    page.get_by_role("button", name="only two").click()
    page.get_by_role("heading", name="two", exact=True).wait_for()
    page.go_back()
    page.get_by_role("heading", name="2 runs").wait_for()


def test_hardest_tasks_link_to_their_episodes_and_faults_are_listed(page: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    shutil.rmtree(run.folder / "evaluations")
    episodes = play_episodes(count=2)
    result = summarize_episodes(load_source("retail"), shop_tasks(0, 2), episodes, 2, 0)
    write_run_evaluation(run, 1, "rl", result.replace(fault_counts={"user": 1}), episodes=episodes)
    with serve_viewer(RunLibrary([run.folder])) as address:
        page.goto(f"{address}/#/evaluations")
        expect(page.get_by_role("row", name=re.compile("rl, step 1"))).to_contain_text("user 1")
        page.goto(f"{address}/#/evaluations/run")
        links = page.locator(".hardest a")
        expect(links).to_have_count(4)
        assert accessibility_problems(page) == []
        links.nth(1).click()
        page.wait_for_url(re.compile(r"#/episode/run/000001%20rl/\d$"))
        page.get_by_role("tab", name="Conversation").wait_for()


def test_without_runs_evaluations_open_and_list_the_families_of_all_agents(page: Any, tmp_path: Path) -> None:
    base = ResultRow(name="base", result=make_result((1.0,), families="a"))
    trained = ResultRow(name="trained", result=make_result((1.0,), (0.0,), families="ab"))
    (tmp_path / "first").mkdir()
    write_report(tmp_path / "first", EvalReport(rows=(trained, base)))
    with serve_viewer(RunLibrary([tmp_path])) as address:
        page.goto(f"{address}/")
        page.wait_for_url(re.compile("#/evaluations$"))
        expect(page.locator(".card")).to_contain_text("2 tasks")
        page.get_by_role("link", name="first").click()
        families = page.locator(".groups tbody th")
        expect(families.filter(has_text=re.compile("^a$"))).to_have_count(1)
        expect(families.filter(has_text=re.compile("^b$"))).to_have_count(1)


def test_list_of_runs_has_training_and_held_out_success_and_dots_have_a_legend(page: Any, address: str) -> None:
    page.goto(address)
    listed = page.get_by_role("complementary", name="runs").get_by_role("listitem")
    expect(listed.filter(has_text="one")).to_contain_text("training success 50%, held-out 0%")
    expect(page.locator(".chart", has_text="dots: evaluations on held-out tasks")).to_have_count(1)


def test_charts_can_show_the_steps_of_one_phase(page: Any, tmp_path: Path) -> None:
    config = TrainConfig.model_validate({"sft": {"steps": 2}, "steps": 2})
    run = Run.create(tmp_path / "run", config)
    for step, entropy in enumerate((9.0, 8.0, 0.5, 0.25), 1):
        run.log_metrics(step, {"train/entropy": entropy})
    with serve_viewer(RunLibrary([run.folder])) as address:
        page.goto(f"{address}/")
        chart = page.get_by_role("img", name=re.compile("^Entropy"))
        expect(chart).to_have_attribute("aria-label", re.compile("first 9, last 0.25"))
        page.get_by_role("combobox", name="phase").select_option("RL")
        expect(chart).to_have_attribute("aria-label", re.compile("first 0.5, last 0.25"))


def test_seeds_of_one_setting_are_one_line_with_a_band(page: Any, tmp_path: Path) -> None:
    for seed in (0, 1):
        run = Run.create(tmp_path / f"a-seed{seed}", TrainConfig(seed=seed, steps=2, sft={"steps": 0}))
        for step in (1, 2):
            run.log_metrics(step, {"rollout/reward": step / 10 + seed / 2})
        write_run_evaluation(run, 2, "rl", make_result((1.0,), (float(seed),)))
        write_run_report(read_run_report(run.folder), run)
    Run.create(tmp_path / "b-seed0", TrainConfig(steps=3))
    page.emulate_media(color_scheme="light")
    with serve_viewer(RunLibrary([tmp_path])) as address:
        page.goto(f"{address}/#/?runs=a-seed0,a-seed1")
        reward = page.get_by_role("img", name=re.compile("^Reward"))
        expect(reward).to_have_attribute("aria-label", re.compile("a, 2 seeds: first 0.35, last 0.45"))
        chart = page.locator(".chart").filter(has_text="Reward").locator("canvas")
        assert color_is_drawn(chart, [36, 86, 201])
        rows = page.get_by_role("region", name="results").locator("tbody tr")
        expect(rows).to_have_text([re.compile(r"a, 2 seeds\s*rl\s*75% \[50%, 100%\]\s*2")])
        listed = page.get_by_role("complementary", name="runs")
        expect(listed).to_contain_text("seeds 0, 1")
        assert accessibility_problems(page) == []
        page.get_by_role("checkbox", name="mean of seeds").uncheck()
        expect(reward).to_have_attribute("aria-label", re.compile("a-seed0: first 0.1.*a-seed1: first 0.6", re.DOTALL))
        expect(rows).to_have_count(2)
        assert "seeds=apart" in page.url
        listed.get_by_role("checkbox", name="a-seed1", exact=True).uncheck()
        expect(listed.get_by_role("status")).to_contain_text("1 of 3 runs shown")
        listed.get_by_role("checkbox", name="a", exact=True).check()
        expect(listed.get_by_role("status")).to_contain_text("2 of 3 runs shown")


def test_causes_of_failures_are_a_column_and_a_filter(page: Any, address: str) -> None:
    page.goto(f"{address}#/episodes/one")
    page.get_by_role("button", name="user_fault").click()
    expect(page.locator(".rows .c-cause")).to_have_text(["user_fault"] * 3)
    assert "cause=user_fault" in page.url


def test_conversations_of_a_log_are_listed_and_opened(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDERSTUDY_CACHE", cache_without_indexes(tmp_path))
    said = {"role": "assistant", "content": "Hello, Ann."}
    choice = {"index": 0, "message": said, "finish_reason": "stop", "token_ids": [3], "token_logprobs": [-0.5]}
    asked = {"messages": [{"role": "user", "content": "I am Ann."}], "tools": [], "prompt_token_ids": [1, 2]}
    log = tmp_path / "served.jsonl"
    log.write_text(json.dumps({"created": 1, "model": "tiny", **asked, "choices": [choice]}) + "\n")
    with serve_viewer(RunLibrary([open_request_log(log)])) as address:
        page.goto(f"{address}/#/evaluations/served")
        expect(page.get_by_role("heading", name="1 conversation")).to_be_visible()
        assert accessibility_problems(page) == []
        page.get_by_role("link", name="served/1").click()
        expect(page.get_by_text("Hello, Ann.")).to_be_visible()


def test_many_events_are_counted_instead_of_cut(page: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    [episode] = play_episodes(count=1)[:1]
    episode.event_counts.update({"first": 1, "second": 1, "third": 1, "a long name of an event" * 5: 1})
    run.save_groups(1, make_groups([episode], shop_tasks(0, 1)))
    with serve_viewer(RunLibrary([run.folder])) as address:
        page.goto(f"{address}/#/episodes")
        more = page.locator(".rows .c-events .more")
        expect(more).to_have_text("+2")
        cell, last = page.locator(".rows .c-events").bounding_box(), more.bounding_box()
        assert last["x"] + last["width"] <= cell["x"] + cell["width"]
