"""Chat formats: messages to tokens and back, and a tolerant parser of tool calls in text. It imports only `core`."""

from understudy.formats.chat_format import ChatFormat, ParsedMessage, ParseStatus, ReplyStatus
from understudy.formats.chatml import ChatML
from understudy.formats.loading import chat_format_from_config, load_chat_format
from understudy.formats.options import FormatConfig
from understudy.formats.tokenizer import FormatTokenizer

__all__ = [
    "ChatFormat",
    "ChatML",
    "FormatConfig",
    "FormatTokenizer",
    "ParseStatus",
    "ParsedMessage",
    "ReplyStatus",
    "chat_format_from_config",
    "load_chat_format",
]
