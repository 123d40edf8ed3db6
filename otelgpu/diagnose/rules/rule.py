"""A known problem, and files of them. Pure.

In: the text of a YAML file. Out: :class:`Rule`. What a file may have is what these types have, and nothing else; it is
documented in docs/reference/known-problems.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from otelgpu.errors import OtelgpuError

VERSION: Final = 1
MOST_RULES: Final = 10_000

_Text = Annotated[str, Meta(min_length=1, max_length=2_000)]
_Name = Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=80)]


class RuleFileError(OtelgpuError):
    """A file of rules that cannot be used; the message says where."""


class EvidenceSign(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of the table ``evidence``. ``value``: it is this; ``least``: they sum up to so much, of a host or rank.

    ``text``: a regular expression that is found in the row's.
    """

    name: _Text
    value: float | None = None
    least: float | None = None
    text: str = ""


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seen by one of ``codes``, ``functions`` (globs), ``logs`` (regular expressions on a line) and ``evidence``.

    ``problem``: what is the matter, in one sentence. ``why``: what brings it about. ``check``: what tells whether it is
    that. ``change``: what to do. ``source``: who says so.
    """

    id: _Name
    problem: _Text
    why: _Text
    check: Sequence[_Text] = ()
    change: Annotated[Sequence[_Text], Meta(min_length=1)]
    source: _Text
    codes: Sequence[_Text] = ()
    functions: Sequence[_Text] = ()
    logs: Sequence[_Text] = ()
    evidence: Sequence[EvidenceSign] = ()


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    rules: list[Rule] = field(default_factory=list)


def read_rules(text: str, origin: str) -> list[Rule]:
    """The rules of a file. Raises `RuleFileError`, with what is wrong and in which rule."""
    import yaml

    loaded: object = None
    try:
        loaded = yaml.safe_load(text)
        file = msgspec.convert(loaded, _File)
    except (yaml.YAMLError, RecursionError) as error:
        raise RuleFileError(f"{origin} is not YAML: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        said = str(error).replace("`", "")
        raise RuleFileError(f"{origin}: {said}{_which(loaded, said)}") from error
    if file.version != VERSION:
        raise RuleFileError(f"{origin}: version {file.version}, and this program reads version {VERSION}")
    if len(file.rules) > MOST_RULES:
        raise RuleFileError(f"{origin}: {len(file.rules)} rules, of at most {MOST_RULES}")
    for rule in file.rules:
        _check(rule, origin)
    return file.rules


def together(*of_files: Sequence[Rule]) -> list[Rule]:
    """The rules of several files; a later one of the same id is in the place of the earlier one."""
    return list({rule.id: rule for rules in of_files for rule in rules}.values())


def _check(rule: Rule, origin: str) -> None:
    if not (rule.codes or rule.functions or rule.logs or rule.evidence):
        raise RuleFileError(f"{origin}: rule {rule.id} has no sign: codes, functions, logs or evidence")
    for pattern in (*rule.logs, *(sign.text for sign in rule.evidence)):
        try:
            re.compile(pattern)
        except re.error as error:
            raise RuleFileError(
                f"{origin}: rule {rule.id}: {pattern!r} is no regular expression: {error}"
            ) from error


def _which(loaded: object, said: str) -> str:
    """The id of the rule that a message of msgspec names by its place: ``$.rules[3].why``."""
    place = re.search(r"rules\[(\d+)\]", said)
    if place is None or not isinstance(loaded, dict) or not isinstance(loaded.get("rules"), list):
        return ""
    rule = loaded["rules"][int(place[1])]
    return f", of rule {rule['id']}" if isinstance(rule, dict) and "id" in rule else ""
