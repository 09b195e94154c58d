"""Tests of fault injection: which calls fail, that a broken promise shows, and the matrix itself."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http.client import HTTPConnection, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from support.paths import ROOT
from tests.faults import __main__ as program
from tests.faults.cases import CASES, ENDINGS, SKYRL_CASES, SKYRL_WORKER, FaultCase
from tests.faults.endpoint import FaultyEndpoint
from tests.faults.injection import (
    MAX_PASSING_FAULTS,
    RUN_FOLDER,
    FaultInjector,
    FaultMode,
    FaultPlan,
    count_injected,
)
from tests.faults.run_cases import CaseResult, run_cases, select_cases, short_config
from tests.faults.vllm_server import REPLY_DAMAGES, REPLY_PATH, ImitatedVllm
from understudy.core.errors import ConfigError
from understudy.engines.vllm.client import SERVED_MODEL_NAME


def make_injector(folder: Path, mode: FaultMode, **plan: object) -> FaultInjector:
    folder.mkdir(parents=True, exist_ok=True)
    FaultPlan([("user", "exception")], mode, **plan).write(folder)  # type: ignore[arg-type]
    return FaultInjector(folder)


def plan_folder(folder: Path, faults: Sequence[tuple[str, str]]) -> Path:
    FaultPlan(faults, "lasting", after_step=1).write(folder)
    return folder


def record_steps(folder: Path, count: int) -> None:
    run = folder / RUN_FOLDER
    run.mkdir(exist_ok=True)
    lines = [json.dumps({"step": step, "kind": "train"}) + "\n" for step in range(1, count + 1)]
    (run / "metrics.jsonl").write_text("".join(lines))


@pytest.mark.parametrize("mode", ["off", "passing", "lasting"])
def test_faults_begin_after_the_planned_step_and_hit_one_component(tmp_path: Path, mode: FaultMode) -> None:
    injector = make_injector(tmp_path, mode, after_step=2)
    record_steps(tmp_path, 1)
    assert injector.find_fault("user", "call") == ""
    record_steps(tmp_path, 2)
    assert injector.find_fault("grader", "call") == ""
    assert injector.find_fault("user", "call") == ("" if mode == "off" else "exception")
    assert count_injected(tmp_path) == (mode != "off")


def test_passing_faults_hit_each_call_once_or_twice_by_the_seed(tmp_path: Path) -> None:
    counts = {}
    for seed in range(2):
        for folder in (tmp_path / f"{seed}", tmp_path / f"{seed} again"):
            found = [make_injector(folder, "passing", seed=seed).find_fault("user", f"{i % 8}") for i in range(40)]
            counts[folder.name] = [sum(map(bool, found[i::8])) for i in range(8)]
    assert counts["0"] == counts["0 again"] != counts["1"]
    assert set(counts["0"]) == set(range(1, MAX_PASSING_FAULTS + 1))


def test_each_step_has_its_fault_and_further_steps_have_the_last(tmp_path: Path) -> None:
    injector = FaultInjector(plan_folder(tmp_path, [("user", "exception"), ("grader", "slow"), ("user", "slow")]))
    found = []
    for step in range(5):
        record_steps(tmp_path, step)
        found.append(tuple(injector.find_fault(component, "call") for component in ("user", "grader")))
    assert found == [("", ""), ("exception", ""), ("", "slow"), ("slow", ""), ("slow", "")]
    assert [count_injected(tmp_path, number) for number in range(3)] == [1, 1, 2]


def test_share_fails_exactly_so_many_first_calls(tmp_path: Path) -> None:
    injector = make_injector(tmp_path, "lasting", share=(11, 12))
    assert sum(bool(injector.find_fault("user", f"{i}")) for i in range(20)) == 11


@pytest.mark.parametrize("fault", ["500", "429", "half JSON", "half a body", "reset", "refused", "hang"])
def test_endpoint_fails_as_planned_and_recovers(tmp_path: Path, fault: str) -> None:
    FaultPlan([("user endpoint", fault)], "passing").write(tmp_path)
    request = json.dumps({"model": "user endpoint", "messages": [{"content": "Do you confirm?"}]})
    found, seconds = [], 0.1 if fault == "hang" else 60.0

    def ask(url: str) -> str:
        connection = HTTPConnection(url.removeprefix("http://").removesuffix("/v1"), timeout=seconds)
        try:
            connection.request("POST", "/v1/chat/completions", request)
            reply = connection.getresponse()
            return reply.read().decode() if reply.status == 200 else str(reply.status)
        except IncompleteRead:
            return "an incomplete body"
        except (TimeoutError, ConnectionError, RemoteDisconnected):
            return "no connection"
        finally:
            connection.close()

    with FaultyEndpoint(tmp_path) as endpoint:
        for _ in range(200):
            found.append(ask(endpoint.url))
            if "Yes, please." in found[-1]:
                break
            time.sleep(0.01)
    expected = {"half JSON": '{"choices": [{"mess', "half a body": "an incomplete body"}
    expected |= dict.fromkeys(("reset", "refused", "hang"), "no connection")
    assert set(found[:-1]) == {expected.get(fault, fault)}
    assert "Yes, please." in found[-1]


def ask_vllm(routes: ImitatedVllm | FaultyEndpoint, seed: int = 1, model: str = SERVED_MODEL_NAME) -> Mapping[str, Any]:
    params = {"max_tokens": 8, "stop_token_ids": [150], "seed": seed}
    body = json.dumps({"model": model, "token_ids": [5, 6], "sampling_params": params}).encode()
    if isinstance(routes, ImitatedVllm):
        status, content = routes.answer("POST", REPLY_PATH, body)
    else:
        connection = HTTPConnection(routes.address.removeprefix("http://"), timeout=60)
        connection.request("POST", REPLY_PATH, body)
        reply = connection.getresponse()
        status, content = reply.status, reply.read()
        connection.close()
    answer: Mapping[str, Any] = json.loads(content)
    return answer["choices"][0] if status == 200 else {"status": status}


def test_replies_of_the_imitated_vllm_depend_on_its_weights(tmp_path: Path) -> None:
    vllm = ImitatedVllm()
    first = ask_vllm(vllm)
    assert len(first["token_ids"]) == len(first["logprobs"]["content"]) == 8
    assert first == ask_vllm(vllm) != ask_vllm(vllm, seed=2)
    save_file({"weight": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    vllm.answer("POST", "/collective_rpc", json.dumps({"kwargs": {"weights_path": str(tmp_path)}}).encode())
    vllm.answer("POST", "/update_weight_version", b'{"new_version": "two"}')
    second = ask_vllm(vllm)
    assert second["token_ids"] != first["token_ids"]
    assert [span["version"] for span in second["weight_versions"]] == ["two"]
    assert ask_vllm(vllm, model="adapter") == {"status": 404}
    vllm.answer(
        "POST", "/v1/load_lora_adapter", json.dumps({"lora_name": "adapter", "lora_path": str(tmp_path)}).encode()
    )
    assert ask_vllm(vllm, model="adapter")["token_ids"] == second["token_ids"]
    vllm.lose_weights()
    assert ask_vllm(vllm) == first
    assert ask_vllm(vllm, model="adapter") == {"status": 404}


@pytest.mark.parametrize("fault", [*REPLY_DAMAGES, "500", "weights lost"])
def test_proxy_passes_replies_on_and_damages_them_as_planned(tmp_path: Path, fault: str) -> None:
    for name, plan in (("server", FaultPlan()), ("proxy", FaultPlan([("vLLM", fault)], "lasting"))):
        (tmp_path / name).mkdir()
        plan.write(tmp_path / name)
    with FaultyEndpoint(tmp_path / "server") as server:
        with FaultyEndpoint(tmp_path / "proxy", vllm_url=server.address) as proxy:
            found = ask_vllm(proxy)
        whole = ask_vllm(server)
    logprobs = [position["logprob"] for position in found.get("logprobs", {"content": []})["content"]]
    if fault == "NaN log-probabilities":
        assert math.isnan(logprobs[-1])
    elif fault == "null log-probabilities":
        assert logprobs[-1] is None
    elif fault == "too few log-probabilities":
        assert len(logprobs) == 7
    elif fault == "ids out of range":
        assert found["token_ids"][-1] > 2**31
        assert found["token_ids"][:-1] == whole["token_ids"][:-1]
    else:
        assert found == ({"status": 500} if fault == "500" else whole)
    assert count_injected(tmp_path / "proxy") == 1


def test_wrong_component_and_tasks_of_files_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\busr\b.*\buser\b"):
        select_cases(["usr"], short_config([]))
    with pytest.raises(ConfigError, match=r"data\.train"):
        short_config(["data.train=tasks.jsonl"])
    assert [case.component for case in select_cases(["disk"], short_config([]))] == ["disk"] * 3


def test_config_of_skyrl_has_cases_of_its_own() -> None:
    config = short_config([str(ROOT / "examples" / "skyrl" / "tiny_cpu.toml")])
    assert (config.sft.steps, config.steps) == (0, 2)
    assert select_cases([SKYRL_WORKER], config) == [case for case in SKYRL_CASES if case.component == SKYRL_WORKER]
    with pytest.raises(ConfigError, match="vLLM"):
        select_cases(["vLLM"], config)


@pytest.mark.parametrize("cases", [CASES, SKYRL_CASES])
def test_cases_are_distinct(cases: Sequence[FaultCase]) -> None:
    assert len({(case.component, case.fault) for case in cases}) == len(cases)


def test_cases_end_in_known_ways() -> None:
    assert {ending for case in CASES for ending in (case.passing, case.lasting) if ending} == ENDINGS.keys()
    assert all(case.passing or case.lasting for case in CASES)


def cases_table(cases: Sequence[FaultCase]) -> str:
    """Return the table of `docs/faults.md`. Faults of a component that are handled alike share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for case in cases:
        owner = f"`{case.owner}`" if case.owner else ""
        rows.setdefault((case.component, owner, case.passing or "", case.lasting or ""), []).append(case.fault)
    head = ["| component | faults | charged to | if it passes | if it lasts |", "|---|---|---|---|---|"]
    lines = [f"| {' | '.join([row[0], ', '.join(faults), *row[1:]])} |" for row, faults in rows.items()]
    return "\n".join([*head, *lines])


@pytest.mark.parametrize("cases", [CASES, SKYRL_CASES])
def test_faults_page_has_each_case(cases: Sequence[FaultCase]) -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert cases_table(cases) in page
    assert "".join(f"| `{name}` | {text} |\n" for name, text in ENDINGS.items()) in page


def test_program_names_a_mistake_and_exits_with_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["faults", *arguments])
        return program.main()

    for arguments, named in ((["--only", "usr"], "usr"), (["seed=x"], "seed"), (["smoke", "--out", "."], "--out")):
        with pytest.raises(SystemExit) as stop:
            run(*arguments)
        assert stop.value.code == 2
        assert named in capsys.readouterr().err
    passed = CaseResult(component="disk", fault="full disk", passed=True, injected=3)
    failed = passed.replace(fault="read-only", passed=False, problems=("no fault was injected",))
    monkeypatch.setattr(program, "run_cases", lambda *_: iter([passed]))
    assert run("--only", "disk") == 0
    assert "1 cases passed, 0 failed" in capsys.readouterr().out
    monkeypatch.setattr(program, "run_cases", lambda *_: iter([passed, failed]))
    assert run("--only", "disk", "--json") == 1
    assert [CaseResult(**found) for found in json.loads(capsys.readouterr().out)] == [passed, failed]


@pytest.mark.slow
def test_broken_promise_shows(tmp_path: Path) -> None:
    (case,) = (case for case in select_cases(["grader"], short_config([])) if case.fault == "exception")
    wrong = [
        replace(case, owner="user", passing=None),
        replace(case, owner="tool", lasting=None),
        replace(case, passing="equal", lasting=None),
        replace(case, passing=None, lasting="refused"),
    ]
    results = run_cases(short_config([]), wrong, tmp_path)
    texts = (
        "attributed to ['grader'], not to user",
        "attributed to ['grader'], not to tool",
        "differs from the run without faults",
        "not exit code 2",
    )
    for result, text in zip(results, texts, strict=True):
        assert any(text in problem for problem in result.problems)
