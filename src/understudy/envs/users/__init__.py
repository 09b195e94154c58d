"""Users: the other side of the conversation with the agent. A user never sees the agent's calls or their results.

`reply` returns the user's next message, or None to end the conversation. Only users end conversations.
"""

from understudy.envs.users.consent import asks_for_consent, declines, gives_consent, proposes, says_no
from understudy.envs.users.factory import UserConfig, UserSimulatorFactory
from understudy.envs.users.human import HumanUser
from understudy.envs.users.llm import LLMUser, ReactUser, ReflectionUser, VerifyUser
from understudy.envs.users.recorded import ReplayUser, SwitchingUser
from understudy.envs.users.scripted import (
    MAX_PROPOSAL_ITEMS,
    InstructionUser,
    ScriptedUser,
    announces_transfer,
    answer_text,
    is_refusal,
)
from understudy.envs.users.user import OpeningOnlyUser, User, UserFactory, make_user

__all__ = [
    "MAX_PROPOSAL_ITEMS",
    "HumanUser",
    "InstructionUser",
    "LLMUser",
    "OpeningOnlyUser",
    "ReactUser",
    "ReflectionUser",
    "ReplayUser",
    "ScriptedUser",
    "SwitchingUser",
    "User",
    "UserConfig",
    "UserFactory",
    "UserSimulatorFactory",
    "VerifyUser",
    "announces_transfer",
    "answer_text",
    "asks_for_consent",
    "declines",
    "gives_consent",
    "is_refusal",
    "make_user",
    "proposes",
    "says_no",
]
