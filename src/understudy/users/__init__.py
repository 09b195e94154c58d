"""Who speaks to the agent. A user sees what is said, never the agent's calls or their results.

`reply` gives the user's next message, or None when the user ends the conversation: only users end conversations.
"""

from understudy.users.cast import Cast, UserConfig
from understudy.users.consent import asks_consent, consents, declines
from understudy.users.human import HumanUser
from understudy.users.language import LanguageUser, ReactUser, ReflectingUser, VerifiedUser
from understudy.users.recorded import RecordedUser, RelayedUser
from understudy.users.scripted import LONGEST_PROPOSAL, ScriptedUser, hands_over, refuses
from understudy.users.user import MakeUser, NoUser, User

__all__ = [
    "LONGEST_PROPOSAL",
    "Cast",
    "HumanUser",
    "LanguageUser",
    "MakeUser",
    "NoUser",
    "ReactUser",
    "RecordedUser",
    "ReflectingUser",
    "RelayedUser",
    "ScriptedUser",
    "User",
    "UserConfig",
    "VerifiedUser",
    "asks_consent",
    "consents",
    "declines",
    "hands_over",
    "refuses",
]
