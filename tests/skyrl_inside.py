"""What SkyRL's own code says of our rows and configs. Run in SkyRL's environment by test_skyrl_train.

python tests/skyrl_inside.py rows MODEL FOLDER
python tests/skyrl_inside.py examples MODEL CONFIG…
"""

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

from understudy.config import TrainConfig
from understudy.errors import ConfigError
from understudy.formats import Vocabulary
from understudy.integrations.skyrl.mapping import skyrl_keys
from understudy.integrations.skyrl.settings import installed, validated
from understudy.run import Run
from understudy.settings import load, parse
from understudy.train.preparation import prepare

installed()

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

from understudy.integrations.skyrl.cluster import variables_of_workers  # noqa: E402
from understudy.integrations.skyrl.generator import Rollouts  # noqa: E402
from understudy.integrations.skyrl.journal import Journal  # noqa: E402
from understudy.integrations.skyrl.policy import Policy  # noqa: E402
from understudy.integrations.skyrl.sampler import SkyrlSampler  # noqa: E402
from understudy.integrations.skyrl.slots import MOST, Slots, row, slots_of  # noqa: E402
from understudy.integrations.skyrl.train import dry_run, made_of  # noqa: E402
from understudy.trajectory import read_trajectories  # noqa: E402

SETTINGS = (
    "domain=skyrl_kit:DOMAIN",
    "engine.kind=skyrl",
    "engine.train_embeddings=true",
    "sft.steps=0",
    "sampling.max_tokens=9",
    "limits.max_turns=2",
    "algorithm.group_size=3",
    "algorithm.tasks_per_step=4",
    "algorithm.refill=2",
)


class Babble:
    """An engine that says bytes at random, each with a log-probability that tells which it is."""

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
        self.sessions.remove(session_id)


def rollouts(model: Path, folder: Path, client: Babble, *settings: str) -> tuple[Rollouts, Run, TrainConfig]:
    """Our generator over an engine that babbles."""
    config = parse(TrainConfig, "", [f"model={model}", *SETTINGS, *settings])
    run, prepared = Run.create(folder, config), prepare(config)
    sampler = SkyrlSampler(lambda: Vocabulary.load(model / "tokenizer.json"), ())
    sampler.client, sampler.context = client, 8192
    training = made_of(config, run, lambda *_: None, prepared, Policy(sampler))
    asynchronous = bool(config.skyrl.keys.get("trainer.fully_async.enabled"))
    return Rollouts(training, sampler, Journal(training), asynchronous), run, config


def asked(config: TrainConfig, slots: list[int], step: int) -> tuple[Any, list[str]]:
    """What SkyRL's trainer asks a generator for."""
    return prepare_generator_input(
        [row(slot) for slot in slots], config.algorithm.group_size, {}, "understudy", "train", step
    )


def rows(model: Path, folder: Path) -> None:
    """A step's groups, as SkyRL's validators, metrics and tensors see them, beside the episodes that were played."""
    client = Babble()
    generator, run, config = rollouts(model, folder / "sync", client)
    given, uids = asked(config, [5, 2, 9, 0], 1)
    output = asyncio.run(generator.generate(given))
    validate_generator_output(len(given["prompts"]), output)
    assert not client.sessions, "every episode's session is finished"
    episodes, damaged = read_trajectories(run.folder / "trajectories" / "step_000001.jsonl")
    assert not damaged
    assert len(episodes) >= 12
    played = {tuple(episode.tokens): episode for episode in episodes}
    for i, response in enumerate(output["response_ids"]):
        episode = played[(*output["prompt_token_ids"][i], *response)]
        start = len(output["prompt_token_ids"][i])
        assert output["loss_masks"][i] == [int(sampled) for sampled in episode.mask[start:]]
        assert output["rollout_logprobs"][i] == episode.logprobs[start:]
        assert output["rewards"][i] == episode.reward
        assert episode.tokens[:start] in client.asked, "what was sampled from is what is trained on"
    metrics = get_metrics_from_generator_output(output, uids)
    assert abs(metrics["avg_score"] - sum(output["rewards"]) / 12) < 1e-9
    _tensors(model, output)
    twice = concatenate_generator_outputs([output, asyncio.run(generator.generate(asked(config, [1, 3, 4, 6], 2)[0]))])
    validate_generator_output(24, twice)
    _filtered(output, uids)
    _apart(model, folder)
    _dealt_alike(model)
    _kept_to_ourselves(config, model, folder)
    _refused_before_anything_is_started(model, folder)


def _tensors(model: Path, output: Any) -> None:
    """In SkyRL's tensors, which are aligned at the right, log-probabilities stand at the tokens that were sampled."""
    names = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "rollout_logprobs")
    prompts, responses, rewards, masks, logprobs = (output[name] for name in names)
    last = [[0.0] * (len(response) - 1) + [reward] for response, reward in zip(responses, rewards, strict=True)]
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = convert_prompts_responses_to_batch_tensors(tokenizer, prompts, responses, last, masks, logprobs)
    sequences, _, responding, reward, mask, seen = found[:6]
    tail = sequences[:, -mask.shape[1] :]
    assert bool((seen[mask > 0] == -tail[mask > 0].float()).all()), "an engine's log-probability is minus its token"
    assert bool((seen[mask == 0] == 0).all())
    assert responding.sum() == sum(map(len, responses))
    assert abs(float(reward.sum()) - sum(rewards)) < 1e-4


def _filtered(output: Any, uids: list[str]) -> None:
    """SkyRL's own dynamic sampling takes our groups."""
    settings = {"type": "filter", "train_batch_size": 4, "n_samples_per_prompt": 3, "min_replace_ratio": 0.3}
    kept, left, more, _ = handle_dynamic_sampling(
        output, uids, settings | {"max_sample_batches": 2}, {"sample_batch_count": 1}
    )
    assert more or len(kept["response_ids"]) == len(left) == 12


def _apart(model: Path, folder: Path) -> None:
    """Asynchronously a slot is a task: the same one whenever it is asked for, whatever is asked for beside it."""
    settings = ("algorithm.refill=0", "skyrl.trainer.fully_async.enabled=true")
    one, _, config = rollouts(model, folder / "one", Babble(), *settings)
    other, _, _ = rollouts(model, folder / "other", Babble(), *settings)

    async def all_of(generator: Rollouts, slots: list[int]) -> dict[int, Any]:
        outputs = await asyncio.gather(*(generator.generate(asked(config, [slot], 1)[0]) for slot in slots))
        return dict(zip(slots, [output["response_ids"] for output in outputs], strict=True))

    assert asyncio.run(all_of(one, [3, 0, 7])) == {
        k: v for k, v in asyncio.run(all_of(other, [7, 1, 0, 3])).items() if k != 1
    }


def _dealt_alike(model: Path) -> None:
    """SkyRL's shuffled loader deals slots in order, and in the same order after it was taken up from a checkpoint."""
    filtered = ("skyrl.trainer.algorithm.dynamic_sampling.type=filter", "algorithm.refill=0", "steps=2")
    config = parse(TrainConfig, "", [f"model={model}", *SETTINGS, *filtered])
    cfg = validated(skyrl_keys(config, model, Path("/nowhere/keys")))
    assert slots_of(config, cfg.trainer) == 2 * 4 * MOST
    cfg.trainer.algorithm.dynamic_sampling.max_sample_batches = -1
    assert slots_of(config, cfg.trainer) == 2 * 4 * MOST
    cfg.trainer.algorithm.dynamic_sampling.type = None
    assert slots_of(config, cfg.trainer) == 2 * 4

    def dealt(interrupted: int) -> list[int]:
        loader = build_dataloader(cfg, Slots(8), is_train=True, is_fully_async=True)
        before, rows = loader.state_dict(), iter(loader)
        first = [next(rows)[0]["env_extras"]["slot"] for _ in range(interrupted)]
        loader = build_dataloader(cfg, Slots(8), is_train=True, is_fully_async=True) if interrupted else loader
        loader.load_state_dict(before)  # as SkyRL does on resuming, and passes over what was learned from
        again = [each[0]["env_extras"]["slot"] for each in loader]
        assert again[:interrupted] == first
        return again

    assert dealt(0) == dealt(3) == list(range(8))


def _kept_to_ourselves(config: TrainConfig, model: Path, folder: Path) -> None:
    """Keys that SkyRL would pass on are given to no worker, and so to nothing that Ray writes down."""
    os.environ |= {"WANDB_API_KEY": "a secret", "NCCL_DEBUG": "INFO"}
    found = variables_of_workers(validated(skyrl_keys(config, model, folder / "keys")), cpu=False)
    assert found["NCCL_DEBUG"] == "INFO"
    assert "a secret" not in found.values()


def _refused_before_anything_is_started(model: Path, folder: Path) -> None:
    """What SkyRL's asynchronous trainer would only say once its workers are up."""
    good = {
        "fully_async.enabled": "true",
        "fully_async.num_parallel_generation_workers": "8",
        "placement.colocate_all": "false",
        "algorithm.policy_loss_type": "rollout_is",
    }

    def told(**other: str) -> str:
        changed = good | {key.replace("__", "."): value for key, value in other.items()}
        settings = [f"skyrl.trainer.{key}={value}" for key, value in changed.items()]
        config = parse(TrainConfig, "", [f"model={model}", *SETTINGS, "algorithm.refill=0", *settings])
        try:
            validated(skyrl_keys(config, model, folder / "keys"))
        except ConfigError as e:
            return str(e)
        return ""

    assert told() == ""
    assert "=3 is not 4 to 20" in told(fully_async__num_parallel_generation_workers="3")
    assert "colocate_all" in told(placement__colocate_all="true")
    assert "rollout_is or dppo" in told(algorithm__policy_loss_type="regular")
    assert "sample_full_batch" in told(algorithm__dynamic_sampling__type="filter")
    assert told(algorithm__dynamic_sampling__type="null") == "", "a text that is SkyRL's None"
    assert "zero_variance_filter is not true" in told(fully_async__sample_full_batch="true")
    assert told(fully_async__sample_full_batch="true", algorithm__zero_variance_filter="true") == ""


def examples(model: Path, configs: list[Path]) -> None:
    """Each config is taken by SkyRL, with a tiny model, and a domain that needs no server."""
    for path in configs:
        there = load(TrainConfig, path)
        there_are = ["domain=retail"] if there.domain.startswith("mcp:") else []
        tiny = [f"model={model}", "limits.max_tokens=90000", *there_are]  # one token is one byte
        print(path.name, dry_run(load(TrainConfig, path, tiny), Path("/nowhere/run")), sep="\n", end="\n\n")


if __name__ == "__main__":
    what, tiny, *others = sys.argv[1:]
    rows(Path(tiny), Path(others[0])) if what == "rows" else examples(Path(tiny), [Path(each) for each in others])
    print("done")
