"""A session at a shell as a picture: all that was written and stayed, broken where a terminal breaks it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from tools.record_terminal import picture, shell, without_fonts

COLUMNS = 40


def shown(svg: str) -> list[str]:
    """The lines that a picture has, in order, by where they stand."""
    found: dict[str, str] = {}
    for y, text in re.findall(r'<text class="[^"]*-r\d+" x="[\d.]+" y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        found[y] = found.get(y, "") + unescape(text).replace("\xa0", " ")
    return [found[y].rstrip() for y in sorted(found, key=float)]


def drawn(written: str) -> list[str]:
    return [line for line in shown(picture(written, columns=COLUMNS, title="title")) if line]


def test_what_is_typed_and_what_it_says_are_in_the_picture(tmp_path: Path) -> None:
    with shell(COLUMNS, tmp_path, {"GREETING": "hello"}) as bash:
        bash.type("echo $GREETING; pwd > here\n")
        found = bash.type("read line; echo got $line\n", until=r"(read) line")
        bash.type("this\n")
    assert found[1] == "read"
    assert (tmp_path / "here").read_text().strip() == f"{tmp_path}"
    assert drawn(bash.written) == [
        *("$ echo $GREETING; pwd > here", "hello", "$ read line; echo got $line", "this", "got this"),
    ]


def test_a_key_reaches_the_program_in_the_foreground(tmp_path: Path) -> None:
    with shell(COLUMNS, tmp_path, {}) as bash:
        bash.type("cat\n", until=r"cat\r\n")
        bash.type("twice\n", until=r"twice\r\ntwice\r\n")
        bash.type("\x03")
    assert drawn(bash.written) == ["$ cat", "twice", "twice", "^C"]


def test_a_line_is_broken_where_the_terminal_ends() -> None:
    assert drawn("a" * COLUMNS + "b" * 3 + "\r\nnext\r\n$ ") == ["a" * COLUMNS, "bbb", "next"]


@pytest.mark.parametrize(
    "wiped",
    ["\r\x1b[2K", "\r\n\x1b[?25h\r\x1b[1A\x1b[2K"],
    ids=["where the cursor is", "after going back to it"],
)
def test_a_line_that_was_wiped_away_is_not_in_it(wiped: str) -> None:
    assert drawn(f"begin\r\n\x1b[?25lat work{wiped}end\r\n$ ") == ["begin", "end"]


def test_a_picture_asks_no_other_host() -> None:
    assert "url(http" not in picture("text", columns=COLUMNS, title="title")
    assert without_fonts("<style>@font-face { src: url(https://x) }\n a {}</style>") == "<style>a {}</style>"
