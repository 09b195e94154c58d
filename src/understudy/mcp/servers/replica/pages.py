"""Pages: a small made-up web about the made-up companies, and how it is searched."""

import functools
import re
from typing import Any

from understudy.mcp.servers.replica.market import companies


@functools.cache
def pages() -> dict[str, tuple[str, str]]:
    """Title and text by address: one about each company, and one for each piece of its news."""
    found = {}
    for company in companies().values():
        home = f"https://{company.ticker.lower()}.example"
        about = f"{company.name} was listed in {company.listed.year}. {company.ceo} is its chief executive. "
        about += f"It works in {company.industry.lower()} and has {company.employees:,} employees."
        found[home] = (f"About {company.name}", about)
        for n, event in enumerate(company.news):
            text = (
                f"{company.name} {event}, the company said. {company.ceo}, its chief executive, called it a good year."
            )
            found[f"https://times.example/{company.ticker.lower()}-{n}"] = (f"{company.name} {event}", text)
    return found


def page(url: str) -> str:
    """A page's text, empty where there is none."""
    title, text = pages().get(url.rstrip("/"), ("", ""))
    return f"# {title}\n\n{text}" if text else ""


def find(query: str, count: int) -> list[dict[str, Any]]:
    """The pages that share the most words with a query, best first."""
    words = _words(query)
    scored = [
        (len(words & _words(title + " " + text)) / max(1, len(words)), url) for url, (title, text) in pages().items()
    ]
    best = sorted((score, url) for score, url in ((-score, url) for score, url in scored) if score < 0)[:count]
    return [
        {
            "title": pages()[url][0],
            "url": url,
            "content": pages()[url][1],
            "score": round(-score, 4),
            "raw_content": None,
        }
        for score, url in best
    ]


def answer_of(hits: list[dict[str, Any]]) -> str:
    """An answer out of what was found: the text that fits best."""
    return str(hits[0]["content"]) if hits else "Nothing was found."


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]{2,}", text.lower()))
