"""Bearer tokens (RFC 6750) out of the environment: other users see a command line, and logs keep it."""

from __future__ import annotations

import os
from typing import Final

from otelgpu.errors import OtelgpuError

LONGEST: Final = 4096


def bearer_token(variable: str, *, least: int = 1) -> str:
    """The token that a variable has; empty where it is not set.

    Raises :class:`OtelgpuError`, without the token, for one of fewer than ``least`` or more than :data:`LONGEST`
    characters, and for what is no header's value.
    """
    given = os.environ.get(variable, "")
    is_value = given.isascii() and given.isprintable() and " " not in given
    if given and not (is_value and least <= len(given) <= LONGEST):
        raise OtelgpuError(
            f"{variable} is no token: {least} to {LONGEST} characters of ASCII, without spaces",
            hint="openssl rand -hex 24" if least > 1 else "",
        )
    return given
