"""Polygon (now Massive): prices, news and companies of the US stock market.

Documentation: https://polygon.io/docs/rest/stocks, also https://massive.com/docs/rest/stocks; the key goes into the
header `Authorization: Bearer`.
"""

import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, field_validator

from understudy.mcp.servers.web import Web, account, read
from understudy.records import Record
from understudy.tools import Service

Ticker = Annotated[str, Field(pattern=r"^[A-Za-z0-9.:\-]{1,24}$", description="Ticker symbol, such as AAPL.")]
Few = Annotated[int, Field(ge=1, le=50, description="How many at most.")]
_SPANS = {"daily": "day", "hourly": "hour", "minute": "minute"}


class Bar(Record, extra="ignore"):
    """Trading in one span of time."""

    begin: str = Field(alias="t")
    """When the span begins, in UTC."""
    open: float = Field(alias="o")
    high: float = Field(alias="h")
    low: float = Field(alias="l")
    close: float = Field(alias="c")
    volume: float = Field(alias="v")
    average: float | None = Field(default=None, alias="vw")
    """The average price, weighted by volume."""
    trades: int | None = Field(default=None, alias="n")

    @field_validator("begin", mode="before")
    @classmethod
    def _readable(cls, milliseconds: Any) -> str:
        if not isinstance(milliseconds, int) or not 0 <= milliseconds < 10**14:
            raise ValueError("it has to be milliseconds since 1970")
        return f"{datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


class Bars(Record, extra="ignore"):
    """Spans of one ticker, oldest first."""

    ticker: str
    adjusted: bool
    """Whether prices are adjusted for splits."""
    results: tuple[Bar, ...] = ()


class Publisher(Record, extra="ignore"):
    """Who has published an article."""

    name: str


class Article(Record, extra="ignore"):
    """One piece of news."""

    title: str
    published_utc: str
    publisher: Publisher
    author: str | None = None
    tickers: tuple[str, ...] = ()
    description: str | None = None
    article_url: str = ""


class Articles(Record, extra="ignore"):
    """News, newest first."""

    results: tuple[Article, ...] = ()


class Details(Record, extra="ignore"):
    """What a ticker stands for."""

    ticker: str
    name: str
    market: str
    primary_exchange: str | None = None
    type: str | None = None
    active: bool | None = None
    currency_name: str | None = None
    market_cap: float | None = None
    description: str | None = None
    homepage_url: str | None = None
    list_date: str | None = None
    sic_description: str | None = None
    total_employees: int | None = None


class Described(Record, extra="ignore"):
    """The answer that holds the details."""

    results: Details


class Status(Record, extra="ignore"):
    """Whether markets are open."""

    market: str
    server_time: str = Field(alias="serverTime")
    exchanges: dict[str, str] = {}
    currencies: dict[str, str] = {}
    early_hours: bool = Field(default=False, alias="earlyHours")
    after_hours: bool = Field(default=False, alias="afterHours")


class Polygon(Service):
    """Five questions; all only read."""

    def __init__(self, web: Web) -> None:
        self._web = web

    async def polygon_get_aggs(
        self,
        ticker: Ticker,
        start_date: Annotated[datetime.date, Field(description="First day, YYYY-MM-DD.")],
        end_date: Annotated[datetime.date, Field(description="Last day, YYYY-MM-DD.")],
        frequency: Literal["daily", "hourly", "minute"] = "daily",
        limit: Annotated[int, Field(ge=1, le=5000, description="How many bars at most.")] = 120,
    ) -> Bars:
        """Open, high, low, close and volume of a ticker for each day, hour or minute of a range of days."""
        where = f"v2/aggs/ticker/{quote(ticker.upper())}/range/1/{_SPANS[frequency]}/{start_date}/{end_date}"
        base = 50_000 if frequency == "hourly" else limit  # the service counts the minutes that hours are made of
        bars = read(Bars, await self._web.get(where, adjusted="true", sort="asc", limit=base), "polygon")
        return bars.replace(results=bars.results[:limit])

    async def polygon_get_news(self, ticker: Ticker, limit: Few = 10) -> Articles:
        """The latest news about a ticker."""
        params: dict[str, str | int] = {"ticker": ticker.upper(), "limit": limit, "order": "desc"}
        return read(Articles, await self._web.get("v2/reference/news", sort="published_utc", **params), "polygon")

    async def polygon_get_ticker_details(self, ticker: Ticker) -> Details:
        """The company behind a ticker: name, exchange, market value, employees."""
        answer = await self._web.get(f"v3/reference/tickers/{quote(ticker.upper())}")
        return read(Described, answer, "polygon").results

    async def polygon_get_market_status(self) -> Status:
        """Whether the stock exchanges and currency markets are open now."""
        return read(Status, await self._web.get("v1/marketstatus/now"), "polygon")

    async def polygon_get_previous_close(self, ticker: Ticker) -> Bars:
        """Open, high, low, close and volume of a ticker on the last day that has ended."""
        answer = await self._web.get(f"v2/aggs/ticker/{quote(ticker.upper())}/prev", adjusted="true")
        return read(Bars, answer, "polygon")


def polygon_web() -> Web:
    """The account of the environment; the free plan allows five requests a minute."""
    return Web(account("polygon", "https://api.polygon.io", "POLYGON_API_KEY", per_minute=5))
