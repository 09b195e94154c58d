"""Logs of `serve --log` as stored episodes: one for each conversation, with its tokens and log-probabilities.

A request that repeats an earlier conversation up to its reply, with the same tokens, continues it. A log knows neither
tasks nor tools, so the calls of a conversation become a task whose tools answer with what was recorded
(`sources.task_files`). An episode has a score only if the last row of its conversation has a column with its outcome.
"""

import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.core.errors import ConfigError, TaskError
from understudy.core.files import atomic_write, digest_file, os_errors_as_config_errors
from understudy.core.items import InvalidField, Item, RowError
from understudy.core.messages import Message, ToolSpec, message_from_openai, message_to_openai, tool_to_openai
from understudy.core.tasks import SPLITS, Score
from understudy.core.trajectory import StopReason, Trajectory, trajectory_to_jsonl
from understudy.engines.models import cache_folder
from understudy.evaluation.reports.report import EvalReport
from understudy.evaluation.runner import write_report
from understudy.runs.config import parse_config
from understudy.runs.eval_spec import EvalSpec
from understudy.runs.storage.episode_store import EPISODES_FILE, SPEC_FILE
from understudy.runs.storage.task_store import TaskStore
from understudy.serve.request_log import LOG_COLUMNS
from understudy.sources.readers import read_rows

_OUTCOME = "reward"
"""The column with the outcome of a conversation, a number from 0 to 1."""
_ROWS_FILE, _DIGEST_FILE = "conversations.jsonl", "log.sha256"


@dataclass(slots=True)
class _Conversation:
    """A conversation up to one of its replies, and whether a later row continues it."""

    episode: Trajectory
    is_continued: bool = False


def is_request_log(path: Path) -> bool:
    """Return whether a file is a log of `serve --log`. Its first row decides."""
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    first = next(iter(read_rows(path)), None)
    return isinstance(first, Item) and isinstance(first.value, dict) and first.value.keys() >= {*LOG_COLUMNS}


def read_request_log(path: Path) -> list[Trajectory]:
    """Return the conversations of a log, in the order of their last reply.

    Raise ConfigError for a row that is damaged.
    """
    conversations: list[_Conversation] = []
    known = defaultdict[bytes, list[_Conversation]](list)
    for item in read_rows(path):
        if isinstance(item, RowError):
            raise ConfigError(f"{item}; remove that line")
        try:
            found = list(_read_row(item.value, path.stem, known))
        except (KeyError, TypeError, ValueError, InvalidField) as e:
            what = f"{type(e).__name__}: {' '.join(str(e).split()):.200}"
            raise ConfigError(f"{item.location}: not a row of serve --log ({what}); remove that line") from e
        conversations += found
    episodes = [each.episode for each in conversations if not each.is_continued]
    for number, episode in enumerate(episodes, 1):
        episode.task_id = f"{path.stem}/{number}"
    return episodes


def _read_row(row: Mapping[str, Any], name: str, known: Mapping[bytes, list[_Conversation]]) -> Iterator[_Conversation]:
    """Yield the conversation that each reply of a row continues or begins, and add it to `known`."""
    messages = [message_from_openai(message) for message in row["messages"]]
    tools = [ToolSpec.model_validate(tool["function"]) for tool in row["tools"]]
    prompt = [int(token) for token in row["prompt_token_ids"]]
    earlier = _find_earlier(messages, prompt, known)
    for choice in row["choices"]:
        episode = deepcopy(earlier.episode) if earlier else Trajectory("", domain=name)
        episode.observe(messages[len(episode.messages) :], prompt[len(episode.tokens) :])
        episode.act(message_from_openai(choice["message"]), choice["token_ids"], choice["token_logprobs"])
        episode.tools = tools
        episode.score = _score(row)
        is_cut = choice["finish_reason"] == "length"
        episode.stop_reason = StopReason.MAX_TOKENS if is_cut else StopReason.DONE
        conversation = _Conversation(episode)
        known[_key(episode.messages)].append(conversation)
        yield conversation
    if earlier:
        earlier.is_continued = True


def _score(row: Mapping[str, Any]) -> Score | None:
    reward = row.get(_OUTCOME)
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1:
        raise InvalidField(_OUTCOME, f"it is {reward!r:.50}; give a number from 0 to 1")
    return Score(reward=float(reward), parts={_OUTCOME: float(reward)})


def _find_earlier(
    messages: Sequence[Message], prompt: Sequence[int], known: Mapping[bytes, Sequence[_Conversation]]
) -> _Conversation | None:
    """Return the longest known conversation that the messages and tokens of a prompt repeat.

    Of equal ones it is one that nothing has continued yet, if there is one.
    """
    for count in range(len(messages), 0, -1):
        found = known.get(_key(messages[:count]), ()) if messages[count - 1].role == "assistant" else ()
        same = [each for each in found if list(prompt[: len(each.episode.tokens)]) == each.episode.tokens]
        if same:
            return next((each for each in same if not each.is_continued), same[0])
    return None


def _key(messages: Sequence[Message]) -> bytes:
    return hashlib.sha256(json.dumps([message_to_openai(message) for message in messages]).encode()).digest()


def open_request_log(path: Path) -> Path:
    """Return a folder in the cache with the conversations of a log, as an evaluation has its episodes.

    Its tasks are those of the conversations whose recorded calls can be graded.
    """
    name, digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:24], digest_file(path)
    folder = cache_folder() / "logs" / name / path.stem
    if (folder / _DIGEST_FILE).is_file() and (folder / _DIGEST_FILE).read_text() == digest:
        return folder
    episodes = read_request_log(path)
    with os_errors_as_config_errors(folder, "set UNDERSTUDY_CACHE to a writable folder"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rows = folder / _ROWS_FILE
        atomic_write(rows, "".join(json.dumps(_task_row(episode)) + "\n" for episode in episodes))
        settings = [f"domain={rows}", "user.kind=instruction", "slice.domain_policy=full", "eval.split=train"]
        config = parse_config("", settings)
        atomic_write(folder / SPEC_FILE, EvalSpec(name=path.name, agent="api", config=config).model_dump_json(indent=1))
        atomic_write(folder / EPISODES_FILE, b"".join(map(trajectory_to_jsonl, episodes)).decode())
        try:
            source = config.open_source()
        except (ConfigError, TaskError):  # no conversation has calls
            pass
        else:
            TaskStore(folder).add(task for split in SPLITS for task in source.tasks(split))
        write_report(folder, EvalReport(rows=(), failures=()))
        atomic_write(folder / _DIGEST_FILE, digest)
    return folder


def _task_row(episode: Trajectory) -> dict[str, Any]:
    return {
        "task_id": episode.task_id,
        "split": "train",
        "messages": [message_to_openai(message) for message in episode.messages],
        "tools": [tool_to_openai(tool) for tool in episode.tools or ()],
    }
