"""Tools of a server that does not speak MCP: a call of NAME is `POST {url}/NAME`, with the arguments as JSON.

They are offered as an MCP server in this process, so that sessions, checks and recordings work as for other servers.
Only the configured address is called, and redirects are not followed. A response of any other status than 2xx, or of an
object whose `ok` is false, is an error of the tool. A lost connection is a fault.
"""

import json
from pathlib import Path
from typing import Any

import httpx2
from mcp import MCPError
from mcp.server import Server
from mcp.types import INTERNAL_ERROR
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from understudy.core.errors import ConfigError, ToolError
from understudy.core.messages import ToolCall, ToolSpec
from understudy.core.records import Record
from understudy.sources.mcp.server import ServedSession, ServerDefinition, build_server


class HTTPToolSpec(Record, extra="ignore"):
    """A tool in the file, in OpenAI's format. The wrapper `{"type": "function", "function": …}` may be left out."""

    name: str = Field(pattern=r"^\w[\w.-]*$")
    description: str = ""
    parameters: dict[str, Any] = {"type": "object"}

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, value: Any) -> Any:
        return value["function"] if isinstance(value, dict) and "function" in value else value


_TOOLS = TypeAdapter(tuple[HTTPToolSpec, ...])


class HTTPTools:
    """The tools that a file lists, at one address."""

    def __init__(self, url: str, client: httpx2.AsyncClient, file: Path, arguments_key: str) -> None:
        self._url, self._client, self._arguments_key = url.rstrip("/"), client, arguments_key
        self._specs = [ToolSpec(**tool.model_dump()) for tool in _read_tools(file)]

    def specs(self) -> list[ToolSpec]:
        """Return the tools of the file."""
        return self._specs

    async def call(self, call: ToolCall) -> str:
        """Return the body of the response. Raise `ToolError` if it is an error of the tool."""
        body = {self._arguments_key: call.arguments} if self._arguments_key else call.arguments
        try:
            response = await self._client.post(f"{self._url}/{call.name}", json=body)
        except httpx2.HTTPError as e:
            raise MCPError(INTERNAL_ERROR, f"Connection to {self._url} failed: {type(e).__name__}") from e
        except httpx2.StreamError as e:
            raise MCPError(INTERNAL_ERROR, f"Failed to parse JSON response: {e}") from e
        if response.is_redirect:
            raise MCPError(INTERNAL_ERROR, f"Redirect to {response.headers.get('location')!r} not followed")
        if not response.is_success:
            raise ToolError(f"status {response.status_code}: {response.text}")
        if _is_refusal(response.text):
            raise ToolError(response.text)
        return response.text


def http_tools_server(url: str, client: httpx2.AsyncClient, file: Path, arguments_key: str) -> Server[Any]:
    """Return an MCP server that offers the tools."""
    tools = HTTPTools(url, client, file, arguments_key)
    return build_server(ServerDefinition("http_tools", lambda _: ServedSession(tools)))


def _read_tools(file: Path) -> tuple[HTTPToolSpec, ...]:
    try:
        return _TOOLS.validate_json(file.read_bytes())
    except OSError as e:
        raise ConfigError(f"http_tools: {file} cannot be read: {e.strerror}") from e
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"http_tools: {file}: {where}: {first['msg']}; list the tools in OpenAI's format, with name, description "
            "and parameters"
        ) from e


def _is_refusal(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("ok") is False
