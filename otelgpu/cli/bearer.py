"""Bearer tokens (RFC 6750) out of the environment or a file: other users see a command line, and logs keep it."""

from __future__ import annotations

import os
from typing import Final

from otelgpu.errors import OtelgpuError

LONGEST: Final = 4096


def bearer_token(variable: str, *, least: int = 1) -> str:
    """The token that a variable has; empty where it is not set. Raises as :func:`checked_token`."""
    given = os.environ.get(variable, "")
    return checked_token(given, variable, least=least) if given else ""


def checked_token(given: str, source: str, *, least: int = 1) -> str:
    """``source``: the variable or file that it is of.

    Raises :class:`OtelgpuError`, without the token, for one of fewer than ``least`` or more than :data:`LONGEST`
    characters, and for what is no header's value.
    """
    is_value = given.isascii() and given.isprintable() and " " not in given
    if not (is_value and least <= len(given) <= LONGEST):
        raise OtelgpuError(
            f"{source} is no token: {least} to {LONGEST} characters of ASCII, without spaces",
            hint="openssl rand -hex 24" if least > 1 else "",
        )
    return given
