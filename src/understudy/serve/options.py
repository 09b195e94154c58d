"""What can be set about serving."""

from ipaddress import ip_address

from pydantic import Field

from understudy.records import Record


class ServeConfig(Record):
    """Where a server listens, and how much it takes on."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    """0 takes one that is free."""
    key_variable: str = ""
    """The environment variable that holds the key which clients have to send; empty asks for none."""
    concurrency: int = Field(default=16, ge=1)
    """Replies that are made at once. Whoever asks for more is told to come again."""
    max_body: int = Field(default=4 << 20, ge=1)
    """Bytes of the largest request."""

    @property
    def local(self) -> bool:
        """Whether nobody but this machine can reach the server."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False
