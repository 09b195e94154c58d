"""TRL in its own virtual environment, for benchmarks that compare with it."""

import subprocess
import sys
from pathlib import Path

TRL = "trl==1.16.0"
TORCH = "torch==2.13.0"
BESIDE = ("transformers==5.23.0", "accelerate==1.15.0", "datasets==5.2.0", "peft==0.21.2")  # requirements of TRL
PYDANTIC = "pydantic>=2.12"  # for this package's tools and rewards in TRL's process


def python_of_trl() -> Path:
    """Return the Python of a virtual environment with TRL. The first call creates it (1.5 GB)."""
    # TRL's Python also imports this module, and there the package's requirements are missing.
    from understudy.engines.models import cache_folder

    folder = cache_folder() / "benchmarks" / TRL
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = (TORCH, TRL, *BESIDE, PYDANTIC)
    if not ready.exists() or ready.read_text().split() != [*wanted]:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
        ready.write_text("\n".join(wanted))
    return python
