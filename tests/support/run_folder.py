"""Files of a run's folder, written without training."""

from understudy.core.messages import Message
from understudy.core.tasks import Score
from understudy.core.trajectory import StopReason, Trajectory
from understudy.runs.config import TrainConfig
from understudy.runs.run import Run

CONFIG = TrainConfig(seed=7)


def episode(task: str = "t1") -> Trajectory:
    """Return an episode of one message with reward 1."""
    return Trajectory(
        task, messages=[Message(role="user", content="hi")], score=Score(reward=1.0), stop_reason=StopReason.DONE
    )


def save_checkpoint(run: Run, step: int, weights: str = "w") -> None:
    """Write a checkpoint of two small files."""
    with run.write_checkpoint(step) as folder:
        (folder / "weights").write_text(weights)
        (folder / "inner").mkdir()
        (folder / "inner" / "state").write_text(str(step))
