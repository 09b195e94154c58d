"""Test that what is read from a file is kept until the file changes."""

import os
from pathlib import Path

import pytest

from understudy.core.files import cached_until_changed, file_stamp


def test_file_is_read_again_only_if_its_time_or_its_size_has_changed(tmp_path: Path) -> None:
    file, reads = tmp_path / "file.txt", list[str]()

    @cached_until_changed(4)
    def read(file: Path) -> str:
        reads.append(file.read_text())
        return reads[-1]

    def write(text: str, time_ns: int) -> None:
        file.write_text(text)
        os.utime(file, ns=(time_ns, time_ns))

    with pytest.raises(FileNotFoundError):
        read(file)
    for text, time_ns in (("one", 1000), ("two", 2000), ("three", 2000)):
        write(text, time_ns)
        assert [read(file), read(file)] == [text, text]
    assert reads == ["one", "two", "three"]


def test_missing_file_has_the_stamp_zero(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("four")
    assert file_stamp(tmp_path / "none") == file_stamp(tmp_path / "file" / "inside") == (0, 0)
    assert file_stamp(tmp_path / "file")[1] == 4
