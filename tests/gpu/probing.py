"""How often exported functions are entered, by the kernel's own uprobe counters: needs nothing of otelgpu."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.rig.elf_symbols import offset_of

TRACING = Path("/sys/kernel/tracing")
GROUP = "otelgpu_test"


def hindrance() -> str | None:
    """What stands in the way of counting; None when nothing does."""
    if os.geteuid() != 0:
        return f"needs root, the uid is {os.geteuid()}"
    if not os.access(TRACING / "uprobe_events", os.W_OK):
        return f"{TRACING}/uprobe_events cannot be written"
    return None


@contextlib.contextmanager
def counting(*places: tuple[Path, str]) -> Iterator[Callable[[], dict[str, int]]]:
    """While in it, the kernel counts entries of (library, symbol); calling what it gives says how many."""
    names = {symbol: f"n{position}_{os.getpid()}" for position, (_, symbol) in enumerate(places)}
    events = TRACING / "uprobe_events"
    with contextlib.ExitStack() as stack:
        for library, symbol in places:
            name = names[symbol]
            _write(events, f"p:{GROUP}/{name} {library.resolve()}:{offset_of(library, symbol):#x}\n")
            stack.callback(_write, events, f"-:{GROUP}/{name}\n")
            enable = TRACING / "events" / GROUP / name / "enable"
            _write(enable, "1")
            stack.callback(_write, enable, "0")

        def counts() -> dict[str, int]:
            hits = {}
            for line in (TRACING / "uprobe_profile").read_text().splitlines():
                *_, name, count = line.split()
                hits[name] = int(count)
            return {symbol: hits.get(name, 0) for symbol, name in names.items()}

        yield counts


def _write(path: Path, text: str) -> None:
    """Append without seeking, which tracefs does not allow, nor truncating, which drops others' probes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
