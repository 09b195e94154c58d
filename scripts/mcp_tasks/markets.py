"""Tasks for polygon, fmp and tavily. The answers are computed from the made-up market, not by the servers."""

from mcp_tasks.draft import Draft, Family, Pick, call
from support.replica.market import Company, Day
from understudy.sources.mcp.config import MCPCall


def dollars(cents: int) -> str:
    """Return a price in dollars with cents."""
    return f"{cents / 100:.2f}"


def aggs(company: Company, first: Day, last: Day) -> MCPCall:
    """Return the call for some days of a company."""
    days = {"start_date": str(first.date), "end_date": str(last.date)}
    return call("polygon_get_aggs", ticker=company.ticker, **days)


def some_days(pick: Pick, count: int) -> tuple[Day, ...]:
    """Return consecutive trading days."""
    first = pick.rng.randrange(len(pick.company.days) - count)
    return pick.company.days[first : first + count]


def _close(pick: Pick) -> Draft:
    company, (day,) = pick.company, some_days(pick, 1)
    price = dollars(day.close)
    when = f"{day.date:%B %-d, %Y}"
    prompt = pick.ask(
        f"What did {company.ticker} close at on {when}?",
        f"What was the closing price of {company.ticker} on {when}?",
        f"At what price did {company.ticker} close on {when}?",
    )
    return Draft(prompt, (aggs(company, day, day),), f"{company.ticker} closed at {price}.", day.close / 100)


def _staff(pick: Pick) -> Draft:
    company = pick.company
    gold = (call("polygon_get_ticker_details", ticker=company.ticker),)
    prompt = pick.ask(
        f"How many employees does the company behind {company.ticker} have?",
        f"How many people does {company.ticker} employ in total?",
        f"What number of employees does {company.ticker} report?",
    )
    return Draft(prompt, gold, f"It has {company.employees} employees.", company.employees)


def _previous(pick: Pick) -> Draft:
    company, price = pick.company, pick.company.days[-1].high
    gold = (call("polygon_get_previous_close", ticker=company.ticker),)
    prompt = pick.ask(
        f"What was the highest price of {company.ticker} on the last trading day?",
        f"How high did {company.ticker} go on the last trading day?",
        f"What was the daily high of {company.ticker} on the previous trading day?",
    )
    return Draft(prompt, gold, f"The highest price of {company.ticker} was {dollars(price)}.", price / 100)


def _move(pick: Pick) -> Draft:
    company, days = pick.company, some_days(pick, 6)
    change = days[-1].close - days[0].close
    first, last = f"{days[0].date:%B %-d, %Y}", f"{days[-1].date:%B %-d, %Y}"
    prompt = pick.ask(
        f"By how many dollars did the close of {company.ticker} change from {first} to {last}? Include the sign.",
        f"How many dollars did the close of {company.ticker} gain or lose from {first} to {last}? Include the sign.",
        f"What is the change in the close of {company.ticker} from {first} to {last}, in dollars with its sign?",
    )
    gold = (aggs(company, days[0], days[-1]),)
    return Draft(prompt, gold, f"It changed by {dollars(change)} dollars.", change / 100)


def _best(pick: Pick) -> Draft:
    company, days = pick.company, some_days(pick, pick.rng.randint(3, 15))
    best = max(days, key=lambda day: day.volume)
    first, last = f"{days[0].date:%B %-d, %Y}", f"{days[-1].date:%B %-d, %Y}"
    prompt = pick.ask(
        f"On which day from {first} to {last} was {company.ticker} traded the most? Answer only with YYYY-MM-DD.",
        f"Which day from {first} to {last} had the highest volume of {company.ticker}? Reply with YYYY-MM-DD only.",
        f"Give only the date (YYYY-MM-DD) on which {company.ticker} had its largest volume from {first} to {last}.",
    )
    return Draft(prompt, (aggs(company, days[0], days[-1]),), f"{best.date}", alone=str(best.date))


def _dearer(pick: Pick) -> Draft:
    one, other = pick.companies[:2]
    dearer = max(one, other, key=lambda company: company.days[-1].close)
    gold = tuple(call("polygon_get_previous_close", ticker=company.ticker) for company in (one, other))
    prompt = pick.ask(
        f"Which closed higher on the last trading day, {one.ticker} or {other.ticker}? Answer only with the ticker.",
        f"Did {one.ticker} or {other.ticker} close higher on the last trading day? Reply with the ticker only.",
        f"On the last trading day, did {one.ticker} or {other.ticker} close at the higher price? Give only the ticker.",
    )
    return Draft(prompt, gold, dearer.ticker, alone=dearer.ticker)


def _headline(pick: Pick) -> Draft:
    company = pick.company
    gold = (call("polygon_get_news", ticker=company.ticker, limit=1),)
    prompt = pick.ask(
        f"What is the latest headline about {company.ticker}? Quote it.",
        f"Quote the newest {company.ticker} headline for me.",
        f"What does the newest headline on {company.ticker} say, word for word?",
    )
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
    prompt = pick.ask(
        f"What does a share of {company.ticker} cost now?",
        f"What is the current price of {company.ticker}?",
        f"How much is one share of {company.ticker} right now?",
    )
    return Draft(prompt, gold, f"It costs {dollars(price)}.", price / 100)


def _boss(pick: Pick) -> Draft:
    company = pick.company
    gold = (call("fmp_get_company_profile", symbol=company.ticker),)
    prompt = pick.ask(
        f"Who is the CEO of {company.ticker}?",
        f"Who runs {company.ticker} as its CEO?",
        f"What is {company.ticker}'s chief executive called?",
    )
    return Draft(prompt, gold, f"The CEO is {company.ceo}.", text=company.ceo)


def _revenue(pick: Pick) -> Draft:
    company, year = pick.company, pick.company.years[pick.rng.randrange(4)]
    gold = (call("fmp_get_income_statement", symbol=company.ticker),)
    prompt = pick.ask(
        f"What was the revenue of {company.ticker} in the fiscal year {year.name}, in dollars?",
        f"How many dollars of revenue did {company.ticker} report for the fiscal year {year.name}?",
        f"In fiscal year {year.name}, how much revenue did {company.ticker} have, in dollars?",
    )
    return Draft(prompt, gold, f"It was {year.revenue * 1000} dollars.", year.revenue * 1000, tolerance=0.5)


def _margin(pick: Pick) -> Draft:
    company, year = pick.company, pick.company.years[0]
    margin = year.net * 100 / year.revenue
    gold = (call("fmp_get_income_statement", symbol=company.ticker, limit=1),)
    prompt = pick.ask(
        f"What was the net income of {company.ticker} as a percentage of its revenue in the latest fiscal year?",
        f"What was the net profit margin of {company.ticker} in its latest fiscal year, in percent?",
        f"What percentage of its revenue was {company.ticker}'s net income in its latest fiscal year?",
    )
    return Draft(prompt, gold, f"It was {margin:.2f} percent.", round(margin, 2), tolerance=0.06)


def _month(pick: Pick) -> Draft:
    company = pick.company
    last, before = company.days[-1].close, company.days[-22].close
    change = (last - before) * 100 / before
    gold = (call("fmp_get_change_percent", symbol=company.ticker),)
    prompt = pick.ask(
        f"By how many percent has {company.ticker} changed over the last month? Include the sign.",
        f"What is the one-month change of {company.ticker} in percent, with its sign?",
        f"How much did {company.ticker} gain or lose over one month, in percent with the sign?",
    )
    return Draft(prompt, gold, f"It has changed by {change:.2f} percent.", round(change, 2), tolerance=0.06)


def _found(pick: Pick) -> Draft:
    company, word = pick.company, pick.company.name.split()[0]
    gold = (call("fmp_search_ticker", query=word), call("fmp_get_previous_close", symbol=company.ticker))
    price = company.days[-1].close
    prompt = pick.ask(
        f"I don't know the symbol of {company.name}. What was its previous close?",
        f"What was the previous close of {company.name}? You have to look up its symbol.",
        f"Find the symbol of {company.name} and tell me its previous closing price.",
    )
    return Draft(prompt, gold, f"They closed at {dollars(price)}.", price / 100)


def _news(pick: Pick) -> Draft:
    company, number = pick.company, pick.rng.randrange(1, 4)
    title = f"{company.name} {company.news[number]}"
    gold = (call("fmp_get_stock_news", tickers=[company.ticker], limit=number + 1),)
    which = ("latest", "second most recent", "third most recent", "fourth most recent")[number]
    prompt = pick.ask(
        f"What is the {which} headline about {company.ticker}? Quote it.",
        f"Quote {company.ticker}'s {which} news headline.",
        f"What does the {which} headline on {company.ticker} say, word for word?",
    )
    return Draft(prompt, gold, f'"{title}"', text=title)


FMP = (
    Family("price", "easy", _price),
    Family("boss", "easy", _boss),
    Family("revenue", "medium", _revenue),
    Family("margin", "hard", _margin),
    Family("month", "medium", _month),
    Family("news", "easy", _news),
    Family("found", "medium", _found),
)


def about(company: Company) -> MCPCall:
    """Return the call that reads a company's own page."""
    return call("tavily_extract", url=f"https://{company.ticker.lower()}.example")


def _search(company: Company, words: str) -> MCPCall:
    return call("tavily_search", query=f"{company.name} {words}")


def _listed(pick: Pick) -> Draft:
    company = pick.company
    gold = (_search(company, "listed in"),)
    prompt = pick.ask(
        f"In which year was {company.name} listed on the stock exchange?",
        f"When did {company.name} go public? Give me the year.",
        f"What year was {company.name} first listed?",
    )
    return Draft(prompt, gold, f"In {company.listed.year}.", company.listed.year)


def _chief(pick: Pick) -> Draft:
    company = pick.company
    gold = (call("tavily_qna_search", query=f"Who is the chief executive of {company.name}?"),)
    prompt = pick.ask(
        f"Who is the chief executive of {company.name}?",
        f"Who is the CEO of {company.name}?",
        f"What is the name of the person who runs {company.name}?",
    )
    return Draft(prompt, gold, f"It is {company.ceo}.", text=company.ceo)


def _size(pick: Pick) -> Draft:
    company = pick.company
    url = about(company).arguments["url"]
    prompt = pick.ask(
        f"Read {url} and tell me how many employees the company has.",
        f"How many employees does the company have according to {url}?",
        f"Look at {url}. How many people does the company employ?",
    )
    return Draft(prompt, (about(company),), f"It has {company.employees}.", company.employees)


def _larger(pick: Pick) -> Draft:
    one, other = pick.companies[:2]
    larger = max(one, other, key=lambda company: company.employees)
    prompt = pick.ask(
        f"Which has more employees, {one.name} or {other.name}? Answer only with the name.",
        f"Does {one.name} or {other.name} employ more people? Reply with the name only.",
        f"Give only the name of the company with more employees: {one.name} or {other.name}.",
    )
    return Draft(prompt, (about(one), about(other)), larger.name, alone=larger.name)


def _older(pick: Pick) -> Draft:
    one, other = pick.companies[1:3] if len(pick.companies) > 3 else pick.companies[:2]
    years = abs(one.listed.year - other.listed.year)
    gold = (_search(one, "listed"), _search(other, "listed"))
    prompt = pick.ask(
        f"How many years are there between the listings of {one.name} and {other.name}?",
        f"{one.name} and {other.name} were listed in different years. How many years apart?",
        f"By how many years do the listing years of {one.name} and {other.name} differ?",
    )
    return Draft(prompt, gold, f"{years} years.", years)


def _quoted(pick: Pick) -> Draft:
    company, number = pick.company, pick.rng.randrange(4)
    title = f"{company.name} {company.news[number]}"
    gold = (call("tavily_search", query=title), call("tavily_extract", url=article(company, number)))
    prompt = pick.ask(
        f'There is an article with the title "{title}". Who is quoted in it?',
        f'Who is quoted in the article "{title}"?',
        f'Find the article "{title}" and tell me whom it quotes.',
    )
    return Draft(prompt, gold, f"It quotes {company.ceo}.", text=company.ceo)


def article(company: Company, number: int) -> str:
    """Return the URL of an article about a company."""
    return f"https://times.example/{company.ticker.lower()}-{number}"


TAVILY = (
    Family("listed", "easy", _listed),
    Family("chief", "easy", _chief),
    Family("size", "easy", _size),
    Family("larger", "medium", _larger),
    Family("older", "hard", _older),
    Family("quoted", "medium", _quoted),
)
