"""Training against users whom a language model plays: who meets them, what they cost, and whose fault a failure is."""

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from endpoint import Answer, Endpoint, says, serving
from understudy.config import TrainConfig
from understudy.errors import ConfigError, RolloutError
from understudy.evaluation import Evaluation
from understudy.launch import open_run
from understudy.models import make_tiny
from understudy.run import Run, read_metrics
from understudy.settings import parse
from understudy.train import train
from understudy.trajectory import read_trajectories
from understudy.users.draft import STOP

SMALL = (
    "domain=toy:DOMAIN",
    "slice.families=one",
    "slice.policy=brief",
    "engine.device=cpu",
    "engine.dtype=float32",
    "sampling.max_tokens=8",
    "limits.max_turns=4",
    "limits.retries=0",
    "eval.tasks=2",
    "sft.steps=1",
    "sft.batch_size=2",
    "sft.demonstrations=2",
    "steps=1",
    "algorithm.tasks_per_step=2",
    "algorithm.group_size=2",
    "algorithm.refill=0",
    "user.kind=llm",
    "user.chat.model=m",
    "user.chat.prompt_price=1000000",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def trained(folder: Path, model: Path, endpoint: Endpoint, *settings: str) -> Run:
    chat = [f"user.chat.base_url={endpoint.url}", "user.chat.retries=0"]
    run = Run.create(folder, parse(TrainConfig, "", [f"model={model}", *SMALL, *chat, *settings]))
    train(run.config, run, lambda *_: None)
    return run


def test_episodes_meet_it_and_demonstrations_do_not(tmp_path: Path, tiny: Path) -> None:
    turns = []

    def answer(request: Mapping[str, Any]) -> Answer:
        turns.append(len(request["messages"]))
        return says(STOP if len(request["messages"]) > 4 else "Hm?", tokens=(3, 1))

    with serving(answer) as endpoint:
        run = trained(tmp_path / "run", tiny, endpoint)
        _, imitation, reinforcement = read_metrics(run.folder)
        assert not [name for name in imitation if name.startswith("users/")]
        asked = reinforcement["users/requests"]
        assert asked > 0
        assert (reinforcement["users/prompt_tokens"], reinforcement["users/cost"]) == (3 * asked, 3 * asked)
        rows = sorted((run.folder / "evaluations").iterdir())
        used = [Evaluation.model_validate_json(path.read_text()).usage["users"].requests for path in rows]
        assert sum(used) + asked == len(turns)
        kept, _ = read_trajectories(run.folder / "trajectories" / "step_000002.jsonl")
        assert all(m.content == "Hm?" for e in kept for m in e.messages[2:] if m.role == "user")


def test_a_user_who_fails_stops_the_run_and_is_named(tmp_path: Path, tiny: Path) -> None:
    with serving(lambda _: says("Agent: I am the agent.")) as endpoint:
        with pytest.raises(RolloutError, match=r"the user.s model gave") as caught:
            trained(tmp_path / "run", tiny, endpoint, "user.attempts=2")
        assert "no usable message in 2 attempts" in str(caught.value)


def test_no_person_plays_the_users_of_a_training_run(tmp_path: Path, tiny: Path) -> None:
    with serving([]) as endpoint, pytest.raises(ConfigError, match="no person can play the users of a training run"):
        trained(tmp_path / "run", tiny, endpoint, "user.kind=human")


def test_a_run_ends_at_what_its_users_may_cost_and_goes_on_when_they_may_cost_more(tmp_path: Path, tiny: Path) -> None:
    """Each request costs 3. The base model's evaluation asks at least once, which is more than 2 allows."""
    with serving(lambda request: says(STOP if len(request["messages"]) > 4 else "Hm?", tokens=(3, 0))) as endpoint:
        more = "go on with a higher one: understudy train --resume .*run cost_cap="
        with pytest.raises(RolloutError, match=f"stopped after step 0: .* cost_cap is 2; {more}"):
            trained(tmp_path / "run", tiny, endpoint, "cost_cap=2")
        assert not [line for line in read_metrics(tmp_path / "run") if line["step"]]
        asked = len(endpoint.requests)
        spent = paid(tmp_path / "run")  # a request that was broken off is not paid for
        assert 2 <= spent <= 3 * asked
        with pytest.raises(RolloutError, match=f"has cost {spent}"):
            again(tmp_path / "run")
        assert len(endpoint.requests) == asked, "what it cost before counts"
        with pytest.raises(RolloutError, match="stopped after step"):
            again(tmp_path / "run", f"cost_cap={spent + 2}")
        again(tmp_path / "run", "cost_cap=0")
        assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2]


def test_what_a_judge_costs_is_capped_too(tmp_path: Path, tiny: Path) -> None:
    """The first step's failures are marked, for 3 each, and no second one is begun."""
    judged = ["algorithm.shaping.judge=0.2", "chat.model=j", "chat.prompt_price=1000000", "cost_cap=2", "steps=3"]
    with serving(lambda _: says("4", tokens=(3, 0))) as endpoint:
        with pytest.raises(RolloutError, match=r"stopped after step 2: what was asked has cost \d+\.0000"):
            trained(tmp_path / "run", tiny, endpoint, "user.kind=scripted", f"chat.base_url={endpoint.url}", *judged)
        assert {request["model"] for request in endpoint.requests} == {"j"}
    assert float(read_metrics(tmp_path / "run")[-1]["judge/cost"]) == 3 * len(endpoint.requests) > 2


def test_what_an_evaluation_has_cost_counts_though_its_step_was_saved_before_it(tmp_path: Path, tiny: Path) -> None:
    """Users are paid once the warm start is there: by its evaluation, which the cap ends."""
    warm: list[bool] = []

    def answer(request: Mapping[str, Any]) -> Answer:
        return says(STOP if len(request["messages"]) > 4 else "Hm?", tokens=(3 if warm else 0, 0))

    def report(phase: str, done: int, of: int, metrics: Mapping[str, float]) -> None:
        if (phase, done) == ("train", 1):
            warm.append(True)

    folder = tmp_path / "run"
    with serving(answer) as endpoint:
        chat = [f"user.chat.base_url={endpoint.url}", "user.chat.retries=0", "cost_cap=2"]
        run = Run.create(folder, parse(TrainConfig, "", [f"model={tiny}", *SMALL, *chat]))
        with pytest.raises(RolloutError, match="stopped after step 1: "):
            train(run.config, run, report)
        asked, spent = len(endpoint.requests), paid(folder)
        assert spent > 2
        with pytest.raises(RolloutError, match=f"stopped after step 1: .* has cost {spent}"):
            again(folder)
        assert (len(endpoint.requests), paid(folder)) == (asked, spent)
        with pytest.raises(RolloutError, match="stopped after step"):
            again(folder, f"cost_cap={spent + 1}")
        assert paid(folder) > spent + 1, "and it goes on counting from there"


def test_an_evaluation_without_users_is_done_again_once_they_are_back(tmp_path: Path, tiny: Path) -> None:
    there: list[bool] = []

    def answer(request: Mapping[str, Any]) -> Answer:
        return says(STOP if there else "Agent: I am the agent.")

    folder = tmp_path / "run"
    with serving(answer) as endpoint:
        with pytest.raises(RolloutError, match=r"\d of 2 episodes failed, more than max_fault_rate"):
            trained(folder, tiny, endpoint, "user.attempts=2")
        assert not [*(folder / "evaluations").iterdir()]
        there.append(True)
        again(folder)
    kept = [Evaluation.model_validate_json(path.read_text()) for path in (folder / "evaluations").iterdir()]
    assert len(kept) == 3
    assert not any(evaluation.faults for evaluation in kept)


def paid(folder: Path) -> int:
    """What the run knows to have spent."""
    return int(Decimal(json.loads((folder / "cost.json").read_text())))


def again(folder: Path, *settings: str) -> None:
    """Go on with a run."""
    run = open_run(settings, None, folder)
    train(run.config, run, lambda *_: None)
