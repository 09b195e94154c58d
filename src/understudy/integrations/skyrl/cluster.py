"""The Ray cluster of a run: the one that RAY_ADDRESS names, or one that is started for it on this machine.

The run's own process is the driver: it plays the episodes, and keys stay in its environment. What SkyRL's workers are
given is what SkyRL gives them, and no key of a user's model or of a tool.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import ray

from understudy.errors import ConfigError
from understudy.integrations.skyrl.python import mend

ADDRESS = "RAY_ADDRESS"
MEMORY = 256 << 20  # bytes of the object store beside workers on the CPU, which pass little through it
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD")
"""Names of variables that SkyRL passes on and its workers do not need: Ray writes what it is given into its logs."""
_CPUS = 3  # for the engine on the CPU, and for what SkyRL starts beside its workers


@contextlib.contextmanager
def cluster(cfg: Any, cpu: bool) -> Iterator[None]:
    """Within, Ray runs, and SkyRL's losses and estimators are known to it. `cpu` stands for workers on the CPU."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import sync_registries

    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    environment: dict[str, Any] = {"env_vars": variables_of_workers(cfg, cpu)}
    if sys.version_info < (3, 12):  # only then workers have to know this package
        environment["worker_process_setup_hook"] = mend
    pretended = _pretended(cfg) if cpu and ADDRESS not in os.environ else {}
    try:
        ray.init(
            None if ADDRESS in os.environ else "local",  # else Ray takes one that it remembers, be it gone
            runtime_env=environment,
            log_to_driver=False,
            configure_logging=False,
            **pretended,
        )
    except ConnectionError as e:
        raise ConfigError(f"no Ray cluster at {ADDRESS}={os.environ.get(ADDRESS)}: {e}{_about_tokens()}") from e
    try:
        if cpu:
            _refuse_without_gpus(cfg.trainer.placement.policy_num_gpus_per_node)
        sync_registries()
        yield
    finally:
        ray.shutdown()


def _about_tokens() -> str:
    """Ray shows its token to an address that is written out only where it is told to, and says nothing of it."""
    if "RAY_AUTH_MODE" in os.environ:
        return ""
    return "; if it was started where there is a token (~/.ray/auth_token), set RAY_AUTH_MODE=token"


def variables_of_workers(cfg: Any, cpu: bool) -> dict[str, str]:
    """What SkyRL gives its workers, but for secrets, and where they write what they say."""
    from skyrl.train.utils.utils import prepare_runtime_environment

    os.makedirs(cfg.trainer.log_path, exist_ok=True)
    given = {} if cpu else prepare_runtime_environment(cfg)
    passed = {name: os.environ[name] for name in ("HF_HUB_OFFLINE", "GLOO_SOCKET_IFNAME") if name in os.environ}
    told = {name: value for name, value in given.items() if not _SECRET.search(name)}
    return {**told, **passed, "SKYRL_LOG_FILE": os.path.join(cfg.trainer.log_path, "workers.log")}


def _pretended(cfg: Any) -> dict[str, Any]:
    """A cluster of this machine whose workers are granted GPUs that are not there, since SkyRL asks for some."""
    placement = cfg.trainer.placement
    parts = (placement.policy_num_gpus_per_node, placement.ref_num_gpus_per_node, placement.critic_num_gpus_per_node)
    return {
        "num_cpus": sum(parts) + _CPUS,
        "num_gpus": sum(parts),
        "include_dashboard": False,
        "object_store_memory": MEMORY,
    }


def _refuse_without_gpus(wanted: int) -> None:
    """SkyRL would wait for them: a cluster that was started for workers on the CPU has to say that it has GPUs."""
    there = int(ray.cluster_resources().get("GPU", 0))
    if there < wanted:
        raise ConfigError(
            f"skyrl.workers = 'cpu' asks for GPUs, which need not be there, and the cluster at {ADDRESS} has {there} "
            f"of {wanted}; start it by: ray start --head --num-gpus={wanted}, or unset {ADDRESS}"
        )
