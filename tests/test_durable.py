"""Files that are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

from millstream.durable import replace_file, unfinished_file


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "marks.json", tmp_path / "other"
    other.write_bytes(b"somebody else's")
    unfinished_file(path).symlink_to(other)
    replace_file(path, b"ours")
    assert (path.read_bytes(), path.is_symlink()) == (b"ours", False)
    assert other.read_bytes() == b"somebody else's"
