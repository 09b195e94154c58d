"""The real client libraries of trackers, in an environment of their own in the user's cache.

python tests/trackers_venv.py      makes the environment (500 MB, a minute or two; once)
"""

from pathlib import Path

from venvs import environment

PACKAGES = (
    "pydantic==2.14.3",
    "wandb==0.31.0",
    "tensorboardX==2.6.5",
    "tensorboard==2.21.0",
    "mlflow-skinny==3.17.2",
    "trackio==0.43.0",
)


def install() -> Path:
    """The environment's Python; the environment is made if it is not there whole."""
    return environment("trackers-2", *PACKAGES) / "bin" / "python"


if __name__ == "__main__":
    print(install())
