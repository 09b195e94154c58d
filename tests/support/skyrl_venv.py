"""SkyRL on the CPU, in its own environment in the user's cache.

    PYTHONPATH=tests python -m support.skyrl_venv      creates the environment (3 GB, a few minutes; once)

SkyRL pins versions that conflict with the project's, so it runs as a process and is never imported. Requirements of
its trainer that need a GPU are left out (vLLM, flash-attn and others). The project's own requirements are installed
too, so that its environments and rollouts run inside.
"""

import os
import tomllib
from pathlib import Path

from support.venvs import Pip, make_venv

VERSION = "0.3.0"
TORCH = "torch==2.13.0"
ROOT = Path(__file__).parents[2]
SERVER = (f"skyrl[jax,tinker]=={VERSION}", "tinker==0.24.1", "aiohttp")
"""Client of its Tinker API. Later clients use another protocol than this server."""
TRAINER = (
    "skyrl-gym==0.4.0",
    "ray[default]==2.60.0",  # SkyRL pins 2.56.0, and also works with this version
    "accelerate",
    "func_timeout",
    "hydra-core==1.3.2",
    "jaxtyping",
    "loguru",
    "omegaconf",
    "polars",
    "s3fs",
    "tensorboard",
    "tensordict",
    "torchdata",
    "wandb",
)


def install() -> Path:
    """Return the environment's Python. The environment is created if it is missing or incomplete."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    holds = (*SERVER, *TRAINER, *own, TORCH)

    def fill(_: Path, pip: Pip) -> None:
        pip(TORCH)
        pip(*holds)

    return make_venv(f"skyrl-{VERSION}", *holds, fill=fill) / "bin" / "python"


def process_environment() -> dict[str, str]:
    """Return the environment variables of a process in SkyRL's environment."""
    paths = os.pathsep.join(str(path) for path in (ROOT / "src", ROOT / "tests"))
    offline = {
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # otherwise its workers run at a lower priority than other processes
    }
    environment = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    programs = os.pathsep.join((str(install().parent), os.environ["PATH"]))
    return environment | offline | {"PYTHONPATH": paths, "PATH": programs}


if __name__ == "__main__":
    print(install())
