"""Checks of a program that plays episodes: what it sends, and that each of its sampled tokens is trained exactly once.

The program plays tasks with the model, for the log-probabilities. With scripted replies it plays each task twice, so
that any difference is its own, and once after a malformed call.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from understudy.core.messages import Message
from understudy.core.tasks import SPLITS, Task
from understudy.core.trajectory import TokenSequence, Trajectory
from understudy.engines.interface import Completion, SamplingParams, StreamingSampler, TokenCallback
from understudy.engines.models import find_model
from understudy.envs.task_source import TaskSource, find_tool_specs
from understudy.evaluation.evaluate import select_tasks
from understudy.formats import ChatFormat
from understudy.formats.signature import example_call
from understudy.rollouts.program import ProgramAgent, validate_program
from understudy.rollouts.rollout import attempt_episode
from understudy.runs.config import TrainConfig
from understudy.serve.generation import ServedModel
from understudy.serve.recording import OVERRIDDEN, UNCONSTRAINED
from understudy.serve.requests import ChatCompletionRequest
from understudy.train.certify.audit import audit_tokens
from understudy.train.certify.certificate import CertificateCheck, make_check
from understudy.train.certify.engine_checks import CertificationTarget, check_episodes

NUM_TASKS = 2
MALFORMED = '<tool_call>\n{"name": "broken", "arguments": {"a" 1 [}}\n</tool_call>'
_NAME = "program"


@dataclass(frozen=True, slots=True)
class ScriptedModel(ServedModel):
    """A model with scripted replies: one call of each of the first tools, then a text."""

    begins_malformed: bool = False

    def sampler_for(self, request: ChatCompletionRequest) -> StreamingSampler:
        """Return the sampler of the reply to a request."""
        return _ScriptedReply(self.sampler, self.format, self._reply(request))

    def _reply(self, request: ChatCompletionRequest) -> Message:
        replies = [message for message in request.conversation if message.role == "assistant"]
        if self.begins_malformed and not replies:
            return Message(role="assistant", content=MALFORMED)
        tools = request.callable_tools
        ends = [tool for tool in tools if tool.name.startswith("final_")]  # by which some frameworks end an episode
        called = [tool for tool in tools if tool not in ends][:2]
        if len(replies) < len(called):
            return Message(role="assistant", tool_calls=(example_call(called[len(replies)]),))
        return Message(role="assistant", content="Done.", tool_calls=tuple(map(example_call, ends[:1])))


class _ScriptedReply:
    """A sampler with one reply. Everything else is the model's."""

    def __init__(self, sampler: StreamingSampler, format: ChatFormat, reply: Message) -> None:
        self._sampler, self._format, self._reply = sampler, format, reply
        self.context_length = sampler.context_length

    def validate_sampling(self, sampling: SamplingParams) -> None:
        self._sampler.validate_sampling(sampling)

    async def sample(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        stop_tokens: Collection[int] = (),
        on_tokens: TokenCallback | None = None,
    ) -> Completion:
        tokens = self._format.encode_reply(self._reply)[: sampling.max_response_tokens]
        ended = tokens[-1] in stop_tokens
        return Completion(tokens, [-1.0] * len(tokens), "stop" if ended else "length", 0)

    def close(self) -> None:
        pass


async def check_program(config: TrainConfig, target: CertificationTarget) -> tuple[list[CertificateCheck], list[str]]:
    """Return the checks of a config's program, and notes on what it sends. Raise ConfigError if it cannot be found."""
    validate_program(config.agent)
    source = config.open_source()
    split = next((each for each in SPLITS if select_tasks(source, each, 1)), SPLITS[0])
    tasks = select_tasks(source, split, NUM_TASKS)

    engine = cast(StreamingSampler, target.engine)
    tokenizer = find_model(config.model) / "tokenizer.json"
    model = ServedModel(config.model, engine, target.format, target.vocabulary, tokenizer_file=tokenizer)
    scripted = ScriptedModel(config.model, engine, target.format, target.vocabulary)
    broken = ScriptedModel(config.model, engine, target.format, target.vocabulary, begins_malformed=True)

    async def play(played: ServedModel, tasks: Sequence[Task]) -> list[Trajectory]:
        is_scripted = isinstance(played, ScriptedModel)  # replies that nothing can constrain
        settings = config.agent.replace(constraints="off") if is_scripted else config.agent
        agent = ProgramAgent(settings, played, target.sampling)
        return [(await attempt_episode(source, task, agent, config.limits, config.seed))[0] for task in tasks]

    sampled, first, second = await play(model, tasks), await play(scripted, tasks), await play(scripted, tasks)
    (malformed,) = await play(broken, tasks[:1])
    faults = [f"task {e.task_id}: {e.error}" for e in (*sampled, *first, *second) if e.fault]
    checks = [make_check(_NAME, "plays its episodes", f"{3 * len(tasks)} episodes", faults)]
    if faults:
        return checks, []
    checks += (await check_episodes(target, sampled, lambda domain: find_tool_specs(source, domain), _NAME))[0]
    checks.append(_check_scripted(target, source, [*first, *second]))
    return checks, [*_describe(first), _describe_repetition(first, second), _describe_malformed(malformed)]


def _check_scripted(
    target: CertificationTarget, source: TaskSource, episodes: Sequence[Trajectory]
) -> CertificateCheck:
    decode = target.vocabulary.decode
    tools = [find_tool_specs(source, episode.domain) for episode in episodes]
    problems = [
        problem
        for episode, own in zip(episodes, tools, strict=True)
        for problem in audit_tokens(episode, target.format, own, decode)
    ]
    return make_check(_NAME, "tokens and masks with scripted calls", f"{len(episodes)} episodes", problems)


def _describe(episodes: Sequence[Trajectory]) -> Iterator[str]:
    """Yield what the program sends."""
    counts = Counter[str]()
    for episode in episodes:
        counts.update(episode.event_counts)
    replies, sequences = (
        sum(count) for count in zip(*((e.num_turns, len(e.sequences)) for e in episodes), strict=True)
    )
    tokens = sum(episode.num_tokens for episode in episodes)
    endpoints = [
        f"{counts[f'program/{name}']} to {name}" for name in ("chat", "responses") if counts[f"program/{name}"]
    ]
    yield (
        f"program: {replies} replies in {len(episodes)} episodes ({', '.join(endpoints)}); "
        f"{replies - sequences} of {replies} continue a sequence; {sequences} sequences, {tokens} tokens"
    )
    opened = Counter(kind for episode in episodes for kind in sequence_openings(episode))
    if opened:
        yield "program: new sequences: " + ", ".join(f"{kind} ({count})" for kind, count in sorted(opened.items()))
    for event, what in ((OVERRIDDEN, "sampling parameters dropped"), (UNCONSTRAINED, "constraints dropped")):
        fields = [f"{name.removeprefix(event)[1:]} ({counts[name]})" for name in counts if name.startswith(f"{event}/")]
        if fields:
            yield f"program: {what}: {', '.join(sorted(fields))}"
    if sessions := counts["program/mcp_sessions"]:
        yield f"program: {sessions} MCP sessions, {counts['program/own_calls']} calls that no reply has made"


def sequence_openings(episode: Trajectory) -> Iterator[str]:
    """Yield for each sequence but the first why it continues no other one."""
    for number, sequence in enumerate(episode.sequences[1:], 1):
        yield _opening(sequence, episode.sequences[:number])


def _opening(sequence: TokenSequence, earlier: Sequence[TokenSequence]) -> str:
    asked = sequence.messages[: sequence.reply_indices[0]]
    common, nearest = max(((_common(asked, other.messages), other) for other in earlier), key=lambda pair: pair[0])
    if common == len(asked) or common == len(nearest.messages):
        return "the same messages with other tools" if sequence.tools != nearest.tools else "the same messages again"
    if common and any(message.role != "system" for message in asked[:common]):
        return f"a changed {asked[common].role} message"
    return "a conversation of its own"


def _common(one: Sequence[Message], other: Sequence[Message]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _describe_repetition(first: Sequence[Trajectory], second: Sequence[Trajectory]) -> str:
    for one, other in zip(first, second, strict=True):
        calls, again = _calls(one), _calls(other)
        for number, (left, right) in enumerate(zip(calls, again, strict=False), 1):
            if left != right:
                return (
                    f"program: does not repeat: with the same replies, request {number} of task {one.task_id} differs"
                )
        if len(calls) != len(again):
            return f"program: does not repeat: {len(calls)} and {len(again)} requests for task {one.task_id}"
    return "program: repeats: the same replies gave the same requests"


def _calls(episode: Trajectory) -> list[tuple[int, list[int]]]:
    """Return the prompts of all replies, sorted, because parallel requests arrive in any order."""
    return sorted((start, s.tokens[:start]) for s in episode.sequences for start, _ in s.reply_spans())


def _describe_malformed(episode: Trajectory) -> str:
    if episode.error:
        return f"program: after a malformed call it fails: {episode.error}"
    replies = episode.num_turns - 1
    return f"program: after a malformed call it {f'gets {replies} further replies' if replies else 'ends'}"
