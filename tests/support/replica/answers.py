"""The answer of each service to a request, with the fields in its documentation.

Sources: https://polygon.io/docs/rest/stocks, https://site.financialmodelingprep.com/developer/docs/stable,
https://docs.tavily.com/documentation/api-reference, https://docs.slack.dev/reference/methods.
"""

import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from support.replica.channels import Workspace
from support.replica.market import LAST, NOW, Company, Day, Year, companies
from support.replica.pages import answer_from_pages, page_text, search_pages

KEY = "replica-key-4f9d"
"""The API key that the replicas accept."""


@dataclass(frozen=True)
class Request:
    """A request, without its key."""

    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any]


Answer = tuple[int, Any]
"""Status and JSON of a response."""
Service = Callable[[Request], Answer]
_ID = "replica"


def polygon(request: Request) -> Answer:
    """Answer as Polygon: bars, the previous close, news, details, and whether the market is open."""
    found: Answer = 404, {"status": "NOT_FOUND", "request_id": _ID, "message": "Not found."}
    if hit := re.fullmatch(r"/v2/aggs/ticker/([^/]+)/range/1/(day|hour|minute)/([\d-]+)/([\d-]+)", request.path):
        first, last = (datetime.date.fromisoformat(day) for day in hit.groups()[2:])
        found = _bars(hit[1], hit[2], first, last, int(request.query["limit"]))
    elif hit := re.fullmatch(r"/v2/aggs/ticker/([^/]+)/prev", request.path):
        found = _bars(hit[1], "day", LAST, LAST, 1)
    elif request.path == "/v2/reference/news":
        articles = _polygon_news(request.query["ticker"])[: int(request.query["limit"])]
        found = 200, {"results": articles, "status": "OK", "request_id": _ID, "count": len(articles)}
    elif hit := re.fullmatch(r"/v3/reference/tickers/([^/]+)", request.path):
        company = companies().get(hit[1])
        message = {"status": "NOT_FOUND", "request_id": _ID, "message": "Ticker not found."}
        found = (200, {"request_id": _ID, "results": _details(company), "status": "OK"}) if company else (404, message)
    elif request.path == "/v1/marketstatus/now":
        open_now = {"nasdaq": "open", "nyse": "open", "otc": "open"}
        hours = {"market": "open", "earlyHours": False, "afterHours": False, "serverTime": NOW.isoformat()}
        found = 200, {**hours, "exchanges": open_now, "currencies": {"crypto": "open", "fx": "open"}}
    return found


def _bars(ticker: str, span: str, first: datetime.date, last: datetime.date, limit: int) -> Answer:
    company = companies().get(ticker)
    days = [day for day in company.days if first <= day.date <= last] if company else []
    bars = [bar for day in days for bar in _spans(day, span)]
    if span != "hour":
        bars = bars[:limit]
    head = {"ticker": ticker, "queryCount": len(bars), "resultsCount": len(bars), "adjusted": True}
    # The service omits `results` if it would be empty.
    return 200, {**head, **({"results": bars} if bars else {}), "status": "OK", "request_id": _ID, "count": len(bars)}


def _spans(day: Day, span: str) -> list[dict[str, Any]]:
    """Return the bars of a day: one, one for each of six hours, or one for each of the first ten minutes."""
    midnight = datetime.datetime.combine(day.date, datetime.time(4), datetime.UTC)
    if span == "day":
        return [_bar(midnight, day.open, day.high, day.low, day.close, day.volume)]
    count, step = (6, datetime.timedelta(hours=1)) if span == "hour" else (10, datetime.timedelta(minutes=1))
    begin, bars = midnight + datetime.timedelta(hours=10), []
    for n in range(count):
        a, b = (day.open + (day.close - day.open) * k // count for k in (n, n + 1))
        bars.append(_bar(begin + n * step, a, max(a, b) + n, min(a, b) - n, b, day.volume // 8 + n))
    return bars


def _bar(begin: datetime.datetime, open_: int, high: int, low: int, close: int, volume: int) -> dict[str, Any]:
    prices = {"o": open_ / 100, "c": close / 100, "h": high / 100, "l": low / 100}
    average = round((open_ + high + low + close) / 400, 4)
    return {"v": volume, "vw": average, **prices, "t": int(begin.timestamp() * 1000), "n": volume // 90}


def _polygon_news(ticker: str) -> list[dict[str, Any]]:
    company = companies().get(ticker)
    return [
        {
            "id": f"{ticker}-{n}",
            "publisher": {"name": "The Replica Times", "homepage_url": "https://times.example/"},
            "title": f"{company.name} {event}",
            "author": "R. Porter",
            "published_utc": _published(n).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "article_url": f"https://times.example/{ticker.lower()}-{n}",
            "tickers": [ticker],
            "description": f"{company.name} ({ticker}) {event}, the company said.",
            "keywords": [company.industry],
        }
        for n, event in enumerate(company.news if company else ())
        if company
    ]


def _published(n: int) -> datetime.datetime:
    return NOW - datetime.timedelta(days=1 + 9 * n, hours=3 * n)


def _details(company: Company) -> dict[str, Any]:
    return {
        "ticker": company.ticker,
        "name": company.name,
        "market": "stocks",
        "locale": "us",
        "primary_exchange": company.exchange,
        "type": "CS",
        "active": True,
        "currency_name": "usd",
        "market_cap": company.shares * company.days[-1].close / 100,
        "description": f"{company.name} works in {company.industry.lower()}.",
        "homepage_url": f"https://{company.ticker.lower()}.example",
        "list_date": company.listed.isoformat(),
        "sic_description": company.industry.upper(),
        "total_employees": company.employees,
    }


def fmp(request: Request) -> Answer:
    """Answer as Financial Modeling Prep, always with a list."""
    query = request.query
    company = companies().get(query.get("symbol", ""))
    limit = int(query.get("limit", "50"))
    one = {"/quote": _quote, "/profile": _profile, "/stock-price-change": _change}.get(request.path)
    rows: list[dict[str, Any]]
    if one:
        rows = [one(company)] if company else []
    elif request.path == "/income-statement" and company:
        periods = company.quarters if query.get("period") == "quarter" else company.years
        rows = [_income(company, period) for period in periods[:limit]]
    elif request.path in ("/biggest-gainers", "/biggest-losers"):
        rows = _movers(1 if request.path.endswith("gainers") else -1)
    elif request.path == "/search-name":
        words = query["query"].lower()
        rows = [_listing(each) for each in companies().values() if words in each.name.lower()][:limit]
    elif request.path == "/news/stock-latest":
        rows = [_fmp_news(symbol)[int(query["page"])] for symbol in companies()]
    elif request.path == "/news/stock":
        rows = [row for symbol in query["symbols"].split(",") for row in _fmp_news(symbol)]
        rows = sorted(rows, key=lambda row: str(row["publishedDate"]), reverse=True)[:limit]
    else:
        rows = []
    return 200, rows


def _percent(now: int, before: int) -> float:
    return round((now - before) * 100 / before, 5)


def _quote(company: Company) -> dict[str, Any]:
    last, price = company.days[-1], company.price
    closes = [day.close for day in company.days]
    return {
        "symbol": company.ticker,
        "name": company.name,
        "price": price / 100,
        "changePercentage": _percent(price, last.close),
        "change": round((price - last.close) / 100, 2),
        "volume": last.volume // 3,
        "dayLow": min(price, last.close) / 100,
        "dayHigh": max(price, last.close) / 100,
        "yearHigh": max(day.high for day in company.days) / 100,
        "yearLow": min(day.low for day in company.days) / 100,
        "marketCap": company.shares * price / 100,
        "priceAvg50": round(sum(closes[-50:]) / 5000, 3),
        "priceAvg200": round(sum(closes) / len(closes) / 100, 3),
        "exchange": "NASDAQ" if company.exchange == "XNAS" else "NYSE",
        "open": last.close / 100,
        "previousClose": last.close / 100,
        "timestamp": int(NOW.timestamp()),
    }


def _profile(company: Company) -> dict[str, Any]:
    quote = _quote(company)
    return {
        **{name: quote[name] for name in ("symbol", "price", "marketCap", "exchange", "change", "changePercentage")},
        "companyName": company.name,
        "currency": "USD",
        "industry": company.industry,
        "sector": company.sector,
        "country": "US",
        "ceo": company.ceo,
        "fullTimeEmployees": str(company.employees),
        "ipoDate": company.listed.isoformat(),
        "website": f"https://{company.ticker.lower()}.example",
        "description": f"{company.name} works in {company.industry.lower()}.",
    }


def _income(company: Company, year: Year) -> dict[str, Any]:
    return {
        "date": year.date.isoformat(),
        "symbol": company.ticker,
        "reportedCurrency": "USD",
        "fiscalYear": year.name,
        "period": year.period,
        "revenue": year.revenue * 1000,
        "costOfRevenue": (year.revenue - year.gross) * 1000,
        "grossProfit": year.gross * 1000,
        "operatingIncome": year.operating * 1000,
        "netIncome": year.net * 1000,
        "eps": round(year.net * 1000 / company.shares, 2),
    }


def _movers(direction: int) -> list[dict[str, Any]]:
    quotes = sorted(map(_quote, companies().values()), key=lambda q: direction * float(q["changePercentage"]))
    kept = [q for q in reversed(quotes) if direction * float(q["changePercentage"]) > 0]
    names = ("symbol", "price", "name", "change", "exchange")
    return [{**{name: q[name] for name in names}, "changesPercentage": q["changePercentage"]} for q in kept]


def _listing(company: Company) -> dict[str, Any]:
    market = {"XNAS": ("NASDAQ Global Select", "NASDAQ"), "XNYS": ("New York Stock Exchange", "NYSE")}
    full, short = market[company.exchange]
    head = {"symbol": company.ticker, "name": company.name, "currency": "USD"}
    return {**head, "exchangeFullName": full, "exchange": short}


def _fmp_news(symbol: str) -> list[dict[str, Any]]:
    return [
        {
            "symbol": symbol,
            "publishedDate": _published(n).strftime("%Y-%m-%d %H:%M:%S"),
            "publisher": article["publisher"]["name"],
            "title": article["title"],
            "image": "https://times.example/image.png",
            "site": "times.example",
            "text": article["description"],
            "url": article["article_url"],
        }
        for n, article in enumerate(_polygon_news(symbol))
    ]


def _change(company: Company) -> dict[str, Any]:
    closes = [day.close for day in company.days]
    back = {"1D": 1, "5D": 5, "1M": 21, "3M": 63, "ytd": len(closes) - 1}
    return {"symbol": company.ticker, **{k: _percent(closes[-1], closes[-1 - n]) for k, n in back.items()}}


def tavily(request: Request) -> Answer:
    """Answer as Tavily: search and extract."""
    body = request.body
    if request.path == "/extract":
        found = [(url, page_text(url)) for url in body["urls"]]
        results = [{"url": url, "raw_content": text, "images": []} for url, text in found if text]
        failed = [{"url": url, "error": "Failed to fetch url"} for url, text in found if not text]
        return 200, {"results": results, "failed_results": failed, "response_time": 0.02}
    if request.path != "/search":
        return 404, {"detail": {"error": "Not found"}}
    hits = search_pages(body["query"], int(body.get("max_results", 5)))
    answer = answer_from_pages(hits) if body.get("include_answer") else None
    return 200, {
        "query": body["query"],
        "follow_up_questions": None,
        "answer": answer,
        "images": ["https://times.example/image.png"] if body.get("include_images") else [],
        "results": hits,
        "response_time": 0.01,
    }


def slack(workspace: Workspace) -> Service:
    """Return a function that answers as Slack, with a workspace that stores sent messages."""
    return lambda request: (200, workspace.answer(request.path, {**request.query, **request.body}))
