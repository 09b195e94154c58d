"""Comparison of an episode's tokens with its messages: prompts are encoded again, sampled tokens are parsed again.

It needs no engine, so it works for scripted conversations and for episodes of a run.
"""

from collections.abc import Iterator, Sequence

from understudy.core.messages import Message, ToolSpec
from understudy.core.trajectory import Trajectory
from understudy.formats import ChatFormat
from understudy.train.certify.token_diff import Decode, format_token_diff


def audit_tokens(
    episode: Trajectory, format: ChatFormat, tools: Sequence[ToolSpec], decode: Decode, name: str = ""
) -> Iterator[str]:
    """Yield the errors in the tokens and the mask of an episode, each with a diff.

    The comparison ends at the first error that shifts all later positions. `tools` are those in the agent's prompt.
    `name` is the episode's name in the errors, by default its task and seed.
    """
    name = name or f"task {episode.task_id}, seed {episode.seed}"
    at = 0
    new = list[Message]()
    truncated = 0
    turn = 0
    for message in episode.messages:
        if message.role != "assistant":
            new.append(message)
            continue
        turn += 1
        prompt = format.encode(new, tools, episode.tokens[:at])
        start = at + len(prompt)
        end = _end(episode.mask, start)
        where = f"{name}, reply {turn}"
        if prompt != episode.tokens[at:start]:
            diff = format_token_diff(prompt, episode.tokens[at:end], decode, at)
            yield f"{where}: the prompt's tokens differ from the encoded messages\n{diff}"
            return
        if any(episode.mask[at:start]) or start == end:
            yield f"{where}: the mask does not start at its first token\n{_masked(episode, start, decode)}"
            return
        yield from _read_again(message, episode.tokens[start:end], format, tools, where)
        truncated += episode.tokens[end - 1] not in format.stop_token_ids
        at, new = end, []
    yield from _left_over(episode, at, truncated, name, decode)


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


def _left_over(episode: Trajectory, at: int, truncated: int, name: str, decode: Decode) -> Iterator[str]:
    if at != len(episode.tokens):
        yield f"{name}: tokens follow its last reply\n{_masked(episode, at, decode)}"
        return
    expected = episode.event_counts.get("truncated", 0) + episode.event_counts.get("stop_string", 0)
    if truncated != expected:
        problem = (
            f"{truncated} replies end without a stop token in the mask, but {expected} were truncated or ended by a "
            "stop string"
        )
        yield f"{name}: {problem}\n{_masked(episode, at, decode)}"


def _masked(episode: Trajectory, at: int, decode: Decode) -> str:
    """Return the tokens around a position, each with its mask, as lines."""
    rows = range(max(0, at - 4), min(len(episode.tokens), at + 4))
    lines = [
        f"{'>' if i == at else ' '} {i:>6}  {episode.tokens[i]} {decode([episode.tokens[i]])!r:<24}  "
        f"{'sampled' if episode.mask[i] else 'prompt'}"
        for i in rows
    ]
    return "\n".join(lines)
