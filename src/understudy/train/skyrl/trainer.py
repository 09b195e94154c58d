"""Subclasses of SkyRL's experiment and trainers, with our generator, tracker, evaluations and checkpoints."""

import asyncio
import functools
from pathlib import Path
from typing import Any, NoReturn

from loguru import logger
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train import fully_async_trainer, trainer
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.utils import prepare_runtime_environment

from understudy.core.errors import RunStoppedError
from understudy.engines.local.model import copy_tokenizer
from understudy.runs.phases import eval_name_after, has_checkpoint_after
from understudy.runs.run import MODEL_FOLDER
from understudy.train.checkpointing import save_checkpoint, stop_run
from understudy.train.evaluation import evaluate_step
from understudy.train.phases.rl import RLPhase
from understudy.train.skyrl.engine_adapter import SKYRL_FOLDER, SkyRLEngineAdapter
from understudy.train.skyrl.generator import RolloutGenerator
from understudy.train.skyrl.placeholder_dataset import PlaceholderDataset, max_groups
from understudy.train.skyrl.sampler import SkyRLSampler
from understudy.train.skyrl.tracking import TrackingAdapter
from understudy.train.state import TrainingContext, TrainingProgress
from understudy.train.step_records import has_eval_record

DRIVER_LOG = "driver.log"


class _RunHooks:
    """Overrides of methods that SkyRL's two trainers share: our evaluations, and checkpoints in the run's folder."""

    context: TrainingContext
    progress: TrainingProgress
    tracker: TrackingAdapter
    folder: Path
    """The folder of the initial model, whose tokenizer files are copied into checkpoints."""

    async def eval(self, vllm_metrics_scraper: object = None) -> dict[str, float]:
        """Run the evaluations that are due after this step, and return no metrics to SkyRL."""
        step: int = self.global_step  # type: ignore[attr-defined]
        name = eval_name_after(self.context.config, step)
        if name and self.tracker.has_groups:
            self.tracker.log_step(step, self._unreported_metrics())
        if name and not has_eval_record(self.context.run, step):
            metrics = await evaluate_step(self.context, step, name)
            if metrics is None:
                stop_run(self.context, self.progress, step)
            self.tracker.log_eval(step, metrics)
        return {}

    async def evaluate_last_step(self) -> None:
        """Evaluate the last checkpoint of a run that was interrupted between its last step and its last evaluation."""
        trainer: Any = self
        trainer.init_weight_sync_state()
        trainer.global_step = trainer.load_checkpoints()[0]
        await trainer.dispatch.save_weights_for_sampler()
        trainer.tracker.log(await self.eval(), step=trainer.global_step, commit=True)

    def save_checkpoints(self) -> str:
        """Write a checkpoint if this step needs one, and return the folder of the last one.

        SkyRL calls this after each step.
        """
        run, step = self.context.run, self.global_step  # type: ignore[attr-defined]
        if step > run.step and self._is_save_due(step):
            save_checkpoint(self.context, self.progress, step)
        return str(run.last_checkpoint or "")

    def _is_save_due(self, step: int) -> bool:
        config = self.context.config
        if not self.tracker.has_groups:  # the asynchronous trainer calls this once more at its end
            return False
        issues = self.tracker.log_step(step, self._unreported_metrics())
        if any(issue.check == "finite" for issue in issues):
            return False
        halting = any(issue.check in config.health.stop_on for issue in issues)
        return has_checkpoint_after(config, step) or halting or self.context.should_stop

    def _unreported_metrics(self) -> dict[str, Any]:
        """Return the metrics of the current step that SkyRL has measured and not reported yet."""
        trainer: Any = self
        return {**trainer.all_metrics, **{f"timing/{name}": took for name, took in trainer.all_timings.items()}}

    def write_checkpoint(self, path: Path) -> None:
        """Write SkyRL's own checkpoint, and the model in the format of transformers and peft."""
        settings = self.cfg.trainer  # type: ignore[attr-defined]
        usual, settings.ckpt_path = settings.ckpt_path, str((path / SKYRL_FOLDER).absolute())
        super().save_checkpoints()  # type: ignore[misc]
        settings.ckpt_path = usual
        model = (path / MODEL_FOLDER).absolute()
        self.dispatch.save_hf_model("policy", str(model), None)  # type: ignore[attr-defined]
        copy_tokenizer(self.folder, model)

    def _cleanup_old_checkpoints(self) -> None:
        """Do nothing: the run removes old checkpoints itself."""


class SyncTrainer(_RunHooks, RayPPOTrainer):  # type: ignore[misc]  # SkyRL has no types
    """SkyRL's synchronous trainer with our hooks."""


class AsyncTrainer(_RunHooks, FullyAsyncRayPPOTrainer):  # type: ignore[misc]
    """SkyRL's asynchronous trainer with our hooks. Generation continues during updates."""

    def convert_generation_group_mini_batch_to_training_input(
        self, groups: list[Any], dropped: list[Any] | None = None
    ) -> Any:
        """Report the groups of this step to the tracker, then call SkyRL's method. They are not known earlier."""
        self.tracker.take_queued_groups(group.uid for group in [*groups, *(dropped or ())])
        return super().convert_generation_group_mini_batch_to_training_input(groups, dropped)


class SkyRLExperiment(BasePPOExp):  # type: ignore[misc]
    """SkyRL's `BasePPOExp` with our hooks. A subclass may use other workers; `engine.experiment` names it."""

    def __init__(
        self, cfg: Any, phase: RLPhase, engine: SkyRLEngineAdapter, sampler: SkyRLSampler, model_folder: Path
    ) -> None:
        """`cfg` is SkyRL's config, `model_folder` the folder of the initial model. Ray must be running."""
        self._phase, self._context, self._progress = phase, phase.context, phase.progress
        self._policy, self._sampler, self._folder = engine, sampler, model_folder
        self._tracker = TrackingAdapter(self._context, self._progress)
        super().__init__(cfg)

    @staticmethod
    def worker_env_vars(cfg: Any) -> dict[str, str]:
        """Return the environment variables of the workers."""
        return dict(prepare_runtime_environment(cfg))

    @staticmethod
    def ray_init_args(cfg: Any) -> dict[str, Any]:
        """Return arguments of `ray.init` for a cluster that is started for the run.

        The default is none: Ray detects the machine's resources.
        """
        return {}

    def get_train_dataset(self) -> PlaceholderDataset:
        """Return a dataset with one placeholder for each group."""
        return PlaceholderDataset(max_groups(self._context.config, self.cfg.trainer))

    def get_eval_dataset(self) -> None:
        """Return None, because our evaluations replace SkyRL's."""

    def get_tracker(self) -> TrackingAdapter:
        """Return the tracker that writes the run's folder."""
        return self._tracker

    def get_generator(self, cfg: Any, tokenizer: object, inference_engine_client: Any) -> RolloutGenerator:
        """Return the generator that plays our rollouts."""
        self._sampler.client = inference_engine_client
        self._sampler.model = resolve_policy_model_name(cfg)
        self._sampler.salted = cfg.generator.use_cache_salt
        return RolloutGenerator(self._phase, self._sampler, self._tracker, cfg.trainer.fully_async.enabled)

    def get_trainer(self, cfg: Any, **parts: Any) -> SyncTrainer | AsyncTrainer:
        """Return the trainer that the config asks for, synchronous or asynchronous."""
        skyrl_trainer = (AsyncTrainer if cfg.trainer.fully_async.enabled else SyncTrainer)(cfg=cfg, **parts)
        redirect_skyrl_log(Path(cfg.trainer.log_path))  # again, because SkyRL's trainer has turned its log on
        skyrl_trainer.context, skyrl_trainer.progress = self._context, self._progress
        skyrl_trainer.tracker, skyrl_trainer.folder = self._tracker, self._folder
        self._policy.write = skyrl_trainer.write_checkpoint
        return skyrl_trainer

    def train(self) -> None:
        """Train to the end. All episodes that were played are written, also after an error.

        Raise RunStoppedError if the slots do not suffice for all steps.
        """
        skyrl_trainer, run, total = self._setup_trainer(), self._context.run, self._context.config.total_steps
        try:  # SkyRL would train one more step of a run that has finished all steps
            asyncio.run(skyrl_trainer.train() if run.step < total else skyrl_trainer.evaluate_last_step())
            if self._tracker.last_step < total:
                self._give_up(skyrl_trainer)
        finally:
            self._tracker.close()

    def _give_up(self, skyrl_trainer: SyncTrainer | AsyncTrainer) -> NoReturn:
        """Save a checkpoint and raise RunStoppedError: SkyRL has used all slots, and it does not report this itself."""
        done, total = self._tracker.last_step, self._context.config.total_steps
        if self._context.run.step < done:
            skyrl_trainer.global_step = done
            save_checkpoint(self._context, self._progress, done)
        raise RunStoppedError(
            f"stopped after step {done} of {total}: all {len(self.train_dataset)} groups of the run were played, "
            "and too few of them had different rewards; choose tasks that the model sometimes solves (slice), or raise "
            "algorithm.group_size",
            "engine",
        )


def redirect_skyrl_log(folder: Path) -> None:
    """Write SkyRL's log to a file in `folder`, and disable its progress bars. The terminal then shows only the run."""
    logger.remove()
    logger.add(folder / DRIVER_LOG)
    for module in (trainer, fully_async_trainer):
        if not isinstance(module.tqdm, functools.partial):
            module.tqdm = functools.partial(module.tqdm, disable=True)
