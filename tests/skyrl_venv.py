"""SkyRL on the CPU, in an environment of its own in the user's cache.

    python tests/skyrl_venv.py      makes the environment (3 GB, a few minutes; once)

It pins versions that disagree with the project's, so it is a process and never an import. Of its trainer's requirements
those are left out that need a GPU (vLLM, flash-attn and what goes with them). The project's own requirements are there
as well, so that its environments and rollouts run inside.
"""

import tomllib
from pathlib import Path

from venvs import Pip, environment

VERSION = "0.3.0"
TORCH = "torch==2.13.0"
ROOT = Path(__file__).parent.parent
SERVER = (f"skyrl[jax,tinker]=={VERSION}", "tinker==0.24.1", "aiohttp")
"""Its Tinker API; later clients speak another protocol than this server."""
TRAINER = (
    "skyrl-gym==0.4.0",
    "ray[default]==2.60.0",  # SkyRL pins 2.56.0, and works with this one
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
    """The environment's Python; the environment is made if it is not there whole."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    holds = (*SERVER, *TRAINER, *own, TORCH)

    def fill(_: Path, pip: Pip) -> None:
        pip(TORCH)
        pip(*holds)

    return environment(f"skyrl-{VERSION}", *holds, fill=fill) / "bin" / "python"


if __name__ == "__main__":
    print(install())
