"""SkyRL's experiment and trainers, with our generator, journal, evaluations and checkpoints in them."""

import asyncio
import functools
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

from loguru import logger
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train import fully_async_trainer, trainer
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.trainer import RayPPOTrainer

from understudy.engines.local.model import BESIDE_WEIGHTS
from understudy.errors import RolloutError
from understudy.integrations.skyrl.generator import Rollouts
from understudy.integrations.skyrl.journal import Journal
from understudy.integrations.skyrl.policy import SKYRL, Policy
from understudy.integrations.skyrl.sampler import SkyrlSampler
from understudy.integrations.skyrl.slots import Slots, slots_of
from understudy.run import MODEL
from understudy.train.evaluation import evaluated
from understudy.train.loop import evaluation_after, saved_after
from understudy.train.state import Training

LOG = "driver.log"


class _Kept:
    """What both trainers do otherwise than SkyRL: they evaluate as we do, and keep all in the run's folder."""

    training: Training
    journal: Journal
    folder: Path
    """Of the model that the run started from, whose tokenizer stays as it is."""

    async def eval(self, vllm_metrics_scraper: object = None) -> dict[str, float]:
        """The evaluations that are due after this step, which SkyRL has nothing to do with."""
        step: int = self.global_step  # type: ignore[attr-defined]
        if name := evaluation_after(self.training.config, step):
            if self.journal.begun:
                self.journal.look(self._told())  # who interrupts the evaluation has the step's metrics all the same
            self.journal.examined(await evaluated(self.training, step, name))
        return {}

    async def evaluate(self) -> None:
        """What is still to do for a run that was ended after its last step: the evaluation of what it has come to."""
        trainer: Any = self
        trainer.init_weight_sync_state()
        trainer.global_step = trainer.load_checkpoints()[0]
        await trainer.dispatch.save_weights_for_sampler()
        trainer.tracker.log(await self.eval(), step=trainer.global_step, commit=True)

    def save_checkpoints(self) -> str:
        """A checkpoint, where this step is to have one: SkyRL asks after each. Returns its folder."""
        training, step = self.training, self.global_step  # type: ignore[attr-defined]
        if step > training.run.step and self._wanted(step):
            training.save(step)
        return str(training.run.last or "")

    def _wanted(self, step: int) -> bool:
        training, config = self.training, self.training.config
        if not self.journal.begun:  # the asynchronous trainer asks for one more at its end
            return False
        findings = [finding for finding in self.journal.look(self._told()) if not finding.ok]
        if any(finding.check == "finite" for finding in findings):
            return False
        halting = any(finding.check in config.health.halt_on for finding in findings)
        return saved_after(config, step) or halting or training.ending

    def _told(self) -> dict[str, Any]:
        """What SkyRL will tell of the step under way, as far as it is known."""
        trainer: Any = self
        return {**trainer.all_metrics, **{f"timing/{name}": took for name, took in trainer.all_timings.items()}}

    def write(self, path: Path) -> None:
        """SkyRL's own checkpoint, and the model as transformers and peft read it."""
        settings = self.cfg.trainer  # type: ignore[attr-defined]
        usual, settings.ckpt_path = settings.ckpt_path, str((path / SKYRL).absolute())
        super().save_checkpoints()  # type: ignore[misc]
        settings.ckpt_path = usual
        model = (path / MODEL).absolute()
        self.dispatch.save_hf_model("policy", str(model), None)  # type: ignore[attr-defined]
        for pattern in BESIDE_WEIGHTS:
            for file in self.folder.glob(pattern):
                shutil.copy(file, model)

    def _cleanup_old_checkpoints(self) -> None:
        """The run removes its own."""


class Trainer(_Kept, RayPPOTrainer):  # type: ignore[misc]  # SkyRL has no types
    """One step after the other."""


class AsynchronousTrainer(_Kept, FullyAsyncRayPPOTrainer):  # type: ignore[misc]
    """Generation goes on while the weights move."""

    def convert_generation_group_mini_batch_to_training_input(
        self, groups: list[Any], dropped: list[Any] | None = None
    ) -> Any:
        """As SkyRL does: here it is known which groups are those of the step."""
        self.journal.taken(group.uid for group in [*groups, *(dropped or ())])
        return super().convert_generation_group_mini_batch_to_training_input(groups, dropped)


class Experiment(BasePPOExp):  # type: ignore[misc]
    """See SkyRL's `BasePPOExp`, whose hooks these are."""

    def __init__(self, cfg: Any, training: Training, policy: Policy, sampler: SkyrlSampler, folder: Path) -> None:
        """`folder` is the model's. Ray runs already."""
        self._training, self._policy, self._sampler, self._folder = training, policy, sampler, folder
        self._journal = Journal(training)
        super().__init__(cfg)

    def get_train_dataset(self) -> Slots:
        """As many slots as groups are asked for."""
        return Slots(slots_of(self._training.config, self.cfg.trainer))

    def get_eval_dataset(self) -> None:
        """None: exams are played by ourselves."""

    def get_tracker(self) -> Journal:
        """The run's folder."""
        return self._journal

    def get_generator(self, cfg: Any, tokenizer: object, inference_engine_client: Any) -> Rollouts:
        """Our rollout."""
        self._sampler.client = inference_engine_client
        self._sampler.model = resolve_policy_model_name(cfg)
        self._sampler.salted = cfg.generator.use_cache_salt
        return Rollouts(self._training, self._sampler, self._journal, cfg.trainer.fully_async.enabled)

    def get_trainer(self, cfg: Any, **parts: Any) -> Trainer | AsynchronousTrainer:
        """SkyRL's trainer, synchronous or not."""
        made = (AsynchronousTrainer if cfg.trainer.fully_async.enabled else Trainer)(cfg=cfg, **parts)
        hush(Path(cfg.trainer.log_path))  # once more: SkyRL's trainer has turned it on
        made.training, made.journal, made.folder = self._training, self._journal, self._folder
        self._policy.write = made.write
        return made

    def train(self) -> None:
        """Train to the end; what was played is kept, whatever ends it."""
        made, training = self._setup_trainer(), self._training
        try:  # SkyRL would take a further step of a run that has all of them, and slots left
            asyncio.run(made.train() if training.run.step < training.total else made.evaluate())
            if self._journal.done < training.total:
                self._give_up(made)
        finally:
            self._journal.close()

    def _give_up(self, made: Trainer | AsynchronousTrainer) -> NoReturn:
        """SkyRL has used up all slots, which it passes over in silence."""
        training, done = self._training, self._journal.done
        if training.run.step < done:
            made.global_step = done
            training.save(done)
        raise RolloutError(
            f"stopped after step {done} of {training.total}: of {len(self.train_dataset)} groups none is left that "
            "teaches anything; choose tasks at which the model succeeds now and then (slice, algorithm.group_size)",
            "engine",
        )


class CpuExperiment(Experiment):
    """The same with workers on the CPU of this machine."""

    def get_inference_client(self) -> Any:
        """One engine in a process of its own."""
        from understudy.integrations.skyrl.cpu_engine import CpuClient

        return CpuClient(Path(self.cfg.trainer.policy.model.path), self._training.config.engine.sequences)

    def _setup_trainer(self) -> Trainer | AsynchronousTrainer:
        from understudy.integrations.skyrl.cpu import CriticWorker, PolicyWorker, RefWorker

        os.makedirs(self.cfg.trainer.export_path, exist_ok=True)
        client = self.get_inference_client()
        made = self.get_trainer(
            self.cfg,
            tracker=self.get_tracker(),
            tokenizer=self.tokenizer,
            train_dataset=self.train_dataset,
            eval_dataset=None,
            inference_engine_client=client,
            generator=self.get_generator(self.cfg, self.tokenizer, client),
            colocate_pg=None,
        )
        made.build_models(PolicyWorker, CriticWorker, RefWorker)
        return made


def hush(folder: Path) -> None:
    """What SkyRL says goes to a file, and its progress bars nowhere: the terminal shows the run."""
    logger.remove()
    logger.add(folder / LOG)
    for module in (trainer, fully_async_trainer):
        if not isinstance(module.tqdm, functools.partial):
            module.tqdm = functools.partial(module.tqdm, disable=True)
