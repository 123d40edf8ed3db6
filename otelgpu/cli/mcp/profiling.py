"""``diff_profiles``, and ``profile`` where the command line allows it: a child of this program records for a while.

What is recorded is an input from then on, of this server only, and is gone when that ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from otelgpu.cli.mcp import untrusted
from otelgpu.cli.mcp.answers import Found, Next
from otelgpu.cli.mcp.arguments import InputName, Limit
from otelgpu.cli.mcp.session import Session
from otelgpu.cli.profile_outputs import totals_of
from otelgpu.errors import OtelgpuError
from otelgpu.model.profiling import ProfileKind
from otelgpu.render.profile_changes import KindChanges, changes
from otelgpu.render.profile_totals import KindTotals

LONGEST_S: Final = 60
"""Of one profile."""
MOST_PROFILES: Final = 32
"""Of one server: each lies on disk until it ends."""
_PATIENCE_S: Final = 60.0
"""Beyond its duration, for attaching to a large process and for writing."""
_PLACES: Final = 12


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments. The kinds that are the default are those that diagnose_stall reads."""

    pid: Annotated[
        int, Meta(ge=1, le=4_194_304, description="A running process; its children are profiled too.")
    ]
    seconds: Annotated[int, Meta(ge=1, le=LONGEST_S)] = 10
    kinds: Annotated[list[ProfileKind], Meta(min_length=1, max_length=12)] = field(
        default_factory=lambda: [ProfileKind.CPU, ProfileKind.OFFCPU, ProfileKind.SYSCALL, ProfileKind.FILE]
    )


class DiffProfiles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments. ``normalise``: shares are compared, not sums."""

    before: InputName
    after: InputName
    normalise: bool = True
    limit: Limit = _PLACES


class Place(Struct, frozen=True, kw_only=True):
    """Where something was spent: the innermost frame, and the innermost line of Python, if any."""

    frame: str
    line: str
    state: str
    value: int
    samples: int


class KindTaken(Struct, frozen=True, kw_only=True):
    """One sample type: its sum in ``unit``, and where most of it is."""

    type: str
    unit: str
    value: int
    samples: int
    places: list[Place]


class Profiled(Struct, frozen=True, kw_only=True):
    """``input``: what the recording is called from now on."""

    input: str
    kinds: list[KindTaken]


class PlaceChange(Struct, frozen=True, kw_only=True):
    """``difference``: after less before; the latter is scaled where they are normalised."""

    frame: str
    line: str
    before: float
    after: float
    difference: float


class KindChanged(Struct, frozen=True, kw_only=True):
    """One sample type: its sums as measured, in ``unit``, and the largest changes first."""

    type: str
    unit: str
    before: int
    after: int
    changes: list[PlaceChange]


class Difference(Struct, frozen=True, kw_only=True):
    """Of each type that one of the two has."""

    kinds: list[KindChanged]


def diff_profiles(session: Session, arguments: DiffProfiles) -> Found[Difference]:
    """Compare two inputs. Raises :class:`OtelgpuError` where they have no kind of profile in common."""
    first, second = (
        totals_of(session.recordings.profiles(each)) for each in (arguments.before, arguments.after)
    )
    found = changes(first, second, normalise=arguments.normalise)
    if not any(kind.before and kind.after for kind in found):
        raise OtelgpuError("there is no kind of profile that both have", hint="take both with the same kinds")
    cut = [
        f"{kind.type}: {len(kind.changes) - arguments.limit} smaller changes: limit up to 100, or otelgpu diff"
        for kind in found
        if len(kind.changes) > arguments.limit
    ]
    return Found(result=Difference(kinds=[_changed(kind, arguments.limit) for kind in found]), cut=cut)


def profile(session: Session, arguments: Profile) -> Found[Profiled]:
    """Record. Raises :class:`OtelgpuError` with what ``otelgpu profile`` says where it cannot."""
    number = len(list(session.folder.glob("profile-*"))) + 1
    if number > MOST_PROFILES:
        raise OtelgpuError(f"{MOST_PROFILES} profiles were taken", hint="start the server anew for others")
    shown, path = f"profile-{number}", session.folder / f"profile-{number}.jsonl"
    path.touch(mode=0o600)
    try:
        _record(arguments, path)
        session.inputs.add(shown, path)
        totals = totals_of(session.recordings.profiles(shown))
    except BaseException:
        session.inputs.remove(shown)
        path.unlink(missing_ok=True)
        raise
    following = [
        Next(tool="diagnose_stall", arguments={"input": shown}, why="what the process stands still for")
    ]
    return Found(result=Profiled(input=shown, kinds=[_taken(kind) for kind in totals]), next=following)


def _record(arguments: Profile, path: Path) -> None:
    """Run ``otelgpu profile``, without our standard streams, and without asking for anybody's words."""
    command = [
        *(sys.executable, "-P", "-m", "otelgpu", "profile"),
        *("-p", str(arguments.pid), "-d", str(arguments.seconds), "-t", ",".join(arguments.kinds)),
        *("--export", f"file:{path}"),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment(os.environ),
            timeout=arguments.seconds + _PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OtelgpuError(f"the profile of {arguments.pid} did not end in time") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OtelgpuError(f"process {arguments.pid} could not be profiled: {' '.join(said[-4:])[-600:]}")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Of the child: nothing goes to a Collector, and prompts are not kept."""
    return {key: value for key, value in environ.items() if not key.startswith(("OTEL_", "OTELGPU_MCP"))}


def _taken(kind: KindTotals) -> KindTaken:
    return KindTaken(
        type=kind.type,
        unit=kind.unit,
        value=kind.value,
        samples=kind.samples,
        places=[
            Place(
                frame=untrusted.name(each.leaf),
                line=untrusted.name(each.line),
                state=each.state,
                value=each.value,
                samples=each.samples,
            )
            for each in kind.places[:_PLACES]
        ],
    )


def _changed(kind: KindChanges, most: int) -> KindChanged:
    return KindChanged(
        type=untrusted.name(kind.type),
        unit=untrusted.name(kind.unit),
        before=kind.before,
        after=kind.after,
        changes=[
            PlaceChange(
                frame=untrusted.name(each.leaf),
                line=untrusted.name(each.line),
                before=each.before,
                after=each.after,
                difference=each.difference,
            )
            for each in kind.changes[:most]
        ],
    )
