"""Text that is anybody's choice, as it can be shown: names of files, processes and functions."""

from __future__ import annotations


def printable(text: str) -> str:
    """Without what could steer a terminal or begin a line: control, bidirectional and undecodable characters.

    Each becomes U+FFFD; what :meth:`str.isprintable` allows stays. Example: ``"a\\x1b[2J"`` becomes ``"a\\ufffd[2J"``.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
