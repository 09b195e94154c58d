"""The configuration of a training run: records composed into one, read from TOML and written to it.

    config = load_config("my.toml", ["algorithm.group_size=16", "slice.families=cancel,return"])

The docstring under a field is its only documentation; `settings.dump_toml` writes it as a comment above the key.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import Field, PrivateAttr, model_validator

from understudy.algorithms.config import (
    AdvantageEstimator,
    CriticConfig,
    KLEstimator,
    LearningRate,
    LossAggregation,
    LossConfig,
    OverlongConfig,
    TurnAdvantageConfig,
    is_custom,
)
from understudy.algorithms.preference_config import PreferenceConfig
from understudy.algorithms.presets import algorithm_presets, load_algorithm_preset
from understudy.clients.chat import DEFAULT_ENDPOINT, EndpointConfig, Endpoints
from understudy.core.errors import ConfigError, did_you_mean
from understudy.core.records import Record
from understudy.core.secrets import validate_no_secrets
from understudy.core.settings import OtherNames, flatten_config, merge_nested, parse_toml, parse_values, read_text
from understudy.core.tasks import SPLITS, Split
from understudy.engines.config import EngineConfig
from understudy.engines.interface import SamplingParams, Temperature
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.reference_config import ReferenceConfig
from understudy.envs.task_source import (
    STRICT_REWARD,
    PolicyRewardConfig,
    Slice,
    TaskSource,
    list_hidden_tasks,
    with_reward_policy,
)
from understudy.envs.users import UserConfig
from understudy.formats import FormatConfig
from understudy.rollouts.curriculum import CurriculumConfig
from understudy.rollouts.program_config import ProgramConfig
from understudy.rollouts.reward_shaping import ShapingConfig
from understudy.rollouts.rollout import EpisodeLimits
from understudy.runs.conversions import translate
from understudy.runs.health import HealthCheck, HealthConfig
from understudy.runs.other_names import OTHER_NAMES
from understudy.runs.presets import DEFAULT_PRESET, preset_names, preset_text
from understudy.runs.trackers import TrackerName, TrackingConfig
from understudy.sources.environments import verifiers
from understudy.sources.loading import load_source
from understudy.sources.mixture import parse_weight
from understudy.sources.task_files.config import NO_DATA, DataConfig
from understudy.sources.task_files.files import is_task_file

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed of random numbers: torch, vLLM and TOML take 64 bits."""


class SFTConfig(Record):
    """The SFT phase, on gold episodes and demonstrations of a file."""

    steps: int = Field(default=48, ge=0)
    """Optimizer steps, each on one batch. 0 skips SFT."""
    batch_size: int = Field(default=8, ge=1)
    """Demonstrations in a batch."""
    learning_rate: LearningRate = "auto"
    """Peak learning rate. It decays linearly to a tenth at the last step. `auto` follows the number of the model's
    parameters and `engine.finetune` (docs/finetuning.md)."""
    warmup_steps: int = Field(default=4, ge=0)
    """Steps of linear warmup."""
    num_demonstrations: int = Field(default=256, ge=0)
    """Number of different gold episodes, at most. Without a file, no more are played than the batches hold."""
    dataset_file: str = ""
    """A file or folder of further demonstrations, from `understudy data collect` or in another known shape."""
    min_reward: float | None = None
    """For a file of episodes with rewards: the smallest reward of an episode to imitate. By default 1, and a reward
    above 1 is an error."""

    @property
    def num_gold_episodes(self) -> int:
        """Number of gold episodes that SFT plays."""
        places = self.steps * self.batch_size
        return self.num_demonstrations if self.dataset_file and self.steps else min(self.num_demonstrations, places)


_DAPO_CLIP_HIGH = 0.28


_PRESET_LIKE: Mapping[str, Sequence[str]] = {
    "advantage_estimator": get_args(get_args(AdvantageEstimator)[0]),
    "loss_aggregation": get_args(LossAggregation),
    "loss.kind": get_args(get_args(LossConfig.model_fields["kind"].annotation)[0]),
}
"""Keys that people set to the name of an algorithm, and their values."""


class AlgorithmConfig(Record):
    """The algorithm of an RL step."""

    preset: str = ""
    """Name of an algorithm, such as `dapo` or `ppo` (`understudy list` shows all). It sets other keys of this section.
    Keys given beside it override it, in a file and on the command line."""
    advantage_estimator: AdvantageEstimator = "group_mean"
    """`group_mean`: reward minus the group's mean. `grpo`: the same divided by the group's standard deviation.
    `reinforce_pp`: divided by the batch's. `rloo`: reward minus the mean of the group's other episodes. `gae`: from the
    values of a critic. `turn`: one advantage for each reply, relative to the group's episodes in the same state.
    `success_indicator`: 1 for a success, else 0 (rejection sampling). `zero`: 0, so that only the KL penalty trains.
    `module:attribute`: a function of your own (docs/extending.md)."""
    loss_aggregation: LossAggregation = "token_mean"
    """`token_mean`: all tokens of a batch have equal weight. `sequence_mean`: all sequences have equal weight.
    `seq_mean_token_sum_norm`: a token's weight depends neither on the lengths in the batch nor on the number of groups
    without reward variance (Dr. GRPO)."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of each task. At least 2, but 1 is enough for `gae`, `success_indicator` and `zero`."""
    groups_per_batch: int = Field(default=6, ge=1)
    """Groups (tasks) in a step."""
    max_trained_episodes: int = Field(default=0, ge=0)
    """Maximum number of episodes of a group that the update trains on: half of them those with the highest rewards,
    half those with the lowest (PODS, Xu et al. 2025, arXiv:2504.13818). Sampling is often cheaper than updating. 0
    trains on all."""
    learning_rate: LearningRate = "auto"
    """Peak learning rate. `auto` follows the model, as in `sft`."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps of linear warmup."""
    min_lr_ratio: float = Field(default=1.0, gt=0.0, le=1.0)
    """Learning rate at the last step, as a share of the peak, reached by linear decay. With 1 it is constant; only then
    a resumed run may have more steps."""
    num_minibatches: int = Field(default=1, ge=1)
    """Minibatches that the episodes of a step are divided into, with one optimizer step on each."""
    update_epochs: int = Field(default=1, ge=1)
    """Passes over the episodes of a step, each with other minibatches."""
    kl_coef: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Weight of the KL penalty against the reference, or of distillation from a teacher. 0 turns it off."""
    kl_estimator: KLEstimator = "k1"
    """Estimator of the KL divergence: `k1` is the log ratio in the reward, `k2` is in the loss with the same
    gradient, `k3` is GRPO's in the loss. With `gae`, `k1` is part of the reward that the critic's values predict;
    the others are part of the loss.
    """
    entropy_coef: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Weight of an entropy bonus, which keeps the policy from becoming deterministic (0.01 is usual). It is part of the
    advantages, like the KL penalty. 0 turns it off."""
    reference: ReferenceConfig = ReferenceConfig()
    """The model that the KL penalty compares the policy with."""
    shaping: ShapingConfig = ShapingConfig()
    tis_cap: float = Field(default=0.0, ge=0.0)
    """Cap of truncated importance sampling, which corrects differences between the probabilities of trainer and
    sampler: each token is weighted by their ratio, up to this (2 is usual). It costs one more forward pass. 0 turns it
    off."""
    max_resampled_groups: int = Field(default=6, ge=0)
    """Maximum number of groups that a step samples in place of zero-variance groups. With `gae` no group is
    replaced."""
    overlong: OverlongConfig = OverlongConfig()
    loss: LossConfig = LossConfig()
    critic: CriticConfig = CriticConfig()
    turn: TurnAdvantageConfig = TurnAdvantageConfig()

    @property
    def most_trained_episodes(self) -> int:
        """The number of episodes of a group that an update trains on at most."""
        return min(self.group_size, self.max_trained_episodes or self.group_size)

    @property
    def most_played_episodes(self) -> int:
        """The number of episodes of an RL step at most, with those of resampled groups."""
        estimator = self.advantage_estimator
        resamples = estimator not in ("gae", "zero") and not is_custom(estimator)
        return self.group_size * (self.groups_per_batch + (self.max_resampled_groups if resamples else 0))

    @property
    def health_remedies(self) -> dict[HealthCheck, str]:
        """The remedies of health checks that depend on the algorithm: settings that have an effect with it."""
        lower = "lower algorithm.learning_rate"
        anchor = f"{'raise' if self.kl_coef else 'set'} algorithm.kl_coef"
        reuse = [name for name in ("num_minibatches", "update_epochs") if getattr(self, name) > 1]
        clips = self.loss.kind == "ppo" and self.loss.clip_high < _DAPO_CLIP_HIGH
        wider = f"raise algorithm.loss.clip_high to {_DAPO_CLIP_HIGH}, " if clips else ""
        resamples = self.advantage_estimator not in ("gae", "zero")
        return {
            "clip_fraction": " or ".join([lower, *(f"algorithm.{name}" for name in reuse)]),
            "approx_kl": f"{lower}, or {anchor}",
            "entropy": f"{lower}, {wider}or {anchor}",
            "tool_calls": f"read episodes, {lower}, or {anchor}",
            "zero_variance_groups": "if episodes fail, choose easier tasks or a longer SFT; if they succeed, choose "
            "harder tasks" + ("; raise algorithm.max_resampled_groups to sample more groups" if resamples else ""),
        }

    @property
    def num_optimizer_steps(self) -> int:
        """The number of optimizer steps of an RL step at most."""
        return self.num_minibatches * self.update_epochs

    @property
    def _compares_episodes(self) -> bool:
        """True if advantages compare the episodes of a group."""
        estimator = self.advantage_estimator
        return estimator not in ("gae", "success_indicator", "zero") and not is_custom(estimator)

    @property
    def uses_critic(self) -> bool:
        """True if a critic is trained."""
        return self.advantage_estimator == "gae"

    @property
    def critic_warmup_steps(self) -> int:
        """The number of first steps that train only the critic."""
        return self.critic.warmup_steps if self.uses_critic else 0

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, given: Any) -> Any:
        values = with_preset_keys(given)
        for key, value in flatten_config(values) if isinstance(values, Mapping) else ():
            if key in _PRESET_LIKE and value in algorithm_presets() and value not in _PRESET_LIKE[key]:
                raise ConfigError(
                    f"algorithm.{key} = {value!r}: {value} is an algorithm; set algorithm.preset={value}, or one of "
                    f"{', '.join(_PRESET_LIKE[key])}"
                )
        return values

    @model_validator(mode="after")
    def _validate_group_size(self) -> Self:
        if self.group_size < 2 and self._compares_episodes:
            raise ConfigError(
                f"algorithm.group_size = {self.group_size}: algorithm.advantage_estimator = "
                f"{self.advantage_estimator!r} compares the episodes of a "
                "group; it should be greater than or equal to 2 (1 is enough for 'gae')"
            )
        if self.max_trained_episodes == 1 and self._compares_episodes:
            raise ConfigError(
                f"algorithm.max_trained_episodes = 1: algorithm.advantage_estimator = {self.advantage_estimator!r} "
                "compares the episodes of a group; give at least 2, or 0 for all"
            )
        return self


def with_preset_keys(algorithm: Any) -> Any:
    """Return the values of a section `algorithm` with the keys of its preset that it does not set itself."""
    name = algorithm.get("preset") if isinstance(algorithm, Mapping) else None
    return merge_nested(load_algorithm_preset(name), algorithm) if isinstance(name, str) and name else algorithm


class EvalConfig(Record):
    """Evaluation before, during and after training."""

    split: Split = "validation"
    """Split of the tasks. Use `test` only for final results, and never to choose settings or checkpoints."""
    tasks: int = Field(default=200, ge=1)
    """Number of tasks: the frozen ones of the split first, then generated ones. Test sets of `data.tests` are played
    whole."""
    base_tasks: int = Field(default=0, ge=0)
    """Number of these tasks in the evaluation before SFT, which untrained models often play slowly. 0 plays all."""
    trials: int = Field(default=1, ge=1)
    """Episodes of each task. pass^k is reported for k up to this."""
    every: int = Field(default=0, ge=0)
    """Steps between evaluations. 0 evaluates only before and after training."""
    temperature: Temperature = 0.0
    """Sampling temperature. 0 is greedy decoding."""
    seed: Seed = 0
    """Seed of generated tasks and of episodes. It is separate from the run's seed, so that runs with different seeds
    are evaluated on the same tasks.
    """
    ood_domains: tuple[str, ...] = ()
    """Domains that are not trained on. Each evaluation also plays their test tasks and reports them separately."""
    ood_tasks: int = Field(default=100, ge=1)
    """Number of tasks of each of these domains."""
    failure_judge_endpoint: str = DEFAULT_ENDPOINT
    """Name of the endpoint (`endpoints.NAME`) of the judge that finds causes of failures (`eval --judge-failures`).
    No reward depends on its answers.
    """


class CertifyConfig(Record):
    """Checks at the start of a run and on its episodes that the trainer computes the sampler's log-probabilities."""

    every: int = Field(default=5, ge=0)
    """RL steps between checks; the first step is checked. 0 turns all of them off."""
    episodes: int = Field(default=4, ge=1)
    """Number of a step's episodes that are checked."""
    tolerance_factor: float = Field(default=1.0, gt=0.0)
    """Factor on the engine's tolerance for differences of log-probabilities."""
    stop_on_failure: bool = True
    """Stop the run if a check fails. Otherwise it is a warning."""


MAX_OBSERVATION_TOKENS = 8192
"""Room in vLLM's context for the first prompt, or for the messages between two replies, in tokens."""


@dataclass(frozen=True)
class ConfigOrigin:
    """Where the values of a config come from. Configs of equal values are equal."""

    presets: tuple[str, ...] = field(default=(), compare=False)


class TrainConfig(Record):
    """The configuration of a training run."""

    other_names: ClassVar[OtherNames] = OTHER_NAMES
    _origin: ConfigOrigin = PrivateAttr(default=ConfigOrigin())

    domain: str | tuple[str, ...] = "retail"
    """A shipped domain, your own as `module:attribute`, a benchmark's, such as `tau-bench:PATH#retail`, or a file of
    tasks. A list is a mixture, with weights if they are given: `["retail*2", "tasks.jsonl", "mcp:notes.toml"]`."""
    data: DataConfig = NO_DATA
    slice: Slice = Slice()
    ood_slice: Slice = Slice()
    """The slice of the domains of `eval.ood_domains`. Its `domains` also select those of the files of `data.tests`."""
    reward: PolicyRewardConfig = STRICT_REWARD
    model: str = "smollm2-135m"
    """A bundled model, a local folder or GGUF file, or `owner/model` on the Hugging Face hub."""
    seed: Seed = 0
    """The same seed gives the same run."""
    steps: int = Field(default=12, ge=0)
    """RL steps."""
    epochs: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Passes over the training tasks, in place of `steps`: each step uses `algorithm.groups_per_batch` tasks. Only for
    sources with a fixed number of tasks, such as files. 0 means `steps`."""
    save_every: int = Field(default=5, ge=0)
    """Steps between checkpoints. 0 saves only at the end. Evaluated steps are saved too."""
    keep_checkpoints: int = Field(default=2, ge=0)
    """Number of last checkpoints to keep, besides the best one in validation. 0 keeps all."""
    max_fault_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """The run stops if more than this share of the episodes of a step or an evaluation fails by a fault. A resumed run
    repeats such an evaluation."""
    cost_limit: Decimal = Field(default=Decimal(0), ge=0)
    """The run saves a checkpoint and ends once the user simulator and the reward judge have cost this much, in the
    currency of the prices. It also limits the cost of all endpoints of `eval` and `data collect`. 0 sets no limit."""
    agent_endpoint: str = DEFAULT_ENDPOINT
    """Name of the endpoint (`endpoints.NAME`) that `--agent api` and your own agents call."""
    allow_noop_solvable: bool = False
    """Allow training on tasks that doing nothing solves."""
    agent: ProgramConfig = ProgramConfig()
    """The program that plays the model's episodes, in training and evaluation. By default, the shipped agent does."""
    engine: EngineConfig = LocalEngineConfig()
    sampling: SamplingParams = SamplingParams()
    format: FormatConfig = FormatConfig()
    limits: EpisodeLimits = EpisodeLimits()
    user: UserConfig = UserConfig()
    """The user simulator in training and evaluation. Demonstrations, noop and gold always have the scripted user."""
    endpoints: Endpoints = {DEFAULT_ENDPOINT: EndpointConfig()}
    """Table of endpoints: a name of your choice -> address, model and request options. Each of the keys
    `agent_endpoint`, `user.endpoint`, `algorithm.shaping.judge_endpoint` and `eval.failure_judge_endpoint` selects
    one by its name.
    """
    sft: SFTConfig = SFTConfig()
    preferences: PreferenceConfig = PreferenceConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    """The order and frequency of training tasks."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    eval: EvalConfig = EvalConfig()
    certify: CertifyConfig = CertifyConfig()
    health: HealthConfig = HealthConfig()
    trackers: tuple[TrackerName, ...] = ()
    """Experiment trackers that get the metrics too: wandb, tensorboard, mlflow, trackio. If this key is not set, wandb
    is used where it is installed and `WANDB_API_KEY` is set."""
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="before")
    @classmethod
    def _name_reference(cls, given: Any) -> Any:
        """Set `algorithm.reference.model` to `model` if its kind is `model` and it names none."""
        algorithm = given.get("algorithm") if isinstance(given, Mapping) else None
        reference = algorithm.get("reference") if isinstance(algorithm, Mapping) else None
        if not isinstance(reference, Mapping) or reference.get("kind") != "model" or reference.get("model"):
            return given
        model = given.get("model", cls.model_fields["model"].default)
        return merge_nested(given, {"algorithm": {"reference": {"model": model}}})

    @model_validator(mode="before")
    @classmethod
    def _name_program(cls, given: Any) -> Any:
        """Set `agent.function` if the environment is one of verifiers, which plays its episodes itself."""
        domain = given.get("domain", "") if isinstance(given, Mapping) else ""
        names = [str(name) for name in (domain if isinstance(domain, list | tuple) else [domain])]
        if not any(name.removeprefix("mix:").startswith(verifiers.PREFIX) for name in names):
            return given
        if len(names) > 1 or names[0].startswith("mix:"):
            raise ConfigError(f"{verifiers.PREFIX} names an environment that is trained alone; leave out the others")
        return merge_nested({"agent": {"function": verifiers.PROGRAM}}, given)

    @model_validator(mode="after")
    def _validate_no_secrets(self) -> Self:
        validate_no_secrets(self.model_dump(), "config")  # it is stored with the run and sent to trackers
        return self

    @property
    def steps_before_rl(self) -> int:
        """Steps of SFT and preference learning."""
        return self.sft.steps + self.preferences.steps

    @property
    def total_steps(self) -> int:
        """Steps of all phases."""
        return self.steps_before_rl + self.steps

    @property
    def num_base_tasks(self) -> int:
        """Number of held-out tasks of the evaluation before training.

        If RL starts from the base model, its gain is measured over that evaluation, so it has all tasks.
        """
        is_smaller = 0 < self.eval.base_tasks < self.eval.tasks and self.steps_before_rl
        return self.eval.base_tasks if is_smaller else self.eval.tasks

    @property
    def domain_text(self) -> str:
        """The domain in one word, for tables and names of folders."""
        return self.domain if isinstance(self.domain, str) else f"mix:{','.join(self.domain)}"

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets that set values of this config; none in the config that a run has stored."""
        return self._origin.presets

    def with_presets(self, presets: Sequence[str]) -> Self:
        """Return a copy that says that its values come from these presets."""
        copy = self.replace()
        copy._origin = ConfigOrigin(tuple(presets))
        return copy

    @property
    def source_references(self) -> tuple[str, ...]:
        """The sources that `domain` names, without files. Rows of files may name them too."""
        names = [self.domain] if isinstance(self.domain, str) else self.domain
        parts = [part for name in names for part in name.removeprefix("mix:").split(",")]
        return tuple(name for name in (parse_weight(part.strip())[0] for part in parts) if not is_task_file(name))

    def open_source(self) -> TaskSource:
        """Return the slice of the source that `domain` and `data` name. Raise ConfigError if it cannot be loaded."""
        source = with_reward_policy(load_source(self.domain, self.data), self.reward)
        try:
            part = source.slice(self.slice)
            # Only then, because listing the tasks of an MCP environment starts its servers.
            is_empty = self.slice.tools and not any(part.tasks(split) for split in SPLITS)
            if is_empty and (hidden := list_hidden_tasks(part)):
                names = ", ".join(sorted({call.name for task in hidden for call in task.gold_calls}))
                raise ConfigError(f"slice.tools leaves out all {len(hidden)} tasks, because their gold calls {names}")
            return part
        except ConfigError as e:
            named = [name for name in ("domains", "families", "tools") if getattr(self.slice, name)]
            if not named:
                raise
            empty = " ".join(f"slice.{name}=" for name in named)
            raise ConfigError(f"{e}; if the slice of a preset is for another domain, empty it: {empty}") from e

    @property
    def resolved_engine(self) -> EngineConfig:
        """Return `engine` with a `vllm.max_model_len` for the longest episode that the limits allow.

        An engine with its own `max_model_len` or a running server is returned unchanged.
        """
        engine = self.engine
        if not isinstance(engine, LocalEngineConfig) or engine.vllm.base_url or engine.vllm.max_model_len:
            return engine
        longest = self.limits.max_episode_tokens + MAX_OBSERVATION_TOKENS + self.sampling.max_response_tokens
        return engine.replace(vllm=engine.vllm.replace(max_model_len=longest))


PROVENANCE_FILE = "provenance.json"
"""The file beside the config of a run."""


@dataclass(frozen=True)
class ConfigLayer:
    """The TOML text of a config that overrides another one."""

    source: str
    """The name or the path, for errors."""
    text: str


ADDED_KEYS: Mapping[str, Mapping[str, Any]] = {
    "sampling": {"keep_sampling_mask": False},
    "limits": {"max_invalid_replies": 0},
}
"""Keys that stored configs of earlier versions lack, and the values with which their runs ran."""


def missing_added_keys(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the added keys that the values of a stored config lack."""
    return {
        section: {key: value for key, value in keys.items() if key not in values.get(section, {})}
        for section, keys in ADDED_KEYS.items()
    }


def load_config(
    source: str | Path = DEFAULT_PRESET, overrides: Sequence[str] = (), layers: Sequence[ConfigLayer] = ()
) -> TrainConfig:
    """Load the config of a preset's name or of a TOML file, with `a.b=value` overrides.

    Defaults come first, then the file, then the layers in their order, then the overrides. In the config that an
    earlier version stored with a run, keys that it did not know have the values with which it ran.
    """
    if str(source) in preset_names():
        return parse_config(preset_text(str(source)), overrides, str(source), layers)
    path = Path(source)
    if path.suffix != ".toml" and not path.exists():
        raise ConfigError(f"unknown preset {did_you_mean(str(source), preset_names())}, or the path of a .toml file")
    text = read_text(path)
    if (path.parent / PROVENANCE_FILE).is_file():
        missing = missing_added_keys(parse_values(text, str(source)))
        added = ((section, key, value) for section, keys in missing.items() for key, value in keys.items())
        lines = "\n".join(f"{section}.{key} = {json.dumps(value)}" for section, key, value in added)
        layers = [ConfigLayer(str(source), lines), *layers]
    return parse_config(text, overrides, str(source), layers)


def parse_config(
    text: str, overrides: Sequence[str] = (), where: str = "config", layers: Sequence[ConfigLayer] = ()
) -> TrainConfig:
    """Parse a config's TOML text, with `a.b=value` overrides.

    An override may have a short key, such as `group_size=4`, if only one key ends with it, or another library's name
    for a key (see `runs.conversions`). Each of `layers` overrides the text and the layers before it. An
    `algorithm.preset` in a layer or an override takes precedence over what is below: the preset replaces the keys of
    `algorithm` that both set.
    """
    _validate_one_setting_each(overrides)
    overrides = translate(TrainConfig, overrides)
    above: list[tuple[str, Mapping[str, Any]]] = []
    for layer in layers:
        values = parse_values(layer.text, layer.source)
        if "algorithm" in values:
            values["algorithm"] = with_preset_keys(values["algorithm"])
        above.append((layer.source, values))
    pairs = [override.partition("=") for override in overrides]
    presets = [value.strip() for key, _, value in pairs if key.strip() == "algorithm.preset"]
    if presets:
        above.append(("the settings", {"algorithm": with_preset_keys({"preset": presets[-1]})}))
    if _is_steps_above_epochs([(where, parse_values(text, where)), *above], pairs):
        overrides = [*overrides, "epochs=0"]
    known, sources = preset_names(), (where, *(layer.source for layer in layers))
    config = parse_toml(TrainConfig, text, overrides, where, above)
    return config.with_presets([source for source in sources if source in known])


def _validate_one_setting_each(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a whole command line in one word, such as one pasted from another library's script."""
    for override in overrides:
        words = override.replace("\\\n", " ").split()
        settings = [word for word in words if "=" in word]
        if len(settings) > 1 and "=" not in words[0]:
            shown = f"{words[0]} …"
            raise ConfigError(f"{shown!r} is a command, not a setting; write: understudy train {' '.join(settings)}")


def _is_steps_above_epochs(
    layers: Sequence[tuple[str, Mapping[str, Any]]], overrides: Sequence[tuple[str, str, str]]
) -> bool:
    """Return whether a layer sets `steps` and one below it `epochs`; the higher one wins.

    Raise ConfigError if one layer sets both.
    """
    settings = {key.strip(): value.strip() for key, _, value in overrides}
    winner = ""
    for source, values in (*layers, ("the settings", settings)):
        lengths = {key: values[key] for key in ("steps", "epochs") if key in values}
        if str(lengths.get("epochs")) in ("0", "0.0"):
            del lengths["epochs"]
        if len(lengths) > 1:
            raise ConfigError(
                f"{source}: steps = {values['steps']} and epochs = {values['epochs']} both set the length of the run; "
                "give one of them"
            )
        winner = "".join(lengths) or winner
    return winner == "steps"
