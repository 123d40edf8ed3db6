"""``python -m tests.gallery.memory [NAME…]``: run programs under ``otelgpu diagnose memory``; a table of what was said.

Each is started under the command, on a device of the fake runtime with 1 GiB, of which the fake NVML says that it has
2 GiB; the verdict that comes first counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tests.gallery.memory_programs import LIBRARY, MIB
from tests.gallery.results import NOTHING
from tests.rig import ROOT


class Case(Struct, frozen=True, kw_only=True):
    """What a program has to be said of: ``cause``, and of an allocation that failed why; "" of a healthy one.

    ``line``: a function that has to be among the lines of Python or of who held what. ``largest``: the category of
    most of the peak.
    """

    cause: str
    line: str = ""
    largest: str = ""


CASES: Final[Mapping[str, Case]] = {
    "leak": Case(cause="growth", line="remember"),
    "thread_leak": Case(cause="growth", line="serve"),
    "unbounded_cache": Case(cause="growth", line="unbounded_cache"),
    "out_of_memory": Case(cause="out_of_memory: unknown", line="load_weights"),
    "asks_too_much": Case(cause="out_of_memory: request_too_large"),
    "crowded": Case(cause="out_of_memory: other_processes"),
    "holds_it_all": Case(cause="out_of_memory: own_memory", line="load_weights"),
    "recovers": Case(cause=""),
    "healthy": Case(cause="", largest="weights"),
    "training": Case(cause="", largest="optimizer"),
    "server": Case(cause="", largest="kv_cache"),
    "bounded_cache": Case(cause=""),
    "warm_up": Case(cause=""),
    "cleared": Case(cause=""),
}


def diagnose(name: str) -> dict[str, Any]:
    """The document that the command writes of one program."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "nvml.txt"
        script.write_text(
            "driver 570.86.10\nset 0 uuid GPU-00000000-0000-0000-0000-000000000000\nset 0 name fake\n"
            f"set 0 memory_total {2048 * MIB}\nset 0 memory_used 0\n"
        )
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FAKE_CUDART_MEMORY_BYTES": str(1024 * MIB),
            "LD_LIBRARY_PATH": str(LIBRARY.parent),
            "FAKE_NVML": str(script),
        }
        program = [sys.executable, "-m", "tests.gallery.memory_programs", name]
        done = subprocess.run(
            [sys.executable, "-m", "otelgpu", "diagnose", "memory", "--json", "--", *program],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if done.returncode not in (0, 3, 4):
        raise AssertionError(f"{name}: exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def named(document: Mapping[str, Any]) -> str:
    """What the first verdict says: ``growth``, ``out_of_memory: own_memory``, ``nothing`` or ``inconclusive``."""
    if not document["verdicts"]:
        return NOTHING
    first = document["verdicts"][0]
    return ": ".join(filter(None, (first["cause"] or first["class"], first["detail"])))


def faults(case: Case, document: Mapping[str, Any]) -> list[str]:
    """What is wrong with a document, or missing in it."""
    found = []
    if named(document) != (case.cause or NOTHING):
        found.append(f"{named(document)} in place of {case.cause or NOTHING}")
    if case.line:
        said = [text for each in document["verdicts"][:1] for text in each["python"]]
        said += [one["text"] for each in document["verdicts"][:1] for one in each["evidence"]]
        if not any(case.line in text for text in said):
            found.append(f"not said: {case.line}")
    if case.largest:
        peaks = [each["peak"]["categories"] for each in document["devices"]]
        if not peaks or max(peaks[0], key=lambda each: int(each["bytes"]))["category"] != case.largest:
            found.append(f"most of the peak is not {case.largest}: {peaks}")
    return found


def main(names: Iterable[str]) -> int:
    """How many programs had something wrong."""
    wrong = 0
    rows: dict[str, Counter[str]] = {}
    for name in names or CASES:
        case, document = CASES[name], diagnose(name)
        found = faults(case, document)
        wrong += bool(found)
        rows.setdefault(case.cause or NOTHING, Counter())[named(document)] += 1
        print(f"{'WRONG' if found else 'ok   '} {name:16} {named(document)} {'; '.join(found)}", flush=True)
    print("\n| Label | Programs | Named first |\n| --- | --- | --- |")
    for label, counts in rows.items():
        print(f"| `{label}` | {counts.total()} | {', '.join(f'`{c}` {n}' for c, n in counts.items())} |")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="run the gallery")
    parser.add_argument("names", nargs="*")
    sys.exit(min(main(parser.parse_args().names), 1))
