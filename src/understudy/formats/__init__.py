"""Chat formats: a model family's dialect, rendering and parsing in one object; and replies as text, in any dialect."""

from understudy.formats.base import ChatFormat, Parsed, ParseStatus, ReplyStatus
from understudy.formats.chatml import ChatML
from understudy.formats.find import configured, find
from understudy.formats.options import FormatConfig
from understudy.formats.vocabulary import Vocabulary

__all__ = [
    "ChatFormat",
    "ChatML",
    "FormatConfig",
    "ParseStatus",
    "Parsed",
    "ReplyStatus",
    "Vocabulary",
    "configured",
    "find",
]
