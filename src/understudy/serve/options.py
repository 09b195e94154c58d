"""Options of the server."""

from ipaddress import ip_address
from pathlib import Path

from pydantic import Field

from understudy.core.records import Record
from understudy.core.secrets import KeyVariable


class ServeConfig(Record):
    """The server's address and limits."""

    host: str = "127.0.0.1"
    """The address to listen on. On 127.0.0.1, only this machine can connect."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    api_key_var: KeyVariable = ""
    """Name of the environment variable with the key that clients must send. Empty requires no key."""
    concurrency: int = Field(default=16, ge=1)
    """Largest number of replies in progress. Requests beyond it get status 429."""
    log: Path | None = None
    """Append each request with its replies, their token ids and log-probabilities to this JSONL file."""
    max_body_bytes: int = Field(default=4 << 20, ge=1)
    """Largest size of a request body in bytes."""

    max_message_chars: int = Field(default=250_000, ge=1)
    """Largest number of characters of one message. A longer one is refused with status 400, as it would take the server
    seconds to read it."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False
