"""A random model of 115 thousand parameters for tests. One token is one byte: ids 0-255 are the bytes themselves.

Layout and chat template are those of real models: tied embeddings, grouped query heads, a vocabulary padded beyond the
tokenizer, and Qwen2.5's text for tools. Three things differ: the default system text names no maker, call arguments may
already be a JSON string, and content may be None. Norm weights and biases are random instead of 1 and 0, so that tests
notice code that ignores them.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from understudy.core.errors import ConfigError, did_you_mean
from understudy.engines.models.folder import build_cached, write_model

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

Architecture = Literal["llama", "qwen2", "qwen3"]
_PREFIX: dict[Architecture, str] = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 256, 257, 258
_VOCABULARY = 264  # 259 padded to a multiple of 8
_HEAD = 16

TINY_CHAT_TEMPLATE = r"""{%- set first = messages[0] if messages and messages[0].role == 'system' else none %}
{{- '<|im_start|>system\n' + (first.content if first else 'You are a helpful assistant.') }}
{%- if tools %}
    {{- '\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments ' }}
    {{- 'within <tool_call></tool_call> XML tags:\n<tool_call>\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- elif not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content or not message.tool_calls %}{{- '\n' + (message.content or '') }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
"""ChatML with Hermes tools, laid out as in Qwen2.5: tools in the system message, results in a user turn."""


def tiny_model() -> Path:
    """Return the folder of a tiny model: random weights, 115 thousand parameters, for tests.

    The first call writes it to the cache. Raise ConfigError like `build_cached`.
    """
    return build_cached("tiny", (Path(__file__),), make_tiny_model)


def make_tiny_model(
    folder: Path,
    seed: int = 0,
    *,
    architecture: Architecture = "llama",
    hidden_size: int = 64,
    num_layers: int = 2,
) -> Path:
    """Write a random float32 model to `folder` and return the folder. The same arguments give the same bytes.

    `hidden_size` is a multiple of 32: heads have 16 dimensions, and two query heads share one key-value head. "qwen2"
    has biases on q, k and v. "qwen3" has norms on q and k. Raise ConfigError for another architecture or width.
    """
    if architecture not in get_args(Architecture):
        raise ConfigError(f"unknown architecture {did_you_mean(architecture, get_args(Architecture))}")
    if hidden_size % (2 * _HEAD) or hidden_size < 1:
        raise ConfigError(f"hidden_size is {hidden_size}, expected a multiple of {2 * _HEAD}")
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(architecture, hidden_size, num_layers)
    write_model(
        folder,
        config=config,
        weights=_weights(config, seed).items(),
        tokenizer=_tokenizer(),
        special_tokens={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        chat_template=TINY_CHAT_TEMPLATE,
    )
    return folder


def _config(architecture: Architecture, hidden: int, layers: int) -> dict[str, Any]:
    return {
        "architectures": [f"{_PREFIX[architecture]}ForCausalLM"],
        "model_type": architecture,
        "vocab_size": _VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // _HEAD,
        "num_key_value_heads": hidden // _HEAD // 2,
        "head_dim": _HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,  # gold episodes of the shipped domains have up to 16 thousand tokens
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 258,
        "pad_token_id": 256,
        "dtype": "float32",
    }


def _weights(config: dict[str, Any], seed: int) -> "dict[str, torch.Tensor]":
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):  # only names and shapes; tied weights are listed once
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return {name: _random_weight(name, shape, config["num_hidden_layers"], generator) for name, shape in shapes.items()}


def _random_weight(name: str, shape: "torch.Size", layers: int, generator: "torch.Generator") -> "torch.Tensor":
    import torch

    noise = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    if name == "model.embed_tokens.weight":
        return 0.1 * noise  # tied to the output layer: small, so that first predictions are nearly uniform
    into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
    return noise / math.sqrt(shape[1] * (2 * layers if into_residual else 1))


def _tokenizer() -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {letter: byte for byte, letter in enumerate(_byte_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in _SPECIALS])
    return tokenizer


def _byte_letters() -> list[str]:
    # GPT-2's byte alphabet: a printable byte maps to itself, the n-th other byte to character 256 + n.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]
