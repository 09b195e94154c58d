"""Tavily: search the web, read pages, and answer questions out of them.

Documentation: https://docs.tavily.com/documentation/api-reference; the key goes into the header
`Authorization: Bearer`.
"""

from typing import Annotated, Literal

from pydantic import Field

from understudy.errors import ToolError
from understudy.mcp.servers.web import Web, account, read
from understudy.records import Record
from understudy.tools import Service

Query = Annotated[str, Field(min_length=1, max_length=400, description="What to look for, in a few words.")]
Depth = Annotated[Literal["basic", "advanced"], Field(description="Advanced costs twice as much.")]
LONGEST_PAGE = 20_000
"""Characters of a page that are given."""


class Hit(Record, extra="ignore"):
    """A page that was found."""

    title: str
    url: str
    content: str
    """What of it bears on the query."""
    score: float


class Hits(Record, extra="ignore"):
    """What a search has found, best first."""

    results: tuple[Hit, ...]
    images: tuple[str, ...] = ()


class Page(Record, extra="ignore"):
    """A page that was read."""

    url: str
    content: str = Field(alias="raw_content")


class Failure(Record, extra="ignore"):
    """A page that could not be read."""

    url: str
    error: str = "no reason given"


class Pages(Record, extra="ignore"):
    """What came of reading pages."""

    results: tuple[Page, ...]
    failed_results: tuple[Failure, ...] = ()


class Answered(Record, extra="ignore"):
    """An answer out of the web, and the pages it stands on."""

    answer: str
    results: tuple[Hit, ...] = Field(default=(), exclude=True)
    sources: tuple[str, ...] = ()


class Tavily(Service):
    """Three questions; all only read."""

    def __init__(self, web: Web) -> None:
        self._web = web

    async def tavily_search(
        self,
        query: Query,
        search_depth: Depth = "basic",
        max_results: Annotated[int, Field(ge=1, le=20, description="How many pages at most.")] = 5,
        include_images: Annotated[bool, Field(description="Whether to list images too.")] = False,
    ) -> Hits:
        """Search the web: pages with what of them bears on the query."""
        body = {"query": query, "search_depth": search_depth, "max_results": max_results}
        return read(Hits, await self._web.post("search", {**body, "include_images": include_images}), "tavily")

    async def tavily_extract(
        self, url: Annotated[str, Field(pattern=r"^https?://\S{3,2000}$", description="Address of the page.")]
    ) -> Page:
        """Read one page as text."""
        pages = read(Pages, await self._web.post("extract", {"urls": [url]}), "tavily")
        if not pages.results:
            why = pages.failed_results[0].error if pages.failed_results else "no reason given"
            raise ToolError(f"tavily cannot read {url}: {why[:200]}; try another page")
        page = pages.results[0]
        return page.replace(content=page.content[:LONGEST_PAGE])

    async def tavily_qna_search(self, query: Query) -> Answered:
        """Answer a question out of the web, in a sentence or a few."""
        body = {"query": query, "search_depth": "advanced", "include_answer": True, "max_results": 5}
        found = read(Answered, await self._web.post("search", body), "tavily")
        return found.replace(sources=tuple(hit.url for hit in found.results))


def tavily_web() -> Web:
    """The account of the environment; a development key allows a hundred requests a minute."""
    return Web(account("tavily", "https://api.tavily.com", "TAVILY_API_KEY", per_minute=100))
