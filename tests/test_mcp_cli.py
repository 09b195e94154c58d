"""`understudy mcp`: what a server offers, and one call."""

import json
import sys

import pytest
from typer.testing import CliRunner

from mcp_kit import UNRULY
from understudy.cli import app
from understudy.errors import ConfigError

SERVER = f"{sys.executable} {UNRULY}"


def test_tools_are_listed_with_their_schemas() -> None:
    done = CliRunner().invoke(app, ["mcp", "tools", SERVER, "--json"])
    assert done.exit_code == 0
    specs = {spec["name"]: spec for spec in json.loads(done.stdout)}
    assert specs["add"]["description"] == "Add to the count."
    assert specs["add"]["parameters"]["required"] == ["amount"]


def test_a_tool_is_called_with_typed_arguments_and_its_progress_shown() -> None:
    done = CliRunner().invoke(app, ["mcp", "call", SERVER, "say", "text=41"])
    assert (done.exit_code, done.stdout) == (0, "41\n")
    done = CliRunner().invoke(app, ["mcp", "call", SERVER, "work"])
    assert (done.stdout, done.stderr) == ("worked\n", "1 of 2 half\n2 of 2 whole\n")


def test_a_refusal_is_exit_code_one() -> None:
    done = CliRunner().invoke(app, ["mcp", "call", SERVER, "add", '{"amount": "two"}'])
    assert done.exit_code == 1
    assert done.stderr.startswith("add: bad arguments for add: amount:")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["tools", "no-such-program"], "there is no program 'no-such-program'"),
        (["tools", "my-server 'x"], 'the command "my-server \'x" cannot be split into words: no closing quotation'),
        (["tools", SERVER, "--env", "NAME"], "--env 'NAME' is not of the form"),
        (["tools", SERVER, "--header", "Authorization=Bearer x"], "headers.Authorization is a secret"),
    ],
)
def test_what_the_user_got_wrong(words: list[str], match: str) -> None:
    done = CliRunner().invoke(app, ["mcp", *words])
    assert isinstance(done.exception, ConfigError)
    assert match in str(done.exception)
