"""Follow each page for people with tools, data or a server of their own: all its blocks in order, in one empty folder.

A block runs as it stands on the page. Three things stand in for what a CPU without a network lacks:

    `train`, `certify` and `doctor` in blocks marked "minutes"   get the settings TINY after those of the page
    `view`                                                       gets --text, since it would serve until Ctrl-C
    `apt-get`, `git`, `make` and `activate` of the README        do not install; `make train` is a run of preset smoke
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import pages
from support.pages import Block
from support.shell import shell_environment
from support.warm_program import warm_program

TINY = (
    "model=tiny engine.sampler=torch steps=1 sft.steps=1 sft.batch_size=2 algorithm.groups_per_batch=1 "
    "algorithm.group_size=2 algorithm.max_resampled_groups=0 "
    "sampling.max_response_tokens=32 limits.max_episode_tokens=4000 eval.tasks=2"
)
PROGRAM = """case "$1" in
train|doctor) UNDERSTUDY "$@" $TINY ;;
certify)
    if [ "$TINY" ]; then
        shift 2
        UNDERSTUDY certify tiny "$@" ${TINY#model=tiny}
    else
        UNDERSTUDY "$@"
    fi ;;
view) UNDERSTUDY "$@" --text ;;
*) UNDERSTUDY "$@" ;;
esac"""
STAND_INS = {
    "apt-get": "test $1 = install",
    # a run asks git for the commit of the package's folder, where nothing may be written
    "git": '[ "$1" = clone ] && mkdir -p understudy/.venv/bin && touch understudy/.venv/bin/activate',
    "make": "test $1 = test || understudy train smoke --out runs/retail_quick-001",
}
SUBSTITUTED = {"minutes", "minutes with a model"}
"""The reasons not to run a block as it stands for which it runs with a tiny model."""
PATHS = ["README.md", *(f"docs/{name}.md" for name in ("own_tools", "dataset", "database", "mcp", "gpus"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PATHS)
def test_page_is_a_path_from_an_empty_folder_to_a_trained_and_evaluated_model(page: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "empty"
    folder.mkdir()
    script = "\n".join(path_script(pages.ROOT / page))
    command = ["bash", "-euo", "pipefail", "-x", "-c", script]
    with warm_program(tmp_path / "socket") as understudy:
        shell = shell_environment(tmp_path, understudy=PROGRAM.replace("UNDERSTUDY", understudy), **STAND_INS)
        done = subprocess.run(command, cwd=folder, env=shell, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [*folder.glob("**/runs/*/result.json")]


def path_script(page: Path) -> Iterator[str]:
    """Yield a shell script that writes the files of a page and runs its programs and commands, in the page's order."""
    text = page.read_text(encoding="utf-8")
    included = {text.count("\n", 0, found.start()): found[1] for found in pages.INCLUDED.finditer(text)}
    blocks = {block.line: block for block in pages.blocks(page)}
    for line in sorted(included.keys() | blocks.keys()):
        if line in included:
            file = pages.ROOT / included[line]
            yield here_document(f"cat > {file.name}", file.read_text(encoding="utf-8"))
        elif not blocks[line].unrun or blocks[line].unrun in SUBSTITUTED:
            yield from block_script(blocks[line])


def block_script(block: Block) -> Iterator[str]:
    """Yield a shell script for a block: a file that the text before it names, a program, or commands."""
    if block.language == "sh":
        yield f"export TINY={TINY!r}" if block.unrun else "export TINY="
        yield block.text
    elif name := file_name(block):
        yield here_document(f"cat > {name}", block.text)
        if block.language == "python":
            yield f"python {name}"
    elif block.language == "python":
        yield here_document("python -", block.text)


def file_name(block: Block) -> str:
    """Return the name of the file that a block holds, if the paragraph before the block ends with it: `shop.py`:"""
    before = block.page.read_text(encoding="utf-8").splitlines()[: block.line - 1]
    paragraph = "\n".join(before).rstrip().rpartition("\n\n")[2]
    found = re.search(r"`(\w+\.(?:py|toml|jsonl))`[^`]*:$", paragraph)
    return found[1] if found else ""


def here_document(command: str, text: str) -> str:
    return f"{command} <<'END_OF_FILE'\n{text}END_OF_FILE"
