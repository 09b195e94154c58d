"""Checks of a chat format: its token ids, masks and parsing, on scripted conversations that the agent plays.

The token ids are compared with those of the model's own template. Intended differences are reported as deviations. Any
other difference is a failure.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolCall
from understudy.core.trajectory import Trajectory
from understudy.engines.interface import SamplingParams
from understudy.engines.scripted import ScriptedSampler
from understudy.formats import ChatFormat, FormatTokenizer
from understudy.rollouts.agent import EngineAgent
from understudy.rollouts.rollout import rollout
from understudy.train.certify.audit import audit_tokens, without_call_ids
from understudy.train.certify.certificate import CertificateCheck, make_check
from understudy.train.certify.conversations import (
    LIMITS,
    ScriptedConversation,
    ScriptedEnvironment,
    control_text_conversation,
    conversation_saying,
    history_saying,
    scripted_conversations,
)
from understudy.train.certify.model_template import (
    BORDERS_KEPT,
    CONTROL_TEXT_KEPT,
    CUT_REPLY_KEPT,
    RESULTS_KEPT,
    STRINGS_ESCAPED,
    THOUGHTS_KEPT,
    TOOLS_UNSUPPORTED,
    ModelTemplate,
    strip_escapes,
    strip_thoughts,
    strip_turn_opening,
)
from understudy.train.certify.token_diff import differing_places, first_mismatch, format_token_diff

FORMAT = "format"


async def check_format(
    folder: Path, format: ChatFormat, thinking: bool = False, today: date | None = None
) -> tuple[list[CertificateCheck], list[str]]:
    """Return the checks of a format, and its deviations from the template of the model in `folder`.

    `thinking` allows the model to think (`format.enable_thinking`). `today` is the date that the template prints, by
    default the current one.
    """
    checker = _FormatChecker(
        format, FormatTokenizer.load(folder / "tokenizer.json"), ModelTemplate(folder, thinking, today)
    )
    await checker.play_all()
    ids = checker.check("token ids equal the template's", checker.against_template, checker.rejected)
    checks = [
        ids if ids.passed else ids.replace(diff=checker.explain_tokenizer() + ids.diff),
        checker.check("earlier tokens never change", _prefixes),
        checker.check("masks cover the sampled tokens only", checker.masks),
        checker.check("re-encoded messages have the same ids", checker.audits),
        checker.check("parsed replies equal encoded ones", checker.readings),
        await checker.check_control(),
        checker.check_text(),
    ]
    return checks, list(checker.deviations)


@dataclass(frozen=True, slots=True)
class _PlayedConversation:
    """A conversation that the agent has played, with the prompt and the sampled tokens of each turn."""

    talk: ScriptedConversation
    episode: Trajectory
    prompts: list[list[int]]
    sampled: list[list[int]]

    def until(self, turn: int, replies: Sequence[Message]) -> list[Message]:
        """Return the conversation before reply `turn`, with `replies` in place of the recorded ones.

        Results get the ids of the calls in these replies.
        """
        messages, ids, place = list[Message](), iter(list[str]()), 0
        for message in self.episode.messages:
            if message.role == "assistant":
                if place == turn:
                    break
                message, place = replies[place], place + 1
                ids = iter([call.id for call in message.tool_calls])
            elif message.role == "tool":
                message = message.replace(tool_call_id=next(ids, ""))
            messages.append(message)
        return messages


async def _play(talk: ScriptedConversation, format: ChatFormat) -> _PlayedConversation:
    """Play a conversation with its scripted replies as sampled tokens, truncated to its `max_reply_tokens`."""
    whole = [format.encode_reply(turn.reply) for turn in talk.turns]
    longest = talk.max_reply_tokens or max(map(len, whole))
    sampler = ScriptedSampler(map(str, range(len(whole))), lambda place: whole[int(place)])
    agent = EngineAgent(sampler, format, SamplingParams(max_response_tokens=longest))
    episode = await rollout(talk.task, ScriptedEnvironment(talk), agent, LIMITS)
    return _PlayedConversation(talk, episode, sampler.prompts, [reply[:longest] for reply in whole])


@dataclass
class _FormatChecker:
    """Runs the checks of one format."""

    format: ChatFormat
    vocabulary: FormatTokenizer
    template: ModelTemplate
    played: list[_PlayedConversation] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    """Problems: conversations with a reply that the template accepts and the format refuses."""
    deviations: dict[str, None] = field(default_factory=dict)
    """Deviations in the order they were found."""

    async def play_all(self) -> None:
        """Play all conversations, except those with a reply that the format refuses.

        A refused conversation is a deviation if the template refuses it too or drops its text, or if the format
        declares a deviation. Else it is a problem. If it is refused for its text, it is played without.
        """
        for talk in scripted_conversations(self.vocabulary.added_tokens):
            try:
                self.played.append(await _play(talk, self.format))
            except ConfigError as error:
                if self.template.rejects(talk.messages, talk.tools):
                    self.deviations[f"{talk.name}: template and format refuse this conversation"] = None
                elif self.format.template_deviation or self.template.drops_text(talk.messages, talk.tools):
                    self.deviations[f"{talk.name}: {error}"] = None
                    with contextlib.suppress(ConfigError):  # it may refuse the calls too
                        self.played.append(await _play(talk.without_text_beside_calls(), self.format))
                else:
                    self.rejected.append(f"{talk.name}: the format refuses what the template accepts: {error}")

    def check(
        self, name: str, problems: Callable[[_PlayedConversation], Iterator[str]], known: Sequence[str] = ()
    ) -> CertificateCheck:
        """Return one check of all conversations. It reports the problems `known`, and those that `problems` finds."""
        all_problems = [*known, *(problem for played in self.played for problem in problems(played))]
        turns = sum(len(played.prompts) for played in self.played)
        tokens = sum(len(played.episode.tokens) for played in self.played)
        measurements = f"{len(self.played)} conversations, {turns} replies, {tokens} tokens"
        return make_check(FORMAT, name, measurements, all_problems)

    def against_template(self, played: _PlayedConversation) -> Iterator[str]:
        """Yield the first turn whose prompt differs from the template's without being a known deviation."""
        talk = played.talk
        known = not talk.tools or self.template.supports_tools(talk.tools)
        cut = [Message(role="assistant", content=self.vocabulary.decode(tokens)) for tokens in played.sampled]
        replies = (
            cut
            if talk.max_reply_tokens
            else [turn.reply if known else self._as_text(turn.reply) for turn in talk.turns]
        )
        for turn, prompt in enumerate(played.prompts):
            messages, tools = played.until(turn, replies), talk.tools if known else ()
            if self.template.rejects(messages, tools):
                self.deviations[f"{talk.name}: the template refuses this conversation, the format accepts it"] = None
                return
            expected = self.template.prompt(messages, tools)
            if talk.max_reply_tokens and not self._shows_results(messages, expected):
                self.deviations[RESULTS_KEPT] = None
                return
            encoded = prompt if known else self._without_tools(played, prompt)
            starts = [len(before) - len(prompt) + len(encoded) for before in played.prompts[:turn]]
            if not self._same(talk, encoded, expected, starts, deviates=bool(turn or talk.tools)):
                where = f"{talk.name}, before reply {turn + 1}: the token ids differ from the template's"
                yield f"{where}\n{format_token_diff(expected, encoded, self.vocabulary.decode)}"
                return

    def explain_tokenizer(self) -> str:
        """Return a text that is encoded otherwise by transformers, whose class for the model may change tokenizer.json.

        Return "" if there is none.
        """
        texts = (text for played in self.played for text in played.talk.texts)
        if text := next((text for text in texts if self.vocabulary.encode(text) != self.template.encode(text)), ""):
            return (
                f"transformers reads tokenizer.json as {self.template.tokenizer_class}, which encodes other ids, as of "
                f"{text!a:.60}: correct its normalizer and pre_tokenizer, or the model type in config.json\n\n"
            )
        return ""

    def _shows_results(self, messages: Sequence[Message], prompt: Sequence[int]) -> bool:
        """Return whether a prompt has the results of a conversation. Some templates drop those without a call."""
        text = self.vocabulary.decode(prompt)
        return all(self._round_tripped(message.content) in text for message in messages if message.role == "tool")

    def _same(
        self,
        talk: ScriptedConversation,
        encoded: list[int],
        expected: list[int],
        starts: Sequence[int],
        deviates: bool,
    ) -> bool:
        """Return whether both prompts are equal except for known deviations, and record these.

        `starts` are the places in `encoded` where earlier replies begin. If `deviates` is True, the format's declared
        deviation is allowed. It concerns tools and earlier messages only.
        """
        if encoded == expected:
            return True
        if self.format.template_deviation and deviates:
            self.deviations[self.format.template_deviation] = None
            return True
        encoded_text, expected_text = self.vocabulary.decode(encoded), self.vocabulary.decode(expected)
        if encoded_text != expected_text and strip_escapes(encoded_text) == strip_escapes(expected_text):
            self.deviations[STRINGS_ESCAPED] = None
            return True
        if encoded_text == expected_text and not differing_places(encoded, expected, starts):
            self.deviations[BORDERS_KEPT] = None
            return True
        deviations = [CONTROL_TEXT_KEPT] if talk.has_control_text else []
        if encoded_text != expected_text:
            deviations.append(THOUGHTS_KEPT)
            encoded_text, expected_text = strip_thoughts(encoded_text), strip_thoughts(expected_text)
            if self.format.template_deviation:
                encoded_text, expected_text = strip_turn_opening(encoded_text), strip_turn_opening(expected_text)
        if encoded_text != expected_text and talk.max_reply_tokens:
            deviations.append(CUT_REPLY_KEPT)
            encoded_text, expected_text = "".join(encoded_text.split()), "".join(expected_text.split())
        if not deviations or encoded_text != expected_text:
            return False
        self.deviations |= dict.fromkeys(deviations)
        return True

    def _as_text(self, reply: Message) -> Message:
        """Return a reply with its calls written as text, for a template without tools."""
        if reply.tool_calls:
            self.deviations[TOOLS_UNSUPPORTED] = None
        return Message(role="assistant", content=self.vocabulary.decode(self.format.encode_reply(reply)[:-1]))

    def _without_tools(self, played: _PlayedConversation, prompt: list[int]) -> list[int]:
        """Return the prompt without its list of tools: its part before the first reply is encoded without tools."""
        opening = played.talk.new_messages(0, None)
        return [*self.format.encode(opening, (), ()), *prompt[len(played.prompts[0]) :]]

    def masks(self, played: _PlayedConversation) -> Iterator[str]:
        """Yield a problem if the tokens under the mask are not the sampled ones."""
        episode = played.episode
        sampled = [token for reply in played.sampled for token in reply]
        masked = [token for token, is_sampled in zip(episode.tokens, episode.mask, strict=True) if is_sampled]
        if masked != sampled or episode.mask[0]:
            diff = format_token_diff(sampled, masked, self.vocabulary.decode)
            yield f"{played.talk.name}: the tokens under the mask are not the sampled ones\n{diff}"

    def audits(self, played: _PlayedConversation) -> Iterator[str]:
        """Yield the differences between an episode's tokens and its messages. See `audit_tokens`."""
        talk = played.talk
        return audit_tokens(played.episode, self.format, talk.tools, self.vocabulary.decode, talk.name)

    def readings(self, played: _PlayedConversation) -> Iterator[str]:
        """Yield the complete replies that differ after encoding and parsing."""
        for turn in () if played.talk.max_reply_tokens else played.talk.turns:
            read = self.format.parse(self.format.encode_reply(turn.reply), played.talk.tools).message
            if read != (wanted := self._readable(turn.reply)):
                yield f"{played.talk.name}: a reply differs when parsed\n  encoded  {wanted}\n  parsed   {read}"

    def _readable(self, reply: Message) -> Message:
        """Return the expected parse of a reply: no thoughts, no call ids, and text as the tokenizer decodes it."""
        content = self._round_tripped(strip_thoughts(reply.content).strip())
        calls = tuple(
            ToolCall(
                name=call.name,
                arguments=json.loads(self._round_tripped(json.dumps(call.arguments, ensure_ascii=False))),
            )
            for call in reply.tool_calls
        )
        return without_call_ids(reply.replace(content=content, tool_calls=calls))

    def _round_tripped(self, text: str) -> str:
        return self.vocabulary.decode(self.vocabulary.encode(text))

    async def check_control(self) -> CertificateCheck:
        """Check that text with the names of control tokens adds no control token to a prompt."""
        wild, tame = [
            await _play(t, self.format)
            for t in (control_text_conversation(self.vocabulary.added_tokens), conversation_saying("Look."))
        ]
        added = set(self.vocabulary.added_tokens.values())
        found_tokens, expected_tokens = (
            [t for t, is_sampled in zip(p.episode.tokens, p.episode.mask, strict=True) if t in added and not is_sampled]
            for p in (wild, tame)
        )
        diff = format_token_diff(expected_tokens, found_tokens, self.vocabulary.decode)
        problems = [f"{wild.talk.name}: the control tokens of the prompts differ\n{diff}"] if diff else []
        histories = [history_saying(text) for text in (wild.talk.system or "", "Look.")]
        if not self.template.rejects(histories[1], wild.talk.tools):
            shown, plain = (
                [t for t in self.format.encode(history, wild.talk.tools, ()) if t in added] for history in histories
            )
            if diff := format_token_diff(plain, shown, self.vocabulary.decode):
                problems.append(f"{wild.talk.name}: the control tokens of a history differ\n{diff}")
        figures = f"{len(expected_tokens)} control tokens in the prompts, {len(added)} in the vocabulary"
        return make_check(FORMAT, "text never becomes a control token", figures, problems)

    def check_text(self) -> CertificateCheck:
        """Check that decoding restores every text. If the model's own tokenizer does not, that is a deviation."""
        texts = [text for played in self.played for text in played.talk.texts]
        problems = []
        for text in texts:
            decoded = self._round_tripped(text)
            at = first_mismatch(text, decoded)
            if at is None:
                continue
            there, back = (ascii(each[max(0, at - 10) : at + 10]) for each in (text, decoded))
            pair = f"{there} is decoded as {back}"
            if decoded == self.template.tokenizer_round_trip(text):
                self.deviations[f"the model's tokenizer changes text: {pair}"] = None
            else:
                problems.append(pair)
        return make_check(FORMAT, "decoded tokens equal the text", f"{len(texts)} texts", problems)


def _prefixes(played: _PlayedConversation) -> Iterator[str]:
    """Yield the turns whose prompt does not begin with the previous turn's prompt and sampled tokens."""
    for turn in range(len(played.prompts) - 1):
        before = played.prompts[turn] + played.sampled[turn]
        at = first_mismatch(before, played.prompts[turn + 1][: len(before)])
        if at is not None:
            yield f"{played.talk.name}, reply {turn + 2}: token {at} of its prompt differs from the previous turn"
