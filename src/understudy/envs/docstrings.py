"""Docstrings of tools in the styles of Google, NumPy and Sphinx: descriptions of a tool and of its parameters."""

import inspect
import re
from collections.abc import Collection
from textwrap import dedent

_SECTION = re.compile(
    r"^(?P<title>Args|Arguments|Parameters|Params|Returns?|Yields|Raises)"
    r"(?::[ ]*\n(?P<google>(?:[ ]+\S.*\n|[ ]*\n)+)"
    r"|[ ]*\n-{3,}[ ]*\n(?P<numpy>(?:.*\n)*?)(?=\w[\w ]*\n-{3,}[ ]*\n|\Z))",
    re.MULTILINE,
)
_GOOGLE_ENTRY = re.compile(r"^(\w+)[ ]*(?:\(.*?\))?[ ]*:(.*\n(?:[ ]+.*\n|\n)*)", re.MULTILINE)
_NUMPY_ENTRY = re.compile(r"^(\w+)[ ]*(?::.*)?\n((?:[ ]+.*\n|\n)*)", re.MULTILINE)
_SPHINX_FIELD = re.compile(
    r"^:(?P<title>param|type|returns?|rtype|raises)\b(?:[^:\n]*?(?P<name>\w+))?[ ]*:(?P<text>.*\n(?:[ ]+.*\n)*)",
    re.MULTILINE,
)


def parse_docstring(docstring: str, parameters: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return a docstring without its sections of parameters, results and exceptions, and the parameters' descriptions.

    A section of parameters is kept if it has no entries, or one for another name than those of `parameters`.
    """
    found = dict[str, str]()

    def read_section(match: re.Match[str]) -> str:
        if match["title"][0] not in "AP":
            return ""
        google = match["google"]
        entries = _GOOGLE_ENTRY.findall(dedent(google)) if google else _NUMPY_ENTRY.findall(match["numpy"])
        return read_entries(match[0], dict(entries))

    def read_field(match: re.Match[str]) -> str:
        return read_entries(match[0], {match["name"]: match["text"]}) if match["title"] == "param" else ""

    def read_entries(section: str, entries: dict[str, str]) -> str:
        found.update({name: " ".join(text.split()) for name, text in entries.items() if name in parameters})
        return "" if entries and entries.keys() <= {*parameters} else section

    text = _SECTION.sub(read_section, inspect.cleandoc(docstring) + "\n")
    text = _SPHINX_FIELD.sub(read_field, text)
    return text.strip(), {name: text for name, text in found.items() if text}
