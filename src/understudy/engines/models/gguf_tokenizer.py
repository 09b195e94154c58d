"""The tokenizer of a GGUF file: its vocabulary as it stands, and what the file only names, such as a pre-tokenizer.

Byte-level BPE is `tokenizer.ggml.model = gpt2`, BPE in the manner of SentencePiece is `llama`. Where llama.cpp and the
tokenizer of the original model differ, this is the original: Qwen's normalizes texts to NFC.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from understudy.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

# Values of llama.cpp's enum llama_token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Names in `tokenizer_config.json`, and in the keys of a file."""
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?" + f"{_UPPER}*{_LOWER}+", r"[^\r\n\p{L}\p{N}]?" + f"{_UPPER}+{_LOWER}*"
_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TIKTOKEN = rf"{_SHORT_FORMS}|{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN = rf"{_SHORT_FORMS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT_4O = (
    rf"{_CASED[0]}{_SHORT_FORMS}?|{_CASED[1]}{_SHORT_FORMS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)


class Splitting(NamedTuple):
    """How a byte-level tokenizer splits a text before BPE."""

    regex: str = ""
    """A pattern of the pieces; "" is GPT-2's."""
    splits_digits: bool = False
    nfc: bool = False
    ignores_merges: bool = False
    """True if a piece that is a token stays whole."""
    adds_bos: bool = False


SPLITTINGS: Mapping[str, Splitting] = MappingProxyType(
    {
        **dict.fromkeys(("gpt-2", "olmo"), Splitting()),
        **dict.fromkeys(("smollm", "starcoder", "refact"), Splitting(splits_digits=True)),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Splitting(_QWEN, nfc=True)),
        **dict.fromkeys(
            ("llama-bpe", "llama3", "llama-v3", "lfm2"), Splitting(_TIKTOKEN, ignores_merges=True, adds_bos=True)
        ),
        **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Splitting(_TIKTOKEN)),
        "glm4": Splitting(_TIKTOKEN, ignores_merges=True),
        "tekken": Splitting(_TEKKEN, ignores_merges=True, adds_bos=True),
        "gpt-4o": Splitting(_GPT_4O),
    }
)
"""By the name in `tokenizer.ggml.pre`."""


def validate_tokenizer(meta: Mapping[str, Any], file: str, vocab_size: int) -> None:
    """Raise ConfigError for a tokenizer that `build_tokenizer` does not know, or of other weights.

    `vocab_size` is the number of tokens of the weights.
    """
    if "tokenizer.ggml.tokens" not in meta:
        raise ConfigError(f"{file} has no tokenizer; give a GGUF file with tokenizer.ggml.tokens")
    number = len(meta["tokenizer.ggml.tokens"])
    if number > vocab_size or len(_kinds(meta)) != number:
        sizes = f"{number} tokens and {len(_kinds(meta))} token types, and its weights have {vocab_size} tokens"
        raise ConfigError(f"{file} has {sizes}; convert the model to GGUF again")
    for key in SPECIAL_TOKENS.values():
        if (index := meta.get(f"tokenizer.ggml.{key}_token_id", 0)) >= number:
            raise ConfigError(f"{file} has tokenizer.ggml.{key}_token_id = {index}, and only {number} tokens")
    kinds = {"tokenizer.ggml.model": ("gpt2", "llama"), "tokenizer.ggml.pre": tuple(SPLITTINGS)}
    if meta.get("tokenizer.ggml.model") == "llama":
        del kinds["tokenizer.ggml.pre"]
    for key, allowed in kinds.items():
        if (kind := meta.get(key)) not in allowed:
            raise ConfigError(f"{file}: {key} is not supported: {did_you_mean(str(kind or ''), allowed)}")
    if meta["tokenizer.ggml.model"] == "gpt2":
        tokens = set(meta["tokenizer.ggml.tokens"])
        for merge in meta.get("tokenizer.ggml.merges") or ["(none)"]:
            left, _, right = merge.partition(" ")
            if not {left, right, left + right} <= tokens:
                raise ConfigError(
                    f"{file}: the merge {merge!r} is not one of its tokens; convert the model to GGUF again"
                )


def build_tokenizer(meta: Mapping[str, Any]) -> "Tokenizer":
    """Return the tokenizer that a file's metadata describes."""
    from tokenizers import processors

    tokenizer = _sentencepiece(meta) if meta["tokenizer.ggml.model"] == "llama" else _byte_level(meta)
    for token in _added_tokens(meta):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    bos = meta.get("tokenizer.ggml.bos_token_id")
    splitting = SPLITTINGS.get(meta.get("tokenizer.ggml.pre", ""), Splitting())
    starts = splitting.adds_bos if meta["tokenizer.ggml.model"] == "gpt2" else True
    if bos is not None and meta.get("tokenizer.ggml.add_bos_token", starts):
        text = meta["tokenizer.ggml.tokens"][bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[text, "$A"], pair=[text, "$A", "$B"], special_tokens=[(text, bos)]
        )
    return tokenizer


def special_tokens(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of `eos_token` and the other special tokens that the file names."""
    ids = {name: meta.get(f"tokenizer.ggml.{key}_token_id") for name, key in SPECIAL_TOKENS.items()}
    return {name: meta["tokenizer.ggml.tokens"][index] for name, index in ids.items() if index is not None}


def chat_templates(meta: Mapping[str, Any]) -> str | list[dict[str, str]]:
    """Return the chat template, or a list if the file has several. "" if it has none."""
    default, prefix = meta.get("tokenizer.chat_template", ""), "tokenizer.chat_template."
    named = {key.removeprefix(prefix): text for key, text in meta.items() if key.startswith(prefix)}
    templates = {"default": default, **named} if default else named
    return [{"name": name, "template": text} for name, text in templates.items()] if named else default


def _kinds(meta: Mapping[str, Any]) -> Sequence[int]:
    return meta.get("tokenizer.ggml.token_type") or [NORMAL] * len(meta["tokenizer.ggml.tokens"])


def _vocabulary(meta: Mapping[str, Any]) -> dict[str, int]:
    kinds = _kinds(meta)
    return {token: index for index, token in enumerate(meta["tokenizer.ggml.tokens"]) if kinds[index] != UNUSED}


def _added_tokens(meta: Mapping[str, Any]) -> "Iterator[AddedToken]":
    from tokenizers import AddedToken

    # Phi-3's control tokens absorb the space after them. No key of the file says so.
    absorbs = (meta["general.architecture"], meta["tokenizer.ggml.model"]) == ("phi3", "llama")
    for token, kind in zip(meta["tokenizer.ggml.tokens"], _kinds(meta), strict=True):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            rstrip = absorbs and token not in ("<unk>", "<s>", "<|endoftext|>")
            yield AddedToken(token, normalized=False, special=kind != USER_DEFINED, rstrip=rstrip)


def _byte_level(meta: Mapping[str, Any]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers

    splitting = SPLITTINGS[meta["tokenizer.ggml.pre"]]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(meta), merges=merges, ignore_merges=splitting.ignores_merges))
    tokenizer.pre_tokenizer = build_pre_tokenizer(splitting)
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def build_pre_tokenizer(splitting: Splitting) -> "PreTokenizer":
    """Return what splits a text into pieces, in the letters of byte-level BPE."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if splitting.splits_digits else []
    if splitting.regex:
        steps.append(pre_tokenizers.Split(Regex(splitting.regex), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splitting.regex))
    return pre_tokenizers.Sequence(steps)


def _sentencepiece(meta: Mapping[str, Any]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers

    bpe = models.BPE(
        vocab=_vocabulary(meta),
        merges=_merges(meta),
        unk_token=special_tokens(meta).get("unk_token"),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    prefix = meta.get("tokenizer.ggml.add_space_prefix", True)
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    text: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*text, decoders.Strip(" ", 1, 0)] if prefix else text)
    return tokenizer


def _merges(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that form a token, in the order of its score. SentencePiece stores no merges."""
    kinds, tokens = _kinds(meta), meta["tokenizer.ggml.tokens"]
    ids = {token: index for index, token in enumerate(tokens) if kinds[index] == NORMAL}
    scores = meta.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    merges = []
    for token, index in ids.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in pairs if left in ids and right in ids]
        merges += [(-scores[index], index, ids[left], ids[right], left, right) for left, right in known]
    return [(left, right) for *_, left, right in sorted(merges)]
