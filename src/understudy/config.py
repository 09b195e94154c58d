"""Configuration: records composed into one, which `settings` reads from TOML and writes to it.

The docstring under a field is its only documentation; `settings.dump` writes it as a comment above the key.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Self

from pydantic import Field, model_validator

from understudy.algorithms.options import Advantage, Critic, Loss, Overlong, Penalty, Per, Turn
from understudy.algorithms.preference_options import Preferences
from understudy.algorithms.presets import laid_over, row
from understudy.chat import ChatConfig
from understudy.curriculum import Curriculum
from understudy.domains.base import Slice
from understudy.engines.base import Sampling
from understudy.engines.local.config import LocalConfig
from understudy.engines.reference import ReferenceConfig
from understudy.engines.skyrl import SkyrlConfig
from understudy.errors import ConfigError
from understudy.formats import FormatConfig
from understudy.health import HealthConfig
from understudy.records import Record
from understudy.rollout import Limits
from understudy.shaping import Shaping
from understudy.tasks import Split
from understudy.trackers import Tracker, TrackingConfig
from understudy.users import UserConfig


class SFTConfig(Record):
    """The warm start: imitation of demonstrations, gold ones and those of a file."""

    steps: int = Field(default=48, ge=0)
    """Optimizer steps, each on a batch: they decide how often demonstrations are read, and whether all are. 0 goes
    without a warm start."""
    batch_size: int = Field(default=8, ge=1)
    """Demonstrations in a step."""
    learning_rate: float = Field(default=2e-4, gt=0.0)
    """At its highest, after `warmup`; from there it falls, in a line, to a tenth at the last step."""
    warmup: int = Field(default=4, ge=0)
    """Steps over which the learning rate rises to its value."""
    demonstrations: int = Field(default=256, ge=0)
    """How many different gold episodes are imitated."""
    file: str = ""
    """Further demonstrations: a file that `understudy data collect` has written, or one of another trainer's."""


class Algorithm(Record):
    """What a step of reinforcement learning does."""

    preset: str = ""
    """An algorithm by name, such as `dapo` or `ppo` (`understudy list`): the keys of this section that its row sets.
    What is said beside it wins: in a file the file's other keys, on the command line the other key=value."""
    advantage: Advantage = "group"
    """Reward minus the group's mean (`group`), that over the group's deviation (`group_std`) or over the batch's
    (`batch_std`), minus the mean of the others (`leave_one_out`), or from the values of a critic (`gae`); of each reply
    apart, minus the mean of the group's episodes that were in the same situation (`turn`); 1 for success and nothing
    else, to imitate (`success`); or 0, where the reference judges alone (`none`)."""
    per: Per = "token"
    """What weighs the same in the loss: every token, every sequence, or every token whatever the batch holds."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of one task; with `gae`, `success` and `none`, which compare none, one is enough."""
    tasks_per_step: int = Field(default=6, ge=1)
    """Groups in a step."""
    learning_rate: float = Field(default=1e-5, gt=0.0)
    """At its highest, after `warmup`."""
    warmup: int = Field(default=2, ge=0)
    """Steps over which the learning rate rises to its value."""
    decay: float = Field(default=1.0, gt=0.0, le=1.0)
    """What share of the learning rate is left at the last step, to which it falls in a line after `warmup`; 1 keeps it
    as it is, and only then a run can be gone on with for more steps."""
    updates_per_step: int = Field(default=1, ge=1)
    """Optimizer steps on the episodes of one step, each on its share of them."""
    epochs: int = Field(default=1, ge=1)
    """How often a step's episodes are gone through, each time in `updates_per_step` other shares."""
    kl_coefficient: float = Field(default=0.0, ge=0.0)
    """Weight of the KL penalty against the reference. Against a teacher it is what the policy learns from it."""
    kl_kind: Penalty = "k1"
    """How that is estimated: by the log ratio (`k1`, whose gradient as a reward is that of `k2` as a loss), or as GRPO
    does (`k3`). With `gae` values learn to foresee a `k1`; the others stay a part of the loss."""
    reference: ReferenceConfig = ReferenceConfig()
    """Whom the KL penalty compares with."""
    shaping: Shaping = Shaping()
    importance_cap: float = Field(default=0.0, ge=0.0)
    """Make up for a sampler whose probabilities are not quite the trainer's: each token is weighed by their ratio, by
    this at most (2 is usual). It takes a further forward pass; 0 trusts the sampler."""
    refill: int = Field(default=6, ge=0)
    """At most so many further groups are sampled in a step to replace groups of equal rewards, which teach nothing.
    With `gae` they teach, and none is replaced."""
    overlong: Overlong = Overlong()
    loss: Loss = Loss()
    critic: Critic = Critic()
    turn: Turn = Turn()

    @property
    def valued(self) -> bool:
        """Whether a critic learns beside the policy."""
        return self.advantage == "gae"

    @property
    def held(self) -> int:
        """For how many steps the policy stays as it is."""
        return self.critic.warmup if self.valued else 0

    @model_validator(mode="before")
    @classmethod
    def _on_its_row(cls, given: Any) -> Any:
        name = given.get("preset") if isinstance(given, Mapping) else None
        return laid_over(row(name), given) if isinstance(name, str) and name else given

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if self.group_size < 2 and self.advantage not in ("gae", "success", "none"):
            raise ConfigError(
                f"algorithm.group_size = {self.group_size}: algorithm.advantage = {self.advantage!r} compares the "
                "episodes of a group; it should be greater than or equal to 2 (1 is enough for 'gae')"
            )
        return self


class EvalConfig(Record):
    """How a model is evaluated while and after it is trained."""

    split: Split = "validation"
    """Whose tasks are played. `test` is for a final number: what is chosen by it is not measured by it any more."""
    tasks: int = Field(default=200, ge=1)
    """How many tasks: the frozen ones of the split first, then generated ones."""
    trials: int = Field(default=1, ge=1)
    """Episodes of each task; pass^k is shown for k up to this."""
    every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates before and after only."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 takes the most likely token."""
    seed: int = 0
    """Of the tasks that are generated, and of the episodes; apart from the run's, so that runs meet the same ones."""
    tests: tuple[str, ...] = ()
    """Domains that are never trained on. Their test tasks are played at every evaluation, and reported apart."""
    test_tasks: int = Field(default=100, ge=1)
    """How many tasks of each of them."""


class CertifyConfig(Record):
    """The proof that what is sampled is what is trained on: at the start of a run, and on its episodes."""

    every: int = Field(default=5, ge=0)
    """Steps of reinforcement learning from one proof to the next, the first included; 0 goes without any."""
    episodes: int = Field(default=4, ge=1)
    """How many of a step's episodes the trainer reads for it."""
    slack: float = Field(default=1.0, gt=0.0)
    """How many times the engine's tolerance log-probabilities may differ by."""
    halt: bool = True
    """Whether a proof that fails stops the run; else it is a warning."""


AT_ONCE = 8192
"""Tokens that an episode may get between two replies, or begin with, and still be replied to through vLLM."""


class TrainConfig(Record):
    """All of a training run."""

    domain: str = "retail"
    """A shipped domain, `module:attribute` for your own, or a benchmark's, such as `tau-bench:PATH#retail`."""
    slice: Slice = Slice()
    test_slice: Slice = Slice()
    """Which part of the domains of `eval.tests` is played, and what of them the agent is shown."""
    model: str = "smollm2-135m"
    """An embedded model, a local folder, or `owner/model` on the Hugging Face hub."""
    seed: int = 0
    """The same seed gives the same run."""
    steps: int = Field(default=12, ge=0)
    """Steps of reinforcement learning."""
    save_every: int = Field(default=5, ge=0)
    """Steps between checkpoints; 0 saves at the end only. The steps after which a model is evaluated are saved too."""
    keep: int = Field(default=2, ge=0)
    """Checkpoints that are kept: the last so many, and the one that did best in validation; 0 keeps all."""
    max_fault_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """The run stops when more than this share of a step's episodes, or of an evaluation's, fails through no fault of
    the agent. Such an evaluation is not kept: a resumed run does it again."""
    cost_cap: Decimal = Field(default=Decimal(0), ge=0)
    """The run ends, with a checkpoint, once the models that play its users and mark its failures have cost so much, in
    the currency of their prices; 0 sets no limit. `eval` and `data collect` stop at it, too, with what all that they
    ask has cost."""
    free_tasks: bool = False
    """Whether tasks that doing nothing earns may be trained on."""
    engine: LocalConfig = LocalConfig()
    skyrl: SkyrlConfig = SkyrlConfig()
    sampling: Sampling = Sampling()
    format: FormatConfig = FormatConfig()
    limits: Limits = Limits()
    user: UserConfig = UserConfig()
    """Who the agent speaks to in training and evaluation; demonstrations, floor and oracle keep the scripted user."""
    chat: ChatConfig = ChatConfig()
    """The endpoint and model that `--agent native`, `--agent chat` and agents of your own play with, and that training
    asks for marks where `algorithm.shaping.judge` is above 0."""
    judge: ChatConfig = ChatConfig()
    """The endpoint and model that `eval --judge` asks why episodes failed. No reward reads it."""
    sft: SFTConfig = SFTConfig()
    preferences: Preferences = Preferences()
    curriculum: Curriculum = Curriculum()
    """What reinforcement learning trains on first, and most."""
    algorithm: Algorithm = Algorithm()
    eval: EvalConfig = EvalConfig()
    certify: CertifyConfig = CertifyConfig()
    health: HealthConfig = HealthConfig()
    trackers: tuple[Tracker, ...] = ()
    """Where metrics go beside the run's folder: wandb, tensorboard, mlflow, trackio."""
    tracking: TrackingConfig = TrackingConfig()

    @property
    def prior(self) -> int:
        """Steps before reinforcement learning."""
        return self.sft.steps + self.preferences.steps

    @property
    def total(self) -> int:
        """Steps of all phases."""
        return self.prior + self.steps

    @property
    def fitted(self) -> LocalConfig:
        """`engine`, whose vLLM has room for the episodes that the limits allow, not for all of the model's context.

        What has its own `engine.vllm.max_model_len`, or a server that runs already, stays as it is.
        """
        engine, vllm = self.engine, self.engine.vllm
        if engine.kind != "local" or vllm.url or vllm.max_model_len:
            return engine
        longest = self.limits.max_tokens + AT_ONCE + self.sampling.max_tokens
        return engine.replace(vllm=vllm.replace(max_model_len=longest))
