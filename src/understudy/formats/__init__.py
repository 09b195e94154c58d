"""Chat formats: a model family's dialect, rendering and parsing in one object."""

from understudy.formats.base import ChatFormat, Parsed, ParseStatus
from understudy.formats.chatml import ChatML
from understudy.formats.find import find
from understudy.formats.vocabulary import Vocabulary

__all__ = ["ChatFormat", "ChatML", "ParseStatus", "Parsed", "Vocabulary", "find"]
