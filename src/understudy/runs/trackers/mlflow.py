"""MLflow. Its client reads MLFLOW_TRACKING_URI and other variables from the environment."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import mlflow

from understudy.runs.trackers.config import TrackerRunInfo
from understudy.runs.trackers.sink import MetricSink

RUN_ID_TAG = "understudy_id"
MAX_PARAM_LENGTH, MAX_PARAMS_PER_CALL = 500, 100
"""Limits that every server accepts: characters of a parameter, and parameters in a call."""
_REFUSED = re.compile(r"[^\w\-. :/]")


def start_tracker(about: TrackerRunInfo) -> MetricSink:
    """Continue the MLflow run that is tagged with this run's id, or start a new one with the config as parameters."""
    experiment = mlflow.set_experiment(about.tracking.project)
    runs = mlflow.search_runs(
        [experiment.experiment_id], f"tags.{RUN_ID_TAG} = '{about.id}'", max_results=1, output_format="list"
    )
    if runs:
        mlflow.start_run(run_id=runs[0].info.run_id)
    else:
        mlflow.start_run(run_name=about.name, tags={RUN_ID_TAG: about.id})
        parameters = list(_flat(about.config))
        for i in range(0, len(parameters), MAX_PARAMS_PER_CALL):
            mlflow.log_params(dict(parameters[i : i + MAX_PARAMS_PER_CALL]))
    return MetricSink(_log, mlflow.end_run)


def _log(step: int, metrics: Mapping[str, float]) -> None:
    mlflow.log_metrics({_REFUSED.sub("_", name): value for name, value in metrics.items()}, step=step)


def _flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield path + key, str(value)[:MAX_PARAM_LENGTH]
