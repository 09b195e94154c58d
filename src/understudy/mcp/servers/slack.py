"""Slack: who am I, which channels are there, what was said in one, and, where it is allowed, saying something.

Documentation: https://docs.slack.dev/reference/methods; the token goes into the header `Authorization: Bearer`. Slack
answers an error with status 200 and `"ok": false`, except for too many requests, which is 429 with Retry-After.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from understudy.errors import ToolError
from understudy.mcp.servers.web import Web, account, read
from understudy.records import Record
from understudy.tools import Service

Channel = Annotated[str, Field(pattern=r"^[CGD][A-Z0-9]{2,30}$", description="Id of the channel, such as C012AB3CD.")]
_ADVICE = {
    "channel_not_found": "list the channels to see their ids",
    "not_in_channel": "the app has to be invited to the channel first",
    "is_archived": "the channel is archived; choose another one",
    "msg_too_long": "shorten the text",
    "no_text": "give a text",
    "missing_scope": "the token lacks the permission for this",
    "invalid_auth": "check the token in SLACK_BOT_TOKEN",
    "not_authed": "check the token in SLACK_BOT_TOKEN",
    "account_inactive": "check the token in SLACK_BOT_TOKEN",
    "token_revoked": "check the token in SLACK_BOT_TOKEN",
    "token_expired": "check the token in SLACK_BOT_TOKEN",
}


class Identity(Record, extra="ignore"):
    """Whose token it is."""

    team: str
    user: str
    team_id: str
    user_id: str
    url: str = ""


class Topic(Record, extra="ignore"):
    """What a channel is about."""

    value: str = ""


class Room(Record, extra="ignore"):
    """A channel."""

    id: str
    name: str = ""
    is_private: bool = False
    is_member: bool = False
    num_members: int | None = None
    topic: Topic = Topic()


class Metadata(Record, extra="ignore"):
    """Where the list goes on."""

    next_cursor: str = ""


class Rooms(Record, extra="ignore"):
    """Channels; `response_metadata.next_cursor` is there when there are more."""

    channels: tuple[Room, ...]
    response_metadata: Metadata = Metadata()


class Said(Record, extra="ignore"):
    """A message; `ts` is when, and its id within the channel."""

    ts: str
    text: str = ""
    user: str | None = None
    bot_id: str | None = None
    thread_ts: str | None = None


class History(Record, extra="ignore"):
    """Messages, newest first."""

    messages: tuple[Said, ...]
    has_more: bool = False


class Sent(Record, extra="ignore"):
    """A message that was sent."""

    channel: str
    ts: str


class Slack(Service):
    """Three questions, and one deed that is off unless `slack_send_message` is allowed."""

    writes: ClassVar[frozenset[str]] = frozenset({"slack_send_message"})

    def __init__(self, web: Web) -> None:
        self._web = web

    async def slack_auth_test(self) -> Identity:
        """Who I am: team and user of the token."""
        return read(Identity, _fine(await self._web.get("auth.test")), "slack")

    async def slack_list_channels(
        self,
        limit: Annotated[int, Field(ge=1, le=200, description="How many at most.")] = 100,
        cursor: Annotated[str, Field(max_length=200, description="Where an earlier list goes on.")] = "",
    ) -> Rooms:
        """The public channels that are not archived."""
        params: dict[str, str | int] = {"limit": limit, "exclude_archived": "true", "types": "public_channel"}
        if cursor:
            params["cursor"] = cursor
        return read(Rooms, _fine(await self._web.get("conversations.list", **params)), "slack")

    async def slack_get_channel_history(
        self,
        channel_id: Channel,
        limit: Annotated[int, Field(ge=1, le=200, description="How many messages at most.")] = 20,
    ) -> History:
        """The latest messages of a channel, newest first."""
        answer = await self._web.get("conversations.history", channel=channel_id, limit=limit)
        return read(History, _fine(answer), "slack")

    async def slack_send_message(
        self,
        channel: Channel,
        message: Annotated[str, Field(min_length=1, max_length=4000, description="The text.")],
    ) -> Sent:
        """Send a message to a channel."""
        answer = await self._web.act("chat.postMessage", {"channel": channel, "text": message})
        return read(Sent, _fine(answer), "slack")


def _fine(answer: Any) -> Any:
    """The answer, unless it says that something is wrong."""
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        error = str(answer.get("error", "no reason given"))[:80] if isinstance(answer, dict) else "not an object"
        raise ToolError(f"slack answers {error}; {_ADVICE.get(error, 'this cannot be helped by trying again')}")
    return answer


def slack_web() -> Web:
    """The account of the environment; fifty requests a minute are what most methods allow."""
    return Web(account("slack", "https://slack.com/api", "SLACK_BOT_TOKEN", per_minute=50))
