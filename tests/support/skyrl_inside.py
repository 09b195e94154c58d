"""Checks of our rows and configs by SkyRL's own code. test_skyrl_train runs it in SkyRL's environment.

PYTHONPATH=tests python -m support.skyrl_inside rows MODEL FOLDER
PYTHONPATH=tests python -m support.skyrl_inside examples MODEL CONFIG…
"""

import asyncio
import math
import os
import random
import sys
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError
from understudy.engines.models.folder import read_vocab_size
from understudy.formats import FormatTokenizer
from understudy.runs.config import TrainConfig, load_config, parse_config
from understudy.runs.run import Run
from understudy.runs.trackers import TrackerProcesses
from understudy.train.preparation import prepare_run
from understudy.train.skyrl.mapping import to_skyrl_keys
from understudy.train.skyrl.settings import build_skyrl_config, validate_installation

validate_installation()

from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors  # noqa: E402
from skyrl.train.generators.utils import (  # noqa: E402
    concatenate_generator_outputs,
    get_metrics_from_generator_output,
    prepare_generator_input,
)
from skyrl.train.utils.trainer_utils import (  # noqa: E402
    build_dataloader,
    handle_dynamic_sampling,
    validate_generator_output,
)
from transformers import AutoTokenizer  # noqa: E402

from understudy.core.trajectory import read_trajectories  # noqa: E402
from understudy.train.phases.rl import RLPhase  # noqa: E402
from understudy.train.skyrl.cluster import worker_environment  # noqa: E402
from understudy.train.skyrl.engine_adapter import SkyRLEngineAdapter  # noqa: E402
from understudy.train.skyrl.generator import RolloutGenerator  # noqa: E402
from understudy.train.skyrl.placeholder_dataset import (  # noqa: E402
    MAX_REPLACEMENT_FACTOR,
    PlaceholderDataset,
    max_groups,
    placeholder_row,
)
from understudy.train.skyrl.sampler import SkyRLSampler  # noqa: E402
from understudy.train.skyrl.tracking import TrackingAdapter  # noqa: E402
from understudy.train.skyrl.train import make_context, preflight_on_skyrl  # noqa: E402
from understudy.train.skyrl.trainer import SkyRLExperiment  # noqa: E402
from understudy.train.state import TrainingProgress  # noqa: E402

SETTINGS = (
    "domain=support.skyrl_kit:DOMAIN",
    "engine.kind=skyrl",
    "sft.steps=0",
    "sampling.max_response_tokens=9",
    "limits.max_turns=2",
    "algorithm.group_size=3",
    "algorithm.groups_per_batch=4",
    "algorithm.max_resampled_groups=2",
)


class RandomEngine:
    """An engine that samples random bytes. The log-probability of each one identifies the byte."""

    weight_version = 1

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.sessions: set[str] = set()

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        params, draw = input_batch["sampling_params"], random.Random(input_batch["sampling_params"]["seed"])
        self.asked += input_batch["prompt_token_ids"]
        self.sessions |= set(input_batch["session_ids"])
        tokens = [draw.randrange(33, 122) for _ in range(draw.randrange(1, params["max_tokens"]))]
        return {"response_ids": [tokens], "response_logprobs": [[-float(token) for token in tokens]]}

    async def finish_session(self, session_id: str) -> None:
        self.sessions.discard(session_id)


def make_generator(
    model: Path, folder: Path, client: RandomEngine, *settings: str
) -> tuple[RolloutGenerator, Run, TrainConfig]:
    """Return our generator with the random engine."""
    return open_generator(parse_config("", [f"model={model}", *SETTINGS, *settings]), folder, client)


def open_generator(
    config: TrainConfig, folder: Path, client: RandomEngine
) -> tuple[RolloutGenerator, Run, TrainConfig]:
    """Return our generator with an engine. An OSError of the engine is a fault."""
    run, prepared = Run.create(folder, config), asyncio.run(prepare_run(config))
    model = prepared.model_folder
    sampler = SkyRLSampler(lambda: FormatTokenizer.load(model / "tokenizer.json"), (OSError,))
    sampler.client, sampler.max_context_tokens, sampler.vocab_size = client, 8192, read_vocab_size(model)
    trackers = TrackerProcesses((), config.tracking, folder, {})
    context = make_context(config, run, prepared, SkyRLEngineAdapter(sampler), trackers, lambda *_: None, lambda: False)
    progress = TrainingProgress()
    asynchronous = bool(config.engine.overrides.get("trainer.fully_async.enabled"))
    return (
        RolloutGenerator(RLPhase(context, progress), sampler, TrackingAdapter(context, progress), asynchronous),
        run,
        config,
    )


def generator_request(config: TrainConfig, slots: list[int], step: int) -> tuple[Any, list[str]]:
    """Return the request that SkyRL's trainer sends to a generator."""
    return prepare_generator_input(
        [placeholder_row(slot) for slot in slots], config.algorithm.group_size, {}, "understudy", "train", step
    )


def check_rows(model: Path, folder: Path) -> None:
    """Check a step's groups in SkyRL's validators, metrics and tensors against the episodes that were played."""
    client = RandomEngine()
    generator, run, config = make_generator(model, folder / "sync", client)
    given, uids = generator_request(config, [5, 2, 9, 0], 1)
    output = asyncio.run(generator.generate(given))
    validate_generator_output(len(given["prompts"]), output)
    assert not client.sessions, "a session of an episode was not finished"
    episodes, damaged = read_trajectories(run.folder / "trajectories" / "step_000001.jsonl")
    assert not damaged
    assert len(episodes) >= 12
    played = {tuple(episode.tokens): episode for episode in episodes}
    for i, response in enumerate(output["response_ids"]):
        episode = played[(*output["prompt_token_ids"][i], *response)]
        start = len(output["prompt_token_ids"][i])
        assert output["loss_masks"][i] == [int(sampled) for sampled in episode.mask[start:]]
        assert output["rollout_logprobs"][i] == episode.logprobs[start:]
        assert math.isclose(output["rewards"][i], episode.reward, rel_tol=1e-6)  # training rewards are float32
        assert episode.tokens[:start] in client.asked, "the trained prompt is not the sampled prompt"
    metrics = get_metrics_from_generator_output(output, uids)
    assert abs(metrics["avg_score"] - sum(output["rewards"]) / 12) < 1e-9
    _check_tensors(model, output)
    twice = concatenate_generator_outputs(
        [output, asyncio.run(generator.generate(generator_request(config, [1, 3, 4, 6], 2)[0]))]
    )
    validate_generator_output(24, twice)
    _check_dynamic_sampling(output, uids)
    _check_slots(model, folder)
    _check_loader_order(model)
    _check_worker_environment(config, model, folder)
    _check_async_conditions(model, folder)


def _check_tensors(model: Path, output: Any) -> None:
    """Check that in SkyRL's tensors, which are right-aligned, log-probabilities are at the sampled tokens."""
    names = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "rollout_logprobs")
    prompts, responses, rewards, masks, logprobs = (output[name] for name in names)
    last = [[0.0] * (len(response) - 1) + [reward] for response, reward in zip(responses, rewards, strict=True)]
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = convert_prompts_responses_to_batch_tensors(tokenizer, prompts, responses, last, masks, logprobs)
    sequences, _, responding, reward, mask, seen = found[:6]
    tail = sequences[:, -mask.shape[1] :]
    assert bool((seen[mask > 0] == -tail[mask > 0].float()).all()), "log-probabilities are not at their tokens"
    assert bool((seen[mask == 0] == 0).all())
    assert responding.sum() == sum(map(len, responses))
    assert abs(float(reward.sum()) - sum(rewards)) < 1e-4


def _check_dynamic_sampling(output: Any, uids: list[str]) -> None:
    """Check that SkyRL's own dynamic sampling accepts our groups."""
    settings = {"type": "filter", "train_batch_size": 4, "n_samples_per_prompt": 3, "min_replace_ratio": 0.3}
    kept, left, more, _ = handle_dynamic_sampling(
        output, uids, settings | {"max_sample_batches": 2}, {"sample_batch_count": 1}
    )
    assert more or len(kept["response_ids"]) == len(left) == 12


def _check_slots(model: Path, folder: Path) -> None:
    """Check that in asynchronous training a slot always gives the same task, whatever other slots are requested."""
    settings = ("algorithm.max_resampled_groups=0", "engine.trainer.fully_async.enabled=true")
    one, _, config = make_generator(model, folder / "one", RandomEngine(), *settings)
    other, _, _ = make_generator(model, folder / "other", RandomEngine(), *settings)

    async def all_of(generator: RolloutGenerator, slots: list[int]) -> dict[int, Any]:
        outputs = await asyncio.gather(*(generator.generate(generator_request(config, [slot], 1)[0]) for slot in slots))
        return dict(zip(slots, [output["response_ids"] for output in outputs], strict=True))

    assert asyncio.run(all_of(one, [3, 0, 7])) == {
        k: v for k, v in asyncio.run(all_of(other, [7, 1, 0, 3])).items() if k != 1
    }


def _check_loader_order(model: Path) -> None:
    """Check that SkyRL's shuffled loader yields slots in order, also after it was restored from a checkpoint."""
    filtered = ("engine.trainer.algorithm.dynamic_sampling.type=filter", "algorithm.max_resampled_groups=0", "steps=2")
    config = parse_config("", [f"model={model}", *SETTINGS, *filtered])
    cfg = build_skyrl_config(to_skyrl_keys(config, model, Path("/nowhere/keys")))
    assert max_groups(config, cfg.trainer) == 2 * 4 * MAX_REPLACEMENT_FACTOR
    cfg.trainer.algorithm.dynamic_sampling.max_sample_batches = -1
    assert max_groups(config, cfg.trainer) == 2 * 4 * MAX_REPLACEMENT_FACTOR
    cfg.trainer.algorithm.dynamic_sampling.type = None
    assert max_groups(config, cfg.trainer) == 2 * 4

    def dealt(interrupted: int) -> list[int]:
        loader = build_dataloader(cfg, PlaceholderDataset(8), is_train=True, is_fully_async=True)
        before, rows = loader.state_dict(), iter(loader)
        first = [next(rows)[0]["env_extras"]["slot"] for _ in range(interrupted)]
        loader = (
            build_dataloader(cfg, PlaceholderDataset(8), is_train=True, is_fully_async=True) if interrupted else loader
        )
        loader.load_state_dict(before)  # as SkyRL does when it resumes; it then skips slots already trained on
        again = [each[0]["env_extras"]["slot"] for each in loader]
        assert again[:interrupted] == first
        return again

    assert dealt(0) == dealt(3) == list(range(8))


def _check_worker_environment(config: TrainConfig, model: Path, folder: Path) -> None:
    """Check that no worker gets API keys that SkyRL would pass on, so that Ray logs none."""
    os.environ |= {"WANDB_API_KEY": "a secret", "NCCL_DEBUG": "INFO"}
    cfg = build_skyrl_config(to_skyrl_keys(config, model, folder / "keys"))
    found = worker_environment(cfg, SkyRLExperiment.worker_env_vars(cfg))
    assert found["NCCL_DEBUG"] == "INFO"
    assert "a secret" not in found.values()


def _check_async_conditions(model: Path, folder: Path) -> None:
    """Check conditions that SkyRL's asynchronous trainer checks only after its workers have started."""
    good = {
        "fully_async.enabled": "true",
        "fully_async.num_parallel_generation_workers": "8",
        "placement.colocate_all": "false",
        "algorithm.policy_loss_type": "rollout_is",
    }

    def config_error(**other: str) -> str:
        changed = good | {key.replace("__", "."): value for key, value in other.items()}
        settings = [f"engine.trainer.{key}={value}" for key, value in changed.items()]
        config = parse_config("", [f"model={model}", *SETTINGS, "algorithm.max_resampled_groups=0", *settings])
        try:
            build_skyrl_config(to_skyrl_keys(config, model, folder / "keys"))
        except ConfigError as e:
            return str(e)
        return ""

    assert config_error() == ""
    assert "= 3 must be 4 to 20" in config_error(fully_async__num_parallel_generation_workers="3")
    assert "colocate_all" in config_error(placement__colocate_all="true")
    assert "rollout_is or dppo" in config_error(algorithm__policy_loss_type="regular")
    assert "sample_full_batch" in config_error(algorithm__dynamic_sampling__type="filter")
    assert config_error(algorithm__dynamic_sampling__type="null") == "", "null is not read as None"
    assert "zero_variance_filter must be true" in config_error(fully_async__sample_full_batch="true")
    assert config_error(fully_async__sample_full_batch="true", algorithm__zero_variance_filter="true") == ""


def check_examples(model: Path, configs: list[Path]) -> None:
    """Check that SkyRL accepts each config, with a tiny model and a domain that needs no server."""
    for path in configs:
        sys.path.insert(0, str(path.parent))  # where the module of `domain` is
        there = load_config(path)
        there_are = ["domain=retail"] if there.domain.startswith("mcp:") else []
        tiny = [f"model={model}", "limits.max_episode_tokens=90000", *there_are]  # one token is one byte
        print(
            path.name,
            asyncio.run(preflight_on_skyrl(load_config(path, tiny), Path("/nowhere/run"))),
            sep="\n",
            end="\n\n",
        )


if __name__ == "__main__":
    what, tiny, *others = sys.argv[1:]
    check_rows(Path(tiny), Path(others[0])) if what == "rows" else check_examples(
        Path(tiny), [Path(each) for each in others]
    )
    print("done")
