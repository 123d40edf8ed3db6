"""``make demo-profile``: a training loop that stalls is diagnosed by ``otelgpu profile -t all``, and checked.

Runs ``examples/training_loop.py`` under the command, then reads the OTLP/JSON that it wrote as a stranger would: which
file was written, how long that took, in which Python line, under which stack the thread waited, and which steps it
delayed. The loop's own clock is the truth. Exits with 1 when the diagnosis is not there, or is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from examples import training_loop
from otelgpu.families.profiles.names import FILE_CALL, FILE_NAME
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import Attribute, Text
from otelgpu.render.format import read_profiles
from otelgpu.render.profile_totals import stack_names

_FUNCTION: Final = training_loop.write_checkpoint.__name__
_NO_SPAN: Final = "0" * 16
_CLOSE_S: Final = 0.003
"""How far the loop's clock and the kernel's may be apart for one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One sample. ``frames``: the leaf first. ``span_id`` "": of no span."""

    type: str
    value: int
    frames: tuple[str, ...]
    span_id: str
    attributes: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Diagnosis:
    """What the profiles say of the stall, and nothing that they do not."""

    files: Counter[str] = field(default_factory=Counter)  # ns in slow calls, by file
    calls: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # ns of each, by call
    lines: Counter[str] = field(default_factory=Counter)  # ns in slow calls, by Python line
    waits: Counter[tuple[str, ...]] = field(default_factory=Counter)  # ns off the CPU, by stack
    steps: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # span → type → ns
    stalled: set[str] = field(default_factory=set)  # spans with slow calls on a file


def observations(batches: Sequence[ProfileColumns]) -> Iterator[Observation]:
    """Every row of every batch."""
    for batch in batches:
        names = [stack_names(batch, stack) for stack in batch.stacks]
        for row in range(len(batch)):
            span_id = ""
            if batch.links is not None:
                span_id = batch.links.span_id[batch.links.codes[row]].tobytes().hex()
            yield Observation(
                type=batch.sample_type.type,
                value=int(batch.value[row]),
                frames=names[batch.stack[row]],
                span_id="" if span_id == _NO_SPAN else span_id,
                attributes={
                    each.key: value_of(each, row)
                    for each in batch.attributes
                    if each.present is None or each.present[row]
                },
            )


def value_of(attribute: Attribute, row: int) -> Any:
    """Of one row."""
    values = attribute.values
    return values.table[values.codes[row]] if isinstance(values, Text) else values[row].item()


def diagnose(found: Iterator[Observation]) -> Diagnosis:
    """Sum up what concerns the function that writes."""
    reported = Diagnosis()
    for each in found:
        line = next((frame for frame in each.frames if frame.endswith(f" {_FUNCTION}")), "")
        if each.span_id and each.type in ("cpu", "off_cpu", "file_time"):
            reported.steps[each.span_id][each.type] += each.value
        if not line:
            continue
        if each.type == "file_time":
            name = str(each.attributes.get(FILE_NAME, ""))
            reported.files[name] += each.value
            reported.calls[str(each.attributes.get(FILE_CALL, "?"))].append(each.value)
            reported.lines[line] += each.value
            reported.stalled.add(each.span_id)
        elif each.type == "off_cpu":
            reported.waits[each.frames] += each.value
    return reported


def problems(reported: Diagnosis, truth: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the diagnosis differs from what the loop measured of itself."""
    written = [line for line in truth if "checkpoint" in line]
    found = []
    names = {Path(line["checkpoint"]).name for line in written}
    seen = {Path(name).name for name in reported.files}
    if seen != names:
        found.append(f"files: the profile has {sorted(seen)}, the loop wrote {sorted(names)}")
    for call, key in (("write", "write_s"), ("sync", "fsync_s")):
        have = sorted(ns / 1e9 for ns in next((v for k, v in reported.calls.items() if k.endswith(call)), []))
        want = sorted(line[key] for line in written)
        if len(have) != len(want):
            found.append(f"{call}: {len(have)} slow calls in the profile, {len(want)} made")
        elif have and not _is_plausible(have, want):
            found.append(f"{call}: {have} s in the profile, {want} s by the loop's clock")
    if not reported.waits:
        found.append(f"no off-CPU stack goes through {_FUNCTION}")
    delayed = [line["span_id"] for line in written]
    wrong, missed = (
        reported.stalled - {""} - set(delayed),
        [span for span in delayed if span not in reported.stalled],
    )
    # The loop's first spans may be over before it is known where they are published.
    if wrong or missed != delayed[: len(missed)] or len(missed) > 1:
        found.append(f"steps: {len(missed)} of {len(delayed)} missed, {len(wrong)} wrong")
    return found


def _is_plausible(have: Sequence[float], want: Sequence[float]) -> bool:
    """No call lasted longer than the loop says; most are as long as that, but for waits for a CPU after them."""
    longer = any(one > other + _CLOSE_S for one, other in zip(have, want, strict=True))
    middle, reported = statistics.median(have), statistics.median(want)
    return not longer and reported - middle <= _CLOSE_S + 0.25 * reported


def show(reported: Diagnosis, truth: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The diagnosis, as a person would report it."""
    console.print("\n[bold]The stall[/bold]")
    where = next(iter(reported.lines.most_common(1)), ("nowhere", 0))
    console.print(
        f"  Python lines: {', '.join(f'{line} ({ms(ns)})' for line, ns in reported.lines.most_common())}"
    )
    for call, times in sorted(reported.calls.items()):
        console.print(
            f"  {call}: {len(times)} slow calls, median {ms(statistics.median(times))}, longest {ms(max(times))}"
        )
    for name, ns in reported.files.most_common(3):
        console.print(f"  file: {name}, {ms(ns)} in its calls")
    console.print("\n[bold]Where the thread was while it was off the CPU[/bold] (the leaf first)")
    for stack, ns in reported.waits.most_common(1):
        console.print(f"  {ms(ns)} in all:")
        for frame in stack[:24]:
            console.print(f"    {frame}", highlight=False, markup=False)
    if not reported.waits:
        console.print(f"  nothing of {where[0]}")
    numbers = {line["span_id"]: line["step"] for line in truth if "span_id" in line}
    table = Table(title="\nSteps, by the span that samples link to", title_justify="left", title_style="bold")
    for name in ("", "steps", "on the CPU", "off the CPU", "in slow file calls"):
        table.add_column(name, justify="right")
    for title, chosen in (
        ("stalled", [reported.steps[s] for s in reported.steps if s in reported.stalled]),
        ("others", [reported.steps[s] for s in reported.steps if s not in reported.stalled]),
    ):
        if chosen:
            means = (
                statistics.mean(step[kind] for step in chosen) for kind in ("cpu", "off_cpu", "file_time")
            )
            table.add_row(title, str(len(chosen)), *(ms(mean) for mean in means))
    console.print(table)
    stalled = sorted(numbers[span] for span in reported.stalled if span in numbers)
    console.print(f"  delayed: steps {', '.join(map(str, stalled)) or 'none'}")


def ms(ns: float) -> str:
    """Milliseconds."""
    return f"{ns / 1e6:.1f} ms"


def main() -> int:
    """Run the demonstration; 0 when the diagnosis is there and agrees with the loop's own clock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=63)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    options = parser.parse_args()
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    truth_path, lines, page = (
        folder / name for name in ("profile-truth.jsonl", "profile.jsonl", "profile.html")
    )
    for path in (truth_path, lines, page):
        path.unlink(missing_ok=True)
    console = Console(width=max(Console().width, 120))
    console.print("[bold]1.[/bold] otelgpu profile -t all -- python -m examples.training_loop")
    argv = [
        *(str(Path(sys.executable).with_name("otelgpu")), "profile", "-t", "all"),
        *("--export", f"file:{lines}", "-o", str(page), "--"),
        *(sys.executable, "-m", "examples.training_loop", "--steps", str(options.steps)),
        *("--folder", str(folder), "--truth", str(truth_path), "--load-seconds", "2"),
    ]
    # One thread of BLAS, so that a step is what its thread does; the span that is active is published.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OTEL_PYTHON_CONTEXT": "otelgpu"}
    ended = subprocess.run(argv, env=environ, check=False, timeout=300)
    if ended.returncode != 0:
        console.print(f"[red]otelgpu profile ended with {ended.returncode}[/red]")
        return 1
    truth = [json.loads(line) for line in truth_path.read_text().splitlines()]
    reported = diagnose(observations(read_profiles(lines.name, lines.read_bytes())))
    console.print("[bold]2.[/bold] what its profiles say")
    show(reported, truth, console)
    console.print(f"\nThe flame graphs are in {page}: open it in a browser.")
    console.print(
        "Shown: the loop's own Python, on a real file system and with the kernel's own stacks. The matrix product "
        "stands in for a GPU's work. The step of a sample is the span that the loop publishes "
        "(OTEL_PYTHON_CONTEXT=otelgpu): without it files, times, stacks and lines are the same, and which step it was "
        "is not known."
    )
    found = problems(reported, truth)
    for problem in found:
        console.print(f"[red]not as it was:[/red] {problem}", highlight=False)
    if not found:
        console.print("[green]The diagnosis agrees with the loop's own clock.[/green]")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
