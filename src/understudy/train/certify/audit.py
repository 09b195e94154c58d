"""Comparison of an episode's tokens with its messages: prompts are encoded again, sampled tokens are parsed again.

It needs no engine, so it works for scripted conversations and for episodes of a run.
"""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message, ToolSpec
from understudy.core.trajectory import TokenSequence, Trajectory
from understudy.formats import ChatFormat
from understudy.train.certify.token_diff import Decode, format_token_diff


def audit_tokens(
    episode: Trajectory, format: ChatFormat, tools: Sequence[ToolSpec], decode: Decode, name: str = ""
) -> Iterator[str]:
    """Yield the errors in the tokens and the masks of an episode, each with a diff.

    The comparison of a sequence ends at the first error that shifts all later positions. `tools` are those of the
    environment. `name` is the episode's name in the errors, by default its task and seed.
    """
    name = name or f"task {episode.task_id}, seed {episode.seed}"
    wrong = False
    for number, sequence in enumerate(episode.sequences, 1):
        part = f"{name}, sequence {number}" if episode.branches else name
        begin = _shared_history(sequence, episode)
        for problem in _audit_sequence(sequence, begin, format, sequence.shown_tools(tools), decode, part):
            wrong = True
            yield problem
    if not wrong:
        yield from _audit_truncated(episode, format, name, decode)


def _shared_history(sequence: TokenSequence, episode: Trajectory) -> tuple[int, int]:
    """Return how many messages and tokens a sequence has in common with another one, up to a reply of the other."""
    found = 0, 0
    for other in episode.sequences:
        for place, (_, end) in zip(other.reply_indices, other.reply_spans(), strict=False):
            if place in sequence.given_replies and sequence.tokens[:end] == other.tokens[:end]:
                found = max(found, (place + 1, end))
    return found


def _audit_sequence(
    sequence: TokenSequence,
    begin: tuple[int, int],
    format: ChatFormat,
    tools: Sequence[ToolSpec],
    decode: Decode,
    name: str,
) -> Iterator[str]:
    """Yield the errors of a sequence after its first messages and tokens, whose numbers are `begin`."""
    known, at = begin
    new = list[Message]()
    turn = 0
    replies = set(sequence.reply_indices)
    for index, message in enumerate(sequence.messages[known:], known):
        if index not in replies:
            new.append(message)
            continue
        turn += 1
        prompt = format.encode(new, tools, sequence.tokens[:at])
        start = at + len(prompt)
        end = _end(sequence.mask, start)
        where = f"{name}, reply {turn}"
        if prompt != sequence.tokens[at:start]:
            diff = format_token_diff(prompt, sequence.tokens[at:end], decode, at)
            yield f"{where}: the prompt's tokens differ from the encoded messages\n{diff}"
            return
        if any(sequence.mask[at:start]) or start == end:
            yield f"{where}: the mask does not start at its first token\n{_masked(sequence, start, decode)}"
            return
        yield from _read_again(message, sequence.tokens[start:end], format, tools, where)
        at, new = end, []
    if at != len(sequence.tokens):
        yield f"{name}: tokens follow its last reply\n{_masked(sequence, at, decode)}"


def _end(mask: Sequence[bool], start: int) -> int:
    """Return the end of the sampled tokens that begin at `start`."""
    return next((i for i in range(start, len(mask)) if not mask[i]), len(mask))


def _read_again(
    message: Message, sampled: Sequence[int], format: ChatFormat, tools: Sequence[ToolSpec], where: str
) -> Iterator[str]:
    early = [token for token in sampled[:-1] if token in format.stop_token_ids]
    if early:
        yield f"{where}: sampled tokens follow the stop token {early[0]}"
    elif sampled[-1] in format.stop_token_ids:  # the agent drops the last call of a truncated reply
        read = without_call_ids(format.parse(sampled, tools).message)
        if read != without_call_ids(message):
            yield f"{where}: its parsed tokens differ from its message\n  message  {message}\n  parsed   {read}"


def without_call_ids(message: Message) -> Message:
    """Return the message without call ids, which are assigned after parsing."""
    return message.replace(tool_calls=tuple(call.replace(id="") for call in message.tool_calls))


def _audit_truncated(episode: Trajectory, format: ChatFormat, name: str, decode: Decode) -> Iterator[str]:
    last = [sequence.tokens[end - 1] for sequence in episode.sequences for _, end in sequence.reply_spans()]
    truncated = sum(token not in format.stop_token_ids for token in last)
    expected = episode.event_counts.get("truncated", 0) + episode.event_counts.get("stop_string", 0)
    if truncated != expected:
        problem = (
            f"{truncated} replies end without a stop token in the mask, but {expected} were truncated or ended by a "
            "stop string"
        )
        yield f"{name}: {problem}\n{_masked(episode, len(episode.tokens), decode)}"


def _masked(sequence: TokenSequence, at: int, decode: Decode) -> str:
    """Return the tokens around a position, each with its mask, as lines."""
    rows = range(max(0, at - 4), min(len(sequence.tokens), at + 4))
    lines = [
        f"{'>' if i == at else ' '} {i:>6}  {sequence.tokens[i]} {decode([sequence.tokens[i]])!r:<24}  "
        f"{'sampled' if sequence.mask[i] else 'prompt'}"
        for i in rows
    ]
    return "\n".join(lines)
