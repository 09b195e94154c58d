"""The episodes of an evaluation as a log that Inspect reads (`inspect view`, `read_eval_log`), in its JSON format.

Written from Inspect's own description of the format, version 2 (https://inspect.aisi.org.uk/eval-logs.html, and
`inspect_ai.log.EvalLog`); nothing of Inspect is needed to write it. A task is a sample, a trial an epoch. Two scores:
the `reward`, with its parts and, where the episode failed, the cause as explanation, and `success`. What Inspect has no
place for (tokens, log-probabilities) is left out.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from understudy.assess.sitting import TASKS, Sitting, begun
from understudy.disk import write_whole, writing
from understudy.errors import ConfigError
from understudy.failures.causes import Failure
from understudy.kept import EPISODES, PAID, episodes_in
from understudy.messages import Message
from understudy.outcome import Named, Outcome, read
from understudy.purse import Purse
from understudy.results import together
from understudy.rollout import episode_seed
from understudy.tasks import Task, read_tasks
from understudy.trajectory import Stop, Trajectory

VERSION = 2
_LIMITS = {Stop.MAX_TURNS: "message", Stop.MAX_TOKENS: "token"}


def write_log(folder: Path, file: Path) -> None:
    """Write the evaluation in `folder`, which has to be whole, as a log to `file`."""
    refuse_file(file)
    text = json.dumps(log(folder), ensure_ascii=False)
    with writing(file, f"give: understudy eval --resume {folder} --inspect {file}"):
        write_whole(file, f"{text}\n")


def refuse_file(file: Path) -> None:
    """A name that Inspect would not know, or one that is taken, is a `ConfigError`."""
    if file.suffix != ".json":
        raise ConfigError(f"{file}: Inspect knows logs by their names; give one that ends in .json")
    if file.exists():
        raise ConfigError(f"{file} is there already; give another name")
    if not file.parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent} to write {file.name} to")


def log(folder: Path) -> dict[str, Any]:
    """The log as plain values."""
    sitting, outcome = begun(folder), read(folder)
    episodes, tasks = episodes_in(folder / EPISODES), {task.id: task for task in read_tasks(folder / TASKS)}
    changed = datetime.fromtimestamp((folder / EPISODES).stat().st_mtime, UTC).isoformat()
    began = datetime.fromtimestamp((folder / TASKS).stat().st_mtime, UTC).isoformat()
    usage = {who: _usage(paid) for who, paid in Purse(file=folder / PAID).spent.items()}
    return {
        "version": VERSION,
        "status": "success",
        "eval": _spec(sitting, folder, began, list(tasks)),
        "plan": {"name": "plan", "steps": [{"solver": sitting.agent, "params": {}}], "config": {}},
        "results": _results(outcome.agents, episodes),
        "stats": {"started_at": began, "completed_at": changed, "model_usage": usage},
        "samples": list(_samples(sitting, tasks, episodes, outcome)),
    }


def _spec(sitting: Sitting, folder: Path, began: str, tasks: Sequence[str]) -> dict[str, Any]:
    config = sitting.config
    return {
        "eval_id": _identity(folder.name, began),
        "run_id": _identity(folder.name, began, "run"),
        "task_id": _identity(config.domain, config.eval.split),
        "created": began,
        "task": f"{config.domain}/{config.eval.split}",
        "task_version": 0,
        "dataset": {"name": config.domain, "samples": len(tasks), "sample_ids": tasks, "shuffled": False},
        "model": f"understudy/{sitting.name}",
        "config": {"epochs": config.eval.trials * sitting.reruns, "epochs_reducer": ["mean"]},
        "packages": {"understudy": sitting.version},
        "metadata": {"seed": config.eval.seed, "user": config.user.kind, "policy": config.slice.policy},
    }


def _results(agents: Sequence[Named], episodes: Sequence[Trajectory]) -> dict[str, Any]:
    whole = together([row.evaluation for row in agents])  # reruns are epochs of one log
    rate, scored = whole.success, [episode.score.reward for episode in episodes if episode.score]
    metrics = {"accuracy": rate.mean, "low": rate.low, "high": rate.high}
    metrics |= {f"pass^{k}": whole.passed("hat", k) for k in range(1, whole.trials + 1)}
    total = sum(len(result.rewards) for result in whole.results)
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
    sitting: Sitting, tasks: Mapping[str, Task], episodes: Sequence[Trajectory], outcome: Outcome
) -> Iterator[dict[str, Any]]:
    causes = {(failure.task, failure.seed): failure for failure in outcome.failures}
    played = defaultdict[str, list[Trajectory]](list)
    for episode in episodes:
        played[episode.task].append(episode)
    for name, task in tasks.items():
        own = {_epoch(sitting, task, episode): episode for episode in played[name]}
        for epoch, episode in sorted(own.items()):
            yield _sample(sitting, task, episode, epoch, causes.get((name, episode.seed)))


def _epoch(sitting: Sitting, task: Task, episode: Trajectory) -> int:
    """Which of the task's episodes it is, from 1, over all reruns; a further attempt has a seed further on."""
    how, retries = sitting.config.eval, sitting.config.limits.retries
    places = [(number, trial) for number in range(sitting.reruns) for trial in range(how.trials)]
    first = [episode_seed(how.seed + number, task, trial) for number, trial in places]
    return next(place for place, seed in enumerate(first, 1) if 0 <= episode.seed - seed <= retries)


def _sample(sitting: Sitting, task: Task, episode: Trajectory, epoch: int, failure: Failure | None) -> dict[str, Any]:
    identity = _identity(task.id, str(episode.seed), str(epoch))
    messages = [_message(episode, place, f"{identity}{place}") for place in range(len(episode.messages))]
    answers = [message for message in messages if message["role"] == "assistant"]
    model = f"understudy/{sitting.name}"
    sample = {
        "id": task.id,
        "epoch": epoch,
        "uuid": identity,
        "input": next((m.content for m in episode.messages if m.role == "user"), ""),
        "target": list(task.outputs) or "the gold changes, and nothing else",
        "messages": messages,
        "output": {"model": model, "choices": [{"message": m, "stop_reason": "stop"} for m in answers[-1:]]},
        "scores": _scores(episode, failure),
        "metadata": {"domain": task.domain, "family": task.family, "difficulty": task.difficulty, "seed": episode.seed},
        "total_time": sum(episode.seconds.values()),
        "working_time": episode.seconds.get("agent", 0.0),
    }
    if episode.stop in _LIMITS:
        reached = episode.turns if episode.stop is Stop.MAX_TURNS else len(episode.tokens)
        sample["limit"] = {"type": _LIMITS[episode.stop], "limit": reached}
    return sample


def _scores(episode: Trajectory, failure: Failure | None) -> dict[str, Any]:
    if episode.score is None:
        return {}
    reward = episode.score.reward
    why = f"{failure.cause.who}: {failure.cause.what}. {failure.cause.evidence}" if failure else ""
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
    broken = {"parse_error": call.malformed} if call.malformed else {}
    return {"id": call.id, "function": call.name or "unknown", "arguments": call.arguments, "type": "function"} | broken


def _usage(paid: Any) -> dict[str, int]:
    total = paid.prompt_tokens + paid.completion_tokens
    return {"input_tokens": paid.prompt_tokens, "output_tokens": paid.completion_tokens, "total_tokens": total}


def _identity(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:22]
