"""Write the episodes of an evaluation as a JSON log of Inspect, for `inspect view` and `read_eval_log`.

The format is Inspect's log version 2 (https://inspect.aisi.org.uk/eval-logs.html, `inspect_ai.log.EvalLog`). Inspect
need not be installed. A task is a sample, a trial is an epoch. Each sample has two scores, `success` and `reward`, with
the cause of a failure as explanation. Tokens and log-probabilities have no place in the format and are left out.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from understudy.clients.cost import COST_FILE, CostTracker
from understudy.core.errors import ConfigError
from understudy.core.files import atomic_write, os_errors_as_config_errors
from understudy.core.messages import Message
from understudy.core.tasks import Task
from understudy.core.trajectory import StopReason, Trajectory
from understudy.evaluation.failures.causes import EpisodeFailure
from understudy.evaluation.reports.files import read_report
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.result import ResultRow, merge_results
from understudy.rollouts.rollout import episode_seed
from understudy.runs.eval_spec import EvalSpec, read_spec
from understudy.runs.storage.episode_store import EPISODES_FILE, read_episodes
from understudy.runs.storage.task_store import TASKS_FILE, read_stored_tasks

LOG_VERSION = 2
_LIMITS = {StopReason.MAX_TURNS: "message", StopReason.MAX_TOKENS: "token", StopReason.INVALID_REPLIES: "custom"}


def write_inspect_log(folder: Path, file: Path) -> None:
    """Write the finished evaluation in `folder` as a log to `file`."""
    validate_log_path(file)
    text = json.dumps(inspect_log(folder), ensure_ascii=False)
    with os_errors_as_config_errors(file, f"give: understudy eval --resume {folder} --inspect-log {file}"):
        atomic_write(file, f"{text}\n")


def validate_log_path(file: Path) -> None:
    """Raise ConfigError if the name does not end in .json, is taken, or is in a folder that does not exist."""
    if file.suffix != ".json":
        raise ConfigError(f"{file}: Inspect recognizes logs by their suffix; give a name that ends in .json")
    if file.exists():
        raise ConfigError(f"{file} exists; give another name")
    if not file.parent.is_dir():
        raise ConfigError(f"the folder {file.parent} of {file.name} does not exist; create it, or give another name")


def inspect_log(folder: Path) -> dict[str, Any]:
    """Return the log as JSON-compatible values."""
    spec, report = read_spec(folder), read_report(folder)
    episodes, tasks = read_episodes(folder / EPISODES_FILE), read_stored_tasks(folder)
    changed = datetime.fromtimestamp((folder / EPISODES_FILE).stat().st_mtime, UTC).isoformat()
    began = datetime.fromtimestamp((folder / TASKS_FILE).stat().st_mtime, UTC).isoformat()
    usage = {who: _usage(paid) for who, paid in CostTracker(file=folder / COST_FILE).usage_by_role.items()}
    return {
        "version": LOG_VERSION,
        "status": "success" if any(episode.score for episode in episodes) else "error",
        "eval": _spec(spec, folder, began, list(tasks)),
        "plan": {"name": "plan", "steps": [{"solver": spec.agent, "params": {}}], "config": {}},
        "results": _results(report.agent_rows, episodes),
        "stats": {"started_at": began, "completed_at": changed, "model_usage": usage},
        "samples": list(_samples(spec, tasks, episodes, report)),
    }


def _spec(spec: EvalSpec, folder: Path, began: str, tasks: Sequence[str]) -> dict[str, Any]:
    config = spec.config
    return {
        "eval_id": _identity(folder.name, began),
        "run_id": _identity(folder.name, began, "run"),
        "task_id": _identity(config.domain_text, config.eval.split),
        "created": began,
        "task": f"{config.domain_text}/{config.eval.split}",
        "task_version": 0,
        "dataset": {"name": config.domain_text, "samples": len(tasks), "sample_ids": tasks, "shuffled": False},
        "model": f"understudy/{spec.name}",
        "config": {"epochs": config.eval.trials * spec.repeats, "epochs_reducer": ["mean"]},
        "packages": {"understudy": spec.version},
        "metadata": {"seed": config.eval.seed, "user": config.user.kind, "domain_policy": config.slice.domain_policy},
    }


def _results(agents: Sequence[ResultRow], episodes: Sequence[Trajectory]) -> dict[str, Any]:
    whole = merge_results([row.result for row in agents])  # repeats are epochs of one log
    rate, scored = whole.success_rate, [episode.score.reward for episode in episodes if episode.score]
    metrics = {"accuracy": rate.mean, "low": rate.low, "high": rate.high}
    metrics |= {f"pass^{k}": whole.pass_k_mean("hat", k) for k in range(1, whole.trials + 1)}
    total = sum(len(result.rewards) for result in whole.task_results)
    return {
        "total_samples": total,
        "completed_samples": len(scored),
        "scores": [
            _score("success", metrics, len(scored), total),
            _score("reward", {"mean": sum(scored) / max(1, len(scored))}, len(scored), total),
        ],
    }


def _score(name: str, metrics: Mapping[str, float], scored: int, total: int) -> dict[str, Any]:
    return {
        "name": name,
        "scorer": name,
        "reducer": "mean",
        "scored_samples": scored,
        "unscored_samples": total - scored,
        "metrics": {key: {"name": key, "value": value} for key, value in metrics.items() if math.isfinite(value)},
    }


def _samples(
    spec: EvalSpec, tasks: Mapping[str, Task], episodes: Sequence[Trajectory], report: EvalReport
) -> Iterator[dict[str, Any]]:
    causes = {(failure.task, failure.seed): failure for failure in report.failures}
    played = defaultdict[str, list[Trajectory]](list)
    for episode in episodes:
        played[episode.task_id].append(episode)
    for name, task in tasks.items():
        own = {_epoch(spec, task, episode): episode for episode in played[name]}
        for epoch, episode in sorted(own.items()):
            yield _sample(spec, task, episode, epoch, causes.get((name, episode.seed)))


def _epoch(spec: EvalSpec, task: Task, episode: Trajectory) -> int:
    """Return the episode's number among the episodes of its task, from 1, over all repeats.

    The seed of a retry is that of the first attempt plus the number of retries.
    """
    how, retries = spec.config.eval, spec.config.limits.max_retries
    places = [(number, trial) for number in range(spec.repeats) for trial in range(how.trials)]
    first = [episode_seed(how.seed + number, task, trial) for number, trial in places]
    return next(place for place, seed in enumerate(first, 1) if 0 <= episode.seed - seed <= retries)


def _sample(
    spec: EvalSpec, task: Task, episode: Trajectory, epoch: int, failure: EpisodeFailure | None
) -> dict[str, Any]:
    identity = _identity(task.id, str(episode.seed), str(epoch))
    messages = [_message(episode, place, f"{identity}{place}") for place in range(len(episode.messages))]
    answers = [message for message in messages if message["role"] == "assistant"]
    model = f"understudy/{spec.name}"
    sample = {
        "id": task.id,
        "epoch": epoch,
        "uuid": identity,
        "input": next((m.content for m in episode.messages if m.role == "user"), ""),
        "target": list(task.outputs) or "the changes of gold, and no others",
        "messages": messages,
        "output": {"model": model, "choices": [{"message": m, "stop_reason": "stop"} for m in answers[-1:]]},
        "scores": _scores(episode, failure),
        "metadata": {"domain": task.domain, "family": task.family, "difficulty": task.difficulty, "seed": episode.seed},
        "total_time": sum(episode.timings.values()),
        "working_time": episode.timings.get("agent", 0.0),
    }
    if episode.stop_reason in _LIMITS:
        reached = {StopReason.MAX_TURNS: episode.num_turns, StopReason.MAX_TOKENS: episode.num_tokens}
        limit = reached.get(episode.stop_reason, episode.num_invalid_replies)
        sample["limit"] = {"type": _LIMITS[episode.stop_reason], "limit": limit}
    return sample


def _scores(episode: Trajectory, failure: EpisodeFailure | None) -> dict[str, Any]:
    if episode.score is None:
        return {}
    reward = episode.score.reward
    why = f"{failure.cause.component}: {failure.cause.kind}. {failure.cause.evidence}" if failure else ""
    parts = {"parts": episode.score.parts, "progress": episode.score.progress}
    if failure:
        parts["cause"] = failure.cause.model_dump(mode="json")
    return {
        "success": {"value": 0.0 if failure else 1.0, "explanation": why},
        "reward": {"value": reward, "explanation": why, "metadata": parts},
    }


def _message(episode: Trajectory, place: int, identity: str) -> dict[str, Any]:
    message = episode.messages[place]
    wire: dict[str, Any] = {"id": identity, "role": message.role, "content": message.content}
    if message.role == "assistant":
        wire["source"] = "generate"
        if message.tool_calls:
            wire["tool_calls"] = [_call(message, number) for number in range(len(message.tool_calls))]
    if message.role == "tool":
        calls = (call for earlier in reversed(episode.messages[:place]) for call in earlier.tool_calls)
        wire["tool_call_id"] = message.tool_call_id
        wire["function"] = next((call.name for call in calls if call.id == message.tool_call_id), None)
        if message.content.startswith("Error: "):
            wire["error"] = {"type": "unknown", "message": message.content.removeprefix("Error: ")}
    return wire


def _call(message: Message, number: int) -> dict[str, Any]:
    call = message.tool_calls[number]
    broken = {"parse_error": call.parse_error} if call.parse_error else {}
    return {"id": call.id, "function": call.name or "unknown", "arguments": call.arguments, "type": "function"} | broken


def _usage(paid: Any) -> dict[str, int]:
    total = paid.prompt_tokens + paid.completion_tokens
    return {"input_tokens": paid.prompt_tokens, "output_tokens": paid.completion_tokens, "total_tokens": total}


def _identity(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:22]
