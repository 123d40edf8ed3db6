"""What is said of the recorded programs of the gallery: ``recorded/results.json``, which the manual's table is made of.

``python -m tests.gallery.results [FOLDER]`` judges all recordings again, says what is wrong, and writes the file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from otelgpu.diagnose.stall.sentences import sentence
from otelgpu.diagnose.stall.verdicts import StallReport
from tests.gallery.cases import CASES, Case
from tests.gallery.recordings import FOLDER, judge, read

NOTHING: Final = "nothing"


class Said(Struct, frozen=True, kw_only=True):
    """What was said of a program: the cause that came first, ``nothing`` or ``inconclusive``, and all that were."""

    cause: str
    causes: frozenset[str]
    sentence: str
    text: str

    def faults(self, case: Case) -> list[str]:
        """What is wrong with it, or missing."""
        found = [f"not said: {each}" for each in case.says if each not in self.sentence]
        if case.also and case.also not in self.causes:
            found.append(f"not named: {case.also}")
        return found if self.cause == label(case) else [f"{self.cause} in place of {label(case)}", *found]


class Result(Struct, frozen=True):
    """Of a program: what had to be named first, and what was."""

    label: str
    named: str


class Results(Struct, frozen=True):
    """Of all recordings. ``dates`` and ``load``: the first and last, the least and most of them."""

    dates: tuple[str, str]
    kernels: list[str]
    cpus: int
    load: tuple[float, float]
    programs: Mapping[str, Result]


def label(case: Case) -> str:
    """What has to be named first."""
    return case.cause or NOTHING


def said_of(report: StallReport) -> Said:
    """By the first verdict."""
    first = report.verdicts[0] if report.verdicts else None
    return Said(
        cause=NOTHING if first is None else first.cause or first.klass,
        causes=frozenset(each.cause for each in report.verdicts),
        sentence=sentence(first) if first is not None else "",
        text="\n".join(map(sentence, report.verdicts)),
    )


def recorded_results(folder: Path = FOLDER) -> Results:
    """What :func:`main` wrote."""
    return msgspec.json.decode((folder / "results.json").read_bytes(), type=Results)


def results(folder: Path = FOLDER) -> tuple[Results, dict[str, Said]]:
    """Of all programs that there is a recording of."""
    paths = {name: folder / f"{name}.json.xz" for name in CASES}
    made = {name: read(path) for name, path in paths.items() if path.exists()}
    said = {name: said_of(judge(each)) for name, each in made.items()}
    dates, loads = [each.date for each in made.values()], [each.load for each in made.values()]
    return Results(
        dates=(min(dates), max(dates)),
        kernels=sorted({each.kernel for each in made.values()}),
        cpus=min(each.cpus for each in made.values()),
        load=(min(loads), max(loads)),
        programs={name: Result(label(CASES[name]), each.cause) for name, each in said.items()},
    ), said


def main(folder: Path) -> int:
    """Write the file; how many programs another cause was named first of."""
    found, said = results(folder)
    for name, each in said.items():
        for fault in each.faults(CASES[name]):
            print(f"{name}: {fault}: {each.text[:300] or '-'}")
    made = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
    (folder / "results.json").write_bytes(made)
    return sum(each.label != each.named for each in found.programs.values())


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER), 1))
