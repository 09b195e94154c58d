"""The endpoints that a command calls: config key -> name of the endpoint."""

from collections.abc import Sequence
from decimal import Decimal

from understudy.clients.chat import EndpointConfig, find_endpoint
from understudy.core.errors import ConfigError
from understudy.runs.config import TrainConfig

AGENT_KEY, USER_KEY = "agent_endpoint", "user.endpoint"
REWARD_JUDGE_KEY, FAILURE_JUDGE_KEY = "algorithm.shaping.judge_endpoint", "eval.failure_judge_endpoint"


def training_endpoint_names(config: TrainConfig) -> dict[str, str]:
    """Return the endpoints that a training run calls: config key -> name of the endpoint."""
    has_judge = config.steps and config.algorithm.shaping.judge_weight
    return _user_endpoint(config) | ({REWARD_JUDGE_KEY: config.algorithm.shaping.judge_endpoint} if has_judge else {})


def eval_endpoint_names(agent: str, config: TrainConfig, judge_failures: bool = False) -> dict[str, str]:
    """Return the endpoints that are called to play an agent's episodes: config key -> name of the endpoint."""
    agents = {AGENT_KEY: config.agent_endpoint} if uses_agent_endpoint(agent) else {}
    judge = {FAILURE_JUDGE_KEY: config.eval.failure_judge_endpoint} if judge_failures else {}
    return agents | _user_endpoint(config) | judge


def endpoint_configs(config: TrainConfig, names: dict[str, str]) -> list[EndpointConfig]:
    """Return the configs of these endpoints. Raise ConfigError for an unknown name."""
    return [find_endpoint(config.endpoints, name, key) for key, name in names.items()]


def uses_agent_endpoint(agent: str) -> bool:
    """Return whether an agent of this name calls the endpoint that `agent_endpoint` names."""
    return agent == "api" or ":" in agent


def cost_limit_of(agent: str, config: TrainConfig, judge_failures: bool = False) -> Decimal:
    """Return the config's cost limit, or 0 (no limit) if playing this agent calls no endpoint."""
    return config.cost_limit if eval_endpoint_names(agent, config, judge_failures) else Decimal(0)


def validate_endpoint_overrides(
    agent: str, config: TrainConfig, overrides: Sequence[str], judge_failures: bool = False
) -> None:
    """Raise ConfigError if an override sets an endpoint that playing this agent does not call."""
    used = eval_endpoint_names(agent, config, judge_failures)
    for override in overrides:
        key = override.partition("=")[0].strip()
        parts = key.split(".")
        is_unused = parts[0] == "endpoints" and len(parts) > 1 and parts[1] not in used.values()
        if is_unused or (key == AGENT_KEY and key not in used):
            called = ", ".join(f"{used_key} = {name!r}" for used_key, name in used.items()) or "no endpoint is called"
            raise ConfigError(
                f"{key} has no effect with --agent {agent} ({called}); add --agent api, name the endpoint, or leave it "
                "out"
            )


def _user_endpoint(config: TrainConfig) -> dict[str, str]:
    without_endpoint = config.user.kind in ("scripted", "instruction", "human") or ":" in config.user.kind
    return {} if without_endpoint else {USER_KEY: config.user.endpoint}
