"""What may follow a path behind ``--export``: ``PATH?max_bytes=64MiB&max_files=5``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from otelgpu.model.text import did_you_mean

_OPTIONS: Final = re.compile(r"(?P<path>.+)\?(?P<options>[a-z_]+=[^&?]*(?:&[a-z_]+=[^&?]*)*)", re.DOTALL)
"""A question mark with anything else behind it is part of a name."""
_NUMBER: Final = re.compile(r"(?P<number>[0-9]{1,18})(?P<unit>|[KMG]iB)", re.ASCII)
_UNITS: Final = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}

Limits = Mapping[str, tuple[int, int]]
"""Name → the least and the most. Of ``…_bytes`` the number may have a unit."""


def path_and_options(text: str, limits: Limits) -> tuple[str, dict[str, int]]:
    """What is before the question mark, and the numbers behind it. Raises ValueError with what is wrong."""
    found = _OPTIONS.fullmatch(text)
    if found is None:
        return text, {}
    given = dict(part.partition("=")[::2] for part in found["options"].split("&"))
    return found["path"], {name: _number(name, value, limits) for name, value in given.items()}


def _number(name: str, text: str, limits: Limits) -> int:
    if name not in limits:
        raise ValueError(f"has an option {name}, which there is not{did_you_mean(name, limits)}")
    found = _NUMBER.fullmatch(text)
    unit = found["unit"] if found is not None else ""
    if found is None or (unit and not name.endswith("_bytes")):
        raise ValueError(f"has {name}={text}, where a number belongs, of bytes also as 64MiB")
    number = int(found["number"]) << _UNITS[unit]
    least, most = limits[name]
    if not least <= number <= most:
        raise ValueError(f"has {name}={text}: it is {least} at least and {most} at most")
    return number
