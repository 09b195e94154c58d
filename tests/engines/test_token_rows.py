"""Tests of the rows of single tokens that are trained although embeddings and output head are frozen."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from support.untrained_calls import CALL_TOKENS, make_model_with_untrained_calls
from understudy.algorithms.batch import Batch, plan_microbatches
from understudy.algorithms.config import LossConfig
from understudy.core.errors import ConfigError
from understudy.engines.interface import SamplingParams
from understudy.engines.local.config import LocalEngineConfig
from understudy.engines.local.engine import LocalEngine
from understudy.engines.local.model import LocalModel
from understudy.engines.local.sampler_choice import _sends_adapters
from understudy.engines.local.scoring import compute_states, states_logprobs

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
OPEN, CLOSE = CALL_TOKENS
PROMPT = [257, *b"user", 258, 257, *b"assistant"]
REPLIES = ([OPEN, *b"find", CLOSE, 258], [OPEN, *b"note", CLOSE, 258], [*b"Done.", 258])
NLL = LossConfig(kind="nll")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_with_untrained_calls(tmp_path_factory.mktemp("model"), tied=request.param)


def open_engine(folder: Path, tokens: tuple[int, ...] = (OPEN, CLOSE), **settings: Any) -> LocalEngine:
    values = {"device": "cpu", "dtype": "float32", "finetune": "lora", "lora": {"rank": 4}} | settings
    return LocalEngine(folder, LocalEngineConfig.model_validate(values), trained_tokens=tokens)


def make_batch() -> Batch:
    """Return calls and a text after the same prompt. The second turn of the first has a call in its prompt."""
    rows = [PROMPT + reply for reply in REPLIES]
    masks = [[False] * len(PROMPT) + [True] * len(reply) for reply in REPLIES]
    rows[0], masks[0] = rows[0] + PROMPT + REPLIES[2], masks[0] + [False] * len(PROMPT) + [True] * len(REPLIES[2])
    batch = Batch.from_rows(rows, masks)
    return batch.replace(advantages=batch.mask / batch.mask.sum())


def tables(engine: LocalEngine) -> dict[str, Tensor]:
    """Return copies of the embeddings and the head."""
    network = engine._model.network
    ends = {"embeddings": network.get_input_embeddings(), "head": network.get_output_embeddings()}
    return {name: module.weight.detach().clone() for name, module in ends.items()}


def update(engine: LocalEngine, steps: int = 3, rate: float = 0.01) -> None:
    for _ in range(steps):
        asyncio.run(engine.update([make_batch()], NLL, rate))


def logprobs(engine: LocalEngine) -> Tensor:
    return asyncio.run(engine.compute_logprobs(make_batch())).logprobs


@pytest.mark.parametrize("settings", [{}, {"finetune": "full", "gradient_checkpointing": True}])
def test_gradients_equal_those_of_a_plain_model(folder: Path, settings: dict[str, Any]) -> None:
    config = LocalEngineConfig.model_validate({"device": "cpu", "dtype": "float32", "finetune": "lora"} | settings)
    model, batch = LocalModel(folder, config, trained_tokens=(OPEN, CLOSE)), make_batch()
    (microbatch,) = plan_microbatches(batch, 4096)
    states = compute_states(model, batch, microbatch)
    states_logprobs(model, states, batch)[0].sum().backward()  # type: ignore[no-untyped-call]
    assert model.token_rows is not None
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for row, mask, length in zip(batch.tokens, batch.mask, batch.lengths.tolist(), strict=True):
        scores = plain(row[None, :length]).logits[0, :-1].log_softmax(-1)
        scores.gather(1, row[1:length, None])[mask[1:length]].sum().backward()
    ends = {"model.embed_tokens": plain.get_input_embeddings(), "lm_head": plain.get_output_embeddings()}
    for name, rows in model.token_rows.tables.items():
        gradients = [row.grad for row in rows]
        assert all(gradient is not None and gradient.norm() > 1e-3 for gradient in gradients)
        assert torch.allclose(torch.stack(gradients), ends[name].weight.grad[[OPEN, CLOSE]], rtol=1e-3, atol=1e-4)  # type: ignore


@pytest.mark.parametrize("finetune", ["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_these_rows_change_and_the_sampler_has_them(folder: Path, finetune: str, dtype: str) -> None:
    engine = open_engine(folder, finetune=finetune, dtype=dtype)
    before = tables(engine)
    update(engine)
    for name, after in tables(engine).items():
        changed = (after != before[name]).any(1).nonzero()[:, 0].tolist()
        assert changed == [OPEN, CLOSE]
    done = asyncio.run(engine.sample([*PROMPT, OPEN], SamplingParams(max_response_tokens=8), 0))
    row = [*PROMPT, OPEN, *done.tokens]
    mask = [False] * (len(PROMPT) + 1) + [True] * len(done.tokens)
    trained = asyncio.run(engine.compute_logprobs(Batch.from_rows([row], [mask]))).logprobs[0, len(PROMPT) + 1 :]
    assert torch.allclose(trained, torch.tensor(done.logprobs), atol=engine.tolerance.max_diff)


def test_rows_have_five_times_the_learning_rate(folder: Path) -> None:
    """The first step of Adam changes each weight by the learning rate, whatever its gradient."""
    engine = open_engine(folder)
    before = {name: p.detach().clone() for name, p in engine._model.trainable_parameters().items()}
    update(engine, steps=1, rate=1e-3)
    for name, after in engine._model.trainable_parameters().items():
        if "lora_A" not in name:  # their gradient is 0 while lora_B is 0
            expected = 5e-3 if name.endswith("]") else 1e-3
            assert float((after.detach() - before[name]).abs().median()) == pytest.approx(expected, rel=1e-3)


def test_calls_are_learned_with_their_rows_and_not_without(folder: Path) -> None:
    """Without the rows, the five unused tokens have the same probability, so at most a fifth each."""
    with_rows, without = open_engine(folder), open_engine(folder, ())
    for engine in (with_rows, without):
        update(engine, steps=30, rate=4e-3)
    is_call = torch.isin(make_batch().tokens, torch.tensor([OPEN, CLOSE])) & make_batch().mask
    assert logprobs(with_rows)[is_call].exp().min() > 0.45  # two of three replies begin with a call
    assert logprobs(without)[is_call].exp().max() < 1 / 5 + 1e-3
    done = asyncio.run(with_rows.sample(PROMPT, SamplingParams(max_response_tokens=8, temperature=0), 0))
    assert done.tokens[0] == OPEN
    assert CLOSE in done.tokens


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_a_resumed_engine_equals_an_uninterrupted_one(folder: Path, tmp_path: Path, finetune: str) -> None:
    engine, resumed = open_engine(folder, finetune=finetune), open_engine(folder, finetune=finetune)
    update(engine)
    engine.save(tmp_path)
    resumed.load(tmp_path)
    for each in (engine, resumed):
        update(each)
    assert torch.equal(logprobs(engine), logprobs(resumed))
    evaluated = LocalEngine(folder, engine._config, trainable=False, trained_tokens=(OPEN, CLOSE))
    resumed.save(tmp_path)
    evaluated.load(tmp_path)
    assert torch.equal(logprobs(engine), logprobs(evaluated))
    with pytest.raises(ConfigError, match="not a checkpoint of this model"):
        open_engine(folder, (), finetune=finetune).load(tmp_path)


@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_an_export_has_the_rows(folder: Path, tmp_path: Path, finetune: str) -> None:
    engine = open_engine(folder, finetune=finetune)
    update(engine)
    engine.export(tmp_path, merge_adapters=True)
    exported = open_engine(tmp_path, ())
    assert torch.allclose(logprobs(exported), logprobs(engine), atol=1e-4)
    assert all(torch.equal(table, tables(engine)[name]) for name, table in tables(exported).items())


def test_adapters_have_the_rows_for_peft(folder: Path, tmp_path: Path) -> None:
    import peft

    engine = open_engine(folder)
    update(engine)
    engine.export(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(plain, str(tmp_path))
    row = torch.tensor([[*PROMPT, *REPLIES[0]]])
    scores = adapted(row).logits[0, :-1].log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]
    expected = logprobs(engine)[0, len(PROMPT) : row.shape[1]]
    assert torch.allclose(scores[len(PROMPT) - 1 :], expected, atol=1e-4)
    loaded = open_engine(folder)
    loaded.load_adapters(tmp_path)
    assert torch.equal(logprobs(loaded), logprobs(engine))


def test_a_reference_keeps_the_first_rows(folder: Path) -> None:
    engine = open_engine(folder)
    before = logprobs(engine)
    engine.set_reference()
    update(engine)
    after, now = logprobs(engine), asyncio.run(engine.compute_ref_logprobs(make_batch())).ref_logprobs
    assert not torch.allclose(after, before, atol=1e-2)
    assert torch.equal(now, before)
    assert torch.equal(logprobs(engine), after)


def test_all_embeddings_contain_the_rows(folder: Path) -> None:
    model = open_engine(folder, finetune="full", train_embeddings=True)._model
    assert model.token_rows is None
    assert not [name for name in model.trainable_parameters() if "[" in name]


def test_vllm_gets_merged_weights_with_rows_and_adapters_without(folder: Path, tmp_path: Path) -> None:
    with_rows, without = open_engine(folder)._model, open_engine(folder, ())._model
    assert not _sends_adapters(with_rows)
    assert _sends_adapters(without)
    with_rows.save_merged(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
