"""The Ray cluster of a run: the one at RAY_ADDRESS, or one that is started on this machine.

The run's process is the driver. It plays the episodes, so API keys are needed in its environment only. Workers get
SkyRL's environment variables without secrets.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import ray

from understudy.core.errors import ConfigError
from understudy.core.secrets import is_secret_name
from understudy.train.skyrl.compat import patch_typed_dict

ADDRESS_VARIABLE = "RAY_ADDRESS"


@contextlib.contextmanager
def ray_cluster(cfg: Any, worker_env_vars: Mapping[str, str], ray_init_args: Mapping[str, Any]) -> Iterator[None]:
    """Connect to Ray inside the block, with SkyRL's losses and advantage estimators registered.

    Workers get `worker_env_vars` without secrets. `ray_init_args` are arguments of `ray.init` for a cluster that is
    started here. Raise ConfigError if no cluster is at RAY_ADDRESS.
    """
    from skyrl.backends.skyrl_train.utils.ppo_utils import sync_registries

    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    environment: dict[str, Any] = {"env_vars": worker_environment(cfg, worker_env_vars)}
    if sys.version_info < (3, 12):  # from 3.12 on, workers do not need this package
        environment["worker_process_setup_hook"] = patch_typed_dict
    try:
        ray.init(
            None if ADDRESS_VARIABLE in os.environ else "local",  # by default Ray tries the last cluster's address
            runtime_env=environment,
            log_to_driver=False,
            configure_logging=False,
            **({} if ADDRESS_VARIABLE in os.environ else ray_init_args),
        )
    except ConnectionError as e:
        raise ConfigError(
            f"no Ray cluster at {ADDRESS_VARIABLE}={os.environ.get(ADDRESS_VARIABLE)}: {e}{_about_tokens()}"
        ) from e
    try:
        sync_registries()
        yield
    finally:
        ray.shutdown()


def _about_tokens() -> str:
    """Return a hint to set RAY_AUTH_MODE, or "" if it is set.

    Without it, Ray sends no token to an explicit address, and its error does not say so.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return ""
    return "; if the cluster was started with a token (~/.ray/auth_token), set RAY_AUTH_MODE=token"


def worker_environment(cfg: Any, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the workers: `given` without secrets, and the path of their log.

    Ray logs the variables that it passes.
    """
    os.makedirs(cfg.trainer.log_path, exist_ok=True)
    passed = {name: os.environ[name] for name in ("HF_HUB_OFFLINE", "GLOO_SOCKET_IFNAME") if name in os.environ}
    allowed = {name: value for name, value in environment.items() if not is_secret_name(name)}
    return {**allowed, **passed, "SKYRL_LOG_FILE": os.path.join(cfg.trainer.log_path, "workers.log")}
