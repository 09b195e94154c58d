"""Tasks for polygon, fmp and tavily, with answers out of the made-up market itself, not out of the servers."""

from understudy.mcp.servers.replica.market import Company, Day
from understudy.mcp.servers.tasks.draft import Draft, Family, Pick, call
from understudy.mcp.settings import Call


def dollars(cents: int) -> str:
    """A price as it is said."""
    return f"{cents / 100:.2f}"


def aggs(company: Company, first: Day, last: Day) -> Call:
    """The call for some days of a company."""
    days = {"start_date": str(first.date), "end_date": str(last.date)}
    return call("polygon_get_aggs", ticker=company.ticker, **days)


def some_days(pick: Pick, count: int) -> tuple[Day, ...]:
    """So many days in a row."""
    first = pick.rng.randrange(len(pick.company.days) - count)
    return pick.company.days[first : first + count]


def _close(pick: Pick) -> Draft:
    company, (day,) = pick.company, some_days(pick, 1)
    price = dollars(day.close)
    prompt = f"What did {company.ticker} close at on {day.date:%-d %B %Y}?"
    return Draft(prompt, (aggs(company, day, day),), f"{company.ticker} closed at {price}.", day.close / 100)


def _staff(pick: Pick) -> Draft:
    company = pick.company
    gold = (call("polygon_get_ticker_details", ticker=company.ticker),)
    prompt = f"How many employees does the company behind {company.ticker} have?"
    return Draft(prompt, gold, f"It has {company.employees} employees.", company.employees)


def _previous(pick: Pick) -> Draft:
    company, price = pick.company, pick.company.days[-1].high
    gold = (call("polygon_get_previous_close", ticker=company.ticker),)
    prompt = f"What was the highest price of {company.ticker} on the last trading day?"
    return Draft(prompt, gold, f"The highest price of {company.ticker} was {dollars(price)}.", price / 100)


def _move(pick: Pick) -> Draft:
    company, days = pick.company, some_days(pick, 6)
    change = days[-1].close - days[0].close
    first, last = f"{days[0].date:%-d %B %Y}", f"{days[-1].date:%-d %B %Y}"
    prompt = (
        f"By how many dollars did the close of {company.ticker} change from {first} to {last}? Say it with its sign."
    )
    gold = (aggs(company, days[0], days[-1]),)
    return Draft(prompt, gold, f"It changed by {dollars(change)} dollars.", change / 100)


def _best(pick: Pick) -> Draft:
    company, days = pick.company, some_days(pick, pick.rng.randint(3, 15))
    best = max(days, key=lambda day: day.volume)
    first, last = f"{days[0].date:%-d %B %Y}", f"{days[-1].date:%-d %B %Y}"
    prompt = f"When was {company.ticker} traded the most, from {first} to {last}? Say it alone, as YYYY-MM-DD."
    return Draft(prompt, (aggs(company, days[0], days[-1]),), f"{best.date}", alone=str(best.date))


def _dearer(pick: Pick) -> Draft:
    one, other = pick.companies[:2]
    dearer = max(one, other, key=lambda company: company.days[-1].close)
    gold = tuple(call("polygon_get_previous_close", ticker=company.ticker) for company in (one, other))
    prompt = f"Which closed higher on the last trading day, {one.ticker} or {other.ticker}? Name it alone."
    return Draft(prompt, gold, dearer.ticker, alone=dearer.ticker)


def _headline(pick: Pick) -> Draft:
    company = pick.company
    gold = (call("polygon_get_news", ticker=company.ticker, limit=1),)
    prompt = f"What is {company.ticker}'s latest headline? Quote it."
    return Draft(prompt, gold, f'"{company.headline}"', text=company.headline)


POLYGON = (
    Family("close", "easy", _close),
    Family("staff", "easy", _staff),
    Family("headline", "easy", _headline),
    Family("previous", "easy", _previous),
    Family("move", "medium", _move),
    Family("busiest", "medium", _best),
    Family("dearer", "hard", _dearer),
)


def _price(pick: Pick) -> Draft:
    company, price = pick.company, pick.company.price
    gold = (call("fmp_get_quote", symbol=company.ticker),)
    return Draft(f"What does a share of {company.ticker} cost now?", gold, f"It costs {dollars(price)}.", price / 100)


def _boss(pick: Pick) -> Draft:
    company = pick.company
    gold = (call("fmp_get_company_profile", symbol=company.ticker),)
    return Draft(f"Who runs the company behind {company.ticker}?", gold, f"{company.ceo} does.", text=company.ceo)


def _revenue(pick: Pick) -> Draft:
    company, year = pick.company, pick.company.years[pick.rng.randrange(4)]
    gold = (call("fmp_get_income_statement", symbol=company.ticker),)
    prompt = f"What was the revenue of {company.ticker} in the fiscal year {year.name}, in dollars?"
    return Draft(prompt, gold, f"It was {year.revenue * 1000} dollars.", year.revenue * 1000, tolerance=0.5)


def _margin(pick: Pick) -> Draft:
    company, year = pick.company, pick.company.years[0]
    margin = year.net * 100 / year.revenue
    gold = (call("fmp_get_income_statement", symbol=company.ticker, limit=1),)
    prompt = f"What share of its revenue was the net income of {company.ticker} in its latest fiscal year, in percent?"
    return Draft(prompt, gold, f"It was {margin:.2f} percent.", round(margin, 2), tolerance=0.06)


def _month(pick: Pick) -> Draft:
    company = pick.company
    last, before = company.days[-1].close, company.days[-22].close
    change = (last - before) * 100 / before
    gold = (call("fmp_get_change_percent", symbol=company.ticker),)
    prompt = f"By how many percent has {company.ticker} changed over a month? Say it with its sign."
    return Draft(prompt, gold, f"It has changed by {change:.2f} percent.", round(change, 2), tolerance=0.06)


def _found(pick: Pick) -> Draft:
    company, word = pick.company, pick.company.name.split()[0]
    gold = (call("fmp_search_ticker", query=word), call("fmp_get_previous_close", symbol=company.ticker))
    price = company.days[-1].close
    prompt = f"I do not know {company.name}'s symbol. What was its close on the day before?"
    return Draft(prompt, gold, f"They closed at {dollars(price)}.", price / 100)


def _news(pick: Pick) -> Draft:
    company, number = pick.company, pick.rng.randrange(1, 4)
    title = f"{company.name} {company.news[number]}"
    gold = (call("fmp_get_stock_news", tickers=[company.ticker], limit=number + 1),)
    which = ("latest", "second latest", "third latest", "fourth latest")[number]
    return Draft(f"What is {company.ticker}'s {which} headline? Quote it.", gold, f'"{title}"', text=title)


FMP = (
    Family("price", "easy", _price),
    Family("boss", "easy", _boss),
    Family("revenue", "medium", _revenue),
    Family("margin", "hard", _margin),
    Family("month", "medium", _month),
    Family("news", "easy", _news),
    Family("found", "medium", _found),
)


def about(company: Company) -> Call:
    """The call that reads a company's own page."""
    return call("tavily_extract", url=f"https://{company.ticker.lower()}.example")


def _search(company: Company, words: str) -> Call:
    return call("tavily_search", query=f"{company.name} {words}")


def _listed(pick: Pick) -> Draft:
    company = pick.company
    gold = (_search(company, "listed in"),)
    prompt = f"In which year was {company.name} listed?"
    return Draft(prompt, gold, f"In {company.listed.year}.", company.listed.year)


def _chief(pick: Pick) -> Draft:
    company = pick.company
    gold = (call("tavily_qna_search", query=f"Who is the chief executive of {company.name}?"),)
    prompt = f"Who is the chief executive of {company.name}?"
    return Draft(prompt, gold, f"It is {company.ceo}.", text=company.ceo)


def _size(pick: Pick) -> Draft:
    company = pick.company
    prompt = f"Read {about(company).arguments['url']} and say how many employees the company has."
    return Draft(prompt, (about(company),), f"It has {company.employees}.", company.employees)


def _larger(pick: Pick) -> Draft:
    one, other = pick.companies[:2]
    larger = max(one, other, key=lambda company: company.employees)
    prompt = f"Which has more employees, {one.name} or {other.name}? Name it alone."
    return Draft(prompt, (about(one), about(other)), larger.name, alone=larger.name)


def _older(pick: Pick) -> Draft:
    one, other = pick.companies[1:3] if len(pick.companies) > 3 else pick.companies[:2]
    years = abs(one.listed.year - other.listed.year)
    gold = (_search(one, "listed"), _search(other, "listed"))
    prompt = f"How many years lie between the listings of {one.name} and {other.name}?"
    return Draft(prompt, gold, f"{years} years.", years)


def _quoted(pick: Pick) -> Draft:
    company, number = pick.company, pick.rng.randrange(4)
    title = f"{company.name} {company.news[number]}"
    gold = (call("tavily_search", query=title), call("tavily_extract", url=article(company, number)))
    prompt = f'There is an article with the title "{title}". Whose words does it give?'
    return Draft(prompt, gold, f"Those of {company.ceo}.", text=company.ceo)


def article(company: Company, number: int) -> str:
    """Where an article about a company is."""
    return f"https://times.example/{company.ticker.lower()}-{number}"


TAVILY = (
    Family("listed", "easy", _listed),
    Family("chief", "easy", _chief),
    Family("size", "easy", _size),
    Family("larger", "medium", _larger),
    Family("older", "hard", _older),
    Family("quoted", "medium", _quoted),
)
