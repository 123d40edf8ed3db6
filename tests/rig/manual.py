"""The commands of the manual: what its tutorial and its how-to pages tell a reader to type.

In: Markdown. Out: the blocks marked ``sh`` of a page, and the otelgpu commands in them. A block is run as it stands,
unless the line before it is ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rig.fakes import ROOT

PAGES: Final = sorted(
    path for folder in ("tutorial", "how-to") for path in (ROOT / "docs" / folder).glob("*.md")
)
_BLOCK: Final = re.compile(
    r"^(?P<indent> *)(?:<!-- not run: (?P<reason>[^\n]+) -->\n *)?```sh\n(?P<text>.*?)\n *```$",
    re.MULTILINE | re.DOTALL,
)
_HERE_DOCUMENT: Final = re.compile(r"<<'(\w+)'.*?\n\1$", re.MULTILINE | re.DOTALL)
_SUBSTITUTION: Final = re.compile(r'"?\$(?:\([^()]*\)|!)"?|\bPID\b')
_OPERATORS: Final = {"&", "&&", "|", ";"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`not_run`: why it is not; "" where it is."""

    text: str
    not_run: str


def blocks(page: str) -> Iterator[Block]:
    """Those of a page, in its order."""
    for found in _BLOCK.finditer(page):
        yield Block(text=textwrap.dedent(found["indent"] + found["text"]), not_run=found["reason"] or "")


def otelgpu_commands(text: str) -> Iterator[list[str]]:
    """The arguments of each ``otelgpu`` in a block; what only a shell knows (a PID, a host's name) is ``1`` there."""
    text = _SUBSTITUTION.sub("1", _HERE_DOCUMENT.sub("", text).replace("\\\n", " "))
    for line in text.splitlines():
        command: list[str] = []
        for word in [*_words(line), ";"]:
            if word in _OPERATORS:
                yield from _arguments(command)
                command = []
            else:
                command.append(word)


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    return list(lexer)


def _arguments(command: list[str]) -> Iterator[list[str]]:
    for place, word in enumerate(command):
        if Path(word).name == "otelgpu":
            yield command[place + 1 :]
            return
        if "=" not in word and word != "sudo":
            return
