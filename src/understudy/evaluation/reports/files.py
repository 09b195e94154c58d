"""Read the report of an evaluation or of a run from its files, and write those of a run."""

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from understudy.core.errors import ConfigError
from understudy.core.files import read_bytes
from understudy.evaluation.failures.causes import EpisodeFailure
from understudy.evaluation.noise import NoiseEstimate
from understudy.evaluation.prompt_variants import PromptSpread
from understudy.evaluation.reports.as_json import run_report_to_dict
from understudy.evaluation.reports.markdown import run_report_to_markdown
from understudy.evaluation.reports.report import EvalReport, RunReport
from understudy.evaluation.result import ResultRow
from understudy.evaluation.run_groups import GroupedRun, RunGroup, make_group
from understudy.runs.config import TrainConfig
from understudy.runs.eval_spec import is_eval_folder, read_spec
from understudy.runs.resumption import OOD_SET
from understudy.runs.run import Run, RunEvaluation, find_run, is_run_folder, list_run_evaluations, read_run_config
from understudy.runs.storage.episode_store import EPISODES_FILE, REPORT_FILE, SPEC_FILE


def read_report(path: Path) -> EvalReport:
    """Read the report of an evaluation's folder, of a JSON file that `eval` or `train` wrote, or of a run.

    The report of a run is that of its last evaluation on held-out tasks. Its agent is named after the run and the
    stage, such as `runs/a (rl)`.
    """
    if not is_run_folder(path):
        return _read_report_file(path)
    last = _last_evaluation(path)
    return _rename_agent(_read_report_file(last.folder), f"{path} ({last.stage})")


def read_run_report(run: Path) -> RunReport:
    """Read the results of a run from its evaluations: noop, gold, and the model at each stage."""
    evaluations = list_run_evaluations(run)
    names = sorted({one.eval_set for one in evaluations if one.eval_set}, key=lambda name: (name != OOD_SET, name))
    reports = {name: _join_stages([each for each in evaluations if each.eval_set == name]) for name in ("", *names)}
    return RunReport(held_out=reports.pop(""), others=reports)


def find_evaluated(text: str) -> list[Path]:
    """Return the runs and evaluations that a path or a pattern such as `runs/a-*` names. An existing path is no
    pattern.

    Raise ConfigError if none match a pattern.
    """
    path = Path(os.path.expanduser(text))
    if path.exists() or not glob.has_magic(text):
        return [path]
    found = [Path(each) for each in sorted(glob.glob(str(path)))]
    if not (known := [each for each in found if is_run_folder(each) or is_evaluation(each)]):
        raise ConfigError(f"no run and no evaluation matches {text!r}; give a folder, or a pattern such as 'runs/a-*'")
    return known


def is_evaluation(path: Path) -> bool:
    """Return whether a path may be an evaluation: a folder with a report, an unfinished one, or any JSON file."""
    return is_eval_folder(path) or (path / REPORT_FILE).is_file() or (path.is_file() and path.suffix == ".json")


def read_group(name: str, paths: Sequence[Path]) -> RunGroup:
    """Read runs and evaluations of one setting."""
    return make_group(name, [_read_grouped_run(path) for path in paths])


def read_evaluated_config(path: Path) -> TrainConfig | None:
    """Return the config of a run or an evaluation; None if it is a JSON file, or its spec is lost."""
    if is_run_folder(path):
        return read_run_config(path)
    return read_spec(path).config if (path / SPEC_FILE).is_file() else None


def _read_grouped_run(path: Path) -> GroupedRun:
    if is_run_folder(path):
        last, report = _last_evaluation(path), read_run_report(path).held_out
        rows = [*report.agent_rows[:-1], report.agent_rows[-1].replace(name=last.stage)]
    else:
        report = read_report(path)
        rows = [report.pooled_row] if report.pooled_row else report.agent_rows[-1:]
        if not rows:
            raise ConfigError(f"{path} is an evaluation without an agent; give one with an agent")
    return GroupedRun(path=str(path), config=read_evaluated_config(path), stages=tuple(rows))


def are_same_report(one: Path, other: Path) -> bool:
    """Return whether `read_report` reads the same file for both paths."""
    files = [_report_file(_last_evaluation(path).folder if is_run_folder(path) else path) for path in (one, other)]
    return os.path.realpath(files[0]) == os.path.realpath(files[1])


def format_unfinished(folder: Path) -> str:
    """Return how far an unfinished evaluation is, and the command that resumes it; empty if it is finished or none."""
    if (folder / REPORT_FILE).is_file() or not is_eval_folder(folder):
        return ""
    file, run = folder / EPISODES_FILE, find_run(folder)
    count = read_bytes(file).count(b"\n") if file.is_file() else 0
    command = f"train --resume {run}" if run else f"eval --resume {folder}"
    return f"not finished, {count} episodes are stored; resume it by: understudy {command}"


def _last_evaluation(run: Path) -> RunEvaluation:
    held_out = [evaluation for evaluation in list_run_evaluations(run) if not evaluation.eval_set]
    if not held_out:
        raise ConfigError(f"{run} is a run without an evaluation yet; resume it by: understudy train --resume {run}")
    return held_out[-1]


def _read_report_file(path: Path) -> EvalReport:
    file = _report_file(path)
    try:
        found = from_json(file.read_bytes())
    except FileNotFoundError as e:
        raise ConfigError(f"there is no evaluation at {path}: {_missing_reason(path)}") from e
    except OSError as e:
        raise ConfigError(f"{file} cannot be read ({e.strerror or e}); {_repair_hint(file)}") from e
    except ValueError as e:
        raise ConfigError(f"{file} is not JSON ({e}); {_repair_hint(file)}") from e
    try:
        return _parse_report(found)
    except (ValidationError, KeyError, TypeError) as e:
        raise ConfigError(f"{file} holds no evaluation ({type(e).__name__}); {_repair_hint(file)}") from e


def _report_file(path: Path) -> Path:
    return path / REPORT_FILE if path.is_dir() else path


def _parse_report(found: Any) -> EvalReport:
    rows = tuple(ResultRow.model_validate({"name": row["name"], "result": row["result"]}) for row in found["rows"])
    failures = tuple(EpisodeFailure.model_validate(failure) for failure in found["failures"])
    noise = NoiseEstimate.model_validate(found["noise"]) if found["noise"] else None
    prompts = PromptSpread.model_validate(found["prompts"]) if found.get("prompts") else None
    return EvalReport(rows=rows, failures=failures, noise=noise, prompts=prompts)


def _join_stages(evaluations: Sequence[RunEvaluation]) -> EvalReport:
    """Return one report with a row for the model at each stage, under noop and gold."""
    reports = [_rename_agent(_read_report_file(each.folder), each.stage) for each in evaluations]
    baselines = [row for row in reports[-1].rows if row.result.kind != "agent"] if reports else []
    return EvalReport(rows=(*baselines, *(row for report in reports for row in report.agent_rows)))


def _rename_agent(report: EvalReport, name: str) -> EvalReport:
    rows = (row.replace(name=name) if row.result.kind == "agent" else row for row in report.rows)
    return report.replace(rows=tuple(rows))


def _repair_hint(file: Path) -> str:
    """Return what to do about a damaged report."""
    if file.name == REPORT_FILE and find_run(file.parent):
        return f'remove the folder "{file.parent}"; the run then goes on without this evaluation'
    if file.name == REPORT_FILE and is_eval_folder(file.parent):
        return f'write it again from its stored episodes: understudy eval --resume "{file.parent}"'
    return "give a folder of eval --out, or output of eval --json"


def _missing_reason(path: Path) -> str:
    wanted = "give the folder of an evaluation or of a run, or output of eval --json"
    if not path.exists():
        pattern = f"{path}-*"
        if any(map(is_run_folder, map(Path, glob.glob(pattern)))):
            return f"no such file or folder; did you mean {pattern!r}, with quotes?"
        return f"no such file or folder; {wanted}"
    if unfinished := format_unfinished(path):
        return f"it is {unfinished}"
    return f"it has no {REPORT_FILE}; {wanted}"


def write_run_report(report: RunReport, run: Run) -> None:
    """Write result.json and result.md into the run's folder."""
    run.write_file("result.json", json.dumps(run_report_to_dict(report), indent=1) + "\n")
    run.write_file("result.md", run_report_to_markdown(report))
