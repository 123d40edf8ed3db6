"""``otelgpu completion``, and what completes the values of options: processes, containers, families, profiles.

A shell asks by running ``otelgpu`` at each Tab: what is looked at here takes milliseconds, and nothing fails aloud.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from otelgpu.cli.headings import HeadedCommand
from otelgpu.errors import OtelgpuError
from otelgpu.model.profiling import ProfileKind

SHELLS: Final = ("bash", "zsh", "fish")
_VARIABLE: Final = "_OTELGPU_COMPLETE"
_PROC: Final = Path("/proc")
_MOST: Final = 1000  # processes that a shell is told of


@click.command(cls=HeadedCommand)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Print a script that completes commands, options and values in a shell, by default the one of SHELL.

    \b
    Examples:
      eval "$(otelgpu completion bash)"                                   # this shell
      otelgpu completion bash > /etc/bash_completion.d/otelgpu            # every bash of this host
      otelgpu completion zsh > "${fpath[1]}/_otelgpu"
      otelgpu completion fish > ~/.config/fish/completions/otelgpu.fish
    """
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    made = get_completion_class(name) if name in SHELLS else None
    if made is None:
        raise OtelgpuError(
            f"the shell in SHELL, {name!r}, is not one of {', '.join(SHELLS)}"
            if name
            else "SHELL is not set",
            hint="name it: otelgpu completion bash",
        )
    click.echo(made(click.Group("otelgpu"), {}, "otelgpu", _VARIABLE).source())


def _of_list(values: Iterable[str], typed: str) -> list[CompletionItem]:
    """The next of a list with commas: ``cuda,ht`` is completed to ``cuda,http``."""
    before, comma, last = typed.rpartition(",")
    taken = before.split(",")
    return [
        CompletionItem(f"{before}{comma}{value}")
        for value in values
        if value.startswith(last) and value not in taken
    ]


def complete_families(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Of ``--families``."""
    from otelgpu.engine import registry

    return _of_list(registry.families(), incomplete)


def complete_profiles(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Of ``--profiles`` and ``profile -t``."""
    return _of_list((*ProfileKind, "all"), incomplete)


def complete_destinations(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Of ``--export``: how each begins."""
    from otelgpu.export.registry import kinds

    starts = (re.sub(r"[A-Z].*", "", form) for kind in kinds().values() for form in kind.forms)
    return [CompletionItem(start) for start in dict.fromkeys(starts) if start.startswith(incomplete)]


def complete_pids(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Of ``-p``: programs that run, the newest first, with what they were started as."""
    before, comma, last = incomplete.rpartition(",")
    found = []
    for pid in sorted((int(each.name) for each in _PROC.iterdir() if each.name.isdecimal()), reverse=True):
        if not str(pid).startswith(last) or pid == os.getpid():
            continue
        try:
            command = (_PROC / str(pid) / "cmdline").read_bytes()[:80]
        except OSError:
            continue
        if command:  # the kernel's threads have none
            words = command.replace(b"\0", b" ").decode("utf-8", "replace").strip()
            shown = "".join(letter if letter.isprintable() else "?" for letter in words)
            found.append(CompletionItem(f"{before}{comma}{pid}", help=shown))
        if len(found) == _MOST:
            break
    return found


def complete_containers(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Of ``--container``: those of the processes that can be looked at."""
    from otelgpu.processes.listing import describe

    ids = set()
    for each in _PROC.iterdir():
        if each.name.isdecimal() and (facts := describe(int(each.name))) is not None:
            ids.add(facts.container_id)
    return [CompletionItem(one) for one in sorted(ids) if one and one.startswith(incomplete)]
