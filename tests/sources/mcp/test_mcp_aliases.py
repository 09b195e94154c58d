"""Tests of aliases of tools, arguments and servers, in calls of agents, in tasks and in recorded answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.mcp_kit import run_async
from understudy.core.errors import ConfigError, ToolError
from understudy.core.messages import Message, ToolCall, ToolSpec, message_to_openai, tool_to_openai
from understudy.core.tasks import Score
from understudy.formats.parsing.parse import parse_reply
from understudy.sources.loading import load_source
from understudy.sources.mcp.catalog import ToolCatalog
from understudy.sources.mcp.config import MCPServerConfig
from understudy.sources.mcp.source import MCPTaskSource

SETTINGS = """
tasks = "tasks.jsonl"
cassette = {file = "answers.jsonl", mode = "replay"}
servers.notes = {command = "never-started", read_only_tools = ["list", "clear"], aliases = ["old_notes"]}
servers.lamps = {command = "never-started"}
[aliases]
post = "add"
wipe_all = "notes.clear"
add = {words = "text"}
"""
TASK = {
    "id": "a",
    "prompt": "Note the milk.",
    "split": "train",
    "gold": [{"tool": "old_notes.post", "arguments": {"words": "milk"}}],
    "check": {
        "calls": {
            "required": [{"tool": "post", "argument_patterns": {"words": "^milk$"}}],
            "forbidden": [{"tool": "wipe_*"}],
            "allowed": [{"tool": "old_notes.*"}],
        },
    },
}
ROW = {
    "env_class": "MCPToolEnv",
    "prompt": [{"role": "user", "content": "Note the milk."}],
    "reward_spec": {
        "ground_truth": {
            "task_id": "b",
            "tool_sequence": [{"step": 1, "server": "old_notes", "tool": "post", "params": {"words": "milk"}}],
            "success": {"must_call_tool": "old_notes"},
        }
    },
}


def spec(name: str, *arguments: str, **more: Any) -> ToolSpec:
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in arguments}}
    return ToolSpec(name=name, description="", parameters=schema, **more)


TOOLS = {"notes": [spec("add", "text"), spec("list"), spec("clear")], "lamps": [spec("light")]}


def load_environment(folder: Path, *rows: Any, settings: str = SETTINGS) -> MCPTaskSource:
    """Return an environment without servers: every call that a test makes has a recorded answer."""
    (folder / "e.toml").write_text(settings, encoding="utf-8")
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    answer = {"task": "a", "server": "notes", "history": "", "tool": "add", "arguments": {"text": "milk"}}
    lines = [
        {"tools": {name: [tool.model_dump() for tool in tools] for name, tools in TOOLS.items()}},
        {**answer, "result": {"text": "done"}},
        {**answer, "tool": "clear", "arguments": {}, "result": {"text": "empty"}},
    ]
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    source = load_source(f"mcp:{folder / 'e.toml'}")
    assert isinstance(source, MCPTaskSource)
    return source


def play(source: MCPTaskSource, *calls: tuple[str, dict[str, Any]]) -> tuple[list[str], Score | None]:
    """Return the results of calls in one episode, and the score after a last text."""

    async def episode() -> tuple[list[str], Score | None]:
        environment = source.environment(source.tasks("train")[0])
        await environment.start()
        results = list[str]()
        for name, arguments in calls:
            made = ToolCall(id="c", name=name, arguments=arguments)
            step = await environment.step(Message(role="assistant", tool_calls=(made,)))
            results += [message.content for message in step.messages]
        score = (await environment.step(Message(role="assistant", content="Done."))).score
        await environment.close()
        return results, score

    return run_async(episode())


@pytest.mark.parametrize("row", [TASK, ROW], ids=["task", "row"])
@pytest.mark.parametrize(
    "call",
    [
        ("add", {"text": "milk"}),
        ("post", {"words": "milk"}),
        ("notes.post", {"text": "milk"}),
        ("old_notes.add", {"text": "milk"}),
    ],
)
def test_call_by_alias_is_a_call_of_the_tool(tmp_path: Path, row: dict[str, Any], call: tuple[str, Any]) -> None:
    results, score = play(load_environment(tmp_path, row), call)
    assert (results, score.reward if score else None) == (["done"], 1.0)


@pytest.mark.parametrize("name", ["clear", "wipe_all", "old_notes.wipe_all"])
def test_forbidden_pattern_matches_every_name_of_a_tool(tmp_path: Path, name: str) -> None:
    _, score = play(load_environment(tmp_path, TASK), (name, {}), ("post", {"words": "milk"}))
    assert score is not None
    assert score.reward == 0.0


def test_allowed_pattern_with_a_server_alias_excludes_other_servers(tmp_path: Path) -> None:
    source = load_environment(tmp_path, TASK)
    task = source.resources.tasks["a"]
    assert task.check.calls is not None
    (allowed,) = task.check.calls.allowed or ()
    assert allowed.tool == "old_notes.*"
    results, _ = play(source, ("lamps.post", {}))
    assert "unknown tool" in results[0]


def test_aliases_are_in_gold_and_in_the_tools_of_the_model_by_their_real_names(tmp_path: Path) -> None:
    source = load_environment(tmp_path, TASK)
    (task,) = source.tasks("train")
    assert [(call.name, call.arguments) for call in task.gold_calls] == [("add", {"text": "milk"})]
    assert all(source.has_tool(name) for name in ("add", "post", "old_notes.post", "notes.wipe_all"))
    assert [each.name for each in source.tool_specs] == ["add", "list", "clear", "light"]
    shown = json.dumps([tool_to_openai(each) for each in source.tool_specs])
    assert not any(word in shown for word in ("post", "wipe", "words", "alias"))
    parsed = parse_reply('{"name": "post", "arguments": {"words": "milk"}}', "json", source.tool_specs)
    assert message_to_openai(Message(role="assistant", tool_calls=parsed.calls))["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": '{"text": "milk"}',
    }
    assert parsed.repairs == {"alias": 2}
    unknown = str(parse_reply('<tool_call>{"name": "pst", "arguments": {}}</tool_call>', "", source.tool_specs))
    assert "unknown tool" in unknown
    assert "post" not in unknown


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ('aliases.post = "ad"', "aliases.post: no server has a tool 'ad'; did you mean 'add'"),
        ('aliases.post = "lamps.add"', "aliases.post: no server has a tool 'lamps.add'"),
        ('aliases.light = "add"', "aliases.light: "),
        ('aliases."lamps.light" = "light"', "aliases.lamps.light: "),
        ('aliases.post = {words = "text"}', "aliases.post: no server has a tool 'post'"),
        ('aliases.note = "clear"', "aliases.note: "),
        ('servers.notes.aliases = ["lamps"]', "'lamps'"),
        ('servers.notes.aliases = ["x"]\nservers.lamps.aliases = ["x"]', "'x'"),
    ],
)
def test_unknown_or_ambiguous_alias_is_refused_at_load(
    tmp_path: Path, table: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOOLS, "notes", [spec("add", "text", name_aliases=("note",)), *TOOLS["notes"][1:]])
    head = SETTINGS.partition("servers.")[0]
    servers = 'servers.notes.command = "never"\nservers.lamps.command = "never"\n'
    with pytest.raises(ConfigError) as caught:
        load_environment(tmp_path, TASK, settings=f"{head}{servers}{table}")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_alias_that_a_server_lists_gives_way_to_a_tool_and_to_another_server() -> None:
    listed = {"name_aliases": ("light", "note", "keep")}
    servers = {name: MCPServerConfig(command=("x",)) for name in ("notes", "lamps", "memos")}
    tools = {
        "notes": [spec("add", **listed)],
        "lamps": [spec("light")],
        "memos": [spec("memo", name_aliases=("note",))],
    }
    catalog = ToolCatalog(tools, servers)
    assert catalog.get("light").tool == "light"
    assert (catalog.get("keep").tool, catalog.get("notes.keep").tool) == ("add", "add")
    for gone in ("note", "notes.light"):
        with pytest.raises(ToolError, match="unknown tool"):
            catalog.get(gone)
