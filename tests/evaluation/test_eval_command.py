"""Test `eval`, `score` and `compare`: result folders, resuming, cost limits, rescoring, and failure judging."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer

from support.endpoint import Answer, Endpoint, make_completion, serve_answers
from support.run_evaluations import write_run_evaluation
from toy import DOMAIN
from understudy.cli.main import app as cli_app
from understudy.cli.main import main
from understudy.core.files import write_text
from understudy.core.messages import Message
from understudy.core.tasks import Score, write_tasks
from understudy.core.terminal import PersonLeft
from understudy.core.trajectory import read_trajectories
from understudy.envs import domain as domain_module
from understudy.envs.users.consent import gives_consent
from understudy.evaluation.noise import NO_VARIATION
from understudy.evaluation.prompt_variants import PromptSpread
from understudy.evaluation.reports.files import read_report
from understudy.evaluation.rescore import RescoreResult
from understudy.evaluation.result import EvalResult
from understudy.runs.config import EvalConfig, TrainConfig
from understudy.runs.run import Run
from understudy.runs.storage.locking import folder_lock

ENDPOINT_SETTINGS = [
    "endpoints.default.model=m",
    "endpoints.default.prompt_price=10000",
    "endpoints.default.max_retries=0",
    "limits.max_retries=0",
]
"""A request of (100, 10) tokens costs 1."""


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the program and returns exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["understudy", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return (int(stop.value.code or 0), *capsys.readouterr())

    return run


def answer_by_seed(body: Mapping[str, Any]) -> Answer:
    """Switch on the lamp that the user names, or, for some seeds, reply that it is done without a call."""
    messages = body["messages"]
    lamp = messages[1]["content"].rstrip(".").split()[-1]
    if body["seed"] // 3 % 3 == 1:
        return make_completion("Done.")
    if messages[-1]["role"] == "tool":
        return make_completion(f"Lamp {lamp} is on.")
    if gives_consent(messages[-1]["content"]):
        function = {"name": "switch_lamp", "arguments": json.dumps({"lamp_id": lamp, "on": True})}
        return make_completion("", "tool_calls", tool_calls=[{"id": "c", "type": "function", "function": function}])
    return make_completion(f"I will switch on lamp {lamp}. Do you want me to proceed?")


def eval_command(endpoint: Endpoint, *more: str) -> list[str]:
    settings = [
        *ENDPOINT_SETTINGS,
        f"endpoints.default.base_url={endpoint.url}",
        "slice.families=one",
        "endpoints.default.max_concurrency=4",
    ]
    return ["eval", "toy:DOMAIN", *settings, "--agent", "api", "--tasks", "8", "--trials", "2", *more]


def read_report_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())  # type: ignore[no-any-return]


def report_without_usage(folder: Path) -> dict[str, Any]:
    found = read_report_json(folder)
    for row in found["rows"]:
        row["result"]["usage"] = {}
    return found


def test_eval_folder_contains_spec_tasks_episodes_cost_and_report(call: Any) -> None:
    with serve_answers(answer_by_seed) as endpoint:
        code, text, err = call(*eval_command(endpoint, "--markdown", "report.md"))
        assert (code, err.split()[-1]) == (0, "evals/toy-DOMAIN-m-001")
        folder = Path("evals/toy-DOMAIN-m-001")
        names = {"spec.json", "tasks.jsonl", "episodes.jsonl", "cost.jsonl", "report.json", "report.md"}
        assert {path.name for path in folder.iterdir()} == names
        assert len((folder / "cost.jsonl").read_text().splitlines()) == len(endpoint.requests)
        found = read_report_json(folder)
        assert [row["name"] for row in found["rows"]] == ["noop", "gold", "m"]
        own = EvalResult.model_validate(found["rows"][2]["result"])
        assert own.usage["agent"].cost == len(endpoint.requests)
        assert 0 < own.success_rate.mean < 1
        lost = 16 - sum(sum(result.successes) for result in own.task_results)  # type: ignore[arg-type]
        assert len(found["failures"]) == lost == sum(cause["failures"] for cause in found["causes"])
        assert found["rows"][2]["groups"][0]["pass_hat_k"][0]["mean"] == own.success_rate.mean
        assert found["noise"]["noise_floor"] > 0
        assert "pass@k" in text
        for cause in found["causes"]:
            assert cause["kind"] in text
            assert cause["kind"] in Path("report.md").read_text()
        episodes, _ = read_trajectories(folder / "episodes.jsonl")
        assert len(episodes) == 16


def test_eval_of_scripted_agent_writes_only_to_out(call: Any, tmp_path: Path) -> None:
    assert call("eval", "toy:DOMAIN", "--agent", "hasty", "--tasks", "4")[0] == 0
    assert list(tmp_path.iterdir()) == []
    assert call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "4", "--out", "mine")[0] == 0
    code, _, err = call("eval", "toy:DOMAIN", "--agent", "gold", "--out", "mine")
    assert (code, "--resume mine" in err) == (2, True)


def test_killed_eval_resumes_without_repeating_requests(call: Any, tmp_path: Path) -> None:
    def hang_after_two_thirds(body: Mapping[str, Any]) -> Answer:
        if killed.is_set() or len(endpoint.requests) <= 2 * of // 3:
            return answer_by_seed(body)
        hung.append(body)
        return Answer("", delay=600.0)

    with serve_answers(answer_by_seed) as endpoint:
        call(*eval_command(endpoint, "--out", "whole"))
        of = len(endpoint.requests)
    killed, hung = threading.Event(), list[Mapping[str, Any]]()
    with serve_answers(hang_after_two_thirds) as endpoint:
        paths = os.pathsep.join([*filter(None, sys.path)])
        code = "from understudy.cli.main import main; main()"
        arguments = [sys.executable, "-c", code, *eval_command(endpoint, "--out", "killed", "--concurrency", "3")]
        process = subprocess.Popen(arguments, env=os.environ | {"PYTHONPATH": paths}, cwd=tmp_path)
        kept = tmp_path / "killed" / "episodes.jsonl"
        while len(hung) < 3:  # all that it waits for
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed.set()
        with kept.open("ab") as file:
            file.write(b'{"task_id": "cut o')
        before = len(kept.read_bytes().splitlines()) - 1
        assert 5 <= before < 16
        assert "killed" in call("compare", "whole", "killed")[2]
        code_, _, err = call("eval", "--resume", "killed")
        assert (code_, err.split()[-1]) == (0, "killed")
        # At most the three requests in flight at the kill are repeated.
        assert of <= len(endpoint.requests) <= of + 3
    assert report_without_usage(Path("killed")) == report_without_usage(Path("whole"))
    paid = read_report_json(Path("killed"))["rows"][2]["result"]["usage"]["agent"]
    assert Decimal(paid["cost"]) == of
    requests = len(endpoint.requests)
    assert call("eval", "--resume", "killed")[0] == 0
    assert len(endpoint.requests) == requests


def test_cost_limit_stops_eval_and_a_higher_limit_resumes(call: Any) -> None:
    with serve_answers(answer_by_seed) as endpoint:
        code, _, err = call(*eval_command(endpoint, "--out", "capped", "--cost-limit", "10"))
        assert (code, len(err.splitlines())) == (1, 1)
        assert re.search(r"\b10\b.*\b1\d\.0000\b.*understudy eval --resume capped", err)
        stopped = len(endpoint.requests)
        assert 10 <= stopped < 10 + 4  # requests in flight still complete and count
        assert len(Path("capped/cost.jsonl").read_text().splitlines()) == stopped
        code, _, err = call("eval", "--resume", "capped", "--cost-limit", "10")
        assert (code, len(endpoint.requests)) == (1, stopped)
        assert call("eval", "--resume", "capped", "--cost-limit", "1000")[0] == 0
        of = len(endpoint.requests)
        call(*eval_command(endpoint, "--out", "whole"))
        assert len(endpoint.requests) == 2 * of
    assert report_without_usage(Path("capped")) == report_without_usage(Path("whole"))
    assert Decimal(read_report_json(Path("capped"))["rows"][2]["result"]["usage"]["agent"]["cost"]) == of


def test_cost_limit_of_the_config_is_the_default(call: Any) -> None:
    with serve_answers(answer_by_seed) as endpoint:
        code, _, err = call(*eval_command(endpoint, "cost_limit=10", "--out", "capped"))
        assert code == 1
        assert re.search(r"\b10\b.*\b1\d\.0000\b", err)
        stopped = len(endpoint.requests)
        assert (call("eval", "--resume", "capped")[0], len(endpoint.requests)) == (1, stopped)
        assert call("eval", "--resume", "capped", "--cost-limit", "0")[0] == 0
        own = ["--agent", "understudy.rollouts.agent:APIAgent", "--out", "own"]  # a class that uses the endpoint too
        code, _, err = call(*eval_command(endpoint, "cost_limit=2"), *own)
        assert code == 1
        assert re.search(r"\b2\b.*\b\d+\.0000\b", err)
    Path("limit.toml").write_text("cost_limit = 10\n")  # the gold agent of a config with a limit uses no endpoint
    assert call("eval", "toy:DOMAIN", "limit.toml", "--agent", "gold", "--tasks", "2")[0] == 0


@pytest.mark.parametrize(("there", "said"), [(True, r"\b400\b.*no tools here"), (False, "ConnectError")])
def test_misconfigured_endpoint_gives_one_error_line_and_no_files(
    call: Any, there: bool, said: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(serve_answers(lambda _: Answer("no tools here", 400)))
        if not there:
            stack.close()
        code, out, err = call(*eval_command(endpoint, "--out", "mine", "endpoints.default.max_retries=9"))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert re.search(said, err)
    assert "--resume" not in err
    assert len(endpoint.requests) <= 16 * there  # each episode at most once
    assert list(tmp_path.iterdir()) == []


def test_eval_without_any_result_reports_the_faults(call: Any) -> None:
    with serve_answers(
        lambda _: Answer("the model is being moved to another machine; please come again", 503)
    ) as endpoint:
        code, text, err = call(*eval_command(endpoint, "--out", "mine"))
    assert code == 1
    assert err
    assert "another machine" in " ".join(re.sub(r"[│┃]", " ", text).split())
    found = read_report(Path("mine"))
    assert {(failure.cause.kind, failure.cause.component) for failure in found.failures} == {("agent_fault", "agent")}


def test_endpoint_that_dies_in_mid_evaluation_exits_with_1_and_resumes(call: Any) -> None:
    answered = 0

    def answer(body: Mapping[str, Any]) -> Answer:
        nonlocal answered
        answered += 1
        return answer_by_seed(body) if answered <= 20 or answered > 1000 else Answer("engine dead", 500)

    with serve_answers(answer) as endpoint:
        code, text, err = call(*eval_command(endpoint, "--out", "mine", "--concurrency", "4"))
        assert (code, "max_fault_rate = 0.1" in err, "understudy eval --resume mine" in err) == (1, True, True)
        assert "nan" not in text.lower()
        assert 0 < read_report(Path("mine")).fault_rate < 1
        answered = 1000
        code, text, err = call("eval", "--resume", "mine", "--json")
    assert (code, "--resume" in err) == (0, False)
    assert [row["result"]["fault_counts"] for row in json.loads(text)["rows"]] == [{}, {}, {}]
    assert not Path("mine/replies").exists()


def test_few_faults_exit_with_0_and_name_the_resume_command(call: Any) -> None:
    with serve_answers(lambda body: Answer("no", 500) if body["seed"] % 5 == 0 else answer_by_seed(body)) as endpoint:
        code, _, err = call(*eval_command(endpoint, "max_fault_rate=0.9", "--out", "mine"))
        assert read_report(Path("mine")).fault_count > 0
    assert (code, "max_fault_rate" in err, "understudy eval --resume mine" in err) == (0, False, True)


def test_compare_with_itself_is_rejected(call: Any) -> None:
    call("eval", "toy:DOMAIN", "--agent", "noop", "--tasks", "2", "--out", "mine")
    for other in ("mine", "mine/.", "mine/report.json"):
        code, out, err = call("compare", "mine", other)
        assert (code, out, len(err.splitlines()), "mine" in err) == (2, "", 1, True)


def test_help_of_eval_names_the_real_defaults() -> None:
    command: Any = typer.main.get_command(cli_app)
    text = " ".join(command.commands["eval"].get_help(typer.Context(command.commands["eval"])).split())
    for name in ("tasks", "trials", "seed", "split"):
        assert f"Default: eval.{name} of TARGET, or {getattr(EvalConfig(), name)}." in text, name


def test_endpoint_rows_and_folders_are_named_after_the_model(call: Any) -> None:
    with serve_answers(lambda _: make_completion("Hm.")) as endpoint:
        settings = [
            f"endpoints.default.base_url={endpoint.url}",
            "endpoints.default.model=org/big-1.5",
            "limits.max_turns=1",
            "--tasks",
            "1",
        ]
        call("eval", "toy:DOMAIN", "--agent", "api", *settings)
        call("eval", "toy:DOMAIN", "--agent", "api", *settings, "endpoints.default.tool_format=hermes")
    folders = [f"evals/toy-DOMAIN-org-big-1.5{rest}-001" for rest in ("", "-hermes")]
    names = [read_report(Path(folder)).agent_rows[0].name for folder in folders]
    assert names == ["org/big-1.5", "org/big-1.5 hermes"]


def test_the_folder_of_a_file_of_tasks_has_the_name_of_the_file(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows" / "quiz.jsonl"
    path.parent.mkdir()
    write_tasks(path, DOMAIN.tasks("validation")[:2])
    with serve_answers(lambda _: make_completion("Hm.")) as endpoint:
        settings = [f"endpoints.default.base_url={endpoint.url}", "endpoints.default.model=m", "limits.max_turns=1"]
        settings += ["data.sources=toy:DOMAIN", "--tasks", "1"]
        assert call("eval", str(path), "--agent", "api", *settings)[0] == 0
    assert [folder.name for folder in Path("evals").iterdir()] == ["quiz-m-001"]


def test_ctrl_c_prints_the_resume_command(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(2))

    def act(*_: Any) -> Message:
        if next(turns):
            raise PersonLeft
        return Message(role="assistant", content="Goodbye.")

    monkeypatch.setattr("understudy.cli.play.TerminalPlayer.act", act)
    command = ("eval", "toy:DOMAIN", "--agent", "human", "--tasks", "2", "--out", "mine", "limits.max_turns=1")
    code, _, err = call(*command)
    assert (code, len(err.splitlines()), "understudy eval --resume mine" in err) == (130, 1, True)


def test_changed_stored_tasks_are_rejected(call: Any) -> None:
    call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "4", "--out", "mine")
    text = Path("mine/tasks.jsonl").read_text()
    Path("mine/tasks.jsonl").write_text(text.replace("Hello!", "Good day!"))
    for command in (("eval", "--resume"), ("score",)):
        code, _, err = call(*command, "mine")
        assert code == 2
        assert "4 of" in err
        assert "toy/validation/0/one/easy/0" in err


def test_score_applies_a_changed_grader_to_stored_episodes(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call("eval", "toy:DOMAIN", "--agent", "hasty", "--tasks", "6", "--out", "mine")
    kept = Path("mine/report.json").read_bytes()
    code, text, _ = call("score", "mine")
    assert code == 0
    assert re.search(r"\b6 episodes\b.*\b0\b.*\b0\b", text)
    monkeypatch.setattr(domain_module, "score_episode", lambda *_: Score(reward=1.0))
    code, found, _ = call("score", "mine", "reward.policy=off", "--json", "--markdown", "again.md")
    again = RescoreResult.model_validate_json(found)
    assert (again.before.success_rate.mean, again.after.success_rate.mean, len(again.changes)) == (0.0, 1.0, 6)
    assert RescoreResult.model_validate_json(Path("mine/rescored.json").read_bytes()) == again
    assert "1.000" in Path("again.md").read_text()
    assert Path("mine/report.json").read_bytes() == kept
    code, found, _ = call("score", "mine", "--json")
    strict = RescoreResult.model_validate_json(found).after
    assert (strict.success_rate.mean, strict.mean_parts) == (0.0, {}), "its writes have no consent"
    monkeypatch.setattr("understudy.envs.environment._NOT_CONFIRMED", "no")
    text = call("score", "mine")[1]
    assert re.search(r"\b6 episodes\b.*\b0\b.*\b6\b", text)
    assert "message 4 (tool) was " in text


FIXED_DOMAIN = """
from dataclasses import replace
from toy import DOMAIN as TOY, Lamp, LampTools

class Mended(LampTools):
    def switch_lamp(self, lamp_id: str, on: bool) -> Lamp:
        "Switch a lamp on or off, whatever is in front of its id."
        return super().switch_lamp(lamp_id.removeprefix("lamp "), on)

DOMAIN = replace(TOY, toolkit=Mended)
"""


def test_score_applies_a_fixed_domain_to_stored_episodes(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mended.py").write_text(FIXED_DOMAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "3", "--out", "mine")

    def rescored_counts(*settings: str) -> list[str]:
        """Return the numbers of episodes, of changed scores, and of episodes that cannot be scored."""
        text = call("score", "mine", *settings)[1]
        return re.findall(r"\d+", next(line for line in text.splitlines() if re.search(r"\b3 episodes\b", line)))[:3]

    assert rescored_counts("domain=mended:DOMAIN") == ["3", "0", "0"]
    kept = Path("mine/episodes.jsonl")
    kept.write_text(kept.read_text().replace('"lamp_id":"L', '"lamp_id":"lamp L'))
    assert rescored_counts() == ["3", "0", "3"]
    assert rescored_counts("domain=mended:DOMAIN") == ["3", "0", "0"]


@pytest.mark.parametrize("agent", ["gold", "noop"])
def test_baseline_agent_has_one_row(call: Any, agent: str) -> None:
    found = json.loads(call("eval", "toy:DOMAIN", "--agent", agent, "--tasks", "2", "--json")[1])
    assert sorted(row["name"] for row in found["rows"]) == ["gold", "noop"]


def test_compare_command_reports_gain_and_p_value(call: Any) -> None:
    for agent, out in (("gold", "good"), ("noop", "bad"), ("hasty", "worse")):
        call("eval", "toy:DOMAIN", "--agent", agent, "--tasks", "10", "--trials", "2", "--out", out)
    code, text, _ = call("compare", "bad", "good", "--markdown", "c.md")
    assert code == 0
    for shown in (text, Path("c.md").read_text()):
        shown = " ".join(shown.split())
        assert re.search(r"\bgold\b.*\bnoop\b.* 1\.000\b.*\b0\.002\b", shown)  # 2 / 2**10
        assert NO_VARIATION in shown, "neither agent varies between trials"
    found = json.loads(call("compare", "bad/report.json", "worse", "--json")[1])
    assert (found["gain"]["mean"], found["p_value"]) == (0.0, 1.0)
    _, text, _ = call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "10", "--trials", "2", "--baseline", "bad")
    assert re.search(r"\bgold\b.*\bnoop\b.* 1\.000\b", text)
    text = Path("bad/report.json").read_text()
    Path("other.json").write_text(text.replace('"fingerprint": "', '"fingerprint": "x'))
    assert "10 of 10 " in call("compare", "other.json", "good")[2]
    call("eval", "toy:DOMAIN", "--agent", "gold", "--split", "test", "--tasks", "5", "--out", "elsewhere")
    code, _, err = call("compare", "elsewhere", "good")
    assert (code, len(err.splitlines())) == (2, 1)


def test_compare_accepts_a_stored_evaluation_of_a_run(call: Any, tmp_path: Path) -> None:
    call("eval", "toy:DOMAIN", "--agent", "gold", "--tasks", "4", "--out", "good")
    run, own = (
        Run.create(tmp_path / "run", TrainConfig(domain="toy:DOMAIN")),
        read_report(Path("good")).agent_rows[0].result,
    )
    kept = write_run_evaluation(run, 10, "sft", own)
    assert re.search(r"\bgold\b.*\bstep 10\b.* \+0\.000", call("compare", kept, "good")[1])
    code, _, err = call("eval", "--resume", kept)
    assert (code, f"understudy train --resume {run.folder}" in err) == (2, True), err
    for name, text in (("a.json", "["), ("b.json", "[]"), ("c", "")):
        if text:
            Path(name).write_text(text)
        code, _, err = call("compare", name, "good")
        assert (code, len(err.splitlines())) == (2, 1)
        assert re.search(rf"\b{name}\b", err)


def test_compare_uses_the_last_evaluation_of_a_run(call: Any) -> None:
    for agent in ("noop", "gold"):
        call("eval", "toy:DOMAIN", "--agent", agent, "--tasks", "10", "--out", f"evals/{agent}")
    for folder, stages in (("one/run", ("base", "rl")), ("two/run", ("base",))):
        run = Run.create(Path(folder), TrainConfig(domain="toy:DOMAIN"))
        for number, stage in enumerate(stages):
            agent = "gold" if stage == "rl" else "noop"
            write_run_evaluation(run, 10 * number, stage, read_report(Path("evals", agent)).agent_rows[0].result)
    code, text, _ = call("compare", "two/run", "one/run")
    assert code == 0
    assert re.search(r"one/run \(rl\).*two/run \(base\).* 1\.000\b", text)
    played = call("eval", "toy:DOMAIN", "--agent", "noop", "--tasks", "10", "--baseline", "one/run")[1]
    assert re.search(r"\bnoop\b.*one/run \(rl\).* 1\.000\b", played)
    Run.create(Path("three"), TrainConfig(domain="toy:DOMAIN"))
    code, _, err = call("compare", "one/run", "three")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "understudy train --resume three" in err


def test_repeats_are_reported_with_their_noise(call: Any) -> None:
    with serve_answers(answer_by_seed) as endpoint:
        _, text, _ = call(*eval_command(endpoint, "--repeats", "3", "--out", "noisy"))
    found = read_report_json(Path("noisy"))
    names = [row["name"] for row in found["rows"]]
    assert names == ["noop", "gold", "m", "m, repeat 2", "m, repeat 3"]
    rates = [row["success"]["mean"] for row in found["rows"][2:]]
    assert found["noise"]["rates"] == rates
    assert found["noise"]["max_difference"] == pytest.approx(max(rates) - min(rates))
    assert [row["result"]["seed"] for row in found["rows"][2:]] == [0, 1, 2]
    assert [r["task"] for r in found["rows"][2]["result"]["task_results"]] == [
        r["task"] for r in found["rows"][4]["result"]["task_results"]
    ]
    assert all(f"{rate:.3f}" in text for rate in rates)
    episodes, _ = read_trajectories(Path("noisy/episodes.jsonl"))
    assert len({(episode.task_id, episode.seed) for episode in episodes}) == len(episodes) == 48


def answer_by_prompt(body: Mapping[str, Any]) -> Answer:
    """Act only if the system message is one of the user's own."""
    system = next((m["content"] for m in body["messages"] if m["role"] == "system"), "")
    return answer_by_seed(body) if system.startswith("Be brief.") else make_completion("No.")


def test_prompt_variants_repeat_with_other_system_messages(call: Any) -> None:
    write_text(Path("own.txt"), "Be brief.\n{prompt}\n---\nAnother text.\n")
    with serve_answers(answer_by_prompt) as endpoint:
        code, text, _ = call(*eval_command(endpoint, "--prompt-variants", "own.txt", "--out", "worded"))
        assert code == 0
        found = read_report_json(Path("worded"))
        rates = found["prompts"]["rates"]
        assert [*rates] == ["as written", "own.txt 1", "own.txt 2"]
        assert [row["name"] for row in found["rows"]] == ["noop", "gold", "m", "m, own.txt 1", "m, own.txt 2"]
        assert rates["own.txt 1"] > rates["as written"] == rates["own.txt 2"] == 0
        assert found["all_repeats"]["name"] == "m, all wordings"
        assert f"{rates['own.txt 1']:.3f} (own.txt 1)" in text
        assert read_report(Path("worded")).prompts == PromptSpread(rates=rates)
        told = len(endpoint.requests)
        assert call("eval", "--resume", "worded")[0] == 0
        assert len(endpoint.requests) == told, "finished episodes are not played again"
    episodes, _ = read_trajectories(Path("worded/episodes.jsonl"))
    systems = {message.content for episode in episodes for message in episode.messages if message.role == "system"}
    assert systems == {DOMAIN.domain_policy, f"Be brief.\n{DOMAIN.domain_policy}", "Another text."}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt-variants", "9"], "2 to 8"),
        (["--prompt-variants", "nowhere.txt"], "nowhere.txt"),
        (["--prompt-variants", "empty.txt"], "empty.txt"),
        (["--prompt-variants", "binary.txt"], "binary.txt"),
        (["--prompt-variants", "2", "--repeats", "2"], "--repeats"),
    ],
)
def test_prompt_variants_that_cannot_be_played_are_refused(call: Any, arguments: list[str], said: str) -> None:
    write_text(Path("empty.txt"), "---\n\n")
    Path("binary.txt").write_bytes(b"\xff\xfe")
    code, _, err = call("eval", "toy:DOMAIN", "--agent", "gold", *arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err


PLAIN = """
from understudy import ToolDataset, ToolEpisode, ToolExample

class Sums(ToolEpisode):
    def reward(self, transcript):
        return float(transcript[-1].content == self.example.answer)

EXAMPLES = [ToolExample(prompt=f"{n} + 1?", answer=str(n + 1), split="test") for n in range(4)]
PLAIN = ToolDataset("plain", "", EXAMPLES, Sums)
"""


def test_prompt_variants_need_a_system_message(call: Any) -> None:
    write_text(Path("plain_sums.py"), PLAIN)
    arguments = ["eval", "plain_sums:PLAIN", "--agent", "refusing", "--split", "test"]
    assert call(*arguments)[0] == 0
    code, _, err = call(*arguments, "--prompt-variants", "2")
    assert (code, "--prompt-variants" in err) == (2, True), err


def test_invalid_arguments_are_rejected_before_a_model_is_loaded(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_load(*_: Any) -> Any:
        raise AssertionError("a model was loaded before all else was looked up")

    monkeypatch.setattr("understudy.runs.agents.open_model", fail_to_load)
    call("eval", "toy:DOMAIN", "--agent", "noop", "--split", "test", "--tasks", "2", "--out", "test")
    for arguments, said in (
        (["eval", "nowhere"], "'nowhere'"),
        (["eval", "toy:DOMAIN", "--split", "tests"], "eval.split"),
        (["eval", "toy:DOMAIN", "slice.families=none"], "family"),
        (
            [
                "eval",
                "toy:DOMAIN",
                "--judge-failures",
                "endpoints.default.model=m",
                "endpoints.default.api_key_var=NO_KEY",
            ],
            "NO_KEY",
        ),
        (["eval", "toy:DOMAIN", "user.kind=llm"], "endpoints.default.model"),
        (["eval", "toy:DOMAIN", "--baseline", "nowhere"], "nowhere"),
        (["eval", "toy:DOMAIN", "--split", "train", "--baseline", "test"], "toy"),
        (["eval", "toy:DOMAIN", "--markdown", "nowhere/a.md"], "nowhere"),
        (["compare", "test", "test", "--markdown", "."], "."),
    ):
        code, out, err = call(*arguments, *(["model=tiny"] if arguments[0] == "eval" else []))
        assert (code, out, len(err.splitlines())) == (2, "", 1), (arguments, err)
        assert said in err
    assert [path.name for path in Path().iterdir()] == ["test"], "and nothing was begun"


def test_locked_eval_folder_is_rejected(call: Any) -> None:
    command = ["eval", "toy:DOMAIN", "--agent", "noop", "--tasks", "2"]
    with folder_lock(Path("mine")):
        code, _, err = call(*command, "--out", "mine")
        assert (code, len(err.splitlines()), "mine" in err) == (2, 1, True)
    assert call(*command, "--out", "mine")[0] == 0
    with folder_lock(Path("mine")):
        code, _, err = call("eval", "--resume", "mine")
        assert (code, len(err.splitlines()), "mine" in err) == (2, 1, True)
    assert call("eval", "--resume", "mine")[0] == 0


def serve_verdicts(verdicts: Sequence[str | Answer]) -> Any:
    rest = iter(verdicts)
    return serve_answers(lambda _: said if isinstance(said := next(rest), Answer) else make_completion(said))


def test_invalid_judge_replies_count_as_unknown(call: Any) -> None:
    good = json.dumps({"kind": "wrong_refusal", "message": 2, "evidence": "it says no"})
    verdicts = [
        good,
        f"Here it is: {good}",
        "It refused.",
        good.replace("wrong_refusal", "lazy"),
        good.replace("2", "99"),
        good.replace("2", "true"),
        good.replace('"it says no"', "7"),
        Answer("down", 503),
    ]
    with serve_verdicts(verdicts) as endpoint:
        settings = [
            f"endpoints.default.base_url={endpoint.url}",
            "endpoints.default.model=j",
            "endpoints.default.max_retries=0",
            "endpoints.default.max_concurrency=1",
        ]
        settings += ["endpoints.default.prompt_price=10000"]
        _, text, _ = call(
            "eval", "toy:DOMAIN", *settings, "--agent", "refusing", "--tasks", "8", "--judge-failures", "--out", "j"
        )
        assert len(endpoint.requests) == 8
        asked = json.loads(endpoint.requests[0]["messages"][1]["content"])
        assert asked["user"].startswith("Please switch on lamp")
    found = read_report(Path("j"))
    judged = [failure.judge_cause.kind if failure.judge_cause else "" for failure in found.failures]
    assert sorted(judged) == ["unknown"] * 6 + ["wrong_refusal"] * 2
    assert "2 of 8 " in " ".join(text.split())
    assert found.agent_rows[0].result.usage["judge"].cost == 7
    assert all(failure.cause.kind == "wrong_refusal" for failure in found.failures)
    assert found.agent_rows[0].result.success_rate.mean == 0.0


def test_judge_requests_at_the_cost_limit_are_paid_once(call: Any) -> None:
    said = make_completion(json.dumps({"kind": "wrong_refusal", "message": 2, "evidence": "it says no"}))
    delays = iter([0.0, 0.0, *[0.3] * 10])
    with serve_answers(lambda _: Answer(said.body, delay=next(delays))) as endpoint:
        settings = [
            f"endpoints.default.base_url={endpoint.url}",
            "endpoints.default.model=j",
            "endpoints.default.prompt_price=10000",
        ]
        command = [
            "eval",
            "toy:DOMAIN",
            *settings,
            "endpoints.default.max_concurrency=4",
            "--agent",
            "refusing",
            "--tasks",
            "8",
        ]
        code, _, err = call(*command, "--judge-failures", "--out", "j", "--cost-limit", "2")
        assert (code, "--resume j" in err) == (1, True)
        assert 2 <= len(endpoint.requests) < 8
        assert len(Path("j/cost.jsonl").read_text().splitlines()) == len(endpoint.requests)
        for _ in range(2):  # a finished evaluation pays no verdict again
            assert call("eval", "--resume", "j", "--cost-limit", "0")[0] == 0
            assert len(endpoint.requests) == 8
    assert read_report(Path("j")).agent_rows[0].result.usage["judge"].cost == 8


def test_report_of_a_complete_evaluation_needs_no_model(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_answers(answer_by_seed) as endpoint:
        call(*eval_command(endpoint, "--out", "mine"))
    whole = read_report_json(Path("mine"))
    Path("mine/report.json").unlink()
    monkeypatch.delattr("understudy.runs.agents.make_agent")
    assert call("eval", "--resume", "mine")[0] == 0
    assert read_report_json(Path("mine")) == whole


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", "toy:DOMAIN", "--agent", "gold", "--cost-limit", "2"], "2"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--cost-limit", "two"], "'two'"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--cost-limit", "-1"], "-1"),
        (["eval", "toy:DOMAIN", "--agent", "api", "endpoints.default.model=m", "cost_limit=5"], "5"),
        (["eval", "toy:DOMAIN", "endpoints.default.model=m"], "endpoints.default.model"),
        (["eval", "toy:DOMAIN", "--agent", "gold", " endpoints.default.tool_format=xml"], "--agent api"),
        (["eval", "toy:DOMAIN", "--agent", "api", "--model", "m"], "--model m"),
        (["eval", "--resume", "nowhere"], "nowhere"),
        (["eval", "--resume", "x", "--agent", "gold"], "--agent"),
        (["eval", "toy:DOMAIN", "--resume", "x"], "toy:DOMAIN"),
        (["score", "nowhere"], "nowhere"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--inspect-log", "x.json"], "--out"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--out", "o", "--inspect-log", "x.eval"], ".json"),
        (["eval", "toy:DOMAIN", "--agent", "gold", "--judge-failures"], "endpoints.default.model"),
        (["compare", "nowhere", "elsewhere"], "nowhere"),
        (["view", "x", "--json", "--export", "x.html"], "x"),
        (["view", "x", "--text", "--json"], "--json"),
        (["view", "x", "--episode", "1", "--export", "x.html"], "--export"),
        (["view", "x", "--step", "1", "--port", "0"], "--port"),
        (["play", "toy:DOMAIN", "--model", "tiny"], "--as user"),
        (["play", "toy:DOMAIN", "--agent", "api"], "--agent api"),
    ],
)
def test_invalid_arguments_give_one_error_line(call: Any, arguments: list[str], said: str, tmp_path: Path) -> None:
    code, _, err = call(*arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err
    assert list(tmp_path.iterdir()) == []
