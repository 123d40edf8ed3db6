"""Text and attributes that observed programs chose, as an assistant may read them. Pure.

A model reads what a tool gives it, and what it reads may steer it. So control characters, and characters that nobody
sees and a model reads all the same (Unicode tags, variation selectors), are replaced; lengths are bounded; what looks
like a credential is withheld; and of a span's attributes only those have values here that otelgpu itself exports and
that are no prompt, completion or header. The first are those with a description (:mod:`otelgpu.engine.descriptions`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from otelgpu.engine.description_tables import described
from otelgpu.model.resource import CONTAINER_ID, NAMESPACE, NODE_NAME, POD_NAME, AttributeValue
from otelgpu.model.text import printable

WITHHELD: Final = "[withheld]"
LONGEST_NAME: Final = 200
"""Characters of a name, and of an attribute's value."""
MOST_ATTRIBUTES: Final = 96
"""Of one span."""

_CONTENT: Final = re.compile(
    r"gen_ai\.(?:input|output|prompt|completion|content|system_instructions|tool)\b"
    r"|(?:http|rpc)\..*\b(?:header|metadata|body)\b"
    r"|cookie|authorization|password|secret|credential|api[._-]?key|command_args|command_line",
    re.IGNORECASE,
)
"""Keys whose values are somebody's words or credentials, whoever describes them."""

_UNSEEN: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Characters without a shape that :meth:`str.isprintable` allows: fillers, joiners and variation selectors."""

_CREDENTIALS: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*"
    r"|\b(?:sk|pk|rk)[-_](?:[A-Za-z]{2,12}[-_]){0,3}[A-Za-z0-9_-]{16,}"
    r"|\b(?:gh[opsur]_|github_pat_|glpat-|hf_|nvapi-|xox[abeoprs]-|AIza|ya29\.|npm_|pypi-|dop_v1_)[A-Za-z0-9_.-]{12,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*)?"
    r"|(?<=://)[^\s/@:]{1,128}:[^\s/@]{1,256}(?=@)"
    r"|\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"
    r"|(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|authorization|cookie)"
    r"[\"']?\s{0,4}[=:]\s{0,4}[\"']?[^\s\"'&,;]{4,}",
    re.IGNORECASE | re.DOTALL,
)
"""What credentials look like: keys of well-known services, JSON web tokens, URLs with a password, assignments."""


def clean(text: str, longest: int, *, keep_lines: bool = False) -> str:
    """At most ``longest`` characters of a text, without what is not seen or looks like a credential.

    ``keep_lines``: line breaks stay. Each character that goes becomes U+FFFD. A text that is cut ends in "…".

    >>> clean("rank 3\\x1b[2J of " + "x" * 20, 18)
    'rank 3�[2J of xxx…'
    """
    begun = text[: 2 * longest + 256]  # a credential that is cut in two is none any more
    parts = begun.split("\n") if keep_lines else [begun]
    seen = "\n".join(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", printable(part)) for part in parts)
    seen = _CREDENTIALS.sub(WITHHELD, seen)
    return seen if len(seen) <= longest and begun == text else f"{seen[: longest - 1]}…"


def name(text: object) -> str:
    """A name of anything, by which it may be asked for again."""
    return clean(str(text), LONGEST_NAME)


class Shown(dict[str, "str | int | float | bool"]):
    """Attributes of a span that are given; ``withheld``: the keys of the others."""

    withheld: tuple[str, ...] = ()


def attributes(given: Mapping[str, AttributeValue]) -> Shown:
    """Those that otelgpu exports and that are nobody's words, in the order of their keys; texts are cleaned."""
    shown, withheld = Shown(), []
    for key in sorted(given):
        if key in exported() and len(shown) < MOST_ATTRIBUTES:
            shown[key] = value(given[key])
        else:
            withheld.append(name(key))
    shown.withheld = tuple(withheld)
    return shown


def value(given: AttributeValue) -> str | int | float | bool:
    """An attribute's value. Several are one text."""
    if isinstance(given, bool | int):
        return given
    if isinstance(given, float):
        return given if math.isfinite(given) else str(given)
    return name(given if isinstance(given, str) else ", ".join(map(str, given[:32])))


@cache
def exported() -> frozenset[str]:
    """Keys of attributes that otelgpu describes, less those that carry content."""
    keys = (key for each in described() for key in each.descriptions.attributes)
    return frozenset(key for key in (*keys, *_OF_RESOURCES) if not _CONTENT.search(key))


_OF_RESOURCES: Final = (
    "service.name",
    "service.namespace",
    "service.version",
    "service.instance.id",
    "process.pid",
    "process.executable.name",
    "host.name",
    CONTAINER_ID,
    POD_NAME,
    NAMESPACE,
    NODE_NAME,
)


def cleaned(found: Any, longest: int) -> Any:
    """All texts of a JSON value, and keys of its objects; numbers to a billionth."""
    if isinstance(found, float):
        return round(found, 9) if math.isfinite(found) else None
    if isinstance(found, str):
        return clean(found, longest)
    if isinstance(found, list | tuple):
        return [cleaned(each, longest) for each in found]
    if isinstance(found, dict):
        return {
            clean(key, LONGEST_NAME): clean(each, longest, keep_lines=True)
            if key == _CODE and isinstance(each, str)
            else cleaned(each, longest)
            for key, each in found.items()
        }
    return found


_CODE: Final = "code"
"""Key of a text of several lines: the change to be made."""
