"""Tests of tools behind plain HTTP: `POST /tools/NAME` with JSON, at a real server on loopback."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.mcp_kit import call_on_new_server, run_async
from understudy.core.errors import ConfigError
from understudy.data.checks.check import check
from understudy.sources.loading import load_source
from understudy.sources.mcp import transport
from understudy.sources.mcp.config import MCPServerConfig

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
NAMES = ("broken", "refused", "moved", "drops", "huge")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "description": "Add numbers.", "parameters": SCHEMA}},
    *({"name": name} for name in NAMES),
]


@pytest.fixture
def asked() -> list[tuple[str, Any, str]]:
    """Return the requests that arrive: path, body and the header `x-key`."""
    return []


@pytest.fixture
def address(asked: list[tuple[str, Any, str]]) -> Iterator[str]:
    """Run a server with tools, and yield their address."""

    class Tools(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, body, self.headers.get("x-key", "")))
            name = self.path.rpartition("/")[2]
            if name == "drops":
                return
            status, reply = {
                "broken": (502, {"ok": False, "error": "no data"}),
                "refused": (200, {"ok": False, "error": "no such channel"}),
                "moved": (307, {}),
                "huge": (200, {"data": "x" * 5000}),
            }.get(name) or (200, {"ok": True, "data": {"sum": sum(body.get("arguments", body).values())}})
            text = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("location", "http://127.0.0.1:1/elsewhere")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Tools)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/tools"
    server.shutdown()
    server.server_close()


def tools_config(url: str, folder: Path, tools: Any = TOOLS, **more: Any) -> MCPServerConfig:
    file = folder / "tools.json"
    file.write_text(json.dumps(tools), encoding="utf-8")
    settings = {"url": url, "http_tools": str(file), "isolation": "shared", "max_start_attempts": 1, **more}
    return MCPServerConfig.model_validate(settings)


@pytest.mark.parametrize("key", ["", "arguments"])
def test_call_is_a_post_request_with_the_arguments_and_secret_headers(
    key: str, address: str, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLS_KEY", "abc-secret")
    config = tools_config(address, tmp_path, http_arguments_key=key, headers={"x-key": "${TOOLS_KEY}"})
    assert json.loads(run_async(call_on_new_server(config, "add", a=2, b=3)))["data"] == {"sum": 5}
    sent = {"a": 2, "b": 3}
    assert asked == [("/tools/add", {key: sent} if key else sent, "abc-secret")]


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "named"),
    [
        ("add", {"a": 2}, "invalid_arguments", "'b' is a required property"),
        ("subtract", {"a": 2}, "unknown_tool", "subtract"),
        ("broken", {}, "refused", "status 502: .*no data"),
        ("refused", {}, "refused", "no such channel"),
        ("moved", {}, "mcp's fault", "Redirect"),
        ("drops", {}, "mcp's fault", "drops"),
        ("huge", {}, "mcp's fault", "exceeded the 4000 byte limit"),
    ],
)
def test_failure_is_an_error_of_the_tool_or_a_fault_of_the_server(
    tool: str,
    arguments: dict[str, Any],
    kind: str,
    named: str,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", 4000)
    result = run_async(call_on_new_server(tools_config(address, tmp_path), tool, **arguments))
    before, _, text = result.partition(": ")
    assert before == kind
    assert re.search(named, text)
    assert "\n" not in text


def test_environment_of_http_tools_is_checked(address: str, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS[:1]), encoding="utf-8")
    row = {
        "id": "sum",
        "prompt": "What is 2 + 3?",
        "gold": [{"tool": "add", "arguments": {"a": 2, "b": 3}}],
        "final_answer": "5",
        "check": {"answer": {"number": 5}, "calls": {"required": [{"tool": "add"}]}},
    }
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row), encoding="utf-8")
    settings = f'tasks = "tasks.jsonl"\nserver = {{url = "{address}", http_tools = "tools.json", isolation = "shared"}}'
    (tmp_path / "sums.toml").write_text(settings, encoding="utf-8")
    report = check(load_source(f"mcp:{tmp_path / 'sums.toml'}"))
    assert not report.problems
    assert [split.gold_reward for split in report.splits if split.tasks] == [1.0]


@pytest.mark.parametrize(
    ("tools", "named"),
    [([{"name": "../up"}], "0.name"), ([{"description": "d"}], "0.name"), ({"name": "add"}, "the file")],
)
def test_wrong_file_of_tools_is_refused_with_its_place(tools: Any, named: str, tmp_path: Path) -> None:
    config = tools_config("http://127.0.0.1:9/tools", tmp_path, tools)
    with pytest.raises(ConfigError, match=rf"tools\.json: {named}: "):
        run_async(call_on_new_server(config, "add"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"command": "x", "http_tools": "tools.json"}, "http_tools needs the url"),
        ({"url": "http://127.0.0.1:1", "isolation": "shared", "http_arguments_key": "a"}, "http_arguments_key needs"),
        ({"url": "http://127.0.0.1:1", "http_tools": "tools.json"}, "isolation"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        MCPServerConfig.model_validate(settings)


def test_missing_file_of_tools_is_refused(tmp_path: Path) -> None:
    config = tools_config("http://127.0.0.1:9/tools", tmp_path)
    (tmp_path / "tools.json").unlink()
    with pytest.raises(ConfigError, match=r"tools\.json cannot be read"):
        run_async(call_on_new_server(config, "add"))


def test_server_that_was_never_up_has_not_started(tmp_path: Path) -> None:
    said = run_async(call_on_new_server(tools_config("http://127.0.0.1:9/tools", tmp_path), "add", a=1, b=2))
    assert said.startswith("mcp's fault: ")
    assert "did not start (http://127.0.0.1:9/tools)" in said


def test_missing_variables_of_all_servers_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["FIRST_TEST_KEY", "SECOND_TEST_KEY"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    servers = (
        f"servers.s{i} = {{url = 'http://127.0.0.1:9', isolation = 'shared', headers = {{x = '${{{name}}}'}}}}"
        for i, name in enumerate(names)
    )
    (tmp_path / "keys.toml").write_text("\n".join(servers), encoding="utf-8")
    with pytest.raises(ConfigError, match=", ".join(names)):
        _ = load_source(f"mcp:{tmp_path / 'keys.toml'}").tool_specs


def test_missing_tasks_file_is_named_with_the_key_and_the_toml(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("tasks = 'nope.jsonl'\nserver = {command = 'x'}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"e\.toml: tasks: .*nope\.jsonl"):
        load_source(f"mcp:{tmp_path / 'e.toml'}")
