"""Tests of training against simulated users: requests, costs, cost limits and faults."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from support.contexts import make_context
from support.endpoint import Answer, Endpoint, make_completion, serve_answers
from support.run_evaluations import run_results
from understudy.cli.launch import open_run
from understudy.clients.chat import ModelUsage
from understudy.clients.cost import COST_FILE, CostTracker
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.trajectory import read_trajectories
from understudy.engines.models import make_tiny_model
from understudy.envs.users.draft import STOP_TOKEN
from understudy.runs.config import parse_config
from understudy.runs.run import Run, read_metrics
from understudy.train.loop import train

SMALL = (
    "domain=toy:DOMAIN",
    "slice.families=one",
    "slice.domain_policy=brief",
    "engine.device=cpu",
    "engine.dtype=float32",
    "sampling.max_response_tokens=8",
    "limits.max_turns=4",
    "limits.max_retries=0",
    "eval.tasks=2",
    "sft.steps=1",
    "sft.batch_size=2",
    "sft.num_demonstrations=2",
    "steps=1",
    "algorithm.groups_per_batch=2",
    "algorithm.group_size=2",
    "algorithm.max_resampled_groups=0",
    "user.kind=llm",
    "endpoints.default.model=m",
    "endpoints.default.prompt_price=1000000",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def train_with_endpoint(folder: Path, model: Path, endpoint: Endpoint, *settings: str) -> Run:
    chat = [f"endpoints.default.base_url={endpoint.url}", "endpoints.default.max_retries=0"]
    run = Run.create(folder, parse_config("", [f"model={model}", *SMALL, *chat, *settings]))
    train(run.config, run, lambda *_: None)
    return run


def test_rl_episodes_use_the_simulated_user_and_demonstrations_do_not(tmp_path: Path, tiny: Path) -> None:
    turns = []

    def answer(request: Mapping[str, Any]) -> Answer:
        turns.append(len(request["messages"]))
        return make_completion(STOP_TOKEN if len(request["messages"]) > 4 else "Hm?", tokens=(3, 1))

    with serve_answers(answer) as endpoint:
        run = train_with_endpoint(tmp_path / "run", tiny, endpoint)
        _, sft, rl = read_metrics(run.folder)
        assert not [name for name in sft if name.startswith("rollout/user/")]
        num_requests = rl["rollout/user/requests"]
        assert num_requests > 0
        assert (rl["rollout/user/prompt_tokens"], rl["rollout/user/cost"]) == (
            3 * num_requests,
            3 * num_requests,
        )
        used = [result.usage["users"].requests for result in run_results(run.folder).values()]
        assert sum(used) + num_requests == len(turns)
        kept, _ = read_trajectories(run.folder / "trajectories" / "step_000002.jsonl")
        assert all(m.content == "Hm?" for e in kept for m in e.messages[2:] if m.role == "user")


def test_failing_user_stops_the_run_with_its_name(tmp_path: Path, tiny: Path) -> None:
    stuck = serve_answers(lambda _: make_completion("Agent: I am the agent."))
    with stuck as endpoint, pytest.raises(RolloutError, match=r"\buser\b.*\b2\b"):
        train_with_endpoint(tmp_path / "run", tiny, endpoint, "user.max_attempts=2")


def test_human_users_are_rejected_in_training(tmp_path: Path, tiny: Path) -> None:
    with serve_answers([]) as endpoint, pytest.raises(ConfigError, match="human"):
        train_with_endpoint(tmp_path / "run", tiny, endpoint, "user.kind=human")


def test_run_stops_at_the_cost_limit_and_resumes_with_a_higher_one(tmp_path: Path, tiny: Path) -> None:
    """Each request costs 3; the base model's evaluation makes at least one, which exceeds the limit of 2."""
    with serve_answers(
        lambda request: make_completion(STOP_TOKEN if len(request["messages"]) > 4 else "Hm?", tokens=(3, 0))
    ) as endpoint:
        more = "understudy train --resume .*run cost_limit="
        # one request at a time, so that none is on its way when the limit is reached
        one_at_a_time = "endpoints.default.max_concurrency=1"
        with pytest.raises(RolloutError, match=rf"\bstep 0\b.*\bcost_limit\b.*\b2\b.*{more}"):
            train_with_endpoint(tmp_path / "run", tiny, endpoint, "cost_limit=2", one_at_a_time)
        assert not [line for line in read_metrics(tmp_path / "run") if line["step"]]
        num_requests = len(endpoint.requests)
        spent = recorded_cost(tmp_path / "run")  # a cancelled request has no cost
        assert 2 <= spent <= 3 * num_requests
        with pytest.raises(RolloutError, match=rf"\b{spent}"):
            resume(tmp_path / "run")
        assert len(endpoint.requests) == num_requests, "what it cost before counts"
        with pytest.raises(RolloutError, match="cost_limit"):
            resume(tmp_path / "run", f"cost_limit={spent + 2}")
        resume(tmp_path / "run", "cost_limit=0")
        assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2]


def test_judge_cost_counts_toward_the_cost_limit(tmp_path: Path, tiny: Path) -> None:
    """The failures of step 1 are scored for 3 each, and step 2 does not start."""
    judge_settings = [
        "algorithm.shaping.judge_weight=0.2",
        "endpoints.default.model=j",
        "endpoints.default.prompt_price=1000000",
        "cost_limit=2",
        "steps=3",
    ]
    with serve_answers(lambda _: make_completion("4", tokens=(3, 0))) as endpoint:
        with pytest.raises(RolloutError, match=r"\bstep 2\b.*\b\d+\.0000\b"):
            train_with_endpoint(
                tmp_path / "run",
                tiny,
                endpoint,
                "user.kind=scripted",
                f"endpoints.default.base_url={endpoint.url}",
                *judge_settings,
            )
        assert {request["model"] for request in endpoint.requests} == {"j"}
    assert float(read_metrics(tmp_path / "run")[-1]["rollout/judge/cost"]) == 3 * len(endpoint.requests) > 2


def test_cost_of_an_interrupted_evaluation_counts_after_resume(tmp_path: Path, tiny: Path) -> None:
    """Requests have a cost only after SFT, so its evaluation reaches the limit."""
    sft_done: list[bool] = []

    def answer(request: Mapping[str, Any]) -> Answer:
        return make_completion(STOP_TOKEN if len(request["messages"]) > 4 else "Hm?", tokens=(3 if sft_done else 0, 0))

    def report(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if (phase, done) == ("train", 1):
            sft_done.append(True)

    folder = tmp_path / "run"
    with serve_answers(answer) as endpoint:
        chat = [f"endpoints.default.base_url={endpoint.url}", "endpoints.default.max_retries=0", "cost_limit=2"]
        run = Run.create(folder, parse_config("", [f"model={tiny}", *SMALL, *chat]))
        with pytest.raises(RolloutError, match=r"\bstep 1\b"):
            train(run.config, run, report)
        num_requests, spent = len(endpoint.requests), recorded_cost(folder)
        assert spent > 2
        with pytest.raises(RolloutError, match=rf"\bstep 1\b.*\b{spent}"):
            resume(folder)
        assert (len(endpoint.requests), recorded_cost(folder)) == (num_requests, spent)
        with pytest.raises(RolloutError, match="cost_limit"):
            resume(folder, f"cost_limit={spent + 1}")
        assert recorded_cost(folder) > spent + 1, "and it goes on counting from there"


def test_evaluation_with_user_faults_is_repeated_on_resume(tmp_path: Path, tiny: Path) -> None:
    users_available: list[bool] = []

    def answer(request: Mapping[str, Any]) -> Answer:
        return make_completion(STOP_TOKEN if users_available else "Agent: I am the agent.")

    folder = tmp_path / "run"
    with serve_answers(answer) as endpoint:
        with pytest.raises(RolloutError, match=r"\d of 2\b.*max_fault_rate"):
            train_with_endpoint(folder, tiny, endpoint, "user.max_attempts=2")
        assert not run_results(folder)
        users_available.append(True)
        resume(folder)
    kept = run_results(folder).values()
    assert len(kept) == 3
    assert not any(evaluation.fault_counts for evaluation in kept)


def recorded_cost(folder: Path) -> int:
    """Return the cost that the run has recorded."""
    return int(CostTracker(file=folder / COST_FILE).total_cost)


def resume(folder: Path, *settings: str) -> None:
    """Resume a run."""
    run = open_run(settings, None, folder)
    train(run.config, run, lambda *_: None)


def test_processes_share_one_cost_limit(tmp_path: Path) -> None:
    """The first process writes the cost of all; the limit applies to the sum."""
    paid_by_other = ModelUsage(requests=1, cost=Decimal(2))

    class TwoProcesses:
        rank, world_size = 0, 2

        def all_gather(self, value: Any) -> list[Any]:
            return [value, {"users": paid_by_other}] if isinstance(value, dict) else [value, value]

    tracker = CostTracker(file=tmp_path / COST_FILE)
    context = make_context(
        tmp_path / "run", parse_config("", ["cost_limit=3"]), cost_tracker=tracker, process_group=TwoProcesses()
    )
    tracker.budget_for("users").record(ModelUsage(requests=1, cost=Decimal(1)))
    assert context.over_cost_limit
    assert CostTracker(file=tmp_path / COST_FILE).total_cost == 3
