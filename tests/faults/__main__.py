"""Inject faults into short training runs, and check how the runs handle them.

    python -m tests.faults                          # the whole matrix, on the preset smoke
    python -m tests.faults --only user,disk         # two components
    python -m tests.faults my.toml --out fault-runs # another config; the runs are kept

It runs from the root of the repository. The exit code is 1 if a case fails, and 2 for a wrong argument.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.faults.run_cases import CaseResult, run_cases, select_cases, short_config
from understudy.core.errors import ConfigError
from understudy.runs.run import validate_new_folder


def main() -> int:
    """Run the cases that the command line selects. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", nargs="*", metavar="TARGET|KEY=VALUE", help="as for `understudy train`")
    parser.add_argument("--only", default="", metavar="COMPONENT[,COMPONENT]", help="only these components")
    parser.add_argument("--seed", type=int, default=0, help="which calls fail, and how often")
    parser.add_argument("--out", type=Path, help="keep the runs in this new folder; otherwise they are removed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_intermixed_args()
    try:
        config = short_config(options.target)
        cases = select_cases([name.strip() for name in options.only.split(",") if name.strip()], config)
        if options.out is not None:
            validate_new_folder(options.out)
    except ConfigError as e:
        parser.error(str(e))
    results = []
    with tempfile.TemporaryDirectory(prefix="understudy-faults-", ignore_cleanup_errors=True) as scratch:
        for result in run_cases(config, cases, options.out.resolve() if options.out else Path(scratch), options.seed):
            results.append(result)
            if not options.json:
                print(_format_result(result), flush=True)
    num_passed = sum(result.passed for result in results)
    if options.json:
        print(json.dumps([result.model_dump() for result in results], indent=1))
    else:
        print(f"{num_passed} cases passed, {len(results) - num_passed} failed")
    return 0 if num_passed == len(results) else 1


def _format_result(result: CaseResult) -> str:
    verdict, faults = "passed" if result.passed else "FAILED", f"{result.injected} faults"
    head = f"{result.component:<18} {result.fault:<25} {verdict:<6} {faults:>12}"
    return "\n".join([head, *(f"    {problem}" for problem in result.problems)])


if __name__ == "__main__":
    sys.exit(main())
