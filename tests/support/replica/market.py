"""Made-up companies and the history of their stocks, with a fixed seed."""

import datetime
import functools
import random
from dataclasses import dataclass

FIRST = datetime.date(2025, 1, 2)
LAST = datetime.date(2025, 6, 27)
"""The last completed day. The current time is the morning after it."""
NOW = datetime.datetime(2025, 6, 30, 14, 30, tzinfo=datetime.UTC)
_NAMES = (
    *("Alder", "Basalt", "Cobalt", "Dunmore", "Elmfield", "Fennel", "Garnet", "Heron", "Indigo", "Juniper"),
    *("Kestrel", "Larkspur", "Marlow", "Nimbus", "Orchard", "Pinnacle", "Quarry", "Rowan", "Saffron", "Tamarind"),
    *("Umber", "Verity", "Wexford", "Yarrow", "Zephyr", "Bramble", "Cedarline", "Driftwood", "Emberly", "Foxglove"),
)
_TRADES = {
    "Technology": ("Software", "Semiconductors", "Robotics"),
    "Healthcare": ("Medical Devices", "Biotechnology", "Diagnostics"),
    "Energy": ("Solar", "Wind Power", "Storage"),
    "Industrials": ("Freight", "Machinery", "Packaging"),
    "Consumer": ("Coffee", "Furniture", "Outdoor Gear"),
}
_FIRST_NAMES = ("Ada", "Bruno", "Carla", "Deniz", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Lena")
_LAST_NAMES = ("Abbot", "Brandt", "Castillo", "Dorsey", "Eriksen", "Fontaine", "Grimaldi", "Haas", "Ito", "Jansen")


@dataclass(frozen=True)
class Day:
    """One day's trading; prices are in cents."""

    date: datetime.date
    open: int
    high: int
    low: int
    close: int
    volume: int


@dataclass(frozen=True)
class Year:
    """Financial results of a year or quarter, in thousands of dollars."""

    name: str
    """The fiscal year, such as 2024."""
    period: str
    date: datetime.date
    revenue: int
    gross: int
    operating: int
    net: int


@dataclass(frozen=True)
class Company:
    """A made-up company."""

    ticker: str
    name: str
    sector: str
    industry: str
    exchange: str
    ceo: str
    employees: int
    shares: int
    listed: datetime.date
    days: tuple[Day, ...]
    years: tuple[Year, ...]
    quarters: tuple[Year, ...]

    @property
    def price(self) -> int:
        """Current price of a share in cents: today's opening."""
        return (
            self.days[-1].close + random.Random(f"{self.ticker} now").randint(-400, 400) * self.days[-1].close // 10_000
        )

    @property
    def headline(self) -> str:
        """The company's latest news."""
        return f"{self.name} {self.news[0]}"

    @property
    def news(self) -> tuple[str, ...]:
        """The company's news, newest first."""
        return _events(self.ticker)


@functools.cache
def companies() -> dict[str, Company]:
    """Return all companies by ticker."""
    made = [_company(place, name) for place, name in enumerate(_NAMES)]
    return {company.ticker: company for company in made}


def weekdays() -> list[datetime.date]:
    """Return the trading days."""
    days = (FIRST + datetime.timedelta(days=n) for n in range((LAST - FIRST).days + 1))
    return [day for day in days if day.weekday() < 5]


def _company(place: int, name: str) -> Company:
    rng = random.Random(f"company {name}")
    sector = list(_TRADES)[place % len(_TRADES)]
    industry = rng.choice(_TRADES[sector])
    ticker = (name[:3] + industry[0]).upper()
    revenue = rng.randint(40_000, 4_000_000)
    return Company(
        ticker=ticker,
        name=f"{name} {industry} {rng.choice(('Inc.', 'Corp.', 'Group', 'Holdings'))}",
        sector=sector,
        industry=industry,
        exchange=rng.choice(("XNAS", "XNYS")),
        ceo=f"{rng.choice(_FIRST_NAMES)} {rng.choice(_LAST_NAMES)}",
        employees=rng.randint(120, 40_000),
        shares=rng.randint(10, 900) * 1_000_000,
        listed=datetime.date(rng.randint(1985, 2022), rng.randint(1, 12), rng.randint(1, 28)),
        days=_days(rng),
        years=tuple(
            _business(rng, str(year), "FY", datetime.date(year, 12, 31), revenue) for year in range(2024, 2019, -1)
        ),
        quarters=tuple(_quarter(rng, n, revenue // 4) for n in range(8)),
    )


def _days(rng: random.Random) -> tuple[Day, ...]:
    price, drift = rng.randint(800, 40_000), rng.randint(-8, 12)
    days = []
    for date in weekdays():
        opening = max(100, price + price * rng.randint(-80, 80) // 10_000)
        price = max(100, opening + opening * (rng.randint(-250, 250) + drift) // 10_000)
        high, low = max(opening, price) + rng.randint(1, 90), min(opening, price) - rng.randint(1, 90)
        days.append(Day(date, opening, high, max(1, low), price, rng.randint(50_000, 9_000_000)))
    return tuple(days)


def _quarter(rng: random.Random, back: int, revenue: int) -> Year:
    year, quarter = divmod(2025 * 4 - back, 4)  # the first quarter of 2025 is the latest
    ends = datetime.date(year, 3 * quarter + 3, 28)
    return _business(rng, str(year), f"Q{quarter + 1}", ends, revenue)


def _business(rng: random.Random, name: str, period: str, date: datetime.date, around: int) -> Year:
    revenue = around * rng.randint(70, 130) // 100
    gross = revenue * rng.randint(30, 70) // 100
    operating = gross * rng.randint(10, 60) // 100
    return Year(name, period, date, revenue, gross, operating, operating * rng.randint(50, 85) // 100)


@functools.cache
def _events(ticker: str) -> tuple[str, ...]:
    rng = random.Random(f"news {ticker}")
    place = ("Lisbon", "Austin", "Osaka", "Gdansk", "Toronto", "Nairobi", "Leeds", "Porto")
    texts = (
        f"opens a plant in {rng.choice(place)}",
        f"recalls {rng.randint(2, 90)},000 units",
        f"hires {rng.randint(2, 40) * 25} engineers in {rng.choice(place)}",
        f"signs a contract worth ${rng.randint(5, 400)} million",
        f"buys back {rng.randint(1, 9)}% of its shares",
        f"names {rng.choice(_FIRST_NAMES)} {rng.choice(_LAST_NAMES)} head of research",
    )
    return tuple(rng.sample(texts, 4))
