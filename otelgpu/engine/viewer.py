"""What the viewer's page knows of a family: which spans it makes, in which lists they stand, in which columns.

The page gets these as JSON (:func:`otelgpu.view.page.page`) and knows no family itself. Columns of every span are named
by a word: see :func:`builtin`.
"""

from __future__ import annotations

import msgspec


class SpanRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Spans of ``scope``: of those only what the other members allow.

    ``has``: they have that attribute, with the value ``value`` if that is not empty. ``name``: their name has a match
    of that regular expression, which JavaScript and Python read alike.
    """

    kind: str
    scope: str
    has: str = ""
    value: str = ""
    name: str = ""


class SpanKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``words`` are for people; ``id`` is a class of the page's style sheet, where it has a colour for it.

    ``device``: the span's time is a device's. ``call``: a host call, which returns before its work is done. ``summed``:
    it is in the list of calls by name. ``rank``: attribute by which such spans under one parent are put in order and
    named; ``job`` and ``size``: those that name the group it is a rank of, and how many that has. ``inline``: it is
    drawn on the line of what it is under. ``served``: spans that link to a request are drawn on a line below it.
    ``peers``: every rank of a job has one, of the same step number, which are shown together.
    """

    id: str
    words: str
    device: bool = False
    call: bool = False
    summed: bool = False
    rank: str = ""
    job: str = ""
    size: str = ""
    inline: bool = False
    served: bool = False
    peers: bool = False


class ListColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``attributes``: the first of them that a span has. ``resource``: an attribute of its resource instead.

    ``builtin``: a column that every list may have; nothing else is set then but perhaps ``title``.
    """

    key: str = ""
    title: str = ""
    unit: str = "text"
    attributes: tuple[str, ...] = ()
    resource: str = ""
    width: str = ""
    builtin: str = ""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of seconds that stands as a card above a list."""

    metric: str
    title: str
    words: str
    hint: str


class SpanList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Spans of ``kinds`` as a table. ``cards``: columns whose distribution stands above it.

    Lists are in order of ``rank``.
    """

    id: str
    title: str
    one: str
    kinds: tuple[str, ...]
    columns: tuple[ListColumn, ...]
    cards: tuple[str, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    rank: int = 50


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of the attributes that add up to a span's time, in seconds. ``colour``: a class of the page's style sheet."""

    colour: str
    words: str
    attribute: str


class Division(msgspec.Struct, frozen=True, kw_only=True):
    """Where a span's time went. It is shown of spans that have the first part's attribute."""

    title: str
    parts: tuple[Part, ...]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a span says is missing of it: ``words`` with the attribute's value, if that is any, for ``{}``."""

    attribute: str
    words: str


class ViewerPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One family's: its kinds of spans, rules that know them (the first that fits), lists and divisions.

    ``launches``: attribute with the number of launches under a span. ``reasons``: attributes that say why a trace
    stands by itself.
    """

    kinds: tuple[SpanKind, ...] = ()
    rules: tuple[SpanRule, ...] = ()
    lists: tuple[SpanList, ...] = ()
    divisions: tuple[Division, ...] = ()
    notes: tuple[Note, ...] = ()
    launches: str = ""
    reasons: tuple[str, ...] = ()


def text(key: str, title: str, *attributes: str, width: str = "") -> ListColumn:
    """A column of text."""
    return ListColumn(key=key, title=title, attributes=attributes, width=width)


def number(key: str, title: str, unit: str, *attributes: str, width: str = "") -> ListColumn:
    """A column of numbers: ``count``, ``id``, ``By``, ``s`` or ``ns``."""
    return ListColumn(key=key, title=title, unit=unit, attributes=attributes, width=width)


def builtin(name: str, title: str = "") -> ListColumn:
    """``time``, ``duration``, ``name``, ``rank``, ``role``, ``service``, ``status``, ``launches``."""
    return ListColumn(builtin=name, title=title)
