"""An episode's tokens against its messages: what was shown is encoded again, what was sampled is read again.

It asks no engine, so it is run on scripted talks and on live episodes alike.
"""

from collections.abc import Iterator, Sequence

from understudy.certify.differences import Decode, side_by_side
from understudy.formats import ChatFormat
from understudy.messages import Message, ToolSpec
from understudy.trajectory import Trajectory


def audit(
    episode: Trajectory, format: ChatFormat, tools: Sequence[ToolSpec], decode: Decode, name: str = ""
) -> Iterator[str]:
    """What is wrong with the tokens or the mask of an episode, with a diff, up to the first that shifts the rest.

    `tools` are those that the agent was shown; `name` says in the text which episode it is.
    """
    name = name or f"task {episode.task}, seed {episode.seed}"
    at, new, cut, turn = 0, list[Message](), 0, 0
    for message in episode.messages:
        if message.role != "assistant":
            new.append(message)
            continue
        turn += 1
        shown = format.encode(new, tools, episode.tokens[:at])
        start = at + len(shown)
        end = _end(episode.mask, start)
        where = f"{name}, reply {turn}"
        if shown != episode.tokens[at:start]:
            diff = side_by_side(shown, episode.tokens[at:end], decode, at)
            yield f"{where}: what it answers has other tokens\n{diff}"
            return
        if any(episode.mask[at:start]) or start == end:
            yield f"{where}: the mask does not begin with it\n{_masked(episode, start, decode)}"
            return
        yield from _read_again(message, episode.tokens[start:end], format, tools, where)
        cut += episode.tokens[end - 1] not in format.stop_tokens
        at, new = end, []
    yield from _left_over(episode, at, cut, name, decode)


def _end(mask: Sequence[bool], start: int) -> int:
    """Where the run of sampled tokens that begins at `start` ends."""
    return next((i for i in range(start, len(mask)) if not mask[i]), len(mask))


def _read_again(
    message: Message, sampled: Sequence[int], format: ChatFormat, tools: Sequence[ToolSpec], where: str
) -> Iterator[str]:
    early = [token for token in sampled[:-1] if token in format.stop_tokens]
    if early:
        yield f"{where}: it goes on after the stop token {early[0]}"
    elif sampled[-1] in format.stop_tokens:  # the agent drops the last call of a reply that was cut
        read = without_ids(format.parse(sampled, tools).message)
        if read != without_ids(message):
            yield f"{where}: its tokens read otherwise than its message\n  message  {message}\n  tokens   {read}"


def without_ids(message: Message) -> Message:
    """The message as `parse` reads it: ids of calls are given later."""
    return message.replace(tool_calls=tuple(call.replace(id="") for call in message.tool_calls))


def _left_over(episode: Trajectory, at: int, cut: int, name: str, decode: Decode) -> Iterator[str]:
    if at != len(episode.tokens):
        yield f"{name}: tokens follow its last reply\n{_masked(episode, at, decode)}"
        return
    expected = episode.counts.get("cut", 0) + episode.counts.get("stop_string", 0)
    if cut != expected:
        said = f"{cut} replies end without a stop token in the mask, {expected} were cut off or met a stop string"
        yield f"{name}: {said}\n{_masked(episode, at, decode)}"


def _masked(episode: Trajectory, at: int, decode: Decode) -> str:
    """The tokens around a place, each with its mask."""
    rows = range(max(0, at - 4), min(len(episode.tokens), at + 4))
    lines = [
        f"{'>' if i == at else ' '} {i:>6}  {episode.tokens[i]} {decode([episode.tokens[i]])!r:<24}  "
        f"{'sampled' if episode.mask[i] else 'shown'}"
        for i in rows
    ]
    return "\n".join(lines)
