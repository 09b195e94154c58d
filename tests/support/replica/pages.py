"""A small made-up web about the made-up companies, and its search engine."""

import functools
import re
from typing import Any

from support.replica.market import companies


@functools.cache
def pages() -> dict[str, tuple[str, str]]:
    """Return title and text by address: a page about each company, and one for each of its news."""
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


def page_text(url: str) -> str:
    """Return a page's text; empty if there is no such page."""
    title, text = pages().get(url.rstrip("/"), ("", ""))
    return f"# {title}\n\n{text}" if text else ""


def search_pages(query: str, count: int) -> list[dict[str, Any]]:
    """Return the pages that share the most words with a query, best first."""
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


def answer_from_pages(hits: list[dict[str, Any]]) -> str:
    """Return an answer from the found pages: the text that fits best."""
    return str(hits[0]["content"]) if hits else "Nothing was found."


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]{2,}", text.lower()))
