"""``python -m tests.endurance.observed SAMPLES INTERVAL_S ARGUMENT…``: otelgpu, with a look into it now and then.

Runs the command line with ARGUMENT… in this process. A thread appends a JSON line to SAMPLES each interval: what
the process and its children take, how full its BPF maps are, and how long each container is that an object of
otelgpu has.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any, Final

from tests.rig.bpf_objects import maps_of

_ALONE_S: Final = 60.0
_CONTAINERS: Final = (dict, list, set, frozenset, deque, bytearray, OrderedDict, Counter)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from getattr(value, "__dict__", {}).items()
    for each in type(value).__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            name = f"_{each.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if hasattr(value, name):
                yield name, getattr(value, name)


def container_lengths(objects: list[Any]) -> Counter[str]:
    """``module.Class.attribute`` → entries, summed over the objects; ``module.Class`` → how many there are.

    What a container holds in containers of its own is not counted: it belongs to whoever holds those.
    """
    found: Counter[str] = Counter()
    for each in objects:
        kind = type(each)
        if not str(kind.__module__).startswith("otelgpu"):  # a few types have a descriptor there
            continue
        owner = f"{kind.__module__}.{kind.__qualname__}"
        found[owner] += 1
        for name, value in _attributes(each):
            if isinstance(value, _CONTAINERS) and isinstance(value, Sized):
                found[f"{owner}.{name}"] += len(value)
    return found


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    kib = {
        "rss_kib": "VmRSS",
        "anonymous_kib": "RssAnon",
    }  # the other part of RSS is files that were looked at
    memory = {name: int(fields[field].split()[0]) for name, field in kib.items()}
    return memory | {"threads": int(fields["Threads"])}


def _objects() -> dict[str, Any]:
    """All that there are. No other thread runs meanwhile.

    One that is building a tuple then would fail at it, for while somebody else holds a tuple it cannot grow
    (``_PyTuple_Resize``): ``gc.get_objects`` gives those too that are not finished. What the start has set apart
    (``otelgpu/kernel/garbage.py``) is looked at too, and belongs to the others from then on.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_ALONE_S)
    time.sleep(10 * interval_s)  # who waits with the old interval has had its turn
    try:
        gc.unfreeze()
        gc.collect()
        objects = gc.get_objects()
        found = {"objects": len(objects), "containers": container_lengths(objects)}
        del objects
    finally:
        sys.setswitchinterval(interval_s)
    return found


def sample(pid: int) -> dict[str, Any]:
    """Everything of this process, which is ``pid``."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    maps: Counter[str] = Counter()
    for each in maps_of(pid):
        maps[each.name] += each.entries or 0
    return {
        **_status(pid),
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "children": len(children),
        "maps": maps,
        **_objects(),
        "cpu_s": round(time.process_time(), 2),
    }


def _watch(path: Path, interval_s: float) -> None:
    began = time.monotonic()
    with path.open("a", buffering=1) as file:
        while True:
            time.sleep(interval_s)
            line = {"time_s": round(time.monotonic() - began, 1), **sample(os.getpid())}
            file.write(json.dumps(line) + "\n")


def main() -> None:
    path, interval_s, *arguments = sys.argv[1:]
    threading.Thread(target=_watch, args=(Path(path), float(interval_s)), daemon=True).start()
    sys.argv = ["otelgpu", *arguments]
    from otelgpu.cli.main import main as otelgpu

    otelgpu()


if __name__ == "__main__":
    main()
