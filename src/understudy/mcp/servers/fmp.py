"""Financial Modeling Prep: quotes, companies, statements, movers and news.

Documentation: https://site.financialmodelingprep.com/developer/docs/stable; the key goes into the header `apikey`.
An unknown symbol is answered there by an empty list, and here by an error that says so.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from understudy.errors import ToolError
from understudy.mcp.servers.web import Web, account, read
from understudy.records import Record
from understudy.tools import Service

Symbol = Annotated[str, Field(pattern=r"^[A-Za-z0-9.^\-]{1,24}$", description="Ticker symbol, such as AAPL.")]
Few = Annotated[int, Field(ge=1, le=50, description="How many at most.")]
R = TypeVar("R", bound=Record)


class Quote(Record, extra="ignore"):
    """The price of a stock now."""

    symbol: str
    name: str | None = None
    price: float
    change: float | None = None
    change_percent: float | None = Field(default=None, alias="changePercentage")
    volume: float | None = None
    day_low: float | None = Field(default=None, alias="dayLow")
    day_high: float | None = Field(default=None, alias="dayHigh")
    year_low: float | None = Field(default=None, alias="yearLow")
    year_high: float | None = Field(default=None, alias="yearHigh")
    market_cap: float | None = Field(default=None, alias="marketCap")
    exchange: str | None = None
    open: float | None = None
    previous_close: float | None = Field(default=None, alias="previousClose")


class Close(Record):
    """The price that the day before has ended with."""

    symbol: str
    previous_close: float


class Profile(Record, extra="ignore"):
    """A company."""

    symbol: str
    name: str = Field(alias="companyName")
    price: float | None = None
    market_cap: float | None = Field(default=None, alias="marketCap")
    currency: str | None = None
    exchange: str | None = None
    industry: str | None = None
    sector: str | None = None
    country: str | None = None
    ceo: str | None = None
    employees: str | None = Field(default=None, alias="fullTimeEmployees")
    ipo_date: str | None = Field(default=None, alias="ipoDate")
    website: str | None = None
    description: str | None = None


class Income(Record, extra="ignore"):
    """An income statement."""

    symbol: str
    date: str
    fiscal_year: str = Field(alias="fiscalYear")
    period: str
    currency: str = Field(alias="reportedCurrency")
    revenue: float
    gross_profit: float = Field(alias="grossProfit")
    operating_income: float = Field(alias="operatingIncome")
    net_income: float = Field(alias="netIncome")
    eps: float


class Mover(Record, extra="ignore"):
    """A stock that moved much today."""

    symbol: str
    name: str
    price: float
    change: float
    change_percent: float = Field(alias="changesPercentage")
    exchange: str | None = None


class Listing(Record, extra="ignore"):
    """A stock that a search has found."""

    symbol: str
    name: str
    currency: str | None = None
    exchange: str | None = None


class News(Record, extra="ignore"):
    """One piece of news."""

    symbol: str
    title: str
    published: str = Field(alias="publishedDate")
    publisher: str | None = None
    text: str | None = None
    url: str = ""


class Change(Record, extra="ignore"):
    """How much a price has changed over spans of time, in percent."""

    symbol: str
    day: float | None = Field(default=None, alias="1D")
    five_days: float | None = Field(default=None, alias="5D")
    month: float | None = Field(default=None, alias="1M")
    three_months: float | None = Field(default=None, alias="3M")
    six_months: float | None = Field(default=None, alias="6M")
    this_year: float | None = Field(default=None, alias="ytd")
    year: float | None = Field(default=None, alias="1Y")
    three_years: float | None = Field(default=None, alias="3Y")
    five_years: float | None = Field(default=None, alias="5Y")
    ten_years: float | None = Field(default=None, alias="10Y")


class FMP(Service):
    """Nine questions; all only read."""

    def __init__(self, web: Web) -> None:
        self._web = web

    async def fmp_get_quote(self, symbol: Symbol) -> Quote:
        """The price of a stock now, with today's change and range."""
        return await self._one(Quote, "quote", symbol)

    async def fmp_get_company_profile(self, symbol: Symbol) -> Profile:
        """A company: what it does, its sector, chief executive and market value."""
        return await self._one(Profile, "profile", symbol)

    async def fmp_get_income_statement(
        self, symbol: Symbol, period: Literal["annual", "quarter"] = "annual", limit: Few = 4
    ) -> list[Income]:
        """The latest income statements of a company, newest first."""
        answer = await self._web.get("income-statement", symbol=symbol.upper(), period=period, limit=limit)
        return self._some(Income, answer, symbol)[:limit]

    async def fmp_get_market_gainers(self, limit: Few = 10) -> list[Mover]:
        """The stocks that gained the most today, the greatest gain first."""
        return _rows(Mover, await self._web.get("biggest-gainers"))[:limit]

    async def fmp_get_market_losers(self, limit: Few = 10) -> list[Mover]:
        """The stocks that lost the most today, the greatest loss first."""
        return _rows(Mover, await self._web.get("biggest-losers"))[:limit]

    async def fmp_search_ticker(
        self,
        query: Annotated[str, Field(min_length=1, max_length=80, description="Part of a company's name.")],
        limit: Few = 10,
    ) -> list[Listing]:
        """Find the ticker symbol of a company by its name."""
        return _rows(Listing, await self._web.get("search-name", query=query, limit=limit))[:limit]

    async def fmp_get_stock_news(
        self,
        tickers: Annotated[list[Symbol], Field(min_length=1, max_length=10, description="Ticker symbols.")],
        limit: Few = 10,
    ) -> list[News]:
        """The latest news about some stocks, newest first."""
        symbols = ",".join(ticker.upper() for ticker in tickers)
        return _rows(News, await self._web.get("news/stock", symbols=symbols, limit=limit))[:limit]

    async def fmp_get_change_percent(self, symbol: Symbol) -> Change:
        """How much a price has changed since a day, a month, a year ago and so on, in percent."""
        return await self._one(Change, "stock-price-change", symbol)

    async def fmp_get_previous_close(self, symbol: Symbol) -> Close:
        """The price that a stock closed with on the day before."""
        quote = await self.fmp_get_quote(symbol)
        if quote.previous_close is None:
            raise ToolError(f"fmp knows no previous close of {quote.symbol}; do without it")
        return Close(symbol=quote.symbol, previous_close=quote.previous_close)

    async def _one(self, row: type[R], path: str, symbol: str) -> R:
        return self._some(row, await self._web.get(path, symbol=symbol.upper()), symbol)[0]

    def _some(self, row: type[R], answer: Any, symbol: str) -> list[R]:
        rows = _rows(row, answer)
        if not rows:
            raise ToolError(f"fmp knows nothing of the symbol {symbol!r}; find the right one by fmp_search_ticker")
        return rows


def _rows(row: type[R], answer: Any) -> list[R]:
    if not isinstance(answer, list):
        raise ToolError("fmp answers not as documented: not a list; do without this call")
    return [read(row, each, "fmp") for each in answer]


def fmp_web() -> Web:
    """The account of the environment. The free plan allows 250 requests a day: the cache saves some."""
    own = account("fmp", "https://financialmodelingprep.com/stable", "FMP_API_KEY", per_minute=240)
    return Web(own, {"apikey": own.key})
