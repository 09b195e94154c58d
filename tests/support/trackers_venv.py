"""The trackers' client libraries, in their own environment in the user's cache.

PYTHONPATH=tests python -m support.trackers_venv      creates the environment (500 MB, a minute or two; once)
"""

from pathlib import Path

from support.venvs import make_venv

PACKAGES = (
    "pydantic==2.14.3",
    "wandb==0.31.0",
    "tensorboardX==2.6.5",
    "tensorboard==2.21.0",
    "mlflow-skinny==3.17.2",
    "trackio==0.43.0",
)


def install() -> Path:
    """Return the environment's Python. The environment is created if it is missing or incomplete."""
    return make_venv("trackers-2", *PACKAGES) / "bin" / "python"


if __name__ == "__main__":
    print(install())
