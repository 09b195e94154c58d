"""Polygon (now Massive): prices, news and companies of the US stock market.

API documentation: https://polygon.io/docs/rest/stocks, also at https://massive.com/docs/rest/stocks. The header
`Authorization: Bearer` holds the key.
"""

import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, field_validator

from understudy.core.records import Record
from understudy.envs.tools import Alias, AsyncToolkit
from understudy.sources.mcp.services.web import APIClient, account_from_env, validate_answer

Ticker = Annotated[
    str,
    Alias("symbol", "stock"),
    Field(pattern=r"^[A-Za-z0-9.:\-]{1,24}$", description="Ticker symbol, such as AAPL."),
]
Few = Annotated[int, Field(ge=1, le=50, description="Maximum number of articles.")]
_SPANS = {"daily": "day", "day": "day", "hourly": "hour", "hour": "hour", "minute": "minute"}


class Bar(Record, extra="ignore"):
    """Prices and volume of one period: a day, an hour or a minute."""

    begin: str = Field(alias="t")
    """The start of the period, in UTC, such as 2025-01-03T05:00:00Z."""
    open: float = Field(alias="o")
    high: float = Field(alias="h")
    low: float = Field(alias="l")
    close: float = Field(alias="c")
    volume: float = Field(alias="v")
    average: float | None = Field(default=None, alias="vw")
    """The volume-weighted average price."""
    trades: int | None = Field(default=None, alias="n")

    @field_validator("begin", mode="before")
    @classmethod
    def _readable(cls, milliseconds: Any) -> str:
        if not isinstance(milliseconds, int) or not 0 <= milliseconds < 10**14:
            raise ValueError("it must be milliseconds since 1970")
        return f"{datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


class Bars(Record, extra="ignore"):
    """Bars of one ticker, oldest first."""

    ticker: str
    adjusted: bool
    """Whether prices are adjusted for splits."""
    results: tuple[Bar, ...] = ()


class Publisher(Record, extra="ignore"):
    """The publisher of an article."""

    name: str


class Article(Record, extra="ignore"):
    """A news article."""

    title: str
    published_utc: str
    publisher: Publisher
    author: str | None = None
    tickers: tuple[str, ...] = ()
    description: str | None = None
    article_url: str = ""


class Articles(Record, extra="ignore"):
    """News articles, newest first."""

    results: tuple[Article, ...] = ()


class TickerDetails(Record, extra="ignore"):
    """The company or fund behind a ticker."""

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


class TickerDetailsAnswer(Record, extra="ignore"):
    """The response that contains the details."""

    results: TickerDetails


class MarketStatus(Record, extra="ignore"):
    """Whether the markets are open."""

    market: str
    server_time: str = Field(alias="serverTime")
    exchanges: dict[str, str] = {}
    currencies: dict[str, str] = {}
    early_hours: bool = Field(default=False, alias="earlyHours")
    after_hours: bool = Field(default=False, alias="afterHours")


class Polygon(AsyncToolkit):
    """Five read-only tools."""

    def __init__(self, web: APIClient) -> None:
        self._web = web

    async def polygon_get_aggs(
        self,
        ticker: Ticker,
        start_date: Annotated[datetime.date, Alias("from"), Field(description="First day, YYYY-MM-DD.")],
        end_date: Annotated[datetime.date, Alias("to"), Field(description="Last day, YYYY-MM-DD.")],
        frequency: Annotated[Literal["daily", "day", "hourly", "hour", "minute"], Alias("timespan")] = "daily",
        limit: Annotated[int, Field(ge=1, le=5000, description="Maximum number of bars, from the oldest.")] = 120,
    ) -> Bars:
        """List the open, high, low and close prices and the volume of a ticker by day, hour or minute, oldest first."""
        where = f"v2/aggs/ticker/{quote(ticker.upper())}/range/1/{_SPANS[frequency]}/{start_date}/{end_date}"
        # the service's limit counts the minute bars of which hour bars consist
        base = 50_000 if _SPANS[frequency] == "hour" else limit
        bars = validate_answer(Bars, await self._web.get(where, adjusted="true", sort="asc", limit=base), "polygon")
        return bars.replace(results=bars.results[:limit])

    async def polygon_get_news(self, ticker: Ticker, limit: Few = 10) -> Articles:
        """List the latest news about a ticker, newest first."""
        params: dict[str, str | int] = {"ticker": ticker.upper(), "limit": limit, "order": "desc"}
        return validate_answer(
            Articles, await self._web.get("v2/reference/news", sort="published_utc", **params), "polygon"
        )

    async def polygon_get_ticker_details(self, ticker: Ticker) -> TickerDetails:
        """Return the company behind a ticker: its name, exchange, market capitalization and number of employees."""
        answer = await self._web.get(f"v3/reference/tickers/{quote(ticker.upper())}")
        return validate_answer(TickerDetailsAnswer, answer, "polygon").results

    async def polygon_get_market_status(self) -> MarketStatus:
        """Return whether the stock exchanges and currency markets are open now."""
        return validate_answer(MarketStatus, await self._web.get("v1/marketstatus/now"), "polygon")

    async def polygon_get_previous_close(self, ticker: Ticker) -> Bars:
        """Return the open, high, low and close prices and the volume of a ticker on the previous trading day."""
        answer = await self._web.get(f"v2/aggs/ticker/{quote(ticker.upper())}/prev", adjusted="true")
        return validate_answer(Bars, answer, "polygon")


def polygon_client() -> APIClient:
    """Return the client that environment variables configure. The free plan permits 5 requests a minute."""
    return APIClient(account_from_env("polygon", "https://api.polygon.io", "POLYGON_API_KEY", per_minute=5))
