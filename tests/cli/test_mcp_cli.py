"""Test `understudy mcp tools` and `understudy mcp call`."""

import json
import sys

import pytest
from typer.testing import CliRunner

from support.mcp_kit import UNRULY
from understudy.cli.main import app
from understudy.core.errors import ConfigError

SERVER = f"{sys.executable} {UNRULY}"


def test_mcp_tools_lists_schemas() -> None:
    done = CliRunner().invoke(app, ["mcp", "tools", f"{SERVER} --sdk", "--json"])
    assert done.exit_code == 0
    specs = {spec["name"]: spec for spec in json.loads(done.stdout)}
    assert specs["add"]["description"] == "Add to the count."
    assert specs["add"]["parameters"]["required"] == ["amount"]


def test_mcp_call_parses_arguments_and_prints_progress() -> None:
    done = CliRunner().invoke(app, ["mcp", "call", SERVER, "say", "text=41"])
    assert (done.exit_code, done.stdout) == (0, "41\n")
    done = CliRunner().invoke(app, ["mcp", "call", SERVER, "work"])
    assert (done.stdout, done.stderr) == ("worked\n", "1 of 2 half\n2 of 2 whole\n")


def test_mcp_call_with_bad_arguments_exits_with_code_1() -> None:
    done = CliRunner().invoke(app, ["mcp", "call", SERVER, "add", '{"amount": "two"}'])
    assert done.exit_code == 1
    assert done.stderr.startswith("add: bad arguments for add: amount:")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["tools", "no-such-program"], "'no-such-program'"),
        (["tools", "my-server 'x"], "my-server 'x"),
        (["tools", SERVER, "--env", "NAME"], "env.NAME=VALUE"),
        (["tools", SERVER, "--header", "Authorization=Bearer x"], "headers.Authorization"),
    ],
)
def test_invalid_server_or_option_raises_config_error(words: list[str], match: str) -> None:
    done = CliRunner().invoke(app, ["mcp", *words])
    assert isinstance(done.exception, ConfigError)
    assert match in str(done.exception)
