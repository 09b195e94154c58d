"""Who speaks to the agent. A user sees what is said, never the agent's calls or their results.

`reply` gives the user's next message, or None when the user ends the conversation: only users end conversations.
"""

from understudy.users.consent import asks_consent, consents
from understudy.users.scripted import LONGEST_PROPOSAL, ScriptedUser
from understudy.users.user import NoUser, User

__all__ = ["LONGEST_PROPOSAL", "NoUser", "ScriptedUser", "User", "asks_consent", "consents"]
