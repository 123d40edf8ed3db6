"""The one exception that everything this package raises on purpose derives from."""

from __future__ import annotations


class OtelgpuError(Exception):
    """Something that the user can act on.

    ``message`` says what failed and on what; ``hint`` says what to do about it, or is empty.
    """

    exit_code = 1
    """What the command line ends with."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message
