"""The four services, over a real MCP session and real HTTP to replicas that answer as the documentation says."""

import asyncio
import contextlib
import json
import logging
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
from understudy.errors import ConfigError, ToolError
from understudy.mcp.serve import server
from understudy.mcp.servers import web as web_module
from understudy.mcp.servers.offers import Part, offer
from understudy.mcp.servers.replica.answers import KEY
from understudy.mcp.servers.replica.loopback import Replicas, replicas, send
from understudy.mcp.servers.replica.market import companies
from understudy.mcp.servers.web import MOST_BYTES, Web, account

COMPANY = next(iter(companies().values()))
TICKER = COMPANY.ticker


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    with replicas() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(web_module, "_FIRST_WAIT", 0.01)
        yield running


def calls(name: str, *asked: tuple[str, Mapping[str, Any]], part: Part = Part()) -> list[Any]:  # noqa: B008
    """What a client is answered to some calls in one session: JSON where it is some, `ToolError`s as what they say."""

    async def talk() -> list[Any]:
        async with Client(server(offer(name, part))) as client:
            return [_read(await client.call_tool(tool, dict(arguments))) for tool, arguments in asked]

    return asyncio.run(talk())


def _read(result: Any) -> Any:
    text = result.content[0].text
    return ToolError(text) if result.is_error else json.loads(text)


def call(tool: str, **arguments: Any) -> Any:
    return calls(tool.partition("_")[0], (tool, arguments))[0]


def refusal(tool: str, **arguments: Any) -> str:
    found = call(tool, **arguments)
    assert isinstance(found, ToolError), found
    assert "\n" not in str(found)
    assert KEY not in str(found)
    return str(found)


def test_polygon_bars(net: Replicas) -> None:
    day = COMPANY.days[3]
    bars = call("polygon_get_aggs", ticker=TICKER.lower(), start_date=str(day.date), end_date=str(day.date))
    assert bars["ticker"] == TICKER
    bar = bars["results"][0]
    assert (bar["open"], bar["close"], bar["volume"]) == (day.open / 100, day.close / 100, day.volume)
    assert bar["begin"] == f"{day.date}T04:00:00Z"
    assert net.asked[-1].path == f"/v2/aggs/ticker/{TICKER}/range/1/day/{day.date}/{day.date}"
    assert net.asked[-1].query == {"adjusted": "true", "sort": "asc", "limit": "120"}


@pytest.mark.parametrize(("frequency", "count", "span"), [("hourly", 4, "hour"), ("minute", 4, "minute")])
def test_polygon_bars_within_a_day(frequency: str, count: int, span: str, net: Replicas) -> None:
    day = str(COMPANY.days[0].date)
    asked = {"ticker": TICKER, "start_date": day, "end_date": day, "frequency": frequency, "limit": count}
    assert len(call("polygon_get_aggs", **asked)["results"]) == count
    assert f"/range/1/{span}/" in net.asked[-1].path


def test_polygon_without_results(net: Replicas) -> None:
    assert "results" not in call("polygon_get_aggs", ticker="NONE", start_date="2025-01-02", end_date="2025-01-03")


def test_polygon_news_details_status_and_previous_close(net: Replicas) -> None:
    assert call("polygon_get_news", ticker=TICKER, limit=2)["results"][0]["title"] == COMPANY.headline
    details = call("polygon_get_ticker_details", ticker=TICKER)
    assert (details["name"], details["total_employees"]) == (COMPANY.name, COMPANY.employees)
    assert call("polygon_get_market_status")["exchanges"]["nasdaq"] == "open"
    assert call("polygon_get_previous_close", ticker=TICKER)["results"][0]["close"] == COMPANY.days[-1].close / 100
    unknown = "polygon answers 404: Ticker not found.; check the spelling, or search first"
    assert refusal("polygon_get_ticker_details", ticker="NONE") == unknown


def test_fmp_quote_profile_statements_and_changes(net: Replicas) -> None:
    quote = call("fmp_get_quote", symbol=TICKER)
    assert (quote["price"], quote["previous_close"]) == (COMPANY.price / 100, COMPANY.days[-1].close / 100)
    assert call("fmp_get_previous_close", symbol=TICKER) == {
        "symbol": TICKER,
        "previous_close": quote["previous_close"],
    }
    assert call("fmp_get_company_profile", symbol=TICKER)["ceo"] == COMPANY.ceo
    statements = call("fmp_get_income_statement", symbol=TICKER, limit=2)
    assert [each["revenue"] for each in statements] == [year.revenue * 1000 for year in COMPANY.years[:2]]
    assert call("fmp_get_income_statement", symbol=TICKER, period="quarter")[0]["period"] == "Q1"
    before, last = COMPANY.days[-6].close, COMPANY.days[-1].close
    assert call("fmp_get_change_percent", symbol=TICKER)["five_days"] == round((last - before) * 100 / before, 5)
    unknown = "fmp knows nothing of the symbol 'NONE'; find the right one by fmp_search_ticker"
    assert refusal("fmp_get_quote", symbol="NONE") == unknown


def test_fmp_movers_search_and_news(net: Replicas) -> None:
    gains = [each["change_percent"] for each in call("fmp_get_market_gainers", limit=3)]
    losses = [each["change_percent"] for each in call("fmp_get_market_losers", limit=3)]
    assert gains == sorted(gains, reverse=True)
    assert losses == sorted(losses)
    assert gains[-1] > 0 > losses[-1]
    found = call("fmp_search_ticker", query=COMPANY.name.split()[0])
    assert [each["symbol"] for each in found] == [TICKER]
    other = list(companies())[5]
    news = call("fmp_get_stock_news", tickers=[TICKER, other], limit=8)
    assert {each["symbol"] for each in news} == {TICKER, other}
    assert [each["published"] for each in news] == sorted((each["published"] for each in news), reverse=True)


def test_tavily(net: Replicas) -> None:
    found = call("tavily_search", query=f"{COMPANY.name} chief executive", max_results=2, include_images=True)
    assert COMPANY.name in found["results"][0]["title"]
    assert len(found["results"]) == 2
    assert found["images"]
    assert net.asked[-1].body["search_depth"] == "basic"
    url = found["results"][0]["url"]
    assert COMPANY.name in call("tavily_extract", url=url)["content"]
    answer = call("tavily_qna_search", query=f"Who is the chief executive of {COMPANY.name}?")
    assert COMPANY.ceo in answer["answer"]
    assert answer["sources"]
    assert net.asked[-1].body["include_answer"] is True
    unread = "tavily cannot read https://nowhere.example/: Failed to fetch url; try another page"
    assert refusal("tavily_extract", url="https://nowhere.example/") == unread


def test_slack_reads(net: Replicas) -> None:
    assert call("slack_auth_test")["team"] == "Replica"
    first = call("slack_list_channels", limit=4)
    rest = call("slack_list_channels", cursor=first["response_metadata"]["next_cursor"])
    assert len(first["channels"]) + len(rest["channels"]) == 30
    history = call("slack_get_channel_history", channel_id="C0TRADING", limit=3)
    assert history["has_more"]
    assert [each["ts"] for each in history["messages"]] == sorted((m["ts"] for m in history["messages"]), reverse=True)
    unknown = "slack answers channel_not_found; list the channels to see their ids"
    assert refusal("slack_get_channel_history", channel_id="C0NONE") == unknown


def test_slack_sends_only_where_that_is_allowed(net: Replicas) -> None:
    message = {"channel": "C0LUNCH", "message": "Soup?"}
    assert "unknown tool" in refusal("slack_send_message", **message)
    assert not net.asked
    with pytest.raises(ConfigError, match="slack_send_message changes something; add --allow-writes"):
        offer("slack", Part(tools=("slack_send_message",)))
    history = ("slack_get_channel_history", {"channel_id": "C0LUNCH", "limit": 1})
    before, sent, after = calls("slack", history, ("slack_send_message", message), history, part=Part(writes=True))
    assert sent["channel"] == "C0LUNCH"
    assert after["messages"][0]["text"] == "Soup?" != before["messages"][0]["text"]  # the cache has not kept the old


def test_tools_are_typed_documented_and_marked(net: Replicas) -> None:
    async def talk(name: str) -> Sequence[Any]:
        async with Client(server(offer(name, Part(writes=name == "slack")))) as client:
            return (await client.list_tools()).tools

    tools = [tool for name in ("polygon", "fmp", "tavily", "slack", "python") for tool in asyncio.run(talk(name))]
    assert len(tools) == 5 + 9 + 3 + 4 + 1
    for tool in tools:
        assert tool.description
        assert tool.annotations.read_only_hint is (tool.name != "slack_send_message")
        assert all("type" in each or "anyOf" in each for each in tool.input_schema.get("properties", {}).values())


def test_a_few_tools_only(net: Replicas) -> None:
    part = Part(tools=("fmp_get_quote",))
    quote, other = calls("fmp", ("fmp_get_quote", {"symbol": TICKER}), ("fmp_get_market_gainers", {}), part=part)
    assert quote["symbol"] == TICKER
    assert "unknown tool" in str(other)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("polygon_get_aggs", {"ticker": "A", "start_date": "soon", "end_date": "2025-01-03"}, "start_date"),
        ("polygon_get_previous_close", {"ticker": "../../v1"}, "ticker: String should match"),
        ("fmp_get_quote", {"symbol": "A&apikey=x"}, "symbol"),
        ("fmp_get_market_gainers", {"limit": 500}, "limit"),
        ("tavily_extract", {"url": "file:///etc/passwd"}, "url"),
        ("slack_get_channel_history", {"channel_id": "general"}, "channel_id"),
    ],
)
def test_bad_arguments_are_not_sent(tool: str, arguments: dict[str, Any], message: str, net: Replicas) -> None:
    said = refusal(tool, **arguments)
    assert said.startswith(f"bad arguments for {tool}: ")
    assert message in said
    assert not net.asked


def in_turn(net: Replicas, *answers: tuple[int, Any, Mapping[str, str]] | None) -> None:
    """The next requests get these answers; None lets the service answer."""
    rest = iter(answers)

    def instead(handler: BaseHTTPRequestHandler) -> bool:
        answer = next(rest, None)
        if answer:
            send(handler, *answer)
        return answer is not None

    net.instead = instead


TOO_MANY = {"status": "ERROR", "error": "You've exceeded the maximum requests per minute."}


def test_what_passes_is_tried_again(net: Replicas) -> None:
    in_turn(net, (429, TOO_MANY, {"Retry-After": "0.3"}), (503, b"<html>busy</html>", {}))
    begin = time.monotonic()
    assert call("polygon_get_market_status")["market"] == "open"
    assert time.monotonic() - begin > 0.3
    assert len(net.asked) == 3


def test_too_many_requests_says_when_to_come_back(net: Replicas) -> None:
    in_turn(net, (429, TOO_MANY, {"Retry-After": "3600"}))
    said = refusal("polygon_get_market_status")
    expected = "too many requests: You've exceeded the maximum requests per minute. (attempts: 1); try again in 3600 s"
    assert said == f"polygon: {expected}"


@pytest.mark.parametrize(
    ("answer", "message", "attempts"),
    [
        ((500, {"error": "oops"}, {}), "polygon: it fails with status 500: oops (attempts: 3); try again later", 3),
        ((200, b"<html>", {}), "polygon: an answer that is not JSON (attempts: 3); try again later", 3),
        ((200, b"[" * 100_000, {}), "an answer that is not JSON", 3),
        ((200, {"market": 3}, {}), "polygon answers not as documented: market: Input should be a valid string", 1),
        ((200, [], {}), "polygon answers not as documented: the answer: ", 1),
        ((403, {"message": "You are not entitled to this data."}, {}), "the key in POLYGON_API_KEY does not allow", 1),
        ((302, b"", {"Location": "http://127.0.0.1:1/"}), "polygon answers 302; this cannot be helped", 1),
        ((200, b"[" + b"1," * MOST_BYTES + b"1]", {}), "more than 4,000,000 bytes; ask for less", 1),
        ((400, {"error": f"bad key {KEY}"}, {}), "polygon answers 400: bad key …; check the arguments", 1),
    ],
)
def test_broken_answers_are_told(answer: Any, message: str, attempts: int, net: Replicas) -> None:
    in_turn(net, *[answer] * 3)
    assert message in refusal("polygon_get_market_status")
    assert len(net.asked) == attempts


@pytest.mark.parametrize(
    ("tool", "variable"),
    [
        ("polygon_get_market_status", "POLYGON_API_KEY"),
        ("fmp_get_market_gainers", "FMP_API_KEY"),
        ("tavily_search", "TAVILY_API_KEY"),
        ("slack_auth_test", "SLACK_BOT_TOKEN"),
    ],
)
def test_a_wrong_key_is_named_and_not_shown(
    tool: str, variable: str, net: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "wrong-key-9a8b7c")
    arguments = {"query": "x"} if tool == "tavily_search" else {}
    with caplog.at_level(logging.DEBUG):
        said = refusal(tool, **arguments)
    assert variable in said
    assert "wrong-key" not in said + caplog.text + repr(web_module.account("polygon", "http://x", variable, 1.0))
    assert "wrong-key" not in str(net.asked)


def test_quotas_of_tavily(net: Replicas) -> None:
    in_turn(net, (432, {"detail": {"error": "This request exceeds your plan's set usage limit."}}, {}))
    expected = "tavily answers 432: This request exceeds your plan's set usage limit.; the plan's quota is used up"
    assert refusal("tavily_search", query="x").startswith(expected)


def test_silence_is_waited_for_only_so_long(net: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMP_TIMEOUT", "0.1")

    def slow(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(10):  # drop by drop, so that no single read is slow
                handler.wfile.write(b" ")
                time.sleep(0.04)
        handler.close_connection = True
        return True

    net.instead = slow
    begin = time.monotonic()
    assert "fmp: no answer within 0.1 s (attempts: 3); try again later" in refusal("fmp_get_market_gainers")
    assert time.monotonic() - begin < 30  # three attempts of 0.1 s, on a machine that may be busy


def test_nobody_there_is_told(net: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("FMP_BASE_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        assert "fmp: no connection (ConnectError) (attempts: 3); try again later" in refusal("fmp_get_market_gainers")


def test_a_message_is_never_sent_twice(net: Replicas) -> None:
    send_it = ("slack_send_message", {"channel": "C0LUNCH", "message": "Soup?"})
    in_turn(net, (500, {"ok": False, "error": "fatal_error"}, {}))
    assert "status 500" in str(calls("slack", send_it, part=Part(writes=True))[0])
    assert len(net.asked) == 1  # it may have been sent all the same
    in_turn(net, (429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "0"}), None)
    assert calls("slack", send_it, part=Part(writes=True))[0]["channel"] == "C0LUNCH"  # it was turned away


def test_answers_are_kept_for_a_while(net: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(web_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def talk() -> None:
        async with Client(server(offer("fmp", Part()))) as client:
            for _ in range(3):
                await client.call_tool("fmp_get_quote", {"symbol": TICKER})
            assert len(net.asked) == 1
            await client.call_tool("fmp_get_quote", {"symbol": list(companies())[1]})
            assert len(net.asked) == 2
            now[0] += 61
            await client.call_tool("fmp_get_quote", {"symbol": TICKER})
            assert len(net.asked) == 3

    asyncio.run(talk())
    monkeypatch.setenv("FMP_CACHE", "0")
    calls("fmp", *[("fmp_get_quote", {"symbol": TICKER})] * 2)
    assert len(net.asked) == 5


def test_our_own_limit_is_kept(net: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYGON_PER_MINUTE", "2")
    prices = [("polygon_get_previous_close", {"ticker": ticker}) for ticker in list(companies())[:3]]
    first, second, third = calls("polygon", *prices)
    assert first["ticker"] != second["ticker"]
    assert "the limit of 2 requests a minute (POLYGON_PER_MINUTE) is used up; try again in " in str(third)
    assert len(net.asked) == 2


def test_a_short_wait_for_our_own_limit_is_waited(net: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "_MINUTE", 0.2)
    monkeypatch.setenv("POLYGON_PER_MINUTE", "1")
    begin = time.monotonic()
    calls("polygon", *[("polygon_get_previous_close", {"ticker": t}) for t in list(companies())[:3]])
    assert time.monotonic() - begin > 0.4
    assert len(net.asked) == 3


def test_the_cache_is_bounded(net: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "MOST_KEPT", 2)

    async def talk() -> int:
        web = Web(account("tavily", "http://127.0.0.1:1", "TAVILY_API_KEY", 1.0))
        for n in range(4):
            await web.post("search", {"query": str(n)})
        await web.close()
        return len(web._kept)

    assert asyncio.run(talk()) == 2


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("POLYGON_API_KEY", "", "polygon needs a key: set the environment variable POLYGON_API_KEY"),
        ("POLYGON_API_KEY", "ключ", "the environment variable POLYGON_API_KEY holds no key"),
        ("POLYGON_BASE_URL", "http://me:secret@host", "POLYGON_BASE_URL has to be like"),
        ("POLYGON_TIMEOUT", "soon", "POLYGON_TIMEOUT is 'soon'; it has to be a number"),
        ("POLYGON_PER_MINUTE", "0", "POLYGON_PER_MINUTE is '0'"),
        ("POLYGON_CACHE", "nan", "POLYGON_CACHE is 'nan'"),
    ],
)
def test_a_wrong_environment_is_one_line(
    variable: str, value: str, message: str, net: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        offer("polygon", Part())
    assert str(caught.value).startswith(message) or message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_alone_over_standard_input_and_output(net: Replicas) -> None:
    environment = {**net.environment(), "PYTHONPATH": str(Path(understudy.__file__).parent.parent)}
    arguments = ["-c", "from understudy.cli import main; main()", "mcp", "serve", "tavily", "--tools", "tavily_search"]

    async def talk() -> Any:
        launched = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
        async with Client(launched) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["tavily_search"]
            return _read(await client.call_tool("tavily_search", {"query": COMPANY.name}))

    assert COMPANY.name in asyncio.run(talk())["results"][0]["title"]
