"""What a file's name asks for, and the bytes of it. Pure.

Example: ``out.html`` is a flame graph, ``out.heat.html`` a heat map, ``out.pb.gz`` pprof. The longest suffix
that fits decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from otelgpu.errors import OtelgpuError
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import SpanColumns
from otelgpu.otlp_json.profile_reader import read_profile_lines
from otelgpu.render.flame_graph import differential, flame_graph
from otelgpu.render.flame_svg import differential_svg, flame_svg
from otelgpu.render.folded import folded, read_folded
from otelgpu.render.heat_map import heat_map
from otelgpu.render.kineto import kineto, kineto_gz
from otelgpu.render.pprof import pprof
from otelgpu.render.pprof_reader import read_pprof
from otelgpu.render.speedscope import speedscope
from otelgpu.render.timeline import timeline
from otelgpu.view.page import Parts


class UnknownFormat(OtelgpuError):
    """A file's name asks for nothing that can be made."""


class UnreadableProfiles(OtelgpuError):
    """A file holds no profiles."""


class RenderInput(Struct, frozen=True, kw_only=True):
    """What is rendered: profiles, spans for the timeline, the page's files, and what it is called."""

    profiles: Sequence[ProfileColumns]
    spans: Sequence[SpanColumns] = ()
    parts: Parts
    title: str = "Profile"


class Format(Struct, frozen=True, kw_only=True):
    """A kind of file. ``wants_calls``: it shows each call by itself, for who reads it counts them."""

    suffix: str
    says: str
    render: Callable[[RenderInput], bytes]
    wants_calls: bool = False


_FORMATS: Final = (
    Format(
        suffix=".heat.html",
        says="heat map with flame graphs of any part of the time, one page",
        render=lambda given: heat_map(given.profiles, given.parts, title=given.title),
    ),
    Format(
        suffix=".html",
        says="flame graph, one page",
        render=lambda given: flame_graph(given.profiles, given.parts, title=given.title),
    ),
    Format(
        suffix=".svg",
        says="flame graph, a picture",
        render=lambda given: flame_svg(given.profiles, title=given.title),
    ),
    Format(
        suffix=".speedscope.json",
        says="for https://www.speedscope.app",
        render=lambda given: speedscope(given.profiles, title=given.title),
    ),
    Format(
        suffix=".pt.trace.json",
        says="for PyTorch's TensorBoard plug-in and Holistic Trace Analysis",
        render=lambda given: kineto(given.spans, given.profiles, title=given.title),
        wants_calls=True,
    ),
    Format(
        suffix=".pt.trace.json.gz",
        says="the same, compressed",
        render=lambda given: kineto_gz(given.spans, given.profiles, title=given.title),
        wants_calls=True,
    ),
    Format(
        suffix=".json",
        says="timeline, for https://ui.perfetto.dev and chrome://tracing",
        render=lambda given: timeline(given.spans, given.profiles),
    ),
    Format(suffix=".pb.gz", says="for go tool pprof", render=lambda given: pprof(given.profiles)),
    Format(suffix=".folded", says="folded stacks, a line each", render=lambda given: folded(given.profiles)),
)
FORMATS: Final[Mapping[str, str]] = {each.suffix: each.says for each in _FORMATS}
"""What each suffix asks for, in words. The longest that fits a name is meant."""


def format_of(name: str) -> Format:
    """What a file's name asks for by its end. Raises `UnknownFormat`."""
    fitting = [each for each in _FORMATS if name.lower().endswith(each.suffix)]
    if not fitting:
        known = ", ".join(FORMATS)
        raise UnknownFormat(f"{name!r} says nothing of its format", f"Let the name end in one of {known}.")
    return max(fitting, key=lambda each: len(each.suffix))


def rendered(
    format_: Format,
    profiles: Sequence[ProfileColumns],
    spans: Sequence[SpanColumns],
    title: str,
    parts: Parts,
) -> bytes:
    """The bytes of a file. ``parts``: the files of the page, as ``cli.page_files`` reads them."""
    return format_.render(RenderInput(profiles=profiles, spans=spans, parts=parts, title=title))


def render(
    profiles: Sequence[ProfileColumns],
    spans: Sequence[SpanColumns],
    name: str,
    parts: Parts,
    *,
    title: str = "Profile",
) -> bytes:
    """The bytes of the file that ``name`` asks for. Raises `UnknownFormat`."""
    return rendered(format_of(name), profiles, spans, title, parts)


def rendered_difference(
    name: str,
    before: Sequence[ProfileColumns],
    after: Sequence[ProfileColumns],
    parts: Parts,
    *,
    title: str = "",
    normalise: bool = True,
    labels: tuple[str, str] = ("before", "after"),
) -> bytes:
    """A differential flame graph, ``.html`` or ``.svg``. Raises `UnknownFormat`.

    ``normalise``: the first profile counts as if it had the total of the second.
    """
    suffix = format_of(name).suffix
    if suffix == ".html":
        return differential(before, after, parts, labels=labels, title=title, normalise=normalise)
    if suffix == ".svg":
        return differential_svg(before, after, labels=labels, title=title, normalise=normalise)
    raise UnknownFormat(f"no difference can be written to {name!r}", "Let the name end in .html or .svg.")


def read_profiles(name: str, data: bytes) -> list[ProfileColumns]:
    """The profiles of OTLP/JSON lines, a pprof, or folded stacks; by content where the name says nothing.

    Raises :class:`UnreadableProfiles` for what is none of them, or of which nothing could be read.
    """
    if name.endswith((".pb.gz", ".pb", ".pprof")) or data[:2] == GZIP:
        try:
            return read_pprof(data)
        except ValueError as error:
            raise UnreadableProfiles(f"cannot read {name!r}: {error}", _READABLE) from error
    if data.lstrip()[:1] == b"{":
        read = read_profile_lines(data.split(b"\n"))
        found, unreadable = read.profiles, read.unreadable
    else:
        found, unreadable = read_folded(data)
    if not found:
        why = f"{unreadable} lines that could not be read" if unreadable else "no profile in it"
        raise UnreadableProfiles(f"cannot read {name!r}: {why}", _READABLE)
    return found


GZIP: Final = b"\x1f\x8b"
_READABLE: Final = "Give a capture, OTLP/JSON lines, a pprof (.pb.gz) or folded stacks (.folded)."
