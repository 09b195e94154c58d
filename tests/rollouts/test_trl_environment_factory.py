"""Test our tasks as TRL's `environment_factory`: the schemas that TRL makes, and the rewards of gold."""

from typing import Any

import pytest

from toy import DOMAIN
from understudy import ToolDataset, ToolEpisode, ToolExample
from understudy.core.errors import ConfigError
from understudy.core.messages import Message
from understudy.rollouts.trl_environment import TRLEnvironment
from understudy.sources.loading import load_source


def play(ours: TRLEnvironment, row: dict[str, Any], turns: list[Message]) -> float | None:
    """Play turns as TRL does: methods are tools, and the last reply without calls ends the completion."""
    environment = ours.factory()
    environment.reset(**row)
    completion: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for number, turn in enumerate(turns):
        for call in turn.tool_calls:
            getattr(environment, call.name)(**call.arguments)
        is_last = number == len(turns) - 1
        if not turn.tool_calls and is_last:
            completion.append({"role": "assistant", "content": turn.content})
        elif not turn.tool_calls:
            environment.send_message(text=turn.content)
    (reward,) = ours.reward([completion], [environment], task_id=[row["task_id"]])
    return reward


@pytest.mark.parametrize("name", ["toy:DOMAIN", "retail"])
def test_gold_earns_its_reward_and_texts_alone_do_not(name: str) -> None:
    source = load_source(name)
    ours = TRLEnvironment(source)
    for row, task in list(zip(ours.rows, source.tasks("train"), strict=True))[:5]:
        assert play(ours, row, list(task.gold_turns)) == 1.0
        assert play(ours, row, [turn for turn in task.gold_turns if not turn.tool_calls]) == 0.0


def test_reset_gives_the_message_that_trl_appends_to_the_prompt() -> None:
    ours, task = TRLEnvironment(DOMAIN), DOMAIN.tasks("train")[0]
    assert ours.rows[0]["prompt"] == [
        {"role": "system", "content": DOMAIN.domain_policy},
        {"role": "user", "content": ""},
    ]
    environment = ours.factory()
    assert environment.reset(**ours.rows[0]) == task.scenario.opening
    assert environment.reset(**ours.rows[0]) == task.scenario.opening  # TRL uses an object again


def test_trl_reads_the_schemas_of_the_tools() -> None:
    schema = pytest.importorskip("transformers.utils").get_json_schema
    source = load_source("retail")
    environment = TRLEnvironment(source).factory()
    for spec in source.tool_specs:
        found = schema(getattr(environment, spec.name))["function"]
        assert found["name"] == spec.name
        assert " ".join(found["description"].split()) == " ".join(spec.description.split())
        properties = spec.parameters.get("properties", {})
        assert found["parameters"].get("properties", {}).keys() == properties.keys()
        assert sorted(found["parameters"].get("required", [])) == sorted(spec.parameters.get("required", []))
        for name, inner in properties.items():
            if "enum" in inner:
                assert found["parameters"]["properties"][name]["enum"] == inner["enum"]
    assert schema(environment.send_message)["function"]["parameters"]["required"] == ["text"]


def test_an_argument_that_is_no_name_is_refused() -> None:
    class Episode(ToolEpisode):
        def look(self, where: str) -> str:
            """Look."""
            return where

    source = ToolDataset("looks", "", [ToolExample(prompt="Look.")], Episode)
    spec = source.tool_specs[0].replace(parameters={"type": "object", "properties": {"from": {"type": "string"}}})
    Episode._specs = (spec,)
    with pytest.raises(ConfigError, match="'from'"):
        TRLEnvironment(source)
