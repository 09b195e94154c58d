"""Test the viewer's episode and evaluation pages in Chromium, and that hostile texts are not executed."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.browser import accessibility_problems, expect, switch_theme
from support.run_evaluations import write_run_evaluation
from support.script import Script
from support.viewer_episodes import ASK, LAMP, TASK, call_reply, gold_episode, play, write_evaluation
from support.viewing import serve_viewer
from toy import DOMAIN as TOY
from understudy.core.messages import Message, ToolCall
from understudy.core.trajectory import Trajectory
from understudy.evaluation.reports.files import read_report
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import EpisodeLimits
from understudy.runs.config import AlgorithmConfig, TrainConfig
from understudy.runs.run import Run
from understudy.runs.storage.trained_episodes import EpisodeTrainingData
from understudy.viewer.export import export_page
from understudy.viewer.library import RunLibrary

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]

SCRIPT = """</script><script>document.title='taken'</script><img src=x onerror="document.title='taken'">"""
HOSTILE = f"{SCRIPT}\u202e gnitirw desrever \x00\x07\x1b[31m\u200b\ufeff\ufffd" + "\n" * 300 + "A" * 100_000
EPISODES = {"gold": 1, "wrote": 2, "cut": 3, "hostile": 4, "fault": 5}


def hostile_episode() -> Trajectory:
    """Return an episode in which every text is an attack."""
    reply = Message(
        role="assistant",
        content=HOSTILE,
        tool_calls=(
            ToolCall(name=SCRIPT, arguments={SCRIPT: HOSTILE}, id="a"),
            ToolCall(name=SCRIPT, parse_error=HOSTILE, id="b"),
        ),
    )
    episode = play(TOY, TASK, Script(Message(role="assistant", content=HOSTILE), reply, call_reply(lamp_id=HOSTILE)))
    episode.event_counts[SCRIPT] = 1
    episode.timings[SCRIPT] = 1.0
    return episode


def run_in_thread(work: Callable[..., Any], *values: Any) -> Any:
    """Run `work` in another thread; Playwright's thread has a running event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *values).result()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = run_in_thread(
        write_run_and_evaluations, tmp_path_factory.mktemp("SATURN")
    )  # the name contains TURN, the placeholder of a fork command
    return folder


def write_run_and_evaluations(folder: Path) -> Path:
    """Write a run with every kind of episode and two evaluations."""
    config = TrainConfig(domain="toy:DOMAIN", model="tiny", algorithm=AlgorithmConfig(group_size=5, groups_per_batch=1))
    run = Run.create(folder / "run", config)
    switched = Script(ASK, call_reply(lamp_id="L0", on=True), Message(role="assistant", content="Done."))
    cut = play(TOY, TASK, Script(ASK, call_reply(lamp_id=LAMP)), limits=EpisodeLimits(max_turns=2))
    fault = Trajectory(TASK.id, "toy", fault="engine", error=SCRIPT, messages=[Message(role="user", content="Hi.")])
    played = [gold_episode(), play(TOY, TASK, switched), cut, hostile_episode(), fault]
    run.save_groups(4, [Group(TASK, played)])
    logprobs = (-0.5,) * sum(played[0].mask)
    run.save_trained_episodes(4, [EpisodeTrainingData(number=1, reward=1.0, advantages=(0.5,), logprobs=logprobs)])
    write_evaluation(folder / "gold", GoldAgent(), "gold")
    write_evaluation(folder / "mute", Script(ASK), SCRIPT)
    write_run_evaluation(run, 4, "rl", read_report(folder / "gold").rows[-1].result, [gold_episode(), cut], [TASK])
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serve_viewer(RunLibrary([folder])) as found:
        yield f"{found}/#/"


def open_episode(page: Any, address: str, name: str, tab: str = "") -> None:
    page.goto(f"{address}episode/run/4/{EPISODES[name]}{f'?tab={tab}' if tab else ''}")
    page.get_by_role("tab", name=tab or "conversation", selected=True).wait_for()
    wait_for_episode(page, EPISODES[name])


def wait_for_episode(page: Any, number: int) -> None:
    """Wait until the episode is loaded; until then the page shows the previous one."""
    page.locator(".episode header").get_by_text(f"step 4, episode {number}").wait_for()
    page.locator("[aria-busy]").wait_for(state="detached")


def test_failed_episode_shows_cause_goal_and_changes(page: Any, address: str) -> None:
    open_episode(page, address, "wrote")
    why = page.get_by_role("region", name="result", exact=True)
    assert "The agent" in why.inner_text()
    assert "state_match 0" in why.inner_text()
    goal = page.locator(".goal .changes").last.inner_text()
    assert f"lamps/{LAMP}/on" in goal.replace("\n", "")
    changed = page.locator(".message.assistant .changes").inner_text().replace("\n", "")
    assert "lamps/L0/on" in changed
    why.get_by_role("button", name=re.compile("turn")).first.click()
    page.wait_for_function("document.activeElement.classList.contains('cause')")


def test_tool_calls_expand_to_arguments_and_result(page: Any, address: str) -> None:
    open_episode(page, address, "wrote")
    made = page.locator("details.call").first
    assert "switch_lamp" in made.inner_text()
    assert not made.locator("dl").is_visible()
    page.keyboard.press("o")
    made.locator("dl").wait_for()
    assert '"lamp_id": "L0"' in made.locator("dd").first.inner_text()
    assert '"room": "room0"' in made.locator("dd").last.inner_text()


def test_keyboard_moves_between_episodes_turns_and_tabs(page: Any, address: str) -> None:
    open_episode(page, address, "gold")
    page.keyboard.press("n")
    page.keyboard.press("n")
    page.wait_for_function("document.activeElement.dataset.turn === '2'")
    page.keyboard.press("p")
    page.wait_for_function("document.activeElement.dataset.turn === '1'")
    page.keyboard.press("j")
    page.wait_for_url("**/episode/run/4/2")
    wait_for_episode(page, 2)
    page.keyboard.press("2")
    page.get_by_role("tabpanel", name=re.compile("Tokens")).wait_for()
    page.keyboard.press("k")
    page.wait_for_url("**/episode/run/4/1?tab=tokens")
    wait_for_episode(page, 1)
    page.keyboard.press("ArrowRight")
    page.get_by_role("tab", name=re.compile("Tokens")).focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("tabpanel", name=re.compile("Group")).wait_for()


def test_tokens_show_id_and_logprob(page: Any, address: str) -> None:
    open_episode(page, address, "gold", "tokens")
    page.get_by_role("button", name=re.compile("^▾ turn 1: ")).wait_for()
    text = r"position %s, id \d+ .*, sampled, log-probability 0.00000 \(100.00%%\)"
    sampled = page.locator(".sampled .t")
    places = [sampled.nth(i).get_attribute("data-t") for i in range(2)]
    for key, place in ((".", places[0]), (".", places[1]), (",", places[0])):
        page.keyboard.press(key)
        expect(page.locator(".picked")).to_contain_text(re.compile(text % place))
        expect(page.locator(".t.at")).to_have_attribute("data-t", place)
    sampled.nth(1).hover()
    expect(page.locator(".picked")).to_contain_text(re.compile(text % places[1]))
    open_episode(page, address, "wrote", "tokens")
    page.get_by_text("this episode has no tokens").wait_for()


def test_group_shows_where_its_episodes_diverge(page: Any, address: str) -> None:
    open_episode(page, address, "gold", "group")
    page.get_by_role("region", name="episodes of the group").wait_for()
    expect(page.locator("table.group thead th")).to_have_count(6)
    expect(page.locator("td.parts")).to_have_count(4)
    page.get_by_role("link", name="episode 3").click()
    page.wait_for_url("**/episode/run/4/3?tab=group")


def test_fork_button_shows_the_play_command(page: Any, address: str, folder: Path) -> None:
    open_episode(page, address, "cut")
    page.get_by_role("button", name="fork").nth(1).click()
    assert page.locator(".command code").inner_text() == f"understudy play {folder / 'run'} --fork 4/3@2"


def test_hostile_episode_text_is_not_executed(page: Any, address: str, folder: Path, tmp_path: Path) -> None:
    run_in_thread(export_page, RunLibrary([folder]), tmp_path / "page.html")
    for start in (address, f"{(tmp_path / 'page.html').as_uri()}#/"):
        for tab in ("tokens", "group", ""):
            page.goto("about:blank")
            open_episode(page, start, "hostile", tab)
            assert page.locator("img, main script").count() == 0
            assert "taken" not in page.title()
        page.get_by_text("onerror").first.wait_for()
        page.keyboard.press("o")
        page.locator(".odd", has_text="U+FEFF").first.wait_for()
        assert {"U+202E", "U+0000", "U+0007", "U+001B", "U+200B", "U+FEFF"} <= set(
            page.locator(".odd").all_inner_texts()
        )
        assert len(page.locator("main").inner_text()) < 200_000, "what is long is cut"
        page.get_by_role("button", name=re.compile("show all 100,4")).first.click()
        page.get_by_role("button", name="show less").first.wait_for()
        open_episode(page, start, "fault")
        assert "onerror" in page.get_by_role("region", name="result", exact=True).inner_text()


def test_evaluation_links_failure_causes_to_episodes(page: Any, address: str) -> None:
    page.goto(f"{address}evaluations")
    page.get_by_role("link", name="mute").click()
    page.get_by_role("heading", name="Why 8 episodes failed").wait_for()
    expect(page.locator(".failures a")).to_have_count(8)
    tasks = [text.split()[0] for text in page.locator(".failures li").all_inner_texts()]
    assert len(set(tasks)) == len(tasks), "equal failures of one task are one entry"
    assert page.locator("img").count() == 0
    cause = page.locator(".causes button").first
    cause.click()
    expect(cause).to_have_attribute("aria-pressed", "true")
    page.locator(".failures a").first.click()
    page.wait_for_url("**/episode/mute/eval/*")
    page.get_by_role("region", name="result", exact=True).wait_for()
    page.keyboard.press("u")
    page.wait_for_url("**/evaluations/mute")


def test_run_page_shows_why_its_episodes_failed(page: Any, address: str) -> None:
    page.goto(f"{address}?runs=run")
    page.get_by_role("link", name="evaluations", exact=True).click()
    page.get_by_role("heading", name="Why 1 episode failed").wait_for()
    page.locator(".failures a").first.click()
    page.wait_for_url("**/episode/run/000004%20rl/2")
    page.get_by_role("region", name="result", exact=True).wait_for()
    page.keyboard.press("u")
    page.wait_for_url("**/evaluations/run?of=000004+rl")
    page.get_by_label("Episodes of").select_option("training, step 4")
    page.get_by_role("heading", name="Why 4 episodes failed").wait_for()
    assert page.locator("img").count() == 0


def test_exported_file_contains_evaluations_and_tokens(page: Any, folder: Path, tmp_path: Path) -> None:
    run_in_thread(export_page, RunLibrary([folder]), tmp_path / "page.html")
    start = f"{(tmp_path / 'page.html').as_uri()}#/"
    page.context.set_offline(True)
    page.goto(f"{start}evaluations/gold?new=1@gold&old=2@mute")
    page.get_by_text("+100.0 points").wait_for()
    page.goto(f"{start}evaluations/mute")
    page.get_by_role("heading", name="Why 8 episodes failed").wait_for()
    page.locator(".failures a").first.click()
    page.get_by_role("region", name="result", exact=True).wait_for()
    open_episode(page, start, "gold")
    page.keyboard.press("r")
    page.get_by_text("sampled text").first.wait_for()
    open_episode(page, start, "gold", "tokens")
    page.get_by_label("colour by").select_option("apart")
    page.get_by_label("colour by").select_option("advantage")
    assert page.locator(".tokens .t.s.g2").count() == sum(run_in_thread(gold_episode).mask)


def test_comparison_of_two_evaluations_shows_gain_and_tasks(page: Any, address: str) -> None:
    page.goto(f"{address}evaluations/gold?new=1@gold&old=2@mute")
    page.get_by_text("+100.0 points").wait_for()
    page.get_by_text("better on 4 tasks, worse on 0, equal on 0").click()
    expect(page.locator(".compare tbody tr")).to_have_count(4)
    page.get_by_label("k", exact=True).select_option("2")
    page.wait_for_url("**k=2*")


@pytest.mark.parametrize("width", [1300, 390])
@pytest.mark.parametrize(
    "where",
    [
        "episode/run/4/2",
        "episode/run/4/1?tab=tokens",
        "episode/run/4/4?tab=group",
        "evaluations/mute",
        "evaluations/run",
    ],
)
def test_episode_and_evaluation_pages_pass_accessibility_checks(
    page: Any, address: str, width: int, where: str
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address + where)
    page.locator("main h1").wait_for()
    page.locator("[aria-busy]").wait_for(state="detached")
    if "?" not in where and "episode" in where:
        page.keyboard.press("o")
        page.get_by_role("button", name="fork").first.click()
    for theme in ("light", "dark"):
        switch_theme(page, theme)
        assert accessibility_problems(page) == [], theme
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the window"
