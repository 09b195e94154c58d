"""Evaluations in folders: gone on with after a kill, capped, scored again, compared, judged; nothing is paid twice."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from endpoint import Answer, Endpoint, says, serving
from understudy import outcome
from understudy.assess.rescore import Rescored
from understudy.cli import main
from understudy.config import TrainConfig
from understudy.domains import base
from understudy.evaluation import Evaluation
from understudy.hold import held
from understudy.run import Run
from understudy.tasks import Score
from understudy.trajectory import read_trajectories

ASKED = ["chat.model=m", "chat.prompt_price=10000", "chat.retries=0", "limits.retries=0"]
"""A request of (100, 10) tokens costs 1."""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls the program: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["understudy", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return (int(stop.value.code or 0), *capsys.readouterr())

    return run


def wavering(body: Mapping[str, Any]) -> Answer:
    """Switches on the lamp of the first message, but says at once that it is done where the seed is odd."""
    messages = body["messages"]
    lamp = messages[1]["content"].rstrip(".").split()[-1]
    if body["seed"] // 3 % 3 == 1:
        return says("Done.")
    if messages[-1]["role"] == "tool":
        return says(f"Lamp {lamp} is on.")
    if messages[-1]["content"].startswith("Yes"):
        function = {"name": "switch_lamp", "arguments": json.dumps({"lamp_id": lamp, "on": True})}
        return says("", "tool_calls", tool_calls=[{"id": "c", "type": "function", "function": function}])
    return says(f"I will switch on lamp {lamp}. Do you want me to proceed?")


def command(endpoint: Endpoint, *more: str) -> list[str]:
    settings = [*ASKED, f"chat.base_url={endpoint.url}", "slice.families=one", "chat.concurrency=4"]
    return ["eval", "toy:DOMAIN", *settings, "--agent", "native", "--tasks", "8", "--trials", "2", *more]


def evaluation(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())  # type: ignore[no-any-return]


def without_usage(folder: Path) -> dict[str, Any]:
    found = evaluation(folder)
    for row in found["rows"]:
        row["evaluation"]["usage"] = {}
    return found


def test_an_evaluation_has_a_folder_with_all_of_it(call: Any) -> None:
    with serving(wavering) as endpoint:
        code, text, err = call(*command(endpoint, "--markdown", "report.md"))
        assert (code, err.strip()) == (0, "the evaluation is in evals/toy-DOMAIN-m-001")
        folder = Path("evals/toy-DOMAIN-m-001")
        names = {"played.json", "tasks.jsonl", "episodes.jsonl", "paid.jsonl", "evaluation.json", "evaluation.md"}
        assert {path.name for path in folder.iterdir()} == names
        assert len((folder / "paid.jsonl").read_text().splitlines()) == len(endpoint.requests)
        found = evaluation(folder)
        assert [row["name"] for row in found["rows"]] == ["do nothing", "gold oracle", "m"]
        own = Evaluation.model_validate(found["rows"][2]["evaluation"])
        assert own.usage["agent"].cost == len(endpoint.requests)
        assert 0 < own.success.mean < 1
        lost = 16 - sum(sum(result.successes) for result in own.results)  # type: ignore[arg-type]
        assert len(found["failures"]) == lost == sum(cause["failures"] for cause in found["causes"])
        assert found["rows"][2]["groups"][0]["pass_hat_k"][0]["mean"] == own.success.mean
        assert found["noise"]["floor"] > 0
        assert "Why episodes failed" in text
        assert "Hardest tasks" in text
        assert "pass@k" in text
        assert "Why episodes failed" in Path("report.md").read_text()
        episodes, _ = read_trajectories(folder / "episodes.jsonl")
        assert len(episodes) == 16


def test_agents_without_a_model_leave_nothing_behind(call: Any, tmp_path: Path) -> None:
    assert call("eval", "toy:DOMAIN", "--agent", "hasty", "--tasks", "4")[0] == 0
    assert list(tmp_path.iterdir()) == []
    assert call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "4", "--out", "mine")[0] == 0
    code, _, err = call("eval", "toy:DOMAIN", "--agent", "gold", "--out", "mine")
    assert (code, "mine holds an evaluation; go on with it by --resume mine" in err) == (2, True)


def test_what_is_killed_goes_on_with_what_is_missing_and_pays_nothing_twice(call: Any, tmp_path: Path) -> None:
    def slowly(body: Mapping[str, Any]) -> Answer:
        answer = wavering(body)
        return Answer(answer.body, delay=0.02)

    with serving(wavering) as endpoint:
        call(*command(endpoint, "--out", "whole"))
        of = len(endpoint.requests)
    with serving(slowly) as endpoint:
        paths = os.pathsep.join([*filter(None, sys.path)])
        code = "from understudy.cli import main; main()"
        arguments = [sys.executable, "-c", code, *command(endpoint, "--out", "killed", "--concurrency", "3")]
        process = subprocess.Popen(arguments, env=os.environ | {"PYTHONPATH": paths}, cwd=tmp_path)
        kept = tmp_path / "killed" / "episodes.jsonl"
        while not kept.exists() or len(kept.read_bytes().splitlines()) < 5:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with kept.open("ab") as file:
            file.write(b'{"task": "cut o')
        before = len(kept.read_bytes().splitlines()) - 1
        assert before < 16
        time.sleep(0.1)  # requests that the server is still at
        assert "it is not finished" in call("compare", "whole", "killed")[2]
        code_, _, err = call("eval", "--resume", "killed")
        assert (code_, "the evaluation is in killed" in err) == (0, True)
        # At most the requests that were under way when it was killed had no answer yet.
        assert of <= len(endpoint.requests) <= of + 3
    assert without_usage(Path("killed")) == without_usage(Path("whole"))
    paid = evaluation(Path("killed"))["rows"][2]["evaluation"]["usage"]["agent"]
    assert Decimal(paid["cost"]) == of
    requests = len(endpoint.requests)
    assert call("eval", "--resume", "killed")[0] == 0
    assert len(endpoint.requests) == requests


def test_a_cost_cap_stops_and_a_higher_one_goes_on(call: Any) -> None:
    with serving(wavering) as endpoint:
        code, _, err = call(*command(endpoint, "--out", "capped", "--cost-cap", "10"))
        assert (code, len(err.splitlines())) == (2, 1)
        assert "the cost cap 10 is reached: 1" in err
        assert "go on with: understudy eval --resume capped" in err
        stopped = len(endpoint.requests)
        assert 10 <= stopped < 10 + 4  # those under way are still paid, and paid for
        assert len(Path("capped/paid.jsonl").read_text().splitlines()) == stopped
        code, _, err = call("eval", "--resume", "capped", "--cost-cap", "10")
        assert (code, len(endpoint.requests)) == (2, stopped)
        assert call("eval", "--resume", "capped", "--cost-cap", "1000")[0] == 0
        of = len(endpoint.requests)
        call(*command(endpoint, "--out", "whole"))
        assert len(endpoint.requests) == 2 * of
    assert without_usage(Path("capped")) == without_usage(Path("whole"))
    assert Decimal(evaluation(Path("capped"))["rows"][2]["evaluation"]["usage"]["agent"]["cost"]) == of


def test_the_cap_of_the_config_holds_where_none_is_given(call: Any) -> None:
    with serving(wavering) as endpoint:
        code, _, err = call(*command(endpoint, "cost_cap=10", "--out", "capped"))
        assert (code, "the cost cap 10 is reached: 1" in err) == (2, True)
        stopped = len(endpoint.requests)
        assert (call("eval", "--resume", "capped")[0], len(endpoint.requests)) == (2, stopped)
        assert call("eval", "--resume", "capped", "--cost-cap", "0")[0] == 0
        own = ["--agent", "understudy.agent:ChatAgent", "--out", "own"]  # one of the user's own may ask, too
        code, _, err = call(*command(endpoint, "cost_cap=2"), *own)
        assert (code, "the cost cap 2 is reached: " in err) == (2, True)
    assert call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "2", "cost_cap=10")[0] == 0  # nothing is asked


@pytest.mark.parametrize(("there", "said"), [(True, "status 400: no tools here"), (False, "has no connection")])
def test_an_endpoint_that_is_set_up_wrongly_is_one_line_and_leaves_nothing(
    call: Any, there: bool, said: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(serving(lambda _: Answer("no tools here", 400)))
        if not there:
            stack.close()
        code, out, err = call(*command(endpoint, "--out", "mine", "chat.retries=9"))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
    assert "--resume" not in err
    assert len(endpoint.requests) <= 16 * there  # each episode at most once
    assert list(tmp_path.iterdir()) == []


def test_where_no_episode_has_a_result_it_is_told_why(call: Any) -> None:
    with serving(lambda _: Answer("the model is being moved to another machine; please come again", 503)) as endpoint:
        code, text, err = call(*command(endpoint, "--out", "mine"))
    assert code == 1
    assert "no episode has a result" in err
    assert "another machine" in " ".join(re.sub(r"[│┃]", " ", text).split())
    found = outcome.read(Path("mine"))
    assert {(failure.cause.what, failure.cause.who) for failure in found.failures} == {("agent_fault", "agent")}


def test_endpoints_are_called_by_their_models(call: Any) -> None:
    with serving(lambda _: says("Hm.")) as endpoint:
        settings = [f"chat.base_url={endpoint.url}", "chat.model=org/big-1.5", "limits.max_turns=1", "--tasks", "1"]
        call("eval", "toy:DOMAIN", "--agent", "native", *settings)
        call("eval", "toy:DOMAIN", "--agent", "chat", *settings, "chat.tools=hermes")
    folders = [f"evals/toy-DOMAIN-org-big-1.5{rest}-001" for rest in ("", "-hermes")]
    names = [outcome.read(Path(folder)).agents[0].name for folder in folders]
    assert names == ["org/big-1.5", "org/big-1.5 hermes"]


def test_ctrl_c_is_one_line_and_what_has_ended_is_kept(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["/help"])
    monkeypatch.setattr("understudy.play.Person.act", lambda *_: next(lines) and (_ for _ in ()).throw(EOFError))
    code, _, err = call("eval", "toy:DOMAIN", "--agent", "human", "--tasks", "2", "--out", "mine")
    assert (code, err.strip()) == (130, "stopped; the episodes that ended are kept: understudy eval --resume mine")


def test_other_tasks_than_those_it_was_begun_with_are_refused(call: Any) -> None:
    call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "4", "--out", "mine")
    text = Path("mine/tasks.jsonl").read_text()
    Path("mine/tasks.jsonl").write_text(text.replace("Hello!", "Good day!"))
    for option in ("--resume", "--rescore"):
        code, _, err = call("eval", option, "mine")
        assert code == 2
        assert "4 of" in err
        assert "toy/validation/0/one/easy/0" in err


def test_stored_episodes_are_scored_again_by_a_changed_grader(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call("eval", "toy:DOMAIN", "--agent", "hasty", "--tasks", "6", "--out", "mine")
    kept = Path("mine/evaluation.json").read_bytes()
    code, text, _ = call("eval", "--rescore", "mine")
    assert code == 0
    assert "6 episodes: 0 with another score, 0 that cannot be scored again" in text
    monkeypatch.setattr(base, "score", lambda *_: Score(reward=1.0))
    code, found, _ = call("eval", "--rescore", "mine", "--json", "--markdown", "again.md")
    again = Rescored.model_validate_json(found)
    assert (again.before.success.mean, again.after.success.mean, len(again.changes)) == (0.0, 1.0, 6)
    assert Rescored.model_validate_json(Path("mine/rescored.json").read_bytes()) == again
    assert "now succeeds more often than then by 1.000" in Path("again.md").read_text()
    assert Path("mine/evaluation.json").read_bytes() == kept
    monkeypatch.setattr("understudy.environment._NOT_CONFIRMED", "no")
    text = call("eval", "--rescore", "mine")[1]
    assert "0 with another score, 6 that cannot be scored again" in text
    assert "message 4 (tool) was " in text


MENDED = """
from dataclasses import replace
from toy import DOMAIN as TOY, Lamp, LampTools

class Mended(LampTools):
    def switch_lamp(self, lamp_id: str, on: bool) -> Lamp:
        "Switch a lamp on or off, whatever is in front of its id."
        return super().switch_lamp(lamp_id.removeprefix("lamp "), on)

DOMAIN = replace(TOY, toolkit=Mended)
"""


def test_stored_episodes_are_scored_again_in_a_domain_that_was_mended(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mended.py").write_text(MENDED)
    monkeypatch.syspath_prepend(str(tmp_path))
    call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "3", "--out", "mine")
    assert "3 episodes: 0 with another score, 0 that" in call("eval", "--rescore", "mine", "domain=mended:DOMAIN")[1]
    kept = Path("mine/episodes.jsonl")
    kept.write_text(kept.read_text().replace('"lamp_id":"L', '"lamp_id":"lamp L'))
    assert "3 that cannot be scored again" in call("eval", "--rescore", "mine")[1]
    assert "3 episodes: 0 with another score, 0 that" in call("eval", "--rescore", "mine", "domain=mended:DOMAIN")[1]


def test_two_evaluations_are_compared(call: Any) -> None:
    for agent, out in (("gold", "good"), ("silent", "bad"), ("hasty", "worse")):
        call("eval", "toy:DOMAIN", "--agent", agent, "--tasks", "10", "--trials", "2", "--out", out)
    code, text, _ = call("compare", "bad", "good", "--markdown", "c.md")
    assert code == 0
    assert "gold succeeds more often than silent by 1.000" in text
    assert "would come up in 0.2% of cases" in text  # 2 / 2**10
    assert "above the noise floor of 0.000" in text
    assert "gold succeeds more often" in Path("c.md").read_text()
    found = json.loads(call("compare", "bad/evaluation.json", "worse", "--json")[1])
    assert (found["gain"]["mean"], found["chance"]) == (0.0, 1.0)
    _, text, _ = call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "10", "--trials", "2", "--against", "bad")
    assert "gold succeeds more often than silent" in text
    text = Path("bad/evaluation.json").read_text()
    Path("other.json").write_text(text.replace('"fingerprint": "', '"fingerprint": "x'))
    assert (
        "10 of 10 tasks have the same name in both evaluations and are not" in call("compare", "other.json", "good")[2]
    )
    call("eval", "toy:DOMAIN", "--agent", "gold", "--split", "test", "--tasks", "5", "--out", "elsewhere")
    assert "share no task" in call("compare", "elsewhere", "good")[2]


def test_an_evaluation_that_a_run_keeps_can_be_compared(call: Any, tmp_path: Path) -> None:
    call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "4", "--out", "good")
    own = evaluation(Path("good"))["rows"][2]["evaluation"]
    Path("000010 warm start.json").write_text(json.dumps(own))
    assert "gold differs from 000010 warm start by +0.000" in call("compare", "000010 warm start.json", "good")[1]
    assert outcome.read(Path("good")).agents[0].evaluation == Evaluation.model_validate(own)
    for name, text, said in (("a.json", "[", "is no JSON"), ("b.json", "[]", "holds no evaluation"), ("c", "", "")):
        if said:
            Path(name).write_text(text)
        code, _, err = call("compare", name, "good")
        assert (code, len(err.splitlines())) == (2, 1)
        assert (said or "there is no evaluation at c") in err


def test_runs_are_compared_by_their_last_evaluations(call: Any) -> None:
    for agent in ("silent", "gold"):
        call("eval", "toy:DOMAIN", "--agent", agent, "--tasks", "10", "--out", f"evals/{agent}")
    for folder, stages in (("one/run", ("base model", "trained")), ("two/run", ("base model",))):
        run = Run.create(Path(folder), TrainConfig(domain="toy:DOMAIN"))
        for number, stage in enumerate(stages):
            agent = "gold" if stage == "trained" else "silent"
            own = evaluation(Path("evals", agent))["rows"][2]["evaluation"]
            run.write(f"evaluations/{10 * number:06} {stage}.json", json.dumps(own))
    code, text, _ = call("compare", "two/run", "one/run")
    assert code == 0
    assert "one/run (trained) succeeds more often than two/run (base model) by 1.000" in text
    played = call("eval", "toy:DOMAIN", "--agent", "silent", "--tasks", "10", "--against", "one/run")[1]
    assert "silent succeeds less often than one/run (trained) by 1.000" in played
    Run.create(Path("three"), TrainConfig(domain="toy:DOMAIN"))
    code, _, err = call("compare", "one/run", "three")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "three is a run without an evaluation yet; go on with it by: understudy train --resume three" in err


def test_reruns_show_the_noise(call: Any) -> None:
    with serving(wavering) as endpoint:
        _, text, _ = call(*command(endpoint, "--reruns", "3", "--out", "noisy"))
    found = evaluation(Path("noisy"))
    names = [row["name"] for row in found["rows"]]
    assert names == ["do nothing", "gold oracle", "m", "m, again 1", "m, again 2"]
    rates = [row["success"]["mean"] for row in found["rows"][2:]]
    assert found["noise"]["rates"] == rates
    assert found["noise"]["apart"] == pytest.approx(max(rates) - min(rates))
    assert [row["evaluation"]["seed"] for row in found["rows"][2:]] == [0, 1, 2]
    assert [r["task"] for r in found["rows"][2]["evaluation"]["results"]] == [
        r["task"] for r in found["rows"][4]["evaluation"]["results"]
    ]
    assert "3 of them came to" in text
    episodes, _ = read_trajectories(Path("noisy/episodes.jsonl"))
    assert len({(episode.task, episode.seed) for episode in episodes}) == len(episodes) == 48


def test_a_mistake_does_not_wait_for_a_model(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any) -> Any:
        raise AssertionError("a model was loaded before all else was looked up")

    monkeypatch.setattr("understudy.players.open_model", loaded)
    call("eval", "toy:DOMAIN", "--agent", "silent", "--split", "test", "--tasks", "2", "--out", "test")
    for arguments, said in (
        (["eval", "nowhere"], "unknown domain"),
        (["eval", "toy:DOMAIN", "--split", "tests"], "eval.split"),
        (["eval", "toy:DOMAIN", "slice.families=none"], "family"),
        (["eval", "toy:DOMAIN", "--judge", "judge.model=m", "judge.key_variable=NO_KEY"], "NO_KEY"),
        (["eval", "toy:DOMAIN", "user.kind=llm"], "user.chat.model"),
        (["eval", "toy:DOMAIN", "--against", "nowhere"], "there is no evaluation at nowhere"),
        (["eval", "toy:DOMAIN", "--split", "train", "--against", "test"], "share no task"),
        (["eval", "toy:DOMAIN", "--markdown", "nowhere/a.md"], "there is no folder nowhere"),
        (["compare", "test", "test", "--markdown", "."], "that is a folder"),
    ):
        code, out, err = call(*arguments, *(["model=tiny"] if arguments[0] == "eval" else []))
        assert (code, out, len(err.splitlines())) == (2, "", 1), (arguments, err)
        assert said in err
    assert [path.name for path in Path().iterdir()] == ["test"], "and nothing was begun"


def test_two_processes_do_not_go_on_with_one_evaluation(call: Any) -> None:
    command = ["eval", "toy:DOMAIN", "--agent", "silent", "--tasks", "2"]
    with held(Path("mine")):
        code, _, err = call(*command, "--out", "mine")
        assert (code, "another process is writing to mine" in err) == (2, True)
    assert call(*command, "--out", "mine")[0] == 0
    with held(Path("mine")):
        code, _, err = call("eval", "--resume", "mine")
        assert (code, "another process is writing to mine" in err) == (2, True)
    assert call("eval", "--resume", "mine")[0] == 0


def judging(verdicts: Sequence[str | Answer]) -> Any:
    rest = iter(verdicts)
    return serving(lambda _: said if isinstance(said := next(rest), Answer) else says(said))


def test_a_judge_that_cannot_be_read_is_unclear(call: Any) -> None:
    good = json.dumps({"what": "refused", "message": 2, "evidence": "it says no"})
    verdicts = [
        good,
        f"Here it is: {good}",
        "It refused.",
        good.replace("refused", "lazy"),
        good.replace("2", "99"),
        good.replace("2", "true"),
        good.replace('"it says no"', "7"),
        Answer("down", 503),
    ]
    with judging(verdicts) as endpoint:
        settings = [f"judge.base_url={endpoint.url}", "judge.model=j", "judge.retries=0", "judge.concurrency=1"]
        settings += ["judge.prompt_price=10000"]
        _, text, _ = call(
            "eval", "toy:DOMAIN", *settings, "--agent", "refusing", "--tasks", "8", "--judge", "--out", "j"
        )
        assert len(endpoint.requests) == 8
        asked = json.loads(endpoint.requests[0]["messages"][1]["content"])
        assert asked["user"].startswith("Please switch on lamp")
    found = outcome.read(Path("j"))
    judged = [failure.judged.what if failure.judged else "" for failure in found.failures]
    assert sorted(judged) == ["refused"] * 2 + ["unclear"] * 6
    assert "The judge names the same cause for 2 of 8 failures." in text
    assert found.agents[0].evaluation.usage["judge"].cost == 7
    assert all(failure.cause.what == "refused" for failure in found.failures)
    assert found.agents[0].evaluation.success.mean == 0.0


def test_what_the_judge_is_asked_as_a_cap_is_reached_is_paid_once(call: Any) -> None:
    said = says(json.dumps({"what": "refused", "message": 2, "evidence": "it says no"}))
    delays = iter([0.0, 0.0, *[0.3] * 10])
    with serving(lambda _: Answer(said.body, delay=next(delays))) as endpoint:
        settings = [f"judge.base_url={endpoint.url}", "judge.model=j", "judge.prompt_price=10000"]
        command = ["eval", "toy:DOMAIN", *settings, "judge.concurrency=4", "--agent", "refusing", "--tasks", "8"]
        code, _, err = call(*command, "--judge", "--out", "j", "--cost-cap", "2")
        assert (code, "the cost cap 2 is reached" in err) == (2, True)
        assert 2 <= len(endpoint.requests) < 8
        assert len(Path("j/paid.jsonl").read_text().splitlines()) == len(endpoint.requests)
        assert call("eval", "--resume", "j")[0] == 0
        assert len(endpoint.requests) == 8
    assert outcome.read(Path("j")).agents[0].evaluation.usage["judge"].cost == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval"], "name a domain, a config or a run"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--cost-cap", "2"], "nothing that is asked has a price"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--cost-cap", "two"], "--cost-cap 'two' is no amount"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--cost-cap", "-1"], "it should be 0, for no cap, or more"),
        (["eval", "toy:DOMAIN", "--agent", "native", "chat.model=m", "cost_cap=5"], "the cost cap 5: nothing that"),
        (["eval", "toy:DOMAIN", "chat.model=m"], "chat.model is of the endpoint"),
        (["eval", "toy:DOMAIN", "--agent", "gold", " chat.tools=xml"], "this is --agent gold; add --agent native"),
        (["eval", "toy:DOMAIN", "--agent", "native", "--model", "m"], "--model m is what --agent model plays"),
        (["eval", "--resume", "nowhere"], "nowhere holds no episodes: it has no played.json"),
        (["eval", "--resume", "x", "--agent", "gold"], "--agent has no effect beside the other options"),
        (["eval", "toy:DOMAIN", "--resume", "x"], "leave 'toy:DOMAIN' out"),
        (["eval", "--rescore", "x", "--trials", "2"], "--trials has no effect"),
        (["eval", "--rescore", "nowhere"], "nowhere is neither an evaluation's folder nor a run's"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--inspect", "x.json"], "give --out one"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--out", "o", "--inspect", "x.eval"], "ends in .json"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--judge"], "judge.model is empty"),
        (["compare", "nowhere", "elsewhere"], "there is no evaluation at"),
        (["view", "x", "--json", "--export", "x.html"], "x is not a run"),
        (["view", "x", "--text", "--json"], "--json has no effect beside --text, --step and --episode"),
        (["view", "x", "--episode", "1", "--export", "x.html"], "--export has no effect beside --text"),
        (["view", "x", "--step", "1", "--port", "0"], "--port has no effect beside --text"),
        (["play", "toy:DOMAIN", "--model", "tiny"], "--model tiny: you are the agent; meet that one by --as user"),
        (["play", "toy:DOMAIN", "--agent", "chat"], "--agent chat: you are the agent"),
    ],
)
def test_mistakes_are_one_line(call: Any, arguments: list[str], said: str, tmp_path: Path) -> None:
    code, _, err = call(*arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err
    assert list(tmp_path.iterdir()) == []
