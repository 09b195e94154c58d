"""Tavily: web search, page extraction, and question answering from web pages.

API documentation: https://docs.tavily.com/documentation/api-reference. The header `Authorization: Bearer` holds the
key.
"""

from typing import Annotated, Literal

from pydantic import Field

from understudy.core.errors import ToolError
from understudy.core.records import Record
from understudy.envs.tools import Alias, AsyncToolkit
from understudy.sources.mcp.services.web import APIClient, account_from_env, validate_answer

Query = Annotated[
    str,
    Alias("search_query", "q", "search"),
    Field(min_length=1, max_length=400, description="A search query of a few words, or a question."),
]
Depth = Annotated[Literal["basic", "advanced"], Field(description="An advanced search costs twice as much.")]
MAX_PAGE_CHARACTERS = 20_000
"""Maximum characters of a page's text. The rest is cut off."""


class SearchHit(Record, extra="ignore"):
    """A page of the search results."""

    title: str
    url: str
    content: str
    """The passages that are relevant to the query."""
    score: float


class SearchResults(Record, extra="ignore"):
    """The results of a search, most relevant first."""

    results: tuple[SearchHit, ...]
    images: tuple[str, ...] = ()


class WebPage(Record, extra="ignore"):
    """The text of a page."""

    url: str
    content: str = Field(alias="raw_content")


class FailedPage(Record, extra="ignore"):
    """A page that could not be read."""

    url: str
    error: str = "no reason given"


class ExtractResults(Record, extra="ignore"):
    """The response to an extraction."""

    results: tuple[WebPage, ...]
    failed_results: tuple[FailedPage, ...] = ()


class WebAnswer(Record, extra="ignore"):
    """An answer to a question, and the URLs of its sources."""

    answer: str
    results: tuple[SearchHit, ...] = Field(default=(), exclude=True)
    sources: tuple[str, ...] = ()


class Tavily(AsyncToolkit):
    """Three read-only tools."""

    def __init__(self, web: APIClient) -> None:
        self._web = web

    async def tavily_search(
        self,
        query: Query,
        search_depth: Depth = "basic",
        max_results: Annotated[int, Alias("limit"), Field(ge=1, le=20, description="Maximum number of pages.")] = 5,
        include_images: Annotated[bool, Field(description="Whether to list the URLs of images too.")] = False,
    ) -> SearchResults:
        """Search the web. Return pages, most relevant first, each with the passages relevant to the query."""
        body = {"query": query, "search_depth": search_depth, "max_results": max_results}
        return validate_answer(
            SearchResults, await self._web.post_query("search", {**body, "include_images": include_images}), "tavily"
        )

    async def tavily_extract(
        self, url: Annotated[str, Field(pattern=r"^https?://\S{3,2000}$", description="URL of the page.")]
    ) -> WebPage:
        """Return the text of a web page, at most 20,000 characters."""
        pages = validate_answer(ExtractResults, await self._web.post_query("extract", {"urls": [url]}), "tavily")
        if not pages.results:
            why = pages.failed_results[0].error if pages.failed_results else "no reason given"
            raise ToolError(f"tavily: cannot read {url}: {why[:200]}; try another page")
        page = pages.results[0]
        return page.replace(content=page.content[:MAX_PAGE_CHARACTERS])

    async def tavily_qna_search(self, query: Query) -> WebAnswer:
        """Answer a question from web pages in one or a few sentences. Return the answer and the URLs of its sources."""
        body = {"query": query, "search_depth": "advanced", "include_answer": True, "max_results": 5}
        found = validate_answer(WebAnswer, await self._web.post_query("search", body), "tavily")
        return found.replace(sources=tuple(hit.url for hit in found.results))


def tavily_client() -> APIClient:
    """Return the client that environment variables configure. A development key permits 100 requests a minute."""
    return APIClient(account_from_env("tavily", "https://api.tavily.com", "TAVILY_API_KEY", per_minute=100))
