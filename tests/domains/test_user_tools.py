"""Tests of scripted, LLM and human users that have tools on the state of the agent."""

import asyncio

import pytest

from support.endpoint import Answer, make_completion, serve_answers
from toy import DOMAIN, LampTools, build_house
from understudy.clients.chat import ChatModel, EndpointConfig
from understudy.core.errors import TaskError
from understudy.core.messages import Message, ToolCall
from understudy.core.tasks import Scenario, Task, UserAction
from understudy.envs.domain import Domain
from understudy.envs.gold import gold_instruction
from understudy.envs.users import HumanUser, LLMUser
from understudy.rollouts.agent import GoldAgent
from understudy.rollouts.rollout import EpisodeLimits, rollout

CALL = ToolCall(name="switch_lamp", arguments={"lamp_id": "L7", "on": True}, id="c1")
LOOK = ToolCall(name="find_lamp", arguments={"room": "room7"})
ON = UserAction(call=CALL, required_terms=("switch", "lamp|light"), reply_template="It says: {result}")
WHERE = UserAction(call=LOOK, required_terms=("which lamp",), reply_template="It is {result}.")
SCENARIO = Scenario(instructions="Your lamp is dark.", opening="It is dark.", user_actions=(ON, WHERE))
TELL = "Please switch on the lamp."


def lamp_is_on(tools: LampTools) -> bool:
    return tools._state.lamps["L7"].on


GOLD = (*gold_instruction(TELL, ON), Message(role="assistant", content="It is on."))
TASK = Task(id="t", domain="toy", split="train", family="one", difficulty="easy", gold=GOLD, scenario=SCENARIO)
PHONES = Domain("toy", build_house, LampTools, DOMAIN.generate, ("one",), user_tools=LampTools)


def test_gold_includes_user_tool_calls() -> None:
    assert PHONES.gold_changes(TASK)["lamps"]["L7"].on
    assert TASK.gold_calls == ()
    assert TASK.gold_turns == GOLD[::2]
    episode = asyncio.run(rollout(TASK, PHONES.environment(TASK), GoldAgent(), EpisodeLimits()))
    assert episode.reward == 1.0
    assert [m.role for m in episode.messages] == ["system", "user", "assistant", "user", "assistant"]


def test_user_calls_without_user_tools_raise_task_error() -> None:
    with pytest.raises(TaskError, match=r"\bt: .*\bswitch_lamp\b.*\btoy\b"):
        DOMAIN.gold_changes(TASK)


def chat_model(url: str) -> ChatModel:
    return ChatModel(EndpointConfig(base_url=url, model="m", max_retries=0), "user")


def tool_call_answer(*arguments: str) -> Answer:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": "switch_lamp", "arguments": text}}
        for i, text in enumerate(arguments)
    ]
    return make_completion("", "tool_calls", tool_calls=made)


def test_llm_user_calls_tools_before_replying() -> None:
    tools = LampTools(build_house())
    answers = [
        tool_call_answer('{"lamp_id": "L9999", "on": true}', '{"lamp_id": "L7", "on": true}'),
        make_completion("It is on now."),
    ]
    with serve_answers(answers) as endpoint:
        user = LLMUser(SCENARIO, chat_model(endpoint.url), user_tools=tools)
        talk = [Message(role="user", content="It is dark."), Message(role="assistant", content=TELL)]
        assert asyncio.run(user.reply(talk)) == "It is on now."
        assert lamp_is_on(tools)
        first, second = endpoint.requests
        assert [tool["function"]["name"] for tool in first["tools"]] == ["find_lamp", "switch_lamp"]
        refused, done = second["messages"][-2:]
        assert refused["content"] == "Error: no lamp L9999"
        assert '"on":true' in done["content"]


def test_human_user_calls_tools_at_prompt() -> None:
    tools = LampTools(build_house())
    typed, shown = iter(["switch_lamp lamp_id=L7 on=true", "It is on."]), list[str]()
    user = HumanUser(SCENARIO, tools, lambda prompt: next(typed), shown.append)
    talk = [Message(role="user", content="It is dark."), Message(role="assistant", content=TELL)]
    assert asyncio.run(user.reply(talk)) == "It is on."
    assert lamp_is_on(tools)
    assert '"on":true' in shown[1]
    assert asyncio.run(HumanUser(SCENARIO, tools, lambda prompt: "Hi.", shown.append).reply(())) == "Hi."
    assert "switch_lamp(lamp_id, on)" in shown[-1]
