"""Tests of certification: sound formats and engines pass, and each defect fails its check with a diff."""

import asyncio
import dataclasses
import json
import random
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.test_formats import make_markup_model
from support.branching import split_episode
from support.chat_templates import GEMMA, HEADERS, LLAMA, THINKING
from support.groups import make_group
from support.tiny_runs import (
    equal_values,
    load_checkpoint_files,
    run_episodes,
    score_distinct_characters,
    step_metrics,
    train_tiny_run,
)
from support.untrained_calls import make_model_with_untrained_calls
from understudy.algorithms.batch import Batch
from understudy.core.errors import ConfigError, RolloutError
from understudy.core.messages import Message, ToolSpec
from understudy.core.tasks import Score, Task
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import Completion, SamplingParams
from understudy.engines.local import engine as local
from understudy.engines.local.engine import LocalEngine
from understudy.engines.models import find_model, make_tiny_model
from understudy.formats import ChatFormat, ChatML, FormatTokenizer, ParsedMessage, load_chat_format
from understudy.formats.template import TemplateFormat
from understudy.rollouts.agent import EngineAgent
from understudy.rollouts.group import Group
from understudy.rollouts.rollout import EpisodeLimits
from understudy.runs.config import (
    TrainConfig,
    parse_config,
)
from understudy.train import certify as certification
from understudy.train.certify import Certificate, certificate_to_dict, format_certificate, make_certification_target
from understudy.train.certify.audit import audit_tokens
from understudy.train.certify.certificate import CertificateCheck, make_check
from understudy.train.certify.conversations import SEVERAL_CALLS, TOOLS
from understudy.train.certify.engine_checks import (
    ENGLISH,
    CertificationTarget,
    check_engine,
    check_tokenizer,
    sample_scripted_conversations,
)
from understudy.train.certify.format_checks import check_format
from understudy.train.certify.model_template import (
    BORDERS_KEPT,
    CONTROL_TEXT_KEPT,
    RESULTS_KEPT,
    THOUGHTS_KEPT,
    TOOLS_UNSUPPORTED,
)
from understudy.train.certify.run_certifier import select_episodes
from understudy.train.certify.token_diff import differing_places, format_logprob_diff, format_token_diff
from understudy.train.preparation import prepare_run

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers

IDS, EARLIER, MASKS, AGAIN, READ, CONTROL, TEXT = (
    "token ids equal the template's",
    "earlier tokens never change",
    "masks cover the sampled tokens only",
    "re-encoded messages have the same ids",
    "parsed replies equal encoded ones",
    "text never becomes a control token",
    "decoded tokens equal the text",
)
MESSAGES, HOLDS, AGREE, MOVES, VERSION = (
    "tokens and masks match the messages",
    "the batch equals the episodes",
    "log-probabilities agree",
    "an update changes them",
    "replies report the weights version",
)
FITS = "the tokenizer fits the weights"
DROPS = "which the chat template drops or moves"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def model_with_template(folder: Path, template: str, tokens: Sequence[str], **special: str) -> Path:
    """Return a tiny model with another chat template and more added tokens."""
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_file(str(make_tiny_model(folder) / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | special))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def run_format_checks(folder: Path, format: ChatFormat | None = None) -> tuple[dict[str, CertificateCheck], list[str]]:
    checks, deviations = asyncio.run(check_format(folder, format or load_chat_format(folder)))
    return {check.name: check for check in checks}, deviations


def failed_checks(checks: dict[str, CertificateCheck]) -> set[str]:
    return {name for name, check in checks.items() if not check.passed}


def test_token_diff_format() -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    expected, found = (list(map(ord, text)) for text in ("abcdef\nxyz", "abcdefxy!"))
    assert format_token_diff(expected, found, decode, 100).splitlines() == [
        "   index  expected                          found",
        "     102  99 'c'                            99 'c'",
        "     103  100 'd'                           100 'd'",
        "     104  101 'e'                           101 'e'",
        "     105  102 'f'                           102 'f'",
        r">    106  10 '\n'",
        "     107  120 'x'                           120 'x'",
        "     108  121 'y'                           121 'y'",
        ">    109  122 'z'                           33 '!'",
    ]
    assert format_token_diff(expected, expected, decode) == ""
    long = list(range(65, 115))
    lines = format_token_diff(long, [*long[:9], *long[10:]], decode).splitlines()
    assert len(lines) == 13
    assert [line[0] for line in lines].index(">") == 5
    assert sum(line.startswith(">") for line in lines) == 1, "all that follows a lost token is in its place again"


def test_places_that_differ_beyond_borders() -> None:
    found, expected = [1, 2, 34, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7]
    assert differing_places(found, found, []) == []
    assert differing_places(found, expected, []) == [2]
    assert differing_places(found, expected, [3]) == differing_places(found, expected, [2]) == []
    assert differing_places(found, expected, [4]) == [2]
    assert differing_places([*found, 8], [*expected, 9], [3]) == [6]


def test_tokens_at_the_border_of_prompt_and_reply_may_differ(tmp_path: Path) -> None:
    """The prompt ends with two line breaks, which this tokenizer joins to one token only if no letter follows."""
    folder = model_with_template(tmp_path, LLAMA, HEADERS, bos_token="<|begin|>")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"]["use_regex"] = True
    tokenizer["model"]["vocab"]["\u010a\u010a"] = tokenizer["model"]["vocab"].pop("\u00ff")  # no byte of UTF-8
    tokenizer["model"]["merges"] = [["\u010a", "\u010a"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    checks, deviations = run_format_checks(folder)
    assert not failed_checks(checks), {check.diff for check in checks.values()}
    assert BORDERS_KEPT in deviations


def test_logprob_diff_format() -> None:
    masks, sampler, trainer = [False, True, True], [0.0, -1.0, -2.0], [0.0, -1.0, -2.5]
    assert format_logprob_diff([65, 66, 67], masks, sampler, trainer, 2, lambda ids: chr(ids[0])).splitlines() == [
        "   index  token                             mask     sampler     trainer  difference",
        "       0  65 'A'                            no",
        "       1  66 'B'                            yes     -1.00000    -1.00000    +0.00000",
        ">      2  67 'C'                            yes     -2.00000    -2.50000    -0.50000",
    ]


def test_certificate_as_text_and_json() -> None:
    checks = (make_check("format", "one", "3 ids", []), make_check("full", "two", "4 ids", list("abcde")))
    certificate = Certificate(model="m", format="F", checks=checks, deviations=("tools",), seconds=61.2)
    text = format_certificate(certificate)
    assert re.search(r"format +│ one +│ ok +│ 3 ids", text)
    assert re.search(r"full +│ two +│ FAILED +│ 5 .*; 4 ids", text)
    assert re.search(r": tools\n\nfull: two: 5 .*4 ids\na\n\nb\n\nc\n\n.*\b2\b.*\n\n.*\b1 of 2\b.*\b61 s$", text)
    assert (certificate_to_dict(certificate)["passed"], certificate_to_dict(certificate)["checks"][0]["passed"]) == (
        False,
        True,
    )
    assert "FAILED" not in format_certificate(certificate.replace(checks=checks[:1]))


def test_sound_formats_pass_with_known_deviations(tiny: Path, tmp_path: Path) -> None:
    llama = model_with_template(tmp_path / "llama", LLAMA, HEADERS, bos_token="<|begin|>")
    gemma = model_with_template(tmp_path / "gemma", GEMMA, [*HEADERS, "<tool_call>", "</tool_call>"])
    moves = f"several calls in a reply: a reply has the text 'I look.' beside calls, {DROPS}"
    quiet = model_with_template(tmp_path / "quiet", THINKING, ["<think>", "</think>"])
    several = "several calls in a reply: template and format refuse this conversation"
    for folder, kind, count, expected in (
        (tiny, ChatML, 10, [CONTROL_TEXT_KEPT]),
        (make_markup_model(tmp_path / "markup"), ChatML, 11, [CONTROL_TEXT_KEPT]),
        (llama, TemplateFormat, 9, [several, CONTROL_TEXT_KEPT]),
        (gemma, TemplateFormat, 10, [moves, CONTROL_TEXT_KEPT, RESULTS_KEPT]),
        (quiet, ChatML, 11, [TOOLS_UNSUPPORTED, THOUGHTS_KEPT, CONTROL_TEXT_KEPT]),
    ):
        checks, deviations = run_format_checks(folder)
        assert isinstance(load_chat_format(folder), kind)
        assert not failed_checks(checks), {check.diff for check in checks.values()}
        assert sorted(deviations) == sorted(expected), folder
        assert checks[IDS].measurements.startswith(f"{count} conversations"), "several calls without text, if allowed"


def test_tokenizer_that_transformers_changes_is_named(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_5"}))
    checks, _ = run_format_checks(folder)
    assert failed_checks(checks) == {IDS}
    assert checks[IDS].diff.startswith("transformers reads tokenizer.json as Qwen3_5Tokenizer")
    assert run_format_checks(make_tiny_model(tmp_path / "sound"))[0][IDS].diff == ""


def test_resumed_run_renders_the_template_with_its_start_date(tmp_path: Path) -> None:
    dated = LLAMA.replace("{{- turn('system', system) }}", "{{- turn('system', strftime_now('%d %b %Y') + system) }}")
    folder = model_with_template(tmp_path / "dated", dated, HEADERS, bos_token="<|begin|>")
    start_date, hello = date(2024, 7, 26), [Message(role="user", content="hello")]

    def encode_as_text(format: ChatFormat) -> str:
        return FormatTokenizer.load(folder / "tokenizer.json").decode(format.encode(hello, (), ()))

    config = TrainConfig(model=str(folder), limits=EpisodeLimits(max_episode_tokens=20000))
    format = asyncio.run(prepare_run(config, start_date)).format
    assert "26 Jul 2024" in encode_as_text(format)
    assert date.today().strftime("%d %b %Y") in encode_as_text(load_chat_format(folder))
    checks, _ = asyncio.run(check_format(folder, format, today=start_date))
    assert all(check.passed for check in checks)
    checks, _ = asyncio.run(check_format(folder, format))
    assert not all(check.passed for check in checks), "the template of today says another date"


def test_thoughts_are_checked_for_models_with_thinking(tiny: Path, tmp_path: Path) -> None:
    without, thinking = run_format_checks(tiny)[0][IDS], run_format_checks(make_markup_model(tmp_path))[0][IDS]
    assert without.measurements.startswith("10 conversations, 28 replies, ")
    assert thinking.measurements.startswith("11 conversations, 31 replies, ")


def test_normalizing_tokenizer_is_reported_as_a_deviation(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, normalizers

    file = make_tiny_model(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.save(str(file))
    checks, deviations = run_format_checks(tmp_path)
    assert not failed_checks(checks)
    assert any("tokenizer" in d and "e\\u0301 A" in d for d in deviations)


class BrokenFormat:
    """The format of a tiny model, for subclasses that break one method."""

    def __init__(self, folder: Path) -> None:
        self.inner = load_chat_format(folder)
        self.vocabulary = FormatTokenizer.load(folder / "tokenizer.json")
        self.stop_token_ids, self.template_deviation = self.inner.stop_token_ids, self.inner.template_deviation

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        return self.inner.encode(messages, tools, prefix)

    def encode_reply(self, reply: Message) -> list[int]:
        return self.inner.encode_reply(reply)

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        return self.inner.parse(tokens, tools)


class WithoutNewline(BrokenFormat):
    """A format that drops the newline between turns."""

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        ids = super().encode(messages, tools, prefix)
        if prefix:
            ids.remove(10)
        return ids


class WithoutStop(BrokenFormat):
    """A format whose encoded replies lack the stop token."""

    def encode_reply(self, reply: Message) -> list[int]:
        return super().encode_reply(reply)[:-1]


class WithControlTokens(BrokenFormat):
    """A format that turns text into control tokens, as most templates do."""

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        text = self.vocabulary.decode(super().encode(messages, tools, prefix))
        parts = re.split(r"(<\|\w+\|>)", text)
        pieces = (
            [self.vocabulary.added_tokens[p]] if p in self.vocabulary.added_tokens else self.vocabulary.encode(p)
            for p in parts
        )
        return [token for piece in pieces for token in piece]


class WithControlTokensInHistories(WithControlTokens):
    """A format that turns text into control tokens only if a history with replies is encoded."""

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        replied = any(message.role == "assistant" for message in messages)
        return (super() if replied else super(WithControlTokens, self)).encode(messages, tools, prefix)


class FirstCallOnly(BrokenFormat):
    """A format that parses only the first call of a reply."""

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
        parsed = super().parse(tokens, tools)
        return dataclasses.replace(parsed, message=parsed.message.replace(tool_calls=parsed.message.tool_calls[:1]))


class SingleCallOnly(BrokenFormat):
    """A format that rejects several calls in a reply, although the template accepts them."""

    def encode_reply(self, reply: Message) -> list[int]:
        if len(reply.tool_calls) > 1:
            raise ConfigError("one call at once")
        return super().encode_reply(reply)


class ExtraOpeningToken(BrokenFormat):
    """A format with a declared deviation for tools that also adds a token to every conversation."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.template_deviation = "tools are told otherwise"

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prefix: Sequence[int]) -> list[int]:
        return [*([] if prefix else [10]), *super().encode(messages, tools, prefix)]


def test_tool_deviation_does_not_excuse_conversations_without_tools(tiny: Path) -> None:
    checks, deviations = run_format_checks(tiny, ExtraOpeningToken(tiny))
    assert failed_checks(checks) == {IDS}
    assert re.findall(r"^.*\breply \d", checks[IDS].diff, re.MULTILINE) == [
        "no tools, no system message, before reply 1"
    ]
    assert deviations == ["tools are told otherwise"]


@pytest.mark.parametrize(
    ("kind", "names", "shown"),
    [
        (SingleCallOnly, {IDS}, "several calls in a reply: .*one call at"),
        (WithoutNewline, {IDS}, r"one call, before reply 2: .*\n.*>    \d\d\d  10 '\\n'\n"),
        (
            WithoutStop,
            {AGAIN},
            r"one call: 2 .*\b0\b.*\n",
        ),
        (WithControlTokens, {CONTROL}, r"control tokens.*\n>? +index "),
        (WithControlTokensInHistories, {CONTROL}, r"control tokens of a history.*\n>? +index "),
        (FirstCallOnly, {READ}, r"several calls in a reply: [^\n]*\n  encoded  .*'W1'.*'W2'.*\n  parsed   .*'W1'.*"),
    ],
)
def test_broken_format_fails_its_check_with_a_diff(
    tiny: Path, kind: type[BrokenFormat], names: set[str], shown: str
) -> None:
    checks, _ = run_format_checks(tiny, kind(tiny))
    assert failed_checks(checks) == names
    assert re.search(shown, "\n".join(checks[name].diff for name in names), re.DOTALL)


class RetokenizingAgent(EngineAgent):
    """An agent that decodes and retokenizes the episode before each reply."""

    async def act(
        self, task: Task, episode: Trajectory, new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        vocabulary = self._format._tokenizer  # type: ignore[attr-defined]
        episode.tokens[:] = vocabulary.encode(vocabulary.decode(episode.tokens))[: len(episode.tokens)]
        return await super().act(task, episode, new_messages, tools)


def test_retokenizing_agent_is_detected(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.train.certify.format_checks.EngineAgent", RetokenizingAgent)
    checks, _ = run_format_checks(tiny)
    assert {IDS, EARLIER, AGAIN} <= failed_checks(checks)
    assert "one call, reply 2: token 0 " in checks[EARLIER].diff
    assert "257 '<|im_start|>'" in checks[IDS].diff


def shifted_mask(mask: list[bool]) -> list[bool]:
    return [False, *mask[:-1]]


def mask_without_last(mask: list[bool]) -> list[bool]:
    return [own and following for own, following in zip(mask, [*mask[1:], False], strict=True)]


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (shifted_mask, r"several calls in a reply, reply 1: the mask .*\n"),
        (
            mask_without_last,
            r"several calls in a reply: tokens follow its last reply\n(.*\n)*> +\d+  258 '<.im_end.>' +prompt",
        ),
    ],
)
def test_wrong_mask_is_detected(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[bool]], list[bool]], shown: str
) -> None:
    async def act(
        self: Any, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        reply = await EngineAgent.act(self, task, episode, new, tools)
        if episode.num_turns == len(SEVERAL_CALLS.turns):
            episode.mask[:] = change(episode.mask)
        return reply

    agent = type("Masking", (EngineAgent,), {"act": act})
    monkeypatch.setattr("understudy.train.certify.format_checks.EngineAgent", agent)
    checks, _ = run_format_checks(tiny)
    assert failed_checks(checks) == {MASKS, AGAIN}
    assert re.search(r"several calls in a reply: .*\n   index  expected ", checks[MASKS].diff)
    assert re.search(shown, checks[AGAIN].diff)


def test_lossy_tokenizer_is_detected(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = FormatTokenizer.encode
    monkeypatch.setattr(FormatTokenizer, "encode", lambda self, text: encode(self, text.replace("\u0301", "")))
    checks, _ = run_format_checks(tiny)
    assert failed_checks(checks) == {IDS, TEXT}
    assert "e\\u0301 A\\u030a" in checks[TEXT].diff


def config(model: Path, *settings: str) -> TrainConfig:
    return parse_config("", [f"model={model}", "engine.device=cpu", "engine.dtype=float32", *settings])


def engine_checks(tiny: Path, kind: type[LocalEngine], *settings: str) -> dict[str, CertificateCheck]:
    """Return the engine's checks by name; those after the update have the suffix ", updated"."""
    cfg = config(tiny, *settings)
    target = make_certification_target(cfg, tiny, kind(tiny, cfg.engine, cfg.seed), load_chat_format(tiny))
    checks = asyncio.run(check_engine(target, "full"))
    return {f"{check.name}, updated" if check.subject.endswith("updated") else check.name: check for check in checks}


class StaleSampler(LocalEngine):
    """An engine whose sampler keeps its initial weights."""

    def __init__(self, folder: Path, *settings: Any) -> None:
        super().__init__(folder, *settings)
        self.first = LocalEngine(folder, *settings)

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        return await self.first.sample(prompt, sampling, seed, stop_tokens)


class NoUpdate(LocalEngine):
    """An engine whose updates change nothing."""

    async def update(self, *_: Any) -> dict[str, float]:
        return {}


class SmallUpdates(LocalEngine):
    """An engine whose log-probabilities change less by one update than rounding may change them."""

    async def update(self, batches: Any, loss: Any, learning_rate: float, *_: Any) -> dict[str, float]:
        return await super().update(batches, loss, learning_rate / 12)


class WrongTemperature(LocalEngine):
    """An engine that samples at another temperature than requested."""

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        return await super().sample(prompt, sampling.replace(temperature=0.8), seed, stop_tokens)


class ShiftedLogprobs(LocalEngine):
    """An engine that reports each token's log-probability one token late."""

    async def sample(
        self, prompt: Sequence[int], sampling: SamplingParams, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        reply = await super().sample(prompt, sampling, seed, stop_tokens)
        return dataclasses.replace(reply, logprobs=[0.0, *reply.logprobs[:-1]])


class UnmaskedLogprobs(LocalEngine):
    """An engine that computes log-probabilities of tokens that were not sampled."""

    async def compute_logprobs(self, batch: Batch) -> Batch:
        read = await super().compute_logprobs(batch)
        return read.replace(logprobs=read.logprobs.where(batch.mask, -1.0))


class NaNLogprob(LocalEngine):
    """An engine that returns NaN for one token."""

    async def compute_logprobs(self, batch: Batch) -> Batch:
        batch = await super().compute_logprobs(batch)
        batch.logprobs[tuple(batch.mask.nonzero()[3])] = torch.nan
        return batch


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("engine.finetune=lora",),
        ("engine.dtype=bfloat16", "sampling.temperature=0", "sampling.max_response_tokens=3"),
    ],
)
def test_sound_engine_passes(tiny: Path, settings: Sequence[str]) -> None:
    checks = engine_checks(tiny, LocalEngine, *settings)
    assert not failed_checks(checks), format_certificate(
        Certificate(model="", format="", checks=tuple(checks.values()))
    )
    both = (MESSAGES, HOLDS, AGREE)
    assert checks.keys() == {*both, MOVES, *(f"{name}, updated" for name in (*both, VERSION))}
    assert re.fullmatch(r"6 episodes, 21 replies, \d\d truncated", checks[MESSAGES].measurements)


class KnownLosses:
    """An engine with a loss per token for English, and one for any other text."""

    context_length = 64

    def __init__(self, english: Sequence[int], losses: Sequence[float]) -> None:
        self.english, self.losses = english, losses

    async def compute_logprobs(self, batch: Batch) -> Batch:
        rows = [
            -self.losses[0 if set(tokens[mask].tolist()) <= set(self.english) else 1] * mask
            for tokens, mask in zip(batch.tokens, batch.mask, strict=True)
        ]
        return batch.replace(logprobs=torch.stack(rows))


@pytest.mark.parametrize(
    ("losses", "fits"),
    [((2.7, 13.2), True), ((12.6, 13.2), False), ((10.1, 14.9), False), ((11.3, 11.3), True)],
    ids=["its own", "shuffled", "of another model", "random weights"],
)
def test_tokenizer_of_other_weights_is_detected(losses: Sequence[float], fits: bool) -> None:
    folder = find_model("smollm2-135m")
    format, vocabulary = load_chat_format(folder), FormatTokenizer.load(folder / "tokenizer.json")
    engine: Any = KnownLosses(format.encode_reply(Message(role="assistant", content=ENGLISH)), losses)
    target = CertificationTarget(engine, format, vocabulary, SamplingParams())
    check = asyncio.run(check_tokenizer(target, "full"))
    assert (check.name, check.passed) == (FITS, fits)
    assert all(f"{loss:.1f}" in check.measurements for loss in losses)
    assert fits == ("tokenizer.json" not in check.diff)


@pytest.mark.slow
def test_shuffled_tokenizer_of_a_real_model_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(find_model("smollm2-135m"), tmp_path / "model")
    wire = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"] for token in wire["added_tokens"]}
    words = {word: place for word, place in wire["model"]["vocab"].items() if word not in added}
    places = random.Random(1).sample([*words.values()], len(words))
    wire["model"]["vocab"] |= dict(zip(words, places, strict=True))
    (folder / "tokenizer.json").write_text(json.dumps(wire))
    for path in (folder, find_model("smollm2-135m")):
        cfg = config(path, "engine.dtype=bfloat16")
        engine = LocalEngine(path, cfg.engine, cfg.seed, trainable=False)
        check = asyncio.run(check_tokenizer(make_certification_target(cfg, path, engine, load_chat_format(path)), ""))
        assert check.passed == (path != folder), check.measurements


def test_random_weights_may_need_several_updates_to_change(tiny: Path) -> None:
    checks = engine_checks(tiny, SmallUpdates, "engine.dtype=bfloat16")
    assert not failed_checks(checks)
    assert re.search(r"version 0 before the update, [2-4] after it", checks[f"{VERSION}, updated"].measurements)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (StaleSampler, {f"{AGREE}, updated", f"{VERSION}, updated"}),
        (NoUpdate, {MOVES, f"{VERSION}, updated"}),
        (WrongTemperature, {AGREE, f"{AGREE}, updated"}),
        (ShiftedLogprobs, {AGREE, f"{AGREE}, updated"}),
        (UnmaskedLogprobs, {HOLDS, f"{HOLDS}, updated"}),
        (NaNLogprob, {AGREE, f"{AGREE}, updated", MOVES}),
    ],
)
def test_broken_engine_fails_its_check(tiny: Path, kind: type[LocalEngine], names: set[str]) -> None:
    checks = engine_checks(tiny, kind)
    assert failed_checks(checks) == names
    for name in names & {AGREE, f"{AGREE}, updated"}:
        lines = checks[name].diff.splitlines()
        assert re.fullmatch(r"row \d+, .*", lines[0])
        assert re.fullmatch(r"   index  token +mask +sampler +trainer  difference", lines[1])
        (worst,) = (line for line in lines if line.startswith(">"))
        assert re.fullmatch(r">  +\d+  \d+ '.*' +yes +-?[\d.]+ +(-?[\d.]+ +[+-][\d.]+|nan +\+?nan)", worst)


def test_larger_tolerance_factor_accepts_larger_differences(tiny: Path) -> None:
    """`WrongTemperature` fails with the default tolerance."""
    assert failed_checks(engine_checks(tiny, WrongTemperature, "certify.tolerance_factor=1e6")) == {MOVES}, (
        "which then could not be told apart"
    )


@pytest.mark.slow
def test_certificate_covers_full_and_lora_finetuning(tiny: Path) -> None:
    certificate = asyncio.run(certification.certify(config(tiny)))
    assert certificate.passed, format_certificate(certificate)
    assert [*dict.fromkeys(check.subject for check in certificate.checks)] == [
        "format",
        *("full", "full, updated", "lora", "lora, updated", "full, without speculation"),
    ]
    named = asyncio.run(
        certification.certify(
            config(tiny, "engine.finetune=lora", "engine.max_draft_rows=0", "sampling.max_response_tokens=2")
        )
    )
    assert [*dict.fromkeys(check.subject for check in named.checks)] == ["format", "lora", "lora, updated"]


@pytest.mark.slow
@pytest.mark.parametrize("finetune", ["full", "lora"])
def test_certificate_names_untrained_control_tokens_and_checks_their_rows(tmp_path: Path, finetune: str) -> None:
    folder = make_model_with_untrained_calls(tmp_path)
    settings = f"engine.finetune={finetune}", "engine.max_draft_rows=0"
    certificate = asyncio.run(certification.certify(config(folder, *settings)))
    assert certificate.passed, format_certificate(certificate)
    (note,) = certificate.notes
    assert "<tool_call> </tool_call>" in note
    assert note in format_certificate(certificate)


@pytest.fixture
def episode(tiny: Path) -> tuple[Trajectory, ChatFormat, FormatTokenizer]:
    cfg = config(tiny)
    target = make_certification_target(cfg, tiny, LocalEngine(tiny, cfg.engine), load_chat_format(tiny))
    return asyncio.run(sample_scripted_conversations(target))[0], target.format, target.vocabulary


def test_audit_names_the_episode_reply_and_token(episode: tuple[Trajectory, ChatFormat, FormatTokenizer]) -> None:
    sound, format, vocabulary = episode
    spans = list(sound.reply_spans())

    def audit(**changes: Any) -> str:
        changed = dataclasses.replace(sound, **changes)
        return "\n".join(audit_tokens(changed, format, TOOLS, vocabulary.decode))

    def replace_token(place: int, token: int) -> list[int]:
        return [*sound.tokens[:place], token, *sound.tokens[place + 1 :]]

    name = f"task {sound.task_id}, seed 0"
    assert audit() == ""
    place = spans[0][1] + 1
    assert re.search(f"{name}, reply 2: .*\n.*>  +{place}  ", audit(tokens=replace_token(place, 65)), re.S)
    assert re.search(f"{name}, reply 1: .*\\b258\\b", audit(tokens=replace_token(spans[0][0] + 1, 258)))
    assert f"{name}, reply 1: " in audit(mask=shifted_mask(sound.mask))
    assert f"{name}: " in audit(tokens=[*sound.tokens, 65], mask=[*sound.mask, False])
    assert re.search(r"stop token.*\b0\b", audit(event_counts={}))
    other = replace_token(spans[-1][1] - 1, 258)
    assert f"reply {len(spans)}: " in audit(tokens=other)


def test_audit_checks_each_sequence(episode: tuple[Trajectory, ChatFormat, FormatTokenizer]) -> None:
    """A later sequence begins with the sampled tokens of another one, which encoding its messages would not give."""
    sound, format, vocabulary = episode
    split = split_episode(sound, [1, sound.num_turns - 1])
    assert list(audit_tokens(split, format, TOOLS, vocabulary.decode)) == []
    branch = split.branches[0]
    start = next(iter(branch.reply_spans()))[0]
    branch.tokens[start - 1] += 1
    (problem,) = audit_tokens(split, format, TOOLS, vocabulary.decode)
    assert f"seed {sound.seed}, sequence 2, reply 1: " in problem


def test_audited_episodes_are_selected_across_groups() -> None:
    def group(*scores: float | None) -> Group:
        made = [Trajectory("t", seed=i, score=None if s is None else Score(reward=s)) for i, s in enumerate(scores)]
        for one in made:
            one.observe((), [1])
            one.act(Message(role="assistant"), [2], [-1.0])
        return make_group(made)

    groups = [group(0.0, None, 0.2), group(None, 1.1), make_group([Trajectory("t", score=Score(reward=9.0))])]
    assert [e.reward for e in select_episodes(groups, 5)] == [0.0, 1.1, 0.2]
    assert [e.reward for e in select_episodes(groups, 1)] == [0.0]
    assert select_episodes([], 1) == []


@pytest.fixture
def varied_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.envs.domain.score_episode", score_distinct_characters)


@pytest.mark.slow
def test_periodic_certification_does_not_change_training(varied_rewards: None, tiny: Path, tmp_path: Path) -> None:
    without, often = (train_tiny_run(tmp_path / str(n), tiny, f"certify.every={n}", "steps=4") for n in (0, 3))
    figures = [{k: v for k, v in line.items() if k.startswith("certify/")} for line in step_metrics(often)]
    assert [figure.keys() == {"certify/logprob_diff_max", "certify/logprob_diff_mean"} for figure in figures] == [
        *(False, False),  # SFT
        *(True, False, False, True),
    ]
    assert all(0 < f["certify/logprob_diff_mean"] <= f["certify/logprob_diff_max"] < 1e-4 for f in figures if f)
    plain = [{k: v for k, v in line.items() if not k.startswith("certify/")} for line in step_metrics(often)]
    assert plain == step_metrics(without)
    assert equal_values(load_checkpoint_files(often), load_checkpoint_files(without))
    assert run_episodes(often) == run_episodes(without)


def test_run_stops_before_an_update_when_logprobs_differ(
    varied_rewards: None, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LocalEngine", StaleSampler)
    with pytest.raises(RolloutError) as stopped:
        train_tiny_run(tmp_path / "run", tiny)
    file = re.escape(str(tmp_path / "run" / "certify.txt"))
    assert re.search(
        rf"\bstep 3: .*\b\d+ tokens\b.*\b1\.0e-03\b.*\b1\.0e-04\b.*{file}.*certify\.stop_on_failure=false",
        str(stopped.value),
    )
    assert "\n>  " in (tmp_path / "run" / "certify.txt").read_text()
    assert (tmp_path / "run" / "trajectories" / "step_000003.jsonl").exists(), "they can be looked at"


def test_run_warns_when_stop_on_failure_is_off(
    varied_rewards: None, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LocalEngine", StaleSampler)
    with pytest.warns(RuntimeWarning, match=r"\bstep 3\b") as warnings:
        run = train_tiny_run(tmp_path / "run", tiny, "certify.stop_on_failure=false", "certify.every=9")
    assert len(warnings) == 1
    assert step_metrics(run)[2]["certify/logprob_diff_max"] > 1e-3


def test_new_run_with_the_tokenizer_of_other_weights_stops_at_its_start(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(target: CertificationTarget, name: str) -> CertificateCheck:
        return make_check(name, FITS, "English 12.6", ["problem"])

    monkeypatch.setattr("understudy.train.certify.run_certifier.check_tokenizer", check)
    with pytest.raises(RolloutError, match=rf"{FITS}: .*English 12\.6"):
        train_tiny_run(tmp_path / "run", tiny, "sft.steps=0")


def test_broken_format_stops_a_run_at_its_start(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.runs.model_format.chat_format_from_config", lambda *_, **__: WithoutNewline(tiny))
    with pytest.raises(RolloutError, match=rf"format: {IDS}: "):
        train_tiny_run(tmp_path / "run", tiny, "sft.steps=0")
    assert not list((tmp_path / "run" / "evaluations").iterdir())
