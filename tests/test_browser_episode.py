"""The pages of episodes and evaluations in a real Chromium: what a reader sees, and that hostile texts are text."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from browser import accessibility, expect
from script import Script
from test_browser import chromium, page  # noqa: F401  # fixtures
from test_viewer_episode import ASK, LAMP, TASK, call, demonstration, evaluated, played
from toy import DOMAIN as TOY
from understudy.agent import GoldAgent
from understudy.config import Algorithm, TrainConfig
from understudy.messages import Message, ToolCall
from understudy.outcome import read
from understudy.rollout import Limits
from understudy.run import Run
from understudy.trajectory import Trajectory
from understudy.viewer.export import export
from understudy.viewer.library import Library
from viewing import served

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]

SCRIPT = """</script><script>document.title='taken'</script><img src=x onerror="document.title='taken'">"""
HOSTILE = f"{SCRIPT}\u202e gnitirw desrever \x00\x07\x1b[31m\u200b\ufeff\ufffd" + "\n" * 300 + "A" * 100_000
EPISODES = {"gold": 1, "wrote": 2, "cut": 3, "hostile": 4, "fault": 5}


def hostile() -> Trajectory:
    """An episode whose every text means harm."""
    reply = Message(
        role="assistant",
        content=HOSTILE,
        tool_calls=(
            ToolCall(name=SCRIPT, arguments={SCRIPT: HOSTILE}, id="a"),
            ToolCall(name=SCRIPT, malformed=HOSTILE, id="b"),
        ),
    )
    episode = played(TOY, TASK, Script(Message(role="assistant", content=HOSTILE), reply, call(lamp_id=HOSTILE)))
    episode.counts[SCRIPT] = 1
    episode.seconds[SCRIPT] = 1.0
    return episode


def elsewhere(work: Callable[..., Any], *values: Any) -> Any:
    """What is done in a thread of its own: Playwright's has an event loop that runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *values).result()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = elsewhere(shelf, tmp_path_factory.mktemp("SATURN"))  # it has a TURN
    return folder


def shelf(folder: Path) -> Path:
    """A run with episodes of all kinds, and two evaluations."""
    config = TrainConfig(domain="toy:DOMAIN", model="tiny", algorithm=Algorithm(group_size=5, tasks_per_step=1))
    run = Run.create(folder / "run", config)
    switched = Script(ASK, call(lamp_id="L0", on=True), Message(role="assistant", content="Done."))
    cut = played(TOY, TASK, Script(ASK, call(lamp_id=LAMP)), limits=Limits(max_turns=2))
    fault = Trajectory(TASK.id, "toy", fault="engine", error=SCRIPT, messages=[Message(role="user", content="Hi.")])
    run.keep(4, [demonstration(), played(TOY, TASK, switched), cut, hostile(), fault])
    evaluated(folder / "gold", GoldAgent(), "gold")
    evaluated(folder / "mute", Script(ASK), SCRIPT)
    run.write("evaluations/000004 trained.json", read(folder / "gold").rows[-1].evaluation.model_dump_json())
    run.keep_evaluation("000004 trained", [demonstration(), cut])
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(Library([folder])) as found:
        yield f"{found}/#/"


def opened(page: Any, address: str, name: str, tab: str = "") -> None:  # noqa: F811
    page.goto(f"{address}episode/run/4/{EPISODES[name]}{f'?tab={tab}' if tab else ''}")
    page.get_by_role("tab", name=tab or "conversation", selected=True).wait_for()
    showing(page, EPISODES[name])


def showing(page: Any, number: int) -> None:  # noqa: F811
    """Wait until an episode is shown whole: what one comes from stays until then."""
    page.locator(".episode header").get_by_text(f"step 4, episode {number}").wait_for()
    page.locator("[aria-busy]").wait_for(state="detached")


def test_one_sees_why_an_episode_failed(page: Any, address: str) -> None:  # noqa: F811
    opened(page, address, "wrote")
    why = page.get_by_role("region", name="why", exact=True)
    assert "The agent" in why.inner_text()
    assert "state 0" in why.inner_text()
    goal = page.locator(".goal .changes").last.inner_text()
    assert f"lamps/{LAMP}/on" in goal.replace("\n", "")
    changed = page.locator(".message.assistant .changes").inner_text().replace("\n", "")
    assert "lamps/L0/on" in changed
    why.get_by_role("button", name=re.compile("turn")).first.click()
    page.wait_for_function("document.activeElement.classList.contains('cause')")


def test_calls_unfold_to_arguments_and_result(page: Any, address: str) -> None:  # noqa: F811
    opened(page, address, "wrote")
    made = page.locator("details.call").first
    assert "switch_lamp" in made.inner_text()
    assert not made.locator("dl").is_visible()
    page.keyboard.press("o")
    made.locator("dl").wait_for()
    assert '"lamp_id": "L0"' in made.locator("dd").first.inner_text()
    assert '"room": "room0"' in made.locator("dd").last.inner_text()


def test_the_keyboard_walks_through_episodes_and_turns(page: Any, address: str) -> None:  # noqa: F811
    opened(page, address, "gold")
    page.keyboard.press("n")
    page.keyboard.press("n")
    page.wait_for_function("document.activeElement.dataset.turn === '2'")
    page.keyboard.press("p")
    page.wait_for_function("document.activeElement.dataset.turn === '1'")
    page.keyboard.press("j")
    page.wait_for_url("**/episode/run/4/2")
    showing(page, 2)
    page.keyboard.press("2")
    page.get_by_role("tabpanel", name=re.compile("Tokens")).wait_for()
    page.keyboard.press("k")
    page.wait_for_url("**/episode/run/4/1?tab=tokens")
    showing(page, 1)
    page.keyboard.press("ArrowRight")
    page.get_by_role("tab", name=re.compile("Tokens")).focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("tabpanel", name=re.compile("Group")).wait_for()


def test_tokens_tell_their_id_and_probability(page: Any, address: str) -> None:  # noqa: F811
    opened(page, address, "gold", "tokens")
    page.get_by_role("button", name=re.compile("^▾ turn 1: ")).wait_for()
    told = r"place %s, id \d+ .*, sampled, log-probability 0.00000 \(100.00%%\)"
    sampled = page.locator(".sampled .t")
    places = [sampled.nth(i).get_attribute("data-t") for i in range(2)]
    for key, place in ((".", places[0]), (".", places[1]), (",", places[0])):
        page.keyboard.press(key)
        expect(page.locator(".picked")).to_contain_text(re.compile(told % place))
        expect(page.locator(".t.at")).to_have_attribute("data-t", place)
    sampled.nth(1).hover()
    expect(page.locator(".picked")).to_contain_text(re.compile(told % places[1]))
    opened(page, address, "wrote", "tokens")
    page.get_by_text("this episode has no tokens").wait_for()


def test_a_group_shows_where_its_episodes_part(page: Any, address: str) -> None:  # noqa: F811
    opened(page, address, "gold", "group")
    page.get_by_role("region", name="episodes of the group").wait_for()
    expect(page.locator("table.group thead th")).to_have_count(6)
    expect(page.locator("td.parts")).to_have_count(4)
    page.get_by_role("link", name="episode 3").click()
    page.wait_for_url("**/episode/run/4/3?tab=group")


def test_a_fork_is_a_command_to_copy(page: Any, address: str, folder: Path) -> None:  # noqa: F811
    opened(page, address, "cut")
    page.get_by_role("button", name="fork").nth(1).click()
    assert page.locator(".command code").inner_text() == f"understudy play {folder / 'run'} --fork 4/3@2"


def test_what_a_model_wrote_is_text(page: Any, address: str, folder: Path, tmp_path: Path) -> None:  # noqa: F811
    elsewhere(export, Library([folder]), tmp_path / "page.html")
    for start in (address, f"{(tmp_path / 'page.html').as_uri()}#/"):
        for tab in ("", "tokens", "group"):
            page.goto("about:blank")
            opened(page, start, "hostile", tab)
            assert page.locator("img, main script").count() == 0
            assert "taken" not in page.title()
        page.goto("about:blank")
        opened(page, start, "hostile")
        page.get_by_text("onerror").first.wait_for()
        page.keyboard.press("o")
        page.locator(".odd", has_text="U+FEFF").first.wait_for()
        assert {"U+202E", "U+0000", "U+0007", "U+001B", "U+200B", "U+FEFF"} <= set(
            page.locator(".odd").all_inner_texts()
        )
        assert len(page.locator("main").inner_text()) < 200_000, "what is long is cut"
        page.get_by_role("button", name=re.compile("show all 100,4")).first.click()
        page.get_by_role("button", name="show less").first.wait_for()
        opened(page, start, "fault")
        assert "onerror" in page.get_by_role("region", name="why", exact=True).inner_text()


def test_an_evaluation_leads_from_causes_to_episodes(page: Any, address: str) -> None:  # noqa: F811
    page.goto(f"{address}evaluations")
    page.get_by_role("link", name="mute").click()
    page.get_by_role("heading", name="Why 8 episodes failed").wait_for()
    assert page.locator("img").count() == 0
    cause = page.locator(".causes button").first
    cause.click()
    expect(cause).to_have_attribute("aria-pressed", "true")
    page.locator(".failures a").first.click()
    page.wait_for_url("**/episode/mute/eval/*")
    page.get_by_role("region", name="why", exact=True).wait_for()
    page.keyboard.press("u")
    page.wait_for_url("**/evaluations/mute")


def test_a_run_says_why_its_episodes_failed(page: Any, address: str) -> None:  # noqa: F811
    page.goto(f"{address}?runs=run")
    page.get_by_role("link", name="evaluations", exact=True).click()
    page.get_by_role("heading", name="Why 1 episode failed").wait_for()
    page.locator(".failures a").first.click()
    page.wait_for_url("**/episode/run/000004%20trained/2")
    page.get_by_role("region", name="why", exact=True).wait_for()
    page.keyboard.press("u")
    page.wait_for_url("**/evaluations/run?of=000004+trained")
    page.get_by_label("Episodes of").select_option("training, step 4")
    page.get_by_role("heading", name="Why 4 episodes failed").wait_for()
    assert page.locator("img").count() == 0


def test_the_file_holds_evaluations_too(page: Any, folder: Path, tmp_path: Path) -> None:  # noqa: F811
    elsewhere(export, Library([folder]), tmp_path / "page.html")
    start = f"{(tmp_path / 'page.html').as_uri()}#/"
    page.context.set_offline(True)
    page.goto(f"{start}evaluations/gold?new=2@gold&old=2@mute")
    page.get_by_text("+100.0 points").wait_for()
    page.goto(f"{start}evaluations/mute")
    page.get_by_role("heading", name="Why 8 episodes failed").wait_for()
    page.locator(".failures a").first.click()
    page.get_by_role("region", name="why", exact=True).wait_for()
    opened(page, start, "gold")
    page.keyboard.press("r")
    page.get_by_text("as it was sampled").first.wait_for()
    opened(page, start, "gold", "tokens")
    assert page.get_by_role("button", name=re.compile("compare with the trainer")).count() == 0


def test_two_evaluations_are_compared(page: Any, address: str) -> None:  # noqa: F811
    page.goto(f"{address}evaluations/gold?new=2@gold&old=2@mute")
    page.get_by_text("+100.0 points").wait_for()
    page.get_by_text("better on 4 tasks, worse on 0, alike on 0").click()
    expect(page.locator(".compare tbody tr")).to_have_count(4)
    page.get_by_label("k", exact=True).select_option("2")
    page.wait_for_url("**k=2*")


@pytest.mark.parametrize("theme", ["light", "dark"])
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
def test_nobody_is_kept_out(page: Any, address: str, theme: str, width: int, where: str) -> None:  # noqa: F811
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(address + where)
    page.locator("main h1").wait_for()
    page.locator("[aria-busy]").wait_for(state="detached")
    if "?" not in where and "episode" in where:
        page.keyboard.press("o")
        page.get_by_role("button", name="fork").first.click()
    assert accessibility(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the window"
