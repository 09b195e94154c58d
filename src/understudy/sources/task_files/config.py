"""DataConfig: the config section `[data]`, the files of tasks of a run; RowConfig: what plays their rows."""

from typing import Annotated

from pydantic import BeforeValidator

from understudy.core.records import Record

Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""A list of names, or one name."""


class RowConfig(Record):
    """What may play the rows of files."""

    sources: Names = ()
    """Sources that rows of files may name: `module:attribute`, `mcp:FILE` or a benchmark. A file alone cannot select
    code to run; shipped domains need no entry."""
    compare_calls: bool = False
    """Compare the calls of rows in the shapes of other projects with their gold calls, even if a source has the
    tools."""
    reward: str = ""
    """`module:attribute` that scores rows with questions and answers: a function `reward(transcript, example)` that
    returns a number from 0 to 1, or a class whose methods are tools: a subclass of `ToolEpisode`, or an environment of
    TRL."""
    require_reads: bool = False
    """Whether the gold reads of a task are required calls if nothing else is: no write and no fact to tell. Such tasks
    are refused otherwise. Only for tasks that are played by comparing calls."""


class DataConfig(RowConfig):
    """Files of tasks, besides those that `domain` names, and what may play them. See docs/data.md."""

    train: Names = ()
    """Files whose tasks are the training tasks, whatever split their rows name. `domain` then only plays them."""
    validation: Names = ()
    """Files whose tasks are the validation tasks, whatever split their rows name."""
    tests: dict[str, str] = {}
    """Test sets: a name of your choice -> a file or a domain. Each evaluation also plays their test tasks, or all tasks
    if no row names a split, and reports them as `eval/NAME/…`. Nothing is trained on them."""


NO_DATA = DataConfig()
