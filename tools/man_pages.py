"""Manual pages, ``docs/man/*.1``, of what the commands say of themselves and docs/reference/cli.md of all of them.

In: click's commands. Out: roff with man(7)'s macros, a page for the program and one for each command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from otelgpu import __version__
from otelgpu.cli.commands import cli
from otelgpu.cli.headings import OWN, headed

_MANUAL: Final = Path(__file__).resolve().parent.parent / "docs/reference/cli.md"
_SECTIONS: Final = {"EXIT STATUS": "Exit codes", "ENVIRONMENT": "Environment", "FILES": "Files"}
"""Heading of the program's page → that of docs/reference/cli.md."""
_VERBATIM: Final = "\b"
"""Click's mark of a paragraph that is not filled."""
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")
_CODE: Final = re.compile(r"`([^`]*)`")
_ROW: Final = re.compile(r"^\| (.*?) \| (.*) \|$")


def pages() -> dict[str, str]:
    """File name → page."""
    context = click.Context(cli, info_name="otelgpu", **cli.context_settings)
    return {f"{name}.1": text for name, text in _pages(cli, context)}


def _pages(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    name = context.command_path.replace(" ", "-")
    below = {}
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            if (found := command.get_command(context, each)) is not None:
                below[each] = (found, click.Context(found, info_name=each, parent=context))
    yield name, "\n".join(_page(command, context, name, {each: found for each, (found, _) in below.items()}))
    for found, inner in below.values():
        yield from _pages(found, inner)


def _page(
    command: click.Command, context: click.Context, name: str, below: dict[str, click.Command]
) -> Iterator[str]:
    first, *paragraphs = (command.help or "").split("\n\n")
    yield f'.TH {name.upper()} 1 "" "otelgpu {__version__}" "User Commands"'
    yield from (".SH NAME", f"{_plain(name)} \\- {_words(first).rstrip('.')}")
    yield from (".SH SYNOPSIS", f".B {_plain(context.command_path)}")
    yield _plain(" ".join(command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    examples: list[str] = []
    for paragraph in paragraphs:
        lines = paragraph.split("\n")
        if lines[0].strip() == _VERBATIM and lines[1].strip() == "Examples:":
            examples = lines[2:]
            continue
        yield ".PP"
        yield from _verbatim(lines[1:]) if lines[0].strip() == _VERBATIM else [_words(paragraph)]
    for heading, options in headed(command, context).items():
        yield f".SH {heading.upper()}" if heading == OWN else f".SS {heading}"
        for option in options:
            yield from _entry(_spelling(option, context), option.help or "")
    if below:
        yield ".SH COMMANDS"
        for each, found in below.items():
            yield from _entry(each, found.get_short_help_str(limit=200))
    if examples:
        yield from (".SH EXAMPLES", *_verbatim(examples))
    if context.parent is None:
        for heading, section in _SECTIONS.items():
            yield from (f".SH {heading}", *_from_manual(section))
    yield ".SH SEE ALSO"
    others = (f"{name}-{each}" for each in below)
    own = context.parent.command_path.replace(" ", "-") if context.parent else ""
    yield ", ".join(f"\\fB{_plain(each)}\\fR(1)" for each in (*([own] if own else ()), *others))
    yield ""


def _spelling(option: click.Option, context: click.Context) -> str:
    flags = ", ".join(sorted((*option.opts, *option.secondary_opts), key=len))
    return flags if option.is_flag else f"{flags} {option.make_metavar(context)}"


def _entry(term: str, text: str) -> Iterable[str]:
    return ".TP", f"\\fB{_plain(term)}\\fR", _words(text)


def _verbatim(lines: Iterable[str]) -> Iterable[str]:
    return ".nf", *(_plain(line.rstrip()) for line in lines), ".fi"


def _from_manual(heading: str) -> Iterator[str]:
    """A section of docs/reference/cli.md: its tables' rows as entries, the rest as paragraphs."""
    text = _MANUAL.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for block in text.strip().split("\n\n"):
        rows = [row.groups() for line in block.splitlines() if (row := _ROW.match(line))]
        if not rows:
            yield from (".PP", _words(_prose(block)))
        for term, says in rows[2:]:  # behind the header and its rule
            yield from _entry(_prose(term), _prose(says))


def _prose(markdown: str) -> str:
    return _CODE.sub(r"\1", _LINK.sub(r"\1", markdown))


def _words(text: str) -> str:
    """A paragraph on one line: roff fills it."""
    return _plain(" ".join(text.split()))


def _plain(text: str) -> str:
    """Text that roff has no meaning for; its hyphens can be copied to a shell."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
