"""What a chat format has to hold, on scripted talks that the real agent plays: ids, masks, and reading back.

The ids are compared with those of the model's own template. Where a format does otherwise on purpose, that is told as a
deviation; whatever else differs has failed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from understudy.agent import EngineAgent
from understudy.certify.audit import audit, without_ids
from understudy.certify.certificate import Check, outcome
from understudy.certify.differences import first_difference, side_by_side
from understudy.certify.talks import LIMITS, Script, Talk, look_alikes, saying, talks
from understudy.certify.template import LOOK_ALIKES, NO_TOOLS, THOUGHTS, TRIMMED, Template, thoughtless, unopened
from understudy.engines.base import Sampling
from understudy.engines.scripted import ScriptedSampler
from understudy.errors import ConfigError
from understudy.formats import ChatFormat, Vocabulary
from understudy.messages import Message, ToolCall
from understudy.rollout import rollout
from understudy.trajectory import Trajectory

FORMAT = "format"


async def check_format(
    folder: Path, format: ChatFormat, thinking: bool = False, today: date | None = None
) -> tuple[list[Check], list[str]]:
    """The checks of a format, and its deviations from the template of the model in `folder`."""
    desk = _Desk(format, Vocabulary.load(folder / "tokenizer.json"), Template(folder, thinking, today))
    await desk.play_all()
    checks = [
        desk.check("ids are the template's", desk.against_template, desk.refused),
        desk.check("earlier tokens never change", _prefixes),
        desk.check("masks cover the sampled tokens only", desk.masks),
        desk.check("re-encoded messages have the same ids", desk.audits),
        desk.check("what is written is read back", desk.readings),
        await desk.check_control(),
        desk.check_text(),
    ]
    return checks, list(desk.deviations)


@dataclass(frozen=True, slots=True)
class _Played:
    """A talk that the agent has played: what it sampled from at each turn, and what was sampled."""

    talk: Talk
    episode: Trajectory
    prompts: list[list[int]]
    sampled: list[list[int]]

    def until(self, turn: int, replies: Sequence[Message]) -> list[Message]:
        """The conversation before reply `turn`, with these replies for those that were recorded."""
        given, messages = iter(replies), list[Message]()
        for message in self.episode.messages:
            if message.role == "assistant" and sum(m.role == "assistant" for m in messages) == turn:
                break
            messages.append(next(given) if message.role == "assistant" else message)
        return messages


async def _play(talk: Talk, format: ChatFormat) -> _Played:
    """The talk with its own replies as a sampler would have given them, cut where the talk says so."""
    whole = [format.render(turn.reply) for turn in talk.turns]
    longest = talk.cut or max(map(len, whole))
    sampler = ScriptedSampler(map(str, range(len(whole))), lambda place: whole[int(place)])
    agent = EngineAgent(sampler, format, Sampling(max_tokens=longest))
    episode = await rollout(talk.task, Script(talk), agent, LIMITS)
    return _Played(talk, episode, sampler.prompts, [reply[:longest] for reply in whole])


@dataclass
class _Desk:
    """Where one format is looked at."""

    format: ChatFormat
    vocabulary: Vocabulary
    template: Template
    played: list[_Played] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    deviations: dict[str, None] = field(default_factory=dict)
    """In the order in which they were met."""

    async def play_all(self) -> None:
        """Play every talk; one with a reply that format and template both refuse is left out."""
        for talk in talks(self.vocabulary.added):
            try:
                self.played.append(await _play(talk, self.format))
            except ConfigError as error:
                if self.template.refuses(talk.whole, talk.tools):
                    self.deviations[f"{talk.name}: the template refuses it, and so does the format"] = None
                elif self.format.deviation:
                    self.deviations[f"{talk.name}: {error}"] = None
                else:
                    self.refused.append(f"{talk.name}: the format refuses it, and the template does not: {error}")

    def check(self, name: str, problems: Callable[[_Played], Iterator[str]], known: Sequence[str] = ()) -> Check:
        """One check over all talks, with problems that are known before."""
        found = [*known, *(problem for played in self.played for problem in problems(played))]
        turns = sum(len(played.prompts) for played in self.played)
        tokens = sum(len(played.episode.tokens) for played in self.played)
        return outcome(FORMAT, name, f"{len(self.played)} talks, {turns} replies, {tokens} ids", found)

    def against_template(self, played: _Played) -> Iterator[str]:
        """Each turn's prompt against the template's."""
        talk = played.talk
        known = not talk.tools or self.template.knows(talk.tools)
        cut = [Message(role="assistant", content=self.vocabulary.decode(tokens)) for tokens in played.sampled]
        replies = cut if talk.cut else [turn.reply if known else self._as_text(turn.reply) for turn in talk.turns]
        for turn, prompt in enumerate(played.prompts):
            messages, shown = played.until(turn, replies), talk.tools if known else ()
            if self.template.refuses(messages, shown):
                self.deviations[f"{talk.name}: the template has no way to say it; the format has"] = None
                return
            theirs = self.template.prompt(messages, shown)
            ours = prompt if known else self._without_tools(played, prompt)
            if not self._same(talk, ours, theirs, deviates=bool(turn or talk.tools)):
                where = f"{talk.name}, before reply {turn + 1}: other ids than the template's"
                yield f"{where}\n{side_by_side(theirs, ours, self.vocabulary.decode)}"
                return

    def _same(self, talk: Talk, ours: list[int], theirs: list[int], deviates: bool) -> bool:
        """Whether both are the same, but for known deviations, which are noted.

        A format that does otherwise may do so where it `deviates`: in how it shows tools, and in what was said before.
        """
        if ours == theirs:
            return True
        if self.format.deviation and deviates:
            self.deviations[self.format.deviation] = None
            return True
        one, other = self.vocabulary.decode(ours), self.vocabulary.decode(theirs)
        found = [LOOK_ALIKES] if talk.look_alikes else []
        if one != other:
            found.append(THOUGHTS)
            one, other = thoughtless(one), thoughtless(other)
            if self.format.deviation:
                one, other = unopened(one), unopened(other)
        if one != other and talk.cut:
            found.append(TRIMMED)
            one, other = "".join(one.split()), "".join(other.split())
        if not found or one != other:
            return False
        self.deviations |= dict.fromkeys(found)
        return True

    def _as_text(self, reply: Message) -> Message:
        """A reply for a template that knows no tools: its calls are text."""
        if reply.tool_calls:
            self.deviations[NO_TOOLS] = None
        return Message(role="assistant", content=self.vocabulary.decode(self.format.render(reply)[:-1]))

    def _without_tools(self, played: _Played, prompt: list[int]) -> list[int]:
        """The prompt with an opening that shows no tools."""
        opening = played.talk.new(0, None)
        return [*self.format.encode(opening, (), ()), *prompt[len(played.prompts[0]) :]]

    def masks(self, played: _Played) -> Iterator[str]:
        """The masked tokens against what was sampled."""
        episode = played.episode
        sampled = [token for reply in played.sampled for token in reply]
        masked = [token for token, own in zip(episode.tokens, episode.mask, strict=True) if own]
        if masked != sampled or episode.mask[0]:
            yield f"{played.talk.name}\n{side_by_side(sampled, masked, self.vocabulary.decode)}"

    def audits(self, played: _Played) -> Iterator[str]:
        """What the audit of live episodes finds."""
        talk = played.talk
        return audit(played.episode, self.format, talk.tools, self.vocabulary.decode, talk.name)

    def readings(self, played: _Played) -> Iterator[str]:
        """Each reply written and read, but for those that are cut off."""
        for turn in () if played.talk.cut else played.talk.turns:
            read = self.format.parse(self.format.render(turn.reply), played.talk.tools).message
            if read != (wanted := self._readable(turn.reply)):
                yield f"{played.talk.name}\n  written  {wanted}\n  read     {read}"

    def _readable(self, reply: Message) -> Message:
        """What is to be read of a reply: no thoughts, no ids of calls, and text as the tokenizer gives it back."""
        content = self._kept(thoughtless(reply.content).strip())
        calls = tuple(
            ToolCall(name=call.name, arguments=json.loads(self._kept(json.dumps(call.arguments, ensure_ascii=False))))
            for call in reply.tool_calls
        )
        return without_ids(reply.replace(content=content, tool_calls=calls))

    def _kept(self, text: str) -> str:
        return self.vocabulary.decode(self.vocabulary.encode(text))

    async def check_control(self) -> Check:
        """The added tokens in what is shown, where texts look like them and where they do not."""
        wild, tame = [await _play(t, self.format) for t in (look_alikes(self.vocabulary.added), saying("Look."))]
        added = set(self.vocabulary.added.values())
        found, expected = (
            [t for t, own in zip(p.episode.tokens, p.episode.mask, strict=True) if t in added and not own]
            for p in (wild, tame)
        )
        diff = side_by_side(expected, found, self.vocabulary.decode)
        problems = [f"{wild.talk.name}: the control tokens that are shown\n{diff}"] if diff else []
        figures = f"{len(expected)} control tokens shown, {len(added)} that text could be taken for"
        return outcome(FORMAT, "text never becomes a control token", figures, problems)

    def check_text(self) -> Check:
        """All that is said, encoded and decoded; what the model's own tokenizer changes is a deviation."""
        texts = [text for played in self.played for text in played.talk.texts]
        problems = []
        for text in texts:
            kept = self._kept(text)
            at = first_difference(text, kept)
            if at is None:
                continue
            there, back = (ascii(each[max(0, at - 10) : at + 10]) for each in (text, kept))
            pair = f"{there} comes back as {back}"
            if kept == self.template.round_trip(text):
                self.deviations[f"the model's tokenizer changes text: {pair}"] = None
            else:
                problems.append(pair)
        return outcome(FORMAT, "text comes back from its tokens", f"{len(texts)} texts", problems)


def _prefixes(played: _Played) -> Iterator[str]:
    """What each turn samples from has to begin with what the turn before sampled from, and what it sampled."""
    for turn in range(len(played.prompts) - 1):
        before = played.prompts[turn] + played.sampled[turn]
        at = first_difference(before, played.prompts[turn + 1][: len(before)])
        if at is not None:
            yield f"{played.talk.name}, reply {turn + 2}: token {at} of what it answers is not what it was before"
