"""MLflow. It reads MLFLOW_TRACKING_URI, and whatever else its client takes, of the environment."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import mlflow

from understudy.trackers.options import About
from understudy.trackers.sink import Sink

TAG = "understudy_id"
LONGEST, MOST = 500, 100
"""Characters of a parameter, and parameters at once, that every server takes."""
_REFUSED = re.compile(r"[^\w\-. :/]")


def start(about: About) -> Sink:
    """The run that has this id as a tag, or a new one."""
    experiment = mlflow.set_experiment(about.tracking.project)
    found = mlflow.search_runs(
        [experiment.experiment_id], f"tags.{TAG} = '{about.id}'", max_results=1, output_format="list"
    )
    if found:
        mlflow.start_run(run_id=found[0].info.run_id)
    else:
        mlflow.start_run(run_name=about.name, tags={TAG: about.id})
        parameters = list(_flat(about.config))
        for i in range(0, len(parameters), MOST):
            mlflow.log_params(dict(parameters[i : i + MOST]))
    return Sink(_log, mlflow.end_run)


def _log(step: int, metrics: Mapping[str, float]) -> None:
    mlflow.log_metrics({_REFUSED.sub("_", name): value for name, value in metrics.items()}, step=step)


def _flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield path + key, str(value)[:LONGEST]
