"""Options under headings in ``--help`` and the manual: a command's own first, then those that it has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

OWN: Final = "Options"

_Function = TypeVar("_Function", bound=Callable[..., Any])
_HEADINGS: Final[dict[click.Parameter, str]] = {}


def option_group(
    heading: str, *options: Callable[[_Function], _Function]
) -> Callable[[_Function], _Function]:
    """A decorator that adds options, each made by ``click.option``, which are shown in this order."""

    def add(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
            _HEADINGS[function.__click_params__[-1]] = heading  # type: ignore[attr-defined]
        return function

    return add


def headed(command: click.Command, context: click.Context) -> dict[str, list[click.Option]]:
    """Heading → the options that ``--help`` has under it; :data:`OWN` comes first."""
    found: dict[str, list[click.Option]] = {OWN: []}
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            found.setdefault(_HEADINGS.get(parameter, OWN), []).append(parameter)
    return found


class HeadedCommand(click.Command):
    """A command whose ``--help`` has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        for heading, options in headed(self, ctx).items():
            records = [record for each in options if (record := each.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
