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
_PARAMETER_TITLES = ("Arg", "Param", "param")
"""How the titles of sections and fields of parameters begin."""


def parse_docstring(docstring: str, parameters: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return a docstring without its sections of parameters, results and exceptions, and the parameters' descriptions.

    A section of parameters is kept if it has no entries, or one for another name than those of `parameters`.
    """
    found = dict[str, str]()

    def read(match: re.Match[str]) -> str:
        if not match["title"].startswith(_PARAMETER_TITLES):
            return ""
        entries = _read_entries(match)
        found.update({name: " ".join(text.split()) for name, text in entries.items() if name in parameters})
        return "" if entries and entries.keys() <= {*parameters} else match[0]

    text = _SECTION.sub(read, inspect.cleandoc(docstring) + "\n")
    text = _SPHINX_FIELD.sub(read, text)
    return text.strip(), {name: text for name, text in found.items() if text}


def find_unknown_parameters(docstring: str, parameters: Collection[str]) -> list[str]:
    """Return the names that a docstring describes as parameters and that are none of `parameters`."""
    text = inspect.cleandoc(docstring) + "\n"
    sections = [match for pattern in (_SECTION, _SPHINX_FIELD) for match in pattern.finditer(text)]
    described = [match for match in sections if match["title"].startswith(_PARAMETER_TITLES)]
    names = dict.fromkeys(name for match in described for name in _read_entries(match))
    return [name for name in names if name not in parameters]


def _read_entries(section: re.Match[str]) -> dict[str, str]:
    """Return the entries of a section of parameters, or the one of a Sphinx field."""
    groups = section.groupdict()
    if name := groups.get("name"):
        return {name: groups["text"]}
    if google := groups.get("google"):
        return dict(_GOOGLE_ENTRY.findall(dedent(google)))
    return dict(_NUMPY_ENTRY.findall(groups.get("numpy") or ""))
