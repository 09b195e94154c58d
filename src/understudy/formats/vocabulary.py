"""Vocabulary: a tokenizer as a format needs it. Text never becomes a control token.

An added token (`<|im_end|>`, `<tool_call>`) in a text is encoded as the characters that it is written with. Only a
format puts added tokens into a sequence, by id: nothing that a user, a tool or a server says can end or open a turn.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.errors import ConfigError, installation
from understudy.values import whole

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""White space to `tokenizers`, which is Unicode's; Python has four characters more."""


class Vocabulary:
    """A `tokenizer.json`; `added` are the ids of its added tokens by their text.

    Those in `takes_after` take the white space that follows them (`rstrip` in the file), those in `takes_before` what
    stands before them (`lstrip`): it has no tokens then.
    """

    def __init__(
        self,
        tokenizer: "Tokenizer",
        added: Mapping[str, int],
        takes_after: Collection[int] = (),
        takes_before: Collection[int] = (),
    ) -> None:
        self._tokenizer, self.added, self.takes_after, self.takes_before = tokenizer, added, takes_after, takes_before

    @classmethod
    def load(cls, file: Path) -> "Vocabulary":
        """Read a `tokenizer.json`. Raises ConfigError if it is not there, or `tokenizers` is not installed."""
        try:
            from tokenizers import AddedToken, Tokenizer, pre_tokenizers
        except ModuleNotFoundError as error:
            raise ConfigError(f"{file} needs {error.name}; {installation('train')}") from error
        if not file.is_file():
            raise ConfigError(f"there is no {file}; save the model's fast tokenizer there")
        tokenizer = Tokenizer.from_file(str(file))
        tokens = tokenizer.get_added_tokens_decoder()
        added = {token.content: index for index, token in tokens.items()}
        takes_after = frozenset(index for index, token in tokens.items() if token.rstrip)
        takes_before = frozenset(index for index, token in tokens.items() if token.lstrip)
        # Only tokens that are marked as special can be kept out of texts, and Qwen's <tool_call> is not.
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in added])
        tokenizer.encode_special_tokens = True
        space = tokenizer.pre_tokenizer
        if isinstance(space, pre_tokenizers.Metaspace) and space.prepend_scheme == "first":
            # Only the beginning of all is meant, where formats have a token; texts are encoded one by one here.
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(space.replacement, "never", space.split)
        return cls(tokenizer, added, takes_after, takes_before)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, all ordinary. A lone surrogate becomes the replacement character: it has no UTF-8.

        Bytes that the tokenizer has no token for are lost, as they are in the model's own (SmolLM2 lacks a few).
        """
        ids: list[int] = self._tokenizer.encode(whole(text), add_special_tokens=False).ids
        return ids

    def between(self, before: int | None, text: str, after: int | None) -> list[int]:
        """The tokens of a text between two added ones, or None: without the white space that these take."""
        text = text.lstrip(_SPACE) if before in self.takes_after else text
        text = text.rstrip(_SPACE) if after in self.takes_before else text
        return self.encode(text) if text else []

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, added ones as they are written. Ids beyond the vocabulary have none."""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def texts(self) -> dict[int, str]:
        """Every token by its id, as the tokenizer's file writes it."""
        return {token: text for text, token in self._tokenizer.get_vocab(with_added_tokens=True).items()}


def differing(one: Path, other: Path) -> str:
    """The first token that two `tokenizer.json`s write otherwise, in words; "" where all tokens of `one` are alike."""
    ours, theirs = (Vocabulary.load(file).texts() for file in (one, other))
    for token, text in sorted(ours.items()):
        if theirs.get(token) != text:
            return f"token {token} is {text!r} in {one}, and {theirs.get(token)!r} in {other}"
    return ""
