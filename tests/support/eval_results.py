"""Evaluation results from given rewards."""

from understudy.evaluation.result import EvalKind, EvalResult, TaskResult


def make_result(*rewards: tuple[float | None, ...], kind: EvalKind = "agent", families: str = "") -> EvalResult:
    """Return the result of tasks t0, t1, … Each of `rewards` holds a task's rewards, one per trial. The letters of
    `families` are the tasks' families.
    """
    results = tuple(
        TaskResult(task=f"t{i}", family=families[i : i + 1] or "f", difficulty="easy", fingerprint="", rewards=row)
        for i, row in enumerate(rewards)
    )
    return EvalResult(domain="d", kind=kind, seed=0, trials=len(rewards[0]) if rewards else 1, task_results=results)
