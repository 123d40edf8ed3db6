"""``python -m tests.fuzz [TARGET…] [--seconds N]``: each target under atheris, each in a process of its own.

What it finds interesting is kept under ``build/fuzz/<target>`` for the next time; an input that breaks a target
is left there as ``crash-…`` and the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parents[2] / "build" / "fuzz"
MAX_INPUT_BYTES = 1 << 16
SLOWEST_S = 10  # for one input
MEMORY_MB = 2048


def fuzz(name: str, seconds: int) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["otelgpu"]):
        from tests.fuzz.targets import TARGETS

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


def main() -> int:
    """Run the targets one after the other; 1 if one of them broke."""
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="tests.fuzz")
    parser.add_argument(
        "target", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=", ".join(TARGETS)
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    wanted = parser.parse_args()
    broken = []
    for name in wanted.target or TARGETS:
        print(f"\n== {name}, {wanted.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz.__main__", "--one", name, str(wanted.seconds)]
        if subprocess.run(command, check=False).returncode:
            broken.append(name)
    print(f"\nbroken: {', '.join(broken)}" if broken else "\nall held")
    return 1 if broken else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        fuzz(sys.argv[2], int(sys.argv[3]))
    sys.exit(main())
