"""Financial Modeling Prep: quotes, companies, statements, movers and news.

API documentation: https://site.financialmodelingprep.com/developer/docs/stable. The header `apikey` holds the key. The
service returns an empty list for an unknown symbol; the tools raise `ToolError`.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.envs.tools import Alias, AsyncToolkit
from understudy.sources.mcp.services.web import APIClient, account_from_env, validate_answer

Symbol = Annotated[
    str,
    Alias("ticker", "stock"),
    Field(pattern=r"^[A-Za-z0-9.^\-]{1,24}$", description="Ticker symbol, such as AAPL."),
]
MAX_TICKERS = 10
Few = Annotated[int, Field(ge=1, le=50, description="Maximum number of results.")]
R = TypeVar("R", bound=Record)


class Quote(Record, extra="ignore"):
    """The current quote of a stock."""

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


class PreviousClose(Record):
    """The closing price of the previous trading day."""

    symbol: str
    previous_close: float


class CompanyProfile(Record, extra="ignore"):
    """The profile of a company."""

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


class IncomeStatement(Record, extra="ignore"):
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
    """One of today's largest gainers or losers."""

    symbol: str
    name: str
    price: float
    change: float
    change_percent: float = Field(alias="changesPercentage")
    exchange: str | None = None


class Listing(Record, extra="ignore"):
    """A stock in the results of a search."""

    symbol: str
    name: str
    currency: str | None = None
    exchange: str | None = None


class News(Record, extra="ignore"):
    """A news article about a stock."""

    symbol: str
    title: str
    published: str = Field(alias="publishedDate")
    publisher: str | None = None
    text: str | None = None
    url: str = ""


class PriceChange(Record, extra="ignore"):
    """The price changes of a stock over several periods, in percent."""

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


class FMP(AsyncToolkit):
    """Nine read-only tools."""

    def __init__(self, web: APIClient) -> None:
        self._web = web

    async def fmp_get_quote(self, symbol: Symbol) -> Quote:
        """Return the current price of a stock, with today's change, low and high."""
        return await self._one(Quote, "quote", symbol)

    async def fmp_get_company_profile(self, symbol: Symbol) -> CompanyProfile:
        """Return the profile of a company, with its business, sector, chief executive and market capitalization."""
        return await self._one(CompanyProfile, "profile", symbol)

    async def fmp_get_income_statement(
        self, symbol: Symbol, period: Literal["annual", "quarter", "quarterly"] = "annual", limit: Few = 4
    ) -> list[IncomeStatement]:
        """List the latest income statements of a company, newest first."""
        span = "annual" if period == "annual" else "quarter"
        answer = await self._web.get("income-statement", symbol=symbol.upper(), period=span, limit=limit)
        return self._some(IncomeStatement, answer, symbol)[:limit]

    async def fmp_get_market_gainers(self, limit: Few = 10) -> list[Mover]:
        """List the stocks that gained the most today, largest gain first."""
        return _rows(Mover, await self._web.get("biggest-gainers"))[:limit]

    async def fmp_get_market_losers(self, limit: Few = 10) -> list[Mover]:
        """List the stocks that lost the most today, largest loss first."""
        return _rows(Mover, await self._web.get("biggest-losers"))[:limit]

    async def fmp_search_ticker(
        self,
        query: Annotated[
            str,
            Alias("search_query", "q", "search"),
            Field(min_length=1, max_length=80, description="Part of a company's name."),
        ],
        limit: Few = 10,
    ) -> list[Listing]:
        """Find the ticker symbol of a company by its name."""
        return _rows(Listing, await self._web.get("search-name", query=query, limit=limit))[:limit]

    async def fmp_get_stock_news(
        self,
        tickers: Annotated[
            list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.^\-]{1,24}$")]]
            | Annotated[str, Field(pattern=r"^[A-Za-z0-9.^, \-]{0,250}$")],
            Alias("symbols", "symbol", "ticker", "stock"),
            Field(description="Ticker symbols, as a list or separated by commas. Without any, news about all stocks."),
        ] = "",
        limit: Few = 10,
    ) -> list[News]:
        """List the latest news about one or more stocks, or about all stocks, newest first."""
        named = [word.strip() for word in tickers.split(",")] if isinstance(tickers, str) else tickers
        symbols = [word.upper() for word in named if word]
        if len(symbols) > MAX_TICKERS:
            raise ToolError(f"fmp: {len(symbols)} tickers; ask for at most {MAX_TICKERS} in one call")
        if not symbols:
            return _rows(News, await self._web.get("news/stock-latest", page=0, limit=limit))[:limit]
        return _rows(News, await self._web.get("news/stock", symbols=",".join(symbols), limit=limit))[:limit]

    async def fmp_get_change_percent(self, symbol: Symbol) -> PriceChange:
        """Return the price changes of a stock over periods of one day to ten years, in percent."""
        return await self._one(PriceChange, "stock-price-change", symbol)

    async def fmp_get_previous_close(self, symbol: Symbol) -> PreviousClose:
        """Return the closing price of a stock on the previous trading day."""
        quote = await self.fmp_get_quote(symbol)
        if quote.previous_close is None:
            raise ToolError(f"fmp: no previous close for {quote.symbol}; continue without it")
        return PreviousClose(symbol=quote.symbol, previous_close=quote.previous_close)

    async def _one(self, row: type[R], path: str, symbol: str) -> R:
        return self._some(row, await self._web.get(path, symbol=symbol.upper()), symbol)[0]

    def _some(self, row: type[R], answer: Any, symbol: str) -> list[R]:
        rows = _rows(row, answer)
        if not rows:
            raise ToolError(f"fmp: no data for the symbol {symbol!r}; use fmp_search_ticker to find the symbol")
        return rows


def _rows(row: type[R], answer: Any) -> list[R]:
    if not isinstance(answer, list):
        raise ToolError("fmp: invalid response: body: not a list; continue without this call")
    return [validate_answer(row, each, "fmp") for each in answer]


def fmp_client() -> APIClient:
    """Return the client that environment variables configure. The free plan permits 250 requests a day."""
    own = account_from_env("fmp", "https://financialmodelingprep.com/stable", "FMP_API_KEY", per_minute=240)
    return APIClient(own, {"apikey": own.key})
