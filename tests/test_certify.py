"""Certification: sound models pass, and every kind of defect that breaks token exactness fails the check that names it,
with a diff that shows where."""

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from contracts.test_formats import with_markup  # noqa: E402
from test_formats import THINKING  # noqa: E402
from test_formats_template import HEADERS, LLAMA  # noqa: E402
from test_train import metrics, rewarded, run_of, same, saved, trajectories  # noqa: E402
from understudy import certify as certification  # noqa: E402
from understudy.agent import EngineAgent  # noqa: E402
from understudy.batch import Batch  # noqa: E402
from understudy.certify import Certificate, as_json, as_text, subject_of  # noqa: E402
from understudy.certify.audit import audit  # noqa: E402
from understudy.certify.certificate import Check, outcome  # noqa: E402
from understudy.certify.differences import logprobs_beside, side_by_side  # noqa: E402
from understudy.certify.talks import SEVERAL_CALLS, TOOLS  # noqa: E402
from understudy.certify.template import LOOK_ALIKES, NO_TOOLS, THOUGHTS  # noqa: E402
from understudy.certify.tokens import check_format  # noqa: E402
from understudy.certify.watch import chosen  # noqa: E402
from understudy.certify.weights import check_engine, play  # noqa: E402
from understudy.config import TrainConfig  # noqa: E402
from understudy.engines.base import Completion, Sampling  # noqa: E402
from understudy.engines.local import engine as local  # noqa: E402
from understudy.engines.local.engine import LocalEngine  # noqa: E402
from understudy.errors import ConfigError, RolloutError  # noqa: E402
from understudy.formats import ChatFormat, ChatML, Parsed, Vocabulary, find  # noqa: E402
from understudy.formats.template import TemplateFormat  # noqa: E402
from understudy.messages import Message, ToolSpec  # noqa: E402
from understudy.models import make_tiny  # noqa: E402
from understudy.settings import parse  # noqa: E402
from understudy.tasks import Score, Task  # noqa: E402
from understudy.train.preparation import prepare  # noqa: E402
from understudy.trajectory import Trajectory  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers

IDS, EARLIER, MASKS, AGAIN, READ, CONTROL, TEXT = (
    "ids are the template's",
    "earlier tokens never change",
    "masks cover the sampled tokens only",
    "re-encoded messages have the same ids",
    "what is written is read back",
    "text never becomes a control token",
    "text comes back from its tokens",
)
MESSAGES, HOLDS, AGREE, MOVES, VERSION = (
    "tokens and masks are the messages'",
    "the batch holds the episodes",
    "log-probabilities agree",
    "an update moves them",
    "replies tell the weights' version",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def templated(folder: Path, template: str, tokens: Sequence[str], **special: str) -> Path:
    """A tiny model with another template and more added tokens."""
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_file(str(make_tiny(folder) / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | special))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def checked(folder: Path, format: ChatFormat | None = None) -> tuple[dict[str, Check], list[str]]:
    checks, deviations = asyncio.run(check_format(folder, format or find(folder)))
    return {check.name: check for check in checks}, deviations


def failed(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if not check.ok}


# ---- diffs, by hand ----


def test_two_sequences_side_by_side() -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    expected, found = (list(map(ord, text)) for text in ("abcdef\nxyz", "abcdefxy!"))
    assert side_by_side(expected, found, decode, 100).splitlines() == [
        "   place  expected                          found",
        "     102  99 'c'                            99 'c'",
        "     103  100 'd'                           100 'd'",
        "     104  101 'e'                           101 'e'",
        "     105  102 'f'                           102 'f'",
        r">    106  10 '\n'",
        "     107  120 'x'                           120 'x'",
        "     108  121 'y'                           121 'y'",
        ">    109  122 'z'                           33 '!'",
    ]
    assert side_by_side(expected, expected, decode) == ""
    long = list(range(65, 115))
    lines = side_by_side(long, [*long[:9], *long[10:]], decode).splitlines()
    assert len(lines) == 13
    assert [line[0] for line in lines].index(">") == 5
    assert sum(line.startswith(">") for line in lines) == 1, "all that follows a lost token is in its place again"


def test_log_probabilities_side_by_side() -> None:
    masks, sampler, trainer = [False, True, True], [0.0, -1.0, -2.0], [0.0, -1.0, -2.5]
    assert logprobs_beside([65, 66, 67], masks, sampler, trainer, 2, lambda ids: chr(ids[0])).splitlines() == [
        "   place  token                             mask     sampler     trainer  difference",
        "       0  65 'A'                            no",
        "       1  66 'B'                            yes     -1.00000    -1.00000    +0.00000",
        ">      2  67 'C'                            yes     -2.00000    -2.50000    -0.50000",
    ]


def test_a_certificate_as_text_and_json() -> None:
    checks = (outcome("format", "one", "3 ids", []), outcome("full", "two", "4 ids", list("abcde")))
    certificate = Certificate(model="m", format="F", checks=checks, deviations=("tools",), seconds=61.2)
    text = as_text(certificate)
    assert re.search(r"format +│ one +│ ok +│ 3 ids", text)
    assert re.search(r"full +│ two +│ FAILED +│ 5 differ; 4 ids", text)
    assert text.endswith(
        "as documented: tools\n\nfull: two: 5 differ; 4 ids\na\n\nb\n\nc\n\n… and 2 more\n\n"
        "1 of 2 checks failed, in 61 s"
    )
    assert (as_json(certificate)["ok"], as_json(certificate)["checks"][0]["ok"]) == (False, True)
    assert as_text(certificate.replace(checks=checks[:1])).endswith("\ncertified, in 61 s")


# ---- formats that are sound ----


def test_formats_are_certified(tiny: Path, tmp_path: Path) -> None:
    llama = templated(tmp_path / "llama", LLAMA, HEADERS, bos_token="<|begin|>")
    quiet = templated(tmp_path / "quiet", THINKING, ["<think>", "</think>"])
    several = "several calls in a reply: the template refuses it, and so does the format"
    for folder, kind, expected in (
        (tiny, ChatML, [LOOK_ALIKES]),
        (with_markup(tmp_path / "markup"), ChatML, [LOOK_ALIKES]),
        (llama, TemplateFormat, [several, LOOK_ALIKES]),
        (quiet, ChatML, [NO_TOOLS, THOUGHTS, LOOK_ALIKES]),
    ):
        checks, deviations = checked(folder)
        assert isinstance(find(folder), kind)
        assert not failed(checks), {check.diff for check in checks.values()}
        assert sorted(deviations) == sorted(expected), folder


def test_a_run_that_goes_on_another_day_tells_the_day_it_began(tmp_path: Path) -> None:
    dated = LLAMA.replace("{{- turn('system', system) }}", "{{- turn('system', strftime_now('%d %b %Y') + system) }}")
    folder = templated(tmp_path / "dated", dated, HEADERS, bos_token="<|begin|>")
    began, hello = date(2024, 7, 26), [Message(role="user", content="hello")]

    def told(format: ChatFormat) -> str:
        return Vocabulary.load(folder / "tokenizer.json").decode(format.encode(hello, (), ()))

    format = prepare(TrainConfig(model=str(folder)), began).format
    assert "26 Jul 2024" in told(format)
    assert date.today().strftime("%d %b %Y") in told(find(folder))
    checks, _ = asyncio.run(check_format(folder, format, today=began))
    assert all(check.ok for check in checks)
    checks, _ = asyncio.run(check_format(folder, format))
    assert not all(check.ok for check in checks), "the template of today says another date"


def test_a_thought_is_certified_where_the_model_has_one(tiny: Path, tmp_path: Path) -> None:
    without, thinking = checked(tiny)[0][IDS], checked(with_markup(tmp_path))[0][IDS]
    assert without.figures.startswith("10 talks, 28 replies, ")
    assert thinking.figures.startswith("11 talks, 31 replies, ")


def test_a_tokenizer_that_normalizes_is_a_deviation(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, normalizers

    file = make_tiny(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.save(str(file))
    checks, deviations = checked(tmp_path)
    assert not failed(checks)
    assert any(d.startswith("the model's tokenizer changes text: ") and "e\\u0301 A" in d for d in deviations)


# ---- formats that are not ----


class Broken:
    """A tiny model's format with one of its methods changed."""

    def __init__(self, folder: Path) -> None:
        self.inner = find(folder)
        self.vocabulary = Vocabulary.load(folder / "tokenizer.json")
        self.stop_tokens, self.deviation = self.inner.stop_tokens, self.inner.deviation

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        return self.inner.encode(new, tools, before)

    def render(self, reply: Message) -> list[int]:
        return self.inner.render(reply)

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Parsed:
        return self.inner.parse(tokens, tools)


class WithoutNewline(Broken):
    """The line break between turns is dropped."""

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        ids = super().encode(new, tools, before)
        if before:
            ids.remove(10)
        return ids


class WithoutStop(Broken):
    """What the model would have sampled lacks the token that ends it, which comes with the next turn."""

    def render(self, reply: Message) -> list[int]:
        return super().render(reply)[:-1]


class Careless(Broken):
    """Text becomes control tokens, as in most templates."""

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        text = self.vocabulary.decode(super().encode(new, tools, before))
        parts = re.split(r"(<\|\w+\|>)", text)
        pieces = (
            [self.vocabulary.added[p]] if p in self.vocabulary.added else self.vocabulary.encode(p) for p in parts
        )
        return [token for piece in pieces for token in piece]


class Forgetful(Broken):
    """Only the first call of a reply is read."""

    def parse(self, tokens: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Parsed:
        parsed = super().parse(tokens, tools)
        return dataclasses.replace(parsed, message=parsed.message.replace(tool_calls=parsed.message.tool_calls[:1]))


class Refusing(Broken):
    """Takes one call a reply, although the template takes several."""

    def render(self, reply: Message) -> list[int]:
        if len(reply.tool_calls) > 1:
            raise ConfigError("one call at once")
        return super().render(reply)


class Excused(Broken):
    """A token too many opens a conversation, in a format that shows tools otherwise on purpose."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deviation = "tools are told otherwise"

    def encode(self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[int]) -> list[int]:
        return [*([] if before else [10]), *super().encode(new, tools, before)]


def test_a_deviation_excuses_no_opening_without_tools(tiny: Path) -> None:
    checks, deviations = checked(tiny, Excused(tiny))
    assert failed(checks) == {IDS}
    assert re.findall(r".*before reply.*", checks[IDS].diff) == [
        "no tools, no system message, before reply 1: other ids than the template's"
    ]
    assert deviations == ["tools are told otherwise"]


@pytest.mark.parametrize(
    ("kind", "names", "shown"),
    [
        (Refusing, {IDS}, "several calls in a reply: the format refuses it, and the template does not: one call at"),
        (WithoutNewline, {IDS}, r"one call, before reply 2: other ids than the template's\n.*>    \d\d\d  10 '\\n'\n"),
        (
            WithoutStop,
            {AGAIN},
            r"one call: 2 replies end without a stop token .*, 0 were cut off or met a stop string\n",
        ),
        (Careless, {CONTROL}, r"the control tokens that are shown\n"),
        (Forgetful, {READ}, r"several calls in a reply\n  written  .*'W1'.*'W2'.*\n  read     .*'W1'.*"),
    ],
)
def test_a_broken_format_fails_with_a_diff(tiny: Path, kind: type[Broken], names: set[str], shown: str) -> None:
    checks, _ = checked(tiny, kind(tiny))
    assert failed(checks) == names
    assert re.search(shown, "\n".join(checks[name].diff for name in names), re.DOTALL)


class Retokenizing(EngineAgent):
    """Reads its episode as text, and tokenizes that anew before each reply."""

    async def act(
        self, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        vocabulary = self._format._vocabulary  # type: ignore[attr-defined]
        episode.tokens[:] = vocabulary.encode(vocabulary.decode(episode.tokens))[: len(episode.tokens)]
        return await super().act(task, episode, new, tools)


def test_tokenizing_twice_is_found(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.certify.tokens.EngineAgent", Retokenizing)
    checks, _ = checked(tiny)
    assert {IDS, EARLIER, AGAIN} <= failed(checks)
    assert "one call, reply 2: token 0 of what it answers is not what it was before" in checks[EARLIER].diff
    assert "257 '<|im_start|>'" in checks[IDS].diff


def shifted(mask: list[bool]) -> list[bool]:
    return [False, *mask[:-1]]


def without_last(mask: list[bool]) -> list[bool]:
    return [own and following for own, following in zip(mask, [*mask[1:], False], strict=True)]


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (shifted, r"several calls in a reply, reply 1: the mask does not begin with it\n"),
        (
            without_last,
            r"several calls in a reply: tokens follow its last reply\n(.*\n)*> +\d+  258 '<.im_end.>' +shown",
        ),
    ],
)
def test_a_wrong_mask_is_found(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[bool]], list[bool]], shown: str
) -> None:
    async def act(
        self: Any, task: Task, episode: Trajectory, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Message | None:
        reply = await EngineAgent.act(self, task, episode, new, tools)
        if episode.turns == len(SEVERAL_CALLS.turns):
            episode.mask[:] = change(episode.mask)
        return reply

    agent = type("Masking", (EngineAgent,), {"act": act})
    monkeypatch.setattr("understudy.certify.tokens.EngineAgent", agent)
    checks, _ = checked(tiny)
    assert failed(checks) == {MASKS, AGAIN}
    assert "several calls in a reply\n   place  expected " in checks[MASKS].diff
    assert re.search(shown, checks[AGAIN].diff)


def test_a_tokenizer_that_loses_text_is_found(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Vocabulary.encode
    monkeypatch.setattr(Vocabulary, "encode", lambda self, text: encode(self, text.replace("\u0301", "")))
    checks, _ = checked(tiny)
    assert failed(checks) == {IDS, TEXT}
    assert "e\\u0301 A\\u030a" in checks[TEXT].diff


# ---- engines ----


def config(model: Path, *settings: str) -> TrainConfig:
    return parse(TrainConfig, "", [f"model={model}", "engine.device=cpu", "engine.dtype=float32", *settings])


def engine_checks(tiny: Path, kind: type[LocalEngine], *settings: str) -> dict[str, Check]:
    """By name; those after the update have a name that says so."""
    cfg = config(tiny, *settings)
    subject = subject_of(cfg, tiny, kind(tiny, cfg.engine, cfg.seed), find(tiny))
    checks = asyncio.run(check_engine(subject, "full"))
    return {f"{check.name}, updated" if check.of.endswith("updated") else check.name: check for check in checks}


class Stale(LocalEngine):
    """Its sampler keeps the weights that it began with."""

    def __init__(self, folder: Path, *settings: Any) -> None:
        super().__init__(folder, *settings)
        self.first = LocalEngine(folder, *settings)

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        return await self.first.sample(prompt, sampling, seed, stop_tokens)


class Frozen(LocalEngine):
    """An update that changes nothing."""

    async def update(self, *_: Any) -> dict[str, float]:
        return {}


class Cold(LocalEngine):
    """Samples at another temperature than asked for."""

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        return await super().sample(prompt, sampling.replace(temperature=0.8), seed, stop_tokens)


class Shifted(LocalEngine):
    """Gives each token the log-probability of the one before."""

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_tokens: Collection[int] = ()
    ) -> Completion:
        reply = await super().sample(prompt, sampling, seed, stop_tokens)
        return dataclasses.replace(reply, logprobs=[0.0, *reply.logprobs[:-1]])


class Spilling(LocalEngine):
    """Reads log-probabilities of tokens that were not sampled."""

    async def forward(self, batch: Batch) -> Batch:
        read = await super().forward(batch)
        return read.with_(logprobs=read.logprobs.where(batch.mask, -1.0))


class Broke(LocalEngine):
    """Gives what is not a number for one token."""

    async def forward(self, batch: Batch) -> Batch:
        batch = await super().forward(batch)
        batch.logprobs[tuple(batch.mask.nonzero()[3])] = torch.nan
        return batch


@pytest.mark.parametrize(
    "settings",
    [(), ("engine.finetune=lora",), ("engine.dtype=bfloat16", "sampling.temperature=0", "sampling.max_tokens=3")],
)
def test_an_engine_is_certified(tiny: Path, settings: Sequence[str]) -> None:
    checks = engine_checks(tiny, LocalEngine, *settings)
    assert not failed(checks), as_text(Certificate(model="", format="", checks=tuple(checks.values())))
    both = (MESSAGES, HOLDS, AGREE)
    assert checks.keys() == {*both, MOVES, *(f"{name}, updated" for name in (*both, VERSION))}
    assert re.fullmatch(r"6 episodes, 21 replies, \d\d cut off", checks[MESSAGES].figures)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Stale, {f"{AGREE}, updated", f"{VERSION}, updated"}),
        (Frozen, {MOVES, f"{VERSION}, updated"}),
        (Cold, {AGREE, f"{AGREE}, updated"}),
        (Shifted, {AGREE, f"{AGREE}, updated"}),
        (Spilling, {HOLDS, f"{HOLDS}, updated"}),
        (Broke, {AGREE, f"{AGREE}, updated", MOVES}),
    ],
)
def test_a_broken_engine_fails_the_right_check(tiny: Path, kind: type[LocalEngine], names: set[str]) -> None:
    checks = engine_checks(tiny, kind)
    assert failed(checks) == names
    for name in names & {AGREE, f"{AGREE}, updated"}:
        lines = checks[name].diff.splitlines()
        assert re.fullmatch(r"row \d+, the token that is farthest apart", lines[0])
        assert re.fullmatch(r"   place  token +mask +sampler +trainer  difference", lines[1])
        (worst,) = (line for line in lines if line.startswith(">"))
        assert re.fullmatch(r">  +\d+  \d+ '.*' +yes +-?[\d.]+ +(-?[\d.]+ +[+-][\d.]+|nan +\+?nan)", worst)


def test_a_larger_slack_allows_more(tiny: Path) -> None:
    """Than `Cold` needs, which fails without."""
    assert failed(engine_checks(tiny, Cold, "certify.slack=1e4")) == {MOVES}, "which then could not be told apart"


def test_the_whole_proof_covers_both_ways_of_fine_tuning(tiny: Path) -> None:
    certificate = asyncio.run(certification.certify(config(tiny)))
    assert certificate.ok, as_text(certificate)
    assert [*dict.fromkeys(check.of for check in certificate.checks)] == [
        "format",
        *("full", "full, updated", "lora", "lora, updated", "full, unguessed"),
    ]
    named = asyncio.run(
        certification.certify(config(tiny, "engine.finetune=lora", "engine.rows=0", "sampling.max_tokens=2"))
    )
    assert [*dict.fromkeys(check.of for check in named.checks)] == ["format", "lora", "lora, updated"]


# ---- live episodes ----


@pytest.fixture
def episode(tiny: Path) -> tuple[Trajectory, ChatFormat, Vocabulary]:
    cfg = config(tiny)
    subject = subject_of(cfg, tiny, LocalEngine(tiny, cfg.engine), find(tiny))
    return asyncio.run(play(subject))[0], subject.format, subject.vocabulary


def test_an_audit_names_the_place(episode: tuple[Trajectory, ChatFormat, Vocabulary]) -> None:
    sound, format, vocabulary = episode
    spans = list(sound.spans())

    def found(**changes: Any) -> str:
        changed = dataclasses.replace(sound, **changes)
        return "\n".join(audit(changed, format, TOOLS, vocabulary.decode))

    def tokens(place: int, token: int) -> list[int]:
        return [*sound.tokens[:place], token, *sound.tokens[place + 1 :]]

    name = f"task {sound.task}, seed 0"
    assert found() == ""
    place = spans[0][1] + 1
    assert re.search(
        f"{name}, reply 2: what it answers has other tokens\n.*>  +{place}  ", found(tokens=tokens(place, 65)), re.S
    )
    assert f"{name}, reply 1: it goes on after the stop token 258" in found(tokens=tokens(spans[0][0] + 1, 258))
    assert f"{name}, reply 1: the mask does not begin with it" in found(mask=shifted(sound.mask))
    assert f"{name}: tokens follow its last reply" in found(tokens=[*sound.tokens, 65], mask=[*sound.mask, False])
    assert "replies end without a stop token in the mask, 0 were cut off" in found(counts={})
    other = tokens(spans[-1][1] - 1, 258)
    assert f"reply {len(spans)}: its tokens read otherwise than its message" in found(tokens=other)


def test_episodes_are_chosen_from_all_groups() -> None:
    def group(*scores: float | None) -> list[Trajectory]:
        made = [Trajectory("t", seed=i, score=None if s is None else Score(reward=s)) for i, s in enumerate(scores)]
        for one in made:
            one.observe((), [1])
            one.act(Message(role="assistant"), [2], [-1.0])
        return made

    groups = [group(0.0, None, 0.2), group(None, 1.1), [Trajectory("t", score=Score(reward=9.0))]]
    assert [e.reward for e in chosen(groups, 5)] == [0.0, 1.1, 0.2]
    assert [e.reward for e in chosen(groups, 1)] == [0.0]
    assert chosen([], 1) == []


@pytest.fixture
def varied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.domains.base.score", rewarded)


def test_training_certifies_every_few_steps_and_changes_nothing_by_it(varied: None, tiny: Path, tmp_path: Path) -> None:
    without, often = (run_of(tmp_path / str(n), tiny, f"certify.every={n}", "steps=4") for n in (0, 3))
    figures = [{k: v for k, v in line.items() if k.startswith("certify/")} for line in metrics(often)]
    assert [figure.keys() == {"certify/logprob_max", "certify/logprob_mean"} for figure in figures] == [
        *(False, False),  # imitation
        *(True, False, False, True),
    ]
    assert all(0 < f["certify/logprob_mean"] <= f["certify/logprob_max"] < 1e-4 for f in figures if f)
    plain = [{k: v for k, v in line.items() if not k.startswith("certify/")} for line in metrics(often)]
    assert plain == metrics(without)
    assert same(saved(often), saved(without))
    assert trajectories(often) == trajectories(without)


def test_a_run_stops_before_it_learns_from_what_the_trainer_reads_otherwise(
    varied: None, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LocalEngine", Stale)
    with pytest.raises(RolloutError) as stopped:
        run_of(tmp_path / "run", tiny)
    folder = re.escape(str(tmp_path / "run"))
    assert re.fullmatch(
        r"certification failed at step 3: step 3: log-probabilities agree: largest \S+, mean \S+, \d+ tokens; "
        rf"allowed 1.0e-03 and 1.0e-04; the diff is in {folder}/certify.txt; certify.halt=false would only warn",
        str(stopped.value),
    )
    assert "\n>  " in (tmp_path / "run" / "certify.txt").read_text()
    assert (tmp_path / "run" / "trajectories" / "step_000003.jsonl").exists(), "they can be looked at"


def test_a_run_may_only_warn(varied: None, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LocalEngine", Stale)
    with pytest.warns(RuntimeWarning, match="certification failed at step 3: step 3: log-probabilities agree") as told:
        run = run_of(tmp_path / "run", tiny, "certify.halt=false", "certify.every=9")
    assert len(told) == 1
    assert metrics(run)[2]["certify/logprob_max"] > 1e-3


def test_a_format_that_is_broken_stops_a_run_at_its_start(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.formats.configured", lambda *_, **__: WithoutNewline(tiny))
    with pytest.raises(RolloutError, match="certification failed at the start: format: ids are the template's: "):
        run_of(tmp_path / "run", tiny)
    assert not list((tmp_path / "run" / "evaluations").iterdir())
