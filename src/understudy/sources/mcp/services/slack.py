"""Slack: identity, channels and messages, and sending messages if that is allowed.

API documentation: https://docs.slack.dev/reference/methods. The header `Authorization: Bearer` holds the token. Slack
reports an error with status 200 and `"ok": false`. Too many requests are status 429 with Retry-After.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.envs.tools import Alias, AsyncToolkit
from understudy.sources.mcp.services.web import APIClient, account_from_env, validate_answer

_CHANNEL_ID = re.compile(r"[CGD][A-Z0-9]{2,30}")
_CHANNEL_NAME = re.compile(r"#?([^\s#@A-Z]{1,80})")
_FIND_CHANNEL = "use slack_list_channels to find the channel ID"
_ADVICE = {
    "channel_not_found": _FIND_CHANNEL,
    "not_in_channel": "the app must first be invited to the channel",
    "is_archived": "the channel is archived; choose another one",
    "msg_too_long": "shorten the message",
    "no_text": "the message is empty; write a text",
    "missing_scope": "the token does not permit this call; continue without it",
    "invalid_auth": "check the token in SLACK_BOT_TOKEN",
    "not_authed": "check the token in SLACK_BOT_TOKEN",
    "account_inactive": "check the token in SLACK_BOT_TOKEN",
    "token_revoked": "check the token in SLACK_BOT_TOKEN",
    "token_expired": "check the token in SLACK_BOT_TOKEN",
}


class Identity(Record, extra="ignore"):
    """The team and user of the token."""

    team: str
    user: str
    team_id: str
    user_id: str
    url: str = ""


class Topic(Record, extra="ignore"):
    """The topic of a channel."""

    value: str = ""


class SlackChannel(Record, extra="ignore"):
    """A channel."""

    id: str
    name: str = ""
    is_private: bool = False
    is_member: bool = False
    num_members: int | None = None
    topic: Topic = Topic()


class SlackPagination(Record, extra="ignore"):
    """Pagination of a list. The cursor is empty on the last page."""

    next_cursor: str = ""


class SlackChannels(Record, extra="ignore"):
    """One page of channels. If there are more, `response_metadata.next_cursor` is the cursor of the next page."""

    channels: tuple[SlackChannel, ...]
    response_metadata: SlackPagination = SlackPagination()


class SlackMessage(Record, extra="ignore"):
    """A message. `ts` is its timestamp, and its ID within the channel."""

    ts: str
    text: str = ""
    user: str | None = None
    bot_id: str | None = None
    thread_ts: str | None = None


class SlackHistory(Record, extra="ignore"):
    """Messages of a channel, newest first."""

    messages: tuple[SlackMessage, ...]
    has_more: bool = False


class SentMessage(Record, extra="ignore"):
    """A message that was sent."""

    channel: str
    ts: str


class Slack(AsyncToolkit):
    """Three read-only tools, and `slack_send_message`, which `--allow-writes` enables."""

    write_tools: ClassVar[frozenset[str]] = frozenset({"slack_send_message"})
    tool_aliases: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "list_slack_channels": "slack_list_channels",
            "get_slack_channel_history": "slack_get_channel_history",
            "send_slack_message": "slack_send_message",
        }
    )

    def __init__(self, web: APIClient) -> None:
        self._web = web

    async def slack_auth_test(self) -> Identity:
        """Return the team and the user that you are signed in as."""
        return validate_answer(Identity, _fine(await self._web.get("auth.test")), "slack")

    async def slack_list_channels(
        self,
        limit: Annotated[int, Field(ge=1, le=200, description="Maximum number of channels.")] = 100,
        cursor: Annotated[
            str, Field(max_length=200, description="The `next_cursor` of the previous page; empty for the first page.")
        ] = "",
    ) -> SlackChannels:
        """List the public channels that are not archived."""
        params: dict[str, str | int] = {"limit": limit, "exclude_archived": "true", "types": "public_channel"}
        if cursor:
            params["cursor"] = cursor
        return validate_answer(SlackChannels, _fine(await self._web.get("conversations.list", **params)), "slack")

    async def slack_get_channel_history(
        self,
        channel_id: Annotated[
            str, Alias("channel"), Field(max_length=80, description="Channel ID, such as C012AB3CD.")
        ],
        limit: Annotated[int, Field(ge=1, le=200, description="Maximum number of messages.")] = 20,
    ) -> SlackHistory:
        """List the latest messages of a channel, newest first."""
        if not _CHANNEL_ID.fullmatch(channel_id):
            raise ToolError(f"slack: channel_id {channel_id!r} is no channel ID; {_FIND_CHANNEL}")
        answer = await self._web.get("conversations.history", channel=channel_id, limit=limit)
        return validate_answer(SlackHistory, _fine(answer), "slack")

    async def slack_send_message(
        self,
        channel: Annotated[
            str,
            Alias("channel_id"),
            Field(max_length=81, description="Channel ID, such as C012AB3CD, or a public channel's name."),
        ],
        message: Annotated[
            str,
            Alias("msg", "text"),
            Field(min_length=1, max_length=4000, description="Text of the message."),
        ],
    ) -> SentMessage:
        """Send a message to a channel."""
        if not _CHANNEL_ID.fullmatch(channel):
            name = _CHANNEL_NAME.fullmatch(channel)
            if name is None:
                raise ToolError(f"slack: channel {channel!r} is neither a channel's ID nor its name; {_FIND_CHANNEL}")
            channel = f"#{name[1]}"
        answer = await self._web.post_write("chat.postMessage", {"channel": channel, "text": message})
        return validate_answer(SentMessage, _fine(answer), "slack")


def _fine(answer: Any) -> Any:
    """Return the response if it is `"ok": true`. Raise `ToolError` with Slack's error code otherwise."""
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        error = str(answer.get("error", "no reason given"))[:80] if isinstance(answer, dict) else "invalid response"
        raise ToolError(f"slack: {error}; {_ADVICE.get(error, 'do not retry this call')}")
    return answer


def slack_client() -> APIClient:
    """Return the client that environment variables configure. Most methods permit 50 requests a minute."""
    return APIClient(account_from_env("slack", "https://slack.com/api", "SLACK_BOT_TOKEN", per_minute=50))
