"""`understudy chaos`: fault injection into short training runs."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli.arguments import JsonOption, TargetArguments

if TYPE_CHECKING:
    from understudy.train.chaos.run_cases import CaseResult


def chaos(
    target: TargetArguments = None,
    only: Annotated[
        str, typer.Option(metavar="COMPONENT[,COMPONENT]", help="Only these components, such as `user,disk`.")
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="The seed of the faults: which calls fail, and how often.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Keep the runs in this new folder. Default: they are removed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Inject faults into short training runs, and check how the runs handle them.

    Each component fails in turn with each kind of fault: environment, user, grader, tools, endpoints, MCP server, vLLM,
    sampler, trackers, disk, clock, the process, and one of several processes. A fault must be charged to the right
    component, and no episode with a fault may be trained on. The run must go on, or end with one line and resume like
    an undisturbed one. TARGET is the preset `smoke` if it is not given; its runs are shortened. vLLM is an imitation of
    its server, or the server at `engine.vllm.base_url` behind a proxy that fails. With engine.kind=skyrl there are
    other cases, of SkyRL's generator and workers. The exit code is 1 if a case fails.
    """
    from understudy.runs.agents import missing_package_error
    from understudy.runs.run import validate_new_folder

    try:
        from understudy.train.chaos import run_cases as runs
    except ModuleNotFoundError as e:
        raise missing_package_error(e, "training") from e
    config = runs.chaos_config(target or ())
    cases = runs.select_cases([component.strip() for component in only.split(",") if component.strip()], config)
    if out is not None:
        validate_new_folder(out)
    results = []
    with tempfile.TemporaryDirectory(prefix="understudy-chaos-", ignore_cleanup_errors=True) as scratch:
        for result in runs.run_cases(config, cases, out.resolve() if out else Path(scratch), seed):
            results.append(result)
            if not as_json:
                print(_format_result(result), flush=True)
    if as_json:
        print(json.dumps([result.model_dump() for result in results], indent=1))
    else:
        print(_format_summary(results))
    raise typer.Exit(1 if any(not result.passed for result in results) else 0)


def _format_result(result: "CaseResult") -> str:
    verdict, faults = "passed" if result.passed else "FAILED", f"{result.injected} faults"
    head = f"{result.component:<18} {result.fault:<25} {verdict:<6} {faults:>12} {result.seconds:>6.1f} s"
    return "\n".join([head, *(f"    {problem}" for problem in result.problems)])


def _format_summary(results: "list[CaseResult]") -> str:
    num_passed = sum(result.passed for result in results)
    return f"{num_passed} cases passed, {len(results) - num_passed} failed"
