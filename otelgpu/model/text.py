"""Text that is anybody's choice, as it can be shown: names of files, processes and functions."""

from __future__ import annotations

from collections.abc import Iterable


def printable(text: str) -> str:
    """Without what could steer a terminal or begin a line: control, bidirectional and undecodable characters.

    Each becomes U+FFFD; what :meth:`str.isprintable` allows stays. Example: ``"a\\x1b[2J"`` becomes ``"a\\ufffd[2J"``.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest of what there is, or ``""`` where nothing is near."""
    from difflib import get_close_matches  # of errors only

    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
