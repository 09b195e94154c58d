"""Tests of the four web services over MCP, with HTTP replicas that answer as their documentation says."""

import asyncio
import contextlib
import json
import logging
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

import understudy
from support.replica.answers import KEY
from support.replica.loopback import Replicas, send, serve_replicas
from support.replica.market import companies
from understudy.core.errors import ConfigError, ToolError
from understudy.sources.mcp.server import build_server
from understudy.sources.mcp.servers.definitions import ServerOptions, server_definition
from understudy.sources.mcp.services import web as web_module
from understudy.sources.mcp.services.web import MAX_BYTES, APIClient, account_from_env

COMPANY = next(iter(companies().values()))
TICKER = COMPANY.ticker


@pytest.fixture
def replica_services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    with serve_replicas() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(web_module, "_FIRST_WAIT", 0.01)
        yield running


def call_tools(name: str, *asked: tuple[str, Mapping[str, Any]], part: ServerOptions = ServerOptions()) -> list[Any]:  # noqa: B008
    """Make calls in one session and return the results: parsed JSON, or a `ToolError` for each error."""

    async def talk() -> list[Any]:
        async with Client(build_server(server_definition(name, part))) as client:
            return [_parse_result(await client.call_tool(tool, dict(arguments))) for tool, arguments in asked]

    return asyncio.run(talk())


def _parse_result(result: Any) -> Any:
    text = result.content[0].text
    return ToolError(text) if result.is_error else json.loads(text)


def call_tool(tool: str, **arguments: Any) -> Any:
    return call_tools(tool.partition("_")[0], (tool, arguments))[0]


def refusal(tool: str, **arguments: Any) -> str:
    found = call_tool(tool, **arguments)
    assert isinstance(found, ToolError), found
    assert "\n" not in str(found)
    assert KEY not in str(found)
    return str(found)


def test_polygon_bars(replica_services: Replicas) -> None:
    day = COMPANY.days[3]
    bars = call_tool("polygon_get_aggs", ticker=TICKER.lower(), start_date=str(day.date), end_date=str(day.date))
    assert bars["ticker"] == TICKER
    bar = bars["results"][0]
    assert (bar["open"], bar["close"], bar["volume"]) == (day.open / 100, day.close / 100, day.volume)
    assert bar["begin"] == f"{day.date}T04:00:00Z"
    assert replica_services.asked[-1].path == f"/v2/aggs/ticker/{TICKER}/range/1/day/{day.date}/{day.date}"
    assert replica_services.asked[-1].query == {"adjusted": "true", "sort": "asc", "limit": "120"}


@pytest.mark.parametrize(("frequency", "count", "span"), [("hourly", 4, "hour"), ("minute", 4, "minute")])
def test_polygon_bars_within_a_day(frequency: str, count: int, span: str, replica_services: Replicas) -> None:
    day = str(COMPANY.days[0].date)
    asked = {"ticker": TICKER, "start_date": day, "end_date": day, "frequency": frequency, "limit": count}
    assert len(call_tool("polygon_get_aggs", **asked)["results"]) == count
    assert f"/range/1/{span}/" in replica_services.asked[-1].path


def test_polygon_without_results(replica_services: Replicas) -> None:
    assert "results" not in call_tool("polygon_get_aggs", ticker="NONE", start_date="2025-01-02", end_date="2025-01-03")


def test_polygon_news_details_status_and_previous_close(replica_services: Replicas) -> None:
    assert call_tool("polygon_get_news", ticker=TICKER, limit=2)["results"][0]["title"] == COMPANY.headline
    details = call_tool("polygon_get_ticker_details", ticker=TICKER)
    assert (details["name"], details["total_employees"]) == (COMPANY.name, COMPANY.employees)
    assert call_tool("polygon_get_market_status")["exchanges"]["nasdaq"] == "open"
    assert call_tool("polygon_get_previous_close", ticker=TICKER)["results"][0]["close"] == COMPANY.days[-1].close / 100
    unknown = "polygon: status 404: Ticker not found.; "
    assert refusal("polygon_get_ticker_details", ticker="NONE").startswith(unknown)


def test_fmp_quote_profile_statements_and_changes(replica_services: Replicas) -> None:
    quote = call_tool("fmp_get_quote", symbol=TICKER)
    assert (quote["price"], quote["previous_close"]) == (COMPANY.price / 100, COMPANY.days[-1].close / 100)
    assert call_tool("fmp_get_previous_close", symbol=TICKER) == {
        "symbol": TICKER,
        "previous_close": quote["previous_close"],
    }
    assert call_tool("fmp_get_company_profile", symbol=TICKER)["ceo"] == COMPANY.ceo
    statements = call_tool("fmp_get_income_statement", symbol=TICKER, limit=2)
    assert [each["revenue"] for each in statements] == [year.revenue * 1000 for year in COMPANY.years[:2]]
    assert call_tool("fmp_get_income_statement", symbol=TICKER, period="quarter")[0]["period"] == "Q1"
    before, last = COMPANY.days[-6].close, COMPANY.days[-1].close
    assert call_tool("fmp_get_change_percent", symbol=TICKER)["five_days"] == round((last - before) * 100 / before, 5)
    unknown = refusal("fmp_get_quote", symbol="NONE")
    assert "'NONE'" in unknown
    assert "fmp_search_ticker" in unknown


def test_fmp_movers_search_and_news(replica_services: Replicas) -> None:
    gains = [each["change_percent"] for each in call_tool("fmp_get_market_gainers", limit=3)]
    losses = [each["change_percent"] for each in call_tool("fmp_get_market_losers", limit=3)]
    assert gains == sorted(gains, reverse=True)
    assert losses == sorted(losses)
    assert gains[-1] > 0 > losses[-1]
    found = call_tool("fmp_search_ticker", query=COMPANY.name.split()[0])
    assert [each["symbol"] for each in found] == [TICKER]
    other = list(companies())[5]
    news = call_tool("fmp_get_stock_news", tickers=[TICKER, other], limit=8)
    assert {each["symbol"] for each in news} == {TICKER, other}
    assert [each["published"] for each in news] == sorted((each["published"] for each in news), reverse=True)


def test_tavily_search_extract_and_qna(replica_services: Replicas) -> None:
    found = call_tool("tavily_search", query=f"{COMPANY.name} chief executive", max_results=2, include_images=True)
    assert COMPANY.name in found["results"][0]["title"]
    assert len(found["results"]) == 2
    assert found["images"]
    assert replica_services.asked[-1].body["search_depth"] == "basic"
    url = found["results"][0]["url"]
    assert COMPANY.name in call_tool("tavily_extract", url=url)["content"]
    answer = call_tool("tavily_qna_search", query=f"Who is the chief executive of {COMPANY.name}?")
    assert COMPANY.ceo in answer["answer"]
    assert answer["sources"]
    assert replica_services.asked[-1].body["include_answer"] is True
    unread = "tavily: cannot read https://nowhere.example/: Failed to fetch url; "
    assert refusal("tavily_extract", url="https://nowhere.example/").startswith(unread)


def test_slack_reads(replica_services: Replicas) -> None:
    assert call_tool("slack_auth_test")["team"] == "Replica"
    first = call_tool("slack_list_channels", limit=4)
    rest = call_tool("slack_list_channels", cursor=first["response_metadata"]["next_cursor"])
    assert len(first["channels"]) + len(rest["channels"]) == 30
    history = call_tool("slack_get_channel_history", channel_id="C0TRADING", limit=3)
    assert history["has_more"]
    assert [each["ts"] for each in history["messages"]] == sorted((m["ts"] for m in history["messages"]), reverse=True)
    unknown = refusal("slack_get_channel_history", channel_id="C0NONE")
    assert unknown.startswith("slack: channel_not_found; ")
    assert "slack_list_channels" in unknown


def test_slack_send_requires_allow_writes(replica_services: Replicas) -> None:
    message = {"channel": "C0LUNCH", "message": "Soup?"}
    assert "unknown tool" in refusal("slack_send_message", **message)
    assert not replica_services.asked
    with pytest.raises(ConfigError, match=r"slack_send_message.*--allow-writes"):
        server_definition("slack", ServerOptions(tools=("slack_send_message",)))
    history = ("slack_get_channel_history", {"channel_id": "C0LUNCH", "limit": 1})
    before, sent, after = call_tools(
        "slack", history, ("slack_send_message", message), history, part=ServerOptions(allow_writes=True)
    )
    assert sent["channel"] == "C0LUNCH"
    assert (
        after["messages"][0]["text"] == "Soup?" != before["messages"][0]["text"]
    )  # the result before sending is not served from the cache


def test_tools_have_types_descriptions_and_annotations(replica_services: Replicas) -> None:
    async def talk(name: str) -> Sequence[Any]:
        async with Client(build_server(server_definition(name, ServerOptions(allow_writes=name == "slack")))) as client:
            return (await client.list_tools()).tools

    tools = [tool for name in ("polygon", "fmp", "tavily", "slack", "python") for tool in asyncio.run(talk(name))]
    assert len(tools) == 5 + 9 + 3 + 4 + 1
    for tool in tools:
        assert tool.description
        assert tool.annotations.read_only_hint is (tool.name != "slack_send_message")
        assert all("type" in each or "anyOf" in each for each in tool.input_schema.get("properties", {}).values())


def test_tools_option_limits_served_tools(replica_services: Replicas) -> None:
    part = ServerOptions(tools=("fmp_get_quote",))
    quote, other = call_tools("fmp", ("fmp_get_quote", {"symbol": TICKER}), ("fmp_get_market_gainers", {}), part=part)
    assert quote["symbol"] == TICKER
    assert "unknown tool" in str(other)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("polygon_get_aggs", {"ticker": "A", "start_date": "soon", "end_date": "2025-01-03"}, "start_date"),
        ("polygon_get_previous_close", {"ticker": "../../v1"}, "ticker: "),
        ("fmp_get_quote", {"symbol": "A&apikey=x"}, "symbol"),
        ("fmp_get_market_gainers", {"limit": 500}, "limit"),
        ("tavily_extract", {"url": "file:///etc/passwd"}, "url"),
        ("fmp_get_stock_news", {"tickers": "A&apikey=x"}, "tickers"),
    ],
)
def test_invalid_arguments_send_no_request(
    tool: str, arguments: dict[str, Any], message: str, replica_services: Replicas
) -> None:
    said = refusal(tool, **arguments)
    assert said.startswith(f"bad arguments for {tool}: ")
    assert message in said
    assert not replica_services.asked


def test_unusable_slack_channel_sends_no_request_and_names_the_tool_that_lists_channels(
    replica_services: Replicas,
) -> None:
    writes = ServerOptions(allow_writes=True)
    for tool, arguments in (
        ("slack_get_channel_history", {"channel_id": "lunch"}),
        ("slack_send_message", {"channel": "@ada", "message": "Soup?"}),
        ("slack_send_message", {"channel": "U0ADA", "message": "Soup?"}),
    ):
        (found,) = call_tools("slack", (tool, arguments), part=writes)
        assert isinstance(found, ToolError)
        assert "slack_list_channels" in str(found)
        assert repr(next(iter(arguments.values()))) in str(found)
    assert not replica_services.asked


@pytest.mark.parametrize("channel", ["lunch", "#lunch", "C0LUNCH"])
def test_slack_message_goes_to_a_channel_by_id_or_name(channel: str, replica_services: Replicas) -> None:
    call = ("send_slack_message", {"channel_id": channel, "text": "Soup?"})
    (sent,) = call_tools("slack", call, part=ServerOptions(allow_writes=True))
    assert sent["channel"] == "C0LUNCH"
    assert replica_services.asked[-1].body == {"channel": channel.replace("#", "").replace("l", "#l"), "text": "Soup?"}


DAY = str(COMPANY.days[3].date)


@pytest.mark.parametrize(
    ("tool", "alias", "plain"),
    [
        ("polygon_get_aggs", {"from": DAY, "to": DAY, "timespan": "day"}, {"start_date": DAY, "end_date": DAY}),
        ("polygon_get_news", {"limit": 1}, {"limit": 1}),
        ("tavily_search", {"q": "chief executive", "limit": 2}, {"query": "chief executive", "max_results": 2}),
        ("fmp_get_quote", {"stock": TICKER}, {"symbol": TICKER}),
        (
            "fmp_get_income_statement",
            {"ticker": TICKER, "period": "quarterly"},
            {"symbol": TICKER, "period": "quarter"},
        ),
        ("fmp_search_ticker", {"search": COMPANY.name}, {"query": COMPANY.name}),
        ("fmp_get_stock_news", {"symbol": f"{TICKER}, {TICKER}"}, {"tickers": [TICKER, TICKER]}),
        ("list_slack_channels", {}, {}),
        ("get_slack_channel_history", {"channel": "C0LUNCH"}, {"channel_id": "C0LUNCH"}),
    ],
)
def test_aliases_of_the_services_mean_the_tools_and_parameters(
    tool: str, alias: dict[str, Any], plain: dict[str, Any], replica_services: Replicas
) -> None:
    name = tool if "slack" not in tool else "slack_" + tool.replace("slack_", "")
    if name.startswith("polygon"):
        alias, plain = {**alias, "symbol": TICKER}, {**plain, "ticker": TICKER}
    by_alias, by_name = call_tools(name.partition("_")[0], (tool, alias), (name, plain))
    assert not isinstance(by_name, ToolError)
    assert by_alias == by_name
    assert by_alias


def test_fmp_news_without_tickers_are_about_all_stocks(replica_services: Replicas) -> None:
    for arguments in ({"limit": 5}, {"tickers": "", "limit": 5}):
        assert len({row["symbol"] for row in call_tool("fmp_get_stock_news", **arguments)}) == 5
        assert replica_services.asked[-1].path == "/news/stock-latest"
    assert "at most 10" in refusal("fmp_get_stock_news", tickers=",".join("ABCDEFGHIJK"))


def queue_responses(replica_services: Replicas, *answers: tuple[int, Any, Mapping[str, str]] | None) -> None:
    """Answer the next requests with the given responses. None passes a request to the service."""
    rest = iter(answers)

    def instead(handler: BaseHTTPRequestHandler) -> bool:
        answer = next(rest, None)
        if answer:
            send(handler, *answer)
        return answer is not None

    replica_services.instead = instead


TOO_MANY = {"status": "ERROR", "error": "You've exceeded the maximum requests per minute."}


def test_transient_errors_are_retried(replica_services: Replicas) -> None:
    queue_responses(replica_services, (429, TOO_MANY, {"Retry-After": "0.3"}), (503, b"<html>busy</html>", {}))
    begin = time.monotonic()
    assert call_tool("polygon_get_market_status")["market"] == "open"
    assert time.monotonic() - begin > 0.3
    assert len(replica_services.asked) == 3


def test_absurd_retry_after_is_ignored(replica_services: Replicas) -> None:
    queue_responses(replica_services, (429, TOO_MANY, {"Retry-After": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}))
    assert call_tool("polygon_get_market_status")["market"] == "open"


def test_rate_limit_error_states_retry_time(replica_services: Replicas) -> None:
    queue_responses(replica_services, (429, TOO_MANY, {"Retry-After": "3600"}))
    said = refusal("polygon_get_market_status")
    expected = "too many requests: You've exceeded the maximum requests per minute. (attempts: 1); try again in 3600 s"
    assert said == f"polygon: {expected}"


@pytest.mark.parametrize(
    ("answer", "message", "attempts"),
    [
        ((500, {"error": "oops"}, {}), "polygon: status 500: oops (attempts: 3); try again later", 3),
        ((200, b"<html>", {}), "not JSON (attempts: 3); try again later", 3),
        ((200, b"[" * 100_000, {}), "not JSON (attempts: 3)", 3),
        ((200, {"market": 3}, {}), "polygon: invalid response: market: Input should be a valid string; ", 1),
        ((200, [], {}), "polygon: invalid response: body: ", 1),
        ((403, {"message": "You are not entitled to this data."}, {}), "POLYGON_API_KEY", 1),
        ((302, b"", {"Location": "http://127.0.0.1:1/"}), "polygon: status 302; ", 1),
        ((200, b"[" + b"1," * MAX_BYTES + b"1]", {}), "4,000,000 bytes; ", 1),
        ((400, {"error": f"bad key {KEY}"}, {}), "polygon: status 400: bad key …; ", 1),
    ],
)
def test_invalid_responses_are_reported(answer: Any, message: str, attempts: int, replica_services: Replicas) -> None:
    queue_responses(replica_services, *[answer] * 3)
    assert message in refusal("polygon_get_market_status")
    assert len(replica_services.asked) == attempts


@pytest.mark.parametrize(
    ("tool", "variable"),
    [
        ("polygon_get_market_status", "POLYGON_API_KEY"),
        ("fmp_get_market_gainers", "FMP_API_KEY"),
        ("tavily_search", "TAVILY_API_KEY"),
        ("slack_auth_test", "SLACK_BOT_TOKEN"),
    ],
)
def test_wrong_api_key_is_named_but_not_shown(
    tool: str,
    variable: str,
    replica_services: Replicas,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(variable, "wrong-key-9a8b7c")
    arguments = {"query": "x"} if tool == "tavily_search" else {}
    with caplog.at_level(logging.DEBUG):
        said = refusal(tool, **arguments)
    assert variable in said
    assert "wrong-key" not in said + caplog.text + repr(
        web_module.account_from_env("polygon", "http://x", variable, 1.0)
    )
    assert "wrong-key" not in str(replica_services.asked)


def test_tavily_quota_error_is_reported(replica_services: Replicas) -> None:
    queue_responses(
        replica_services, (432, {"detail": {"error": "This request exceeds your plan's set usage limit."}}, {})
    )
    expected = "tavily: status 432: This request exceeds your plan's set usage limit.; "
    assert refusal("tavily_search", query="x").startswith(expected)


def test_slow_response_times_out(replica_services: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMP_TIMEOUT", "0.1")

    def slow(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(10):  # in small parts, so that no single read is slow
                handler.wfile.write(b" ")
                time.sleep(0.04)
        handler.close_connection = True
        return True

    replica_services.instead = slow
    begin = time.monotonic()
    assert "within 0.1 s (attempts: 3); try again later" in refusal("fmp_get_market_gainers")
    assert time.monotonic() - begin < 30  # three attempts of 0.1 s, on a machine that may be busy


def test_connection_failure_is_reported(replica_services: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("FMP_BASE_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        assert "fmp: no connection (ConnectError) (attempts: 3); try again later" in refusal("fmp_get_market_gainers")


def test_slack_send_is_not_retried_after_server_error(replica_services: Replicas) -> None:
    send_it = ("slack_send_message", {"channel": "C0LUNCH", "message": "Soup?"})
    queue_responses(replica_services, (500, {"ok": False, "error": "fatal_error"}, {}))
    assert "status 500" in str(call_tools("slack", send_it, part=ServerOptions(allow_writes=True))[0])
    assert len(replica_services.asked) == 1  # the message may have been sent in spite of the error
    queue_responses(replica_services, (429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "0"}), None)
    assert (
        call_tools("slack", send_it, part=ServerOptions(allow_writes=True))[0]["channel"] == "C0LUNCH"
    )  # a rejected request is retried


def test_responses_are_cached_until_expiry(replica_services: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(web_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def talk() -> None:
        async with Client(build_server(server_definition("fmp", ServerOptions()))) as client:
            for _ in range(3):
                await client.call_tool("fmp_get_quote", {"symbol": TICKER})
            assert len(replica_services.asked) == 1
            await client.call_tool("fmp_get_quote", {"symbol": list(companies())[1]})
            assert len(replica_services.asked) == 2
            now[0] += 61
            await client.call_tool("fmp_get_quote", {"symbol": TICKER})
            assert len(replica_services.asked) == 3

    asyncio.run(talk())
    monkeypatch.setenv("FMP_CACHE", "0")
    call_tools("fmp", *[("fmp_get_quote", {"symbol": TICKER})] * 2)
    assert len(replica_services.asked) == 5


def test_own_rate_limit_refuses_excess_requests(replica_services: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYGON_PER_MINUTE", "2")
    prices = [("polygon_get_previous_close", {"ticker": ticker}) for ticker in list(companies())[:3]]
    first, second, third = call_tools("polygon", *prices)
    assert first["ticker"] != second["ticker"]
    assert re.search(r"\b2 requests a minute \(POLYGON_PER_MINUTE\).*; try again in \d+ s", str(third))
    assert len(replica_services.asked) == 2


def test_own_rate_limit_waits_when_delay_is_short(replica_services: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "_MINUTE", 0.2)
    monkeypatch.setenv("POLYGON_PER_MINUTE", "1")
    begin = time.monotonic()
    call_tools("polygon", *[("polygon_get_previous_close", {"ticker": t}) for t in list(companies())[:3]])
    assert time.monotonic() - begin > 0.4
    assert len(replica_services.asked) == 3


def test_cache_size_is_bounded(replica_services: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "MAX_CACHED", 2)

    async def talk() -> int:
        web = APIClient(account_from_env("tavily", "http://127.0.0.1:1", "TAVILY_API_KEY", 1.0))
        for n in range(4):
            await web.post_query("search", {"query": str(n)})
        await web.close()
        return len(web._cache)

    assert asyncio.run(talk()) == 2


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("POLYGON_API_KEY", "", "POLYGON_API_KEY"),
        ("POLYGON_API_KEY", "ключ", "POLYGON_API_KEY"),
        ("POLYGON_BASE_URL", "http://me:secret@host", "POLYGON_BASE_URL"),
        ("POLYGON_TIMEOUT", "soon", r"POLYGON_TIMEOUT\b.*'soon'"),
        ("POLYGON_PER_MINUTE", "0", r"POLYGON_PER_MINUTE\b.*'0'"),
        ("POLYGON_CACHE", "nan", r"POLYGON_CACHE\b.*'nan'"),
    ],
)
def test_invalid_environment_variable_raises_config_error(
    variable: str, value: str, message: str, replica_services: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        server_definition("polygon", ServerOptions())
    assert re.search(message, str(caught.value))
    assert "secret" not in str(caught.value)


def test_service_over_stdio_returns_results(replica_services: Replicas) -> None:
    environment = {**replica_services.environment(), "PYTHONPATH": str(Path(understudy.__file__).parent.parent)}
    arguments = [
        "-c",
        "from understudy.cli.main import main; main()",
        "mcp",
        "serve",
        "tavily",
        "--tools",
        "tavily_search",
    ]

    async def talk() -> Any:
        launched = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
        async with Client(launched) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["tavily_search"]
            return _parse_result(await client.call_tool("tavily_search", {"query": COMPANY.name}))

    assert COMPANY.name in asyncio.run(talk())["results"][0]["title"]
