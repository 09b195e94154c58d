"""FormatTokenizer: a tokenizer that never turns text into control tokens.

An added token (`<|im_end|>`, `<tool_call>`) in a text is encoded as its characters. Only a format puts added tokens
into a sequence, by id. So no text of a user, a tool or an MCP server can end or open a turn.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.core.errors import ConfigError, install_hint
from understudy.core.json_values import replace_surrogates

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""White space as Unicode and the library `tokenizers` define it. `str.isspace` accepts four more characters."""


class FormatTokenizer:
    """A tokenizer from a `tokenizer.json`. `added_tokens` maps the text of each added token to its id.

    Tokens in `rstrip_ids` absorb the white space after them (`rstrip` in the file), tokens in `lstrip_ids` the white
    space before them (`lstrip`). Absorbed white space has no tokens.
    """

    def __init__(
        self,
        tokenizer: "Tokenizer",
        added_tokens: Mapping[str, int],
        rstrip_ids: Collection[int] = (),
        lstrip_ids: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self.added_tokens = added_tokens
        self.rstrip_ids = rstrip_ids
        self.lstrip_ids = lstrip_ids
        self._texts = {index: text for text, index in added_tokens.items() if len(text) > 1 and not text.isspace()}

    @classmethod
    def load(cls, file: Path) -> "FormatTokenizer":
        """Load a `tokenizer.json`.

        Raise ConfigError if the file is missing or broken, or if the library `tokenizers` is not installed.
        """
        try:
            from tokenizers import AddedToken, Tokenizer, pre_tokenizers
        except ModuleNotFoundError as error:
            raise ConfigError(f"{file} needs {error.name}; {install_hint('train')}") from error
        if not file.is_file():
            raise ConfigError(f"{file} does not exist; save the model's fast tokenizer there")
        try:
            tokenizer = Tokenizer.from_buffer(file.read_bytes())  # `from_file` raises a bare Exception
        except ValueError as error:
            raise ConfigError(
                f"{file} is not a tokenizer: {error!s:.200}; save the model's fast tokenizer there"
            ) from error
        tokens = tokenizer.get_added_tokens_decoder()
        added = {token.content: index for index, token in tokens.items()}
        rstrip_ids = frozenset(index for index, token in tokens.items() if token.rstrip)
        lstrip_ids = frozenset(index for index, token in tokens.items() if token.lstrip)
        # `encode_special_tokens` affects only special tokens, and Qwen's <tool_call> is not marked as special.
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in added])
        tokenizer.encode_special_tokens = True
        space = tokenizer.pre_tokenizer
        if isinstance(space, pre_tokenizers.Metaspace) and space.prepend_scheme == "first":
            # "first" means the start of the whole sequence. Formats begin it with an added token and encode the texts
            # after it separately, so no text is the first.
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(space.replacement, "never", space.split)
        return cls(tokenizer, added, rstrip_ids, lstrip_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without added tokens. A lone surrogate becomes the replacement character.

        Bytes without a token are lost, as in the model's own tokenizer (SmolLM2 lacks a few).
        """
        ids = self._encode(text)
        if self._texts.keys().isdisjoint(ids):
            return ids
        # An added token may also be a word of the model (Unigram). Its characters are then encoded one by one.
        found = {self._texts[token] for token in ids if token in self._texts}
        parts = re.split("(" + "|".join(map(re.escape, sorted(found, key=len, reverse=True))) + ")", text)
        return [
            token
            for at, part in enumerate(parts)
            for piece in (part if at % 2 else [part])
            if piece
            for token in self._encode(piece)
        ]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False).ids
        return ids

    def encode_between(self, before: int | None, text: str, after: int | None) -> list[int]:
        """Return the ids of a text between two added tokens, without the white space that these absorb.

        `before` and `after` are the ids of the added tokens, or None.
        """
        text = text.lstrip(_SPACE) if before in self.rstrip_ids else text
        text = text.rstrip(_SPACE) if after in self.lstrip_ids else text
        return self.encode(text) if text else []

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Added tokens give their text, ids beyond the vocabulary give none."""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def token_texts(self) -> dict[int, str]:
        """Return the text of every token by its id, as written in the tokenizer's file."""
        return {token: text for text, token in self._tokenizer.get_vocab(with_added_tokens=True).items()}


def first_token_difference(one: Path, other: Path) -> str:
    """Return a description of the first token whose text differs between two `tokenizer.json` files;

    "" if none differs.

    Only the tokens of `one` are compared.
    """
    ours, theirs = (FormatTokenizer.load(file).token_texts() for file in (one, other))
    for token, text in sorted(ours.items()):
        if theirs.get(token) != text:
            return f"token {token} is {text!r} in {one}, and {theirs.get(token)!r} in {other}"
    return ""
