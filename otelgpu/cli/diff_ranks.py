"""``otelgpu diff --slow``: the profiles of a slow rank and of a normal one, in the same steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.cli.profile_outputs import totals_of
from otelgpu.cli.rank_reports import look
from otelgpu.diagnose.ranks.comparisons import Comparison, compared
from otelgpu.errors import OtelgpuError
from otelgpu.model.job import JOB_RANK
from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.resource import Resource
from otelgpu.otlp_json.profile_reader import read_profile_lines
from otelgpu.render.profile_totals import KindTotals
from otelgpu.store.files import BrokenFile, pieces
from otelgpu.store.line_files import split_lines
from otelgpu.store.readers import otlp
from otelgpu.store.readers.recognition import reader_of

AUTO: Final = -1


class SlowRank(click.ParamType[int]):
    """``auto`` as :data:`AUTO`, or a rank."""

    name = "rank"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises :class:`click.BadParameter`."""
        text = str(value).strip().lower()
        if text == "auto":
            return AUTO
        if not text.isdecimal():
            self.fail(f"{value!r} is no rank; write auto, or a number from 0", param, ctx)
        return int(text)


class Sides(Struct, frozen=True, kw_only=True):
    """What is compared."""

    comparison: Comparison
    normal: Sequence[ProfileColumns]
    slow: Sequence[ProfileColumns]


def sides(folder: Path, slow: int) -> Sides | None:
    """From a folder (or file) with what a job's hosts wrote; None: no rank is slow, and none was named."""
    profiles = _by_rank(folder)
    facts, report = look([str(folder)], None, None, None)
    comparison = compared(facts, report, None if slow == AUTO else slow, profiles.keys())
    if comparison is None:
        return None
    begin, end = round(comparison.begin_s * 1e9), round(comparison.end_s * 1e9)
    found = []
    for rank in (comparison.normal, comparison.slow):
        # A profile is of some seconds: it counts where most of it lies.
        within = [
            each for each in profiles[rank] if begin <= each.start_unix_ns + each.duration_ns // 2 < end
        ]
        if not within:
            steps = f"steps {comparison.first_step} to {comparison.last_step}"
            raise OtelgpuError(f"the profiles of rank {rank} are not of {steps}")
        found.append(within)
    return Sides(comparison=comparison, normal=found[0], slow=found[1])


def per_step(profiles: Sequence[ProfileColumns], step_s: float) -> list[KindTotals]:
    """Sums as of one step: what there was of a second, times what a step takes."""
    covered_ns: dict[tuple[str, str], dict[tuple[Resource, int], int]] = defaultdict(dict)
    for each in profiles:
        of_kind = covered_ns[each.sample_type.type, each.sample_type.unit]
        of_kind[each.resource, each.start_unix_ns] = each.duration_ns
    found = []
    for kind in totals_of(profiles):
        share = step_s * 1e9 / max(sum(covered_ns[kind.type, kind.unit].values()), 1)
        places = [replace(place, value=round(place.value * share)) for place in kind.places]
        found.append(replace(kind, value=round(kind.value * share), places=places))
    return found


def heading(comparison: Comparison) -> str:
    """What is compared with what, in one line."""
    normal_s, slow_s = comparison.own_s
    return (
        f"rank {comparison.slow} against rank {comparison.normal}, steps {comparison.first_step} to "
        f"{comparison.last_step}: own time {1e3 * slow_s:.3g} ms a step, and {1e3 * normal_s:.3g} ms; "
        "all values are a step's"
    )


def _by_rank(folder: Path) -> dict[int, list[ProfileColumns]]:
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    found: dict[int, list[ProfileColumns]] = defaultdict(list)
    for path in files:
        if not path.is_file() or reader_of(path) is not otlp.read:
            continue
        try:
            read = read_profile_lines(split_lines(pieces(path)), path.name)
        except BrokenFile as error:
            raise OtelgpuError(f"cannot read {path}: {error}") from error
        for batch in read.profiles:
            rank = batch.resource.get(JOB_RANK)
            if isinstance(rank, int):
                found[rank].append(batch)
    return found
