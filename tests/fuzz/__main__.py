"""``python -m tests.fuzz [TARGET…] [--seconds N] [--jobs N]``: each target under atheris, in a process of its own.

What it finds interesting is kept under ``build/fuzz/<target>`` for the next time; an input that breaks a target
is left there as ``crash-…`` and the exit code is 1. What the fuzzer says of a target follows ``== <target>: held``,
or ``broke``.

otelgpu is instrumented once, which takes eight seconds, and that process is forked for each target.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import atheris

with atheris.instrument_imports(include=["otelgpu"]):
    from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[2] / "build" / "fuzz"
MAX_INPUT_BYTES = 1 << 16
SLOWEST_S = 10  # for one input
MEMORY_MB = 2048


def fuzz(name: str, seconds: int) -> None:
    """Does not return: libFuzzer ends the process."""
    target = TARGETS[name]
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.read_seeds()):
        (folder / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={SLOWEST_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(folder)], target.run)
    atheris.Fuzz()


def start(name: str, seconds: int, said: BinaryIO) -> int:
    """The process that fuzzes it, which writes what it has to say."""
    if pid := os.fork():
        return pid
    try:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        fuzz(name, seconds)
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # libFuzzer ends it otherwise


def run(names: Iterable[str], seconds: int, jobs: int) -> Iterator[tuple[str, bool, str]]:
    """Each target, so many at a time: whether it held, and what the fuzzer said."""
    waiting = list(names)
    running: dict[int, tuple[str, BinaryIO]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            said = TemporaryFile()  # noqa: SIM115 (closed when its writer has ended)
            running[start(name, seconds, said)] = name, said
        pid, status = os.wait()
        name, said = running.pop(pid)
        with said:
            said.seek(0)
            yield name, status == 0, said.read().decode(errors="replace")


def main() -> int:
    """Run the targets; 1 if one of them broke."""
    parser = argparse.ArgumentParser(prog="tests.fuzz")
    parser.add_argument(
        "target", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=", ".join(TARGETS)
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    wanted = parser.parse_args()
    broken = []
    for name, held, said in run(wanted.target or TARGETS, wanted.seconds, wanted.jobs):
        print(f"\n== {name}: {'held' if held else 'broke'}\n{said}", flush=True)
        if not held:
            broken.append(name)
    print(f"\nbroken: {', '.join(broken)}" if broken else "\nall held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
