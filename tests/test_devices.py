"""Users with tools of their own, on the state that the agent works on: scripted, played by a model, and people."""

import asyncio

import pytest

from endpoint import Answer, says, serving
from toy import DOMAIN, LampTools, house
from understudy.agent import GoldAgent
from understudy.chat import ChatConfig, ChatModel
from understudy.domains.base import Domain
from understudy.domains.drafts import instruct
from understudy.errors import TaskError
from understudy.messages import Message, ToolCall
from understudy.rollout import Limits, rollout
from understudy.tasks import Deed, Scenario, Task
from understudy.users import HumanUser, LanguageUser

CALL = ToolCall(name="switch_lamp", arguments={"lamp_id": "L7", "on": True}, id="c1")
LOOK = ToolCall(name="find_lamp", arguments={"room": "room7"})
ON = Deed(call=CALL, names=("switch", "lamp|light"), says="It says: {result}")
WHERE = Deed(call=LOOK, names=("which lamp",), says="It is {result}.")
SCENARIO = Scenario(instructions="Your lamp is dark.", opening="It is dark.", deeds=(ON, WHERE))
TELL = "Please switch on the lamp."


def lit(tools: LampTools) -> bool:
    return tools._state.lamps["L7"].on


GOLD = (*instruct(TELL, ON), Message(role="assistant", content="It is on."))
TASK = Task(id="t", domain="toy", split="train", family="one", difficulty="easy", gold=GOLD, scenario=SCENARIO)
PHONES = Domain("toy", house, LampTools, DOMAIN.generate, ("one",), device=LampTools)


def test_what_the_user_has_to_do_belongs_to_the_goal() -> None:
    assert PHONES.goal(TASK)["lamps"]["L7"].on
    assert TASK.actions == ()
    assert TASK.turns == GOLD[::2]
    episode = asyncio.run(rollout(TASK, PHONES.environment(TASK), GoldAgent(), Limits()))
    assert episode.reward == 1.0
    assert [m.role for m in episode.messages] == ["system", "user", "assistant", "user", "assistant"]


def test_gold_of_users_without_tools_is_invalid() -> None:
    with pytest.raises(TaskError, match="task t: the user calls switch_lamp, but toy has no tools for users"):
        DOMAIN.goal(TASK)


def model(url: str) -> ChatModel:
    return ChatModel(ChatConfig(base_url=url, model="m", retries=0), "user")


def calls(*arguments: str) -> Answer:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": "switch_lamp", "arguments": text}}
        for i, text in enumerate(arguments)
    ]
    return says("", "tool_calls", tool_calls=made)


def test_a_user_whom_a_model_plays_uses_tools_before_it_speaks() -> None:
    tools = LampTools(house())
    answers = [calls('{"lamp_id": "L9999", "on": true}', '{"lamp_id": "L7", "on": true}'), says("It is on now.")]
    with serving(answers) as endpoint:
        user = LanguageUser(SCENARIO, model(endpoint.url), device=tools)
        talk = [Message(role="user", content="It is dark."), Message(role="assistant", content=TELL)]
        assert asyncio.run(user.reply(talk)) == "It is on now."
        assert lit(tools)
        first, second = endpoint.requests
        assert [tool["function"]["name"] for tool in first["tools"]] == ["find_lamp", "switch_lamp"]
        refused, done = second["messages"][-2:]
        assert refused["content"] == "Error: no lamp L9999"
        assert '"on":true' in done["content"]


def test_a_person_uses_tools_at_the_prompt() -> None:
    tools = LampTools(house())
    typed, shown = iter(["switch_lamp lamp_id=L7 on=true", "It is on."]), list[str]()
    user = HumanUser(SCENARIO, tools, lambda prompt: next(typed), shown.append)
    talk = [Message(role="user", content="It is dark."), Message(role="assistant", content=TELL)]
    assert asyncio.run(user.reply(talk)) == "It is on."
    assert lit(tools)
    assert '"on":true' in shown[1]
    assert asyncio.run(HumanUser(SCENARIO, tools, lambda prompt: "Hi.", shown.append).reply(())) == "Hi."
    assert "switch_lamp(lamp_id, on)" in shown[-1]
