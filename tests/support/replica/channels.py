"""A made-up Slack workspace, which stores the messages sent to it."""

import random
from collections.abc import Mapping
from typing import Any

from support.replica.market import NOW, companies

_TEAM = {"team": "Replica", "team_id": "T0REPLICA", "user": "understudy", "user_id": "U0BOT", "bot_id": "B0BOT"}
CHANNELS = (
    *("general", "random", "trading", "research", "alerts", "earnings", "travel", "lunch", "releases", "hiring"),
    *("legal", "budget", "support", "security", "design", "events", "office", "music", "cycling", "books"),
    *("energy", "freight", "robotics", "clinics", "coffee", "italy", "nordics", "night-shift", "garden", "chess"),
)
PEOPLE = ("U0ADA", "U0BRUNO", "U0CARLA", "U0DENIZ", "U0ELIF")


class Workspace:
    """Channels and their messages, newest first."""

    def __init__(self) -> None:
        self.channels = {channel_id(name): name for name in CHANNELS}
        self.messages = {channel: _talk(channel) for channel in self.channels}

    def answer(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a method. As in Slack, an error is an answer with `ok` false."""
        method = path.removeprefix("/")
        if method == "auth.test":
            return {"ok": True, "url": "https://replica.example/", **_TEAM}
        if method == "conversations.list":
            return self._list(int(asked.get("limit", 100)), str(asked.get("cursor", "")))
        channel = str(asked.get("channel", ""))
        if method not in ("conversations.history", "chat.postMessage"):
            return {"ok": False, "error": "unknown_method"}
        if method == "chat.postMessage" and channel.startswith("#"):
            channel = next((known for known, name in self.channels.items() if name == channel[1:]), "")
        if channel not in self.channels:
            return {"ok": False, "error": "channel_not_found"}
        if method == "chat.postMessage":
            return self._post(channel, str(asked["text"]))
        limit, messages = int(asked.get("limit", 100)), self.messages[channel]
        return {"ok": True, "messages": messages[:limit], "has_more": len(messages) > limit, "pin_count": 0}

    def _list(self, limit: int, cursor: str) -> dict[str, Any]:
        first = int(cursor or 0)
        shown = list(self.channels.items())[first : first + limit]
        following = str(first + limit) if first + limit < len(self.channels) else ""
        return {
            "ok": True,
            "channels": [_channel(identity, name) for identity, name in shown],
            "response_metadata": {"next_cursor": following},
        }

    def _post(self, channel: str, text: str) -> dict[str, Any]:
        ts = f"{int(NOW.timestamp()) + sum(map(len, self.messages.values()))}.000100"
        message = {"type": "message", "user": "U0BOT", "bot_id": "B0BOT", "text": text, "ts": ts}
        self.messages[channel].insert(0, message)
        return {"ok": True, "channel": channel, "ts": ts, "message": message}


def channel_id(name: str) -> str:
    """Return the id of a channel."""
    return f"C0{name.upper().replace('-', '')}"


def _channel(identity: str, name: str) -> dict[str, Any]:
    rng = random.Random(f"channel {name}")
    about = {"value": f"Everything about {name}", "creator": rng.choice(PEOPLE), "last_set": 0}
    kind = {"is_channel": True, "is_private": False, "is_member": True, "is_archived": False}
    return {"id": identity, "name": name, **kind, "topic": about, "num_members": rng.randint(3, 250)}


def _talk(channel: str) -> list[dict[str, Any]]:
    rng = random.Random(f"talk {channel}")
    said: list[dict[str, Any]] = []
    for n in range(rng.randint(6, 14)):
        company = rng.choice(list(companies().values()))
        text = rng.choice(
            (
                f"{company.name} {rng.choice(company.news)}.",
                f"Who follows {company.ticker}? I want to sell {rng.randint(2, 90) * 10} shares.",
                f"Lunch at {rng.randint(11, 13)}:{rng.choice(('00', '15', '30', '45'))} on floor {rng.randint(1, 9)}.",
                f"The meeting about {company.name} moves to room {rng.randint(100, 480)}.",
                f"Budget for {company.industry.lower()} is ${rng.randint(3, 90)},000.",
            )
        )
        ts = f"{int(NOW.timestamp()) - 3600 * (n + 1) - rng.randint(0, 3000)}.{rng.randint(0, 999999):06}"
        said.append({"type": "message", "user": rng.choice(PEOPLE), "text": text, "ts": ts})
    return said
