"""The programs of tests/support/agent_programs as functions, for workers that keep imported frameworks."""

import os
import runpy
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parents[1] / "tests" / "support" / "agent_programs"


def play(episode: object) -> None:
    """Run the program that AGENT_PROGRAM names, with its arguments."""
    name, *arguments = os.environ["AGENT_PROGRAM"].split()
    sys.argv = [name, *arguments]
    runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
