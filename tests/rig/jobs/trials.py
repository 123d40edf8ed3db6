"""Simulated jobs against their verdicts: found or not, wrong or not, and how well the cost is known.

``python -m tests.rig.jobs.trials --seeds 60`` prints the table of docs/reference/diagnosis.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from otelgpu.diagnose.ranks.diagnosis import diagnose
from otelgpu.diagnose.ranks.verdicts import HANG, INCONCLUSIVE, RankVerdict
from otelgpu.store.queries import queries_of
from tests.rig.jobs.faults import FAULTS, Fault
from tests.rig.jobs.routines import ROUTINES
from tests.rig.jobs.simulation import HEALTHY, Job, simulate
from tests.rig.jobs.table import code_of, fill

DUE: Final = 0.02
"""Share of the time that a fault has to cost to be due."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """``cost``: as it was reported, in what it is in truth; None: not found, or a hang, which has none."""

    job: Job
    verdicts: Sequence[RankVerdict]

    @property
    def is_due(self) -> bool:
        return self.job.share >= DUE

    @property
    def is_undecided(self) -> bool:
        """Nothing is said but what is missing."""
        return bool(self.verdicts) and all(each.klass == INCONCLUSIVE for each in self.verdicts)

    @property
    def is_wrong(self) -> bool:
        """A verdict that is not what was done to the job."""
        return bool(self.verdicts) and not self.is_found and not self.is_undecided

    @property
    def is_found(self) -> bool:
        fault = self.job.fault
        return fault is not None and bool(self.verdicts) and _is_right(fault, self.verdicts)

    @property
    def cost(self) -> float | None:
        if not self.is_found or not np.isfinite(self.job.saved_s).all():
            return None
        hours = sum(each.cost.gpu_hours for each in self.verdicts if each.cost is not None)
        return float(hours * 3600 / self.job.shape.ranks / self.job.saved_s.sum())


def _is_right(fault: Fault, verdicts: Sequence[RankVerdict]) -> bool:
    """All of them, in class, cause, group and place together; of uneven batches no rank is slow."""
    if any(each.klass != fault.verdict for each in verdicts):
        return False
    groups = {code_of(group) for group in fault.groups}
    if groups and any(_group_of(each) not in groups for each in verdicts):
        return False
    if fault.cause and any(each.cause != fault.cause for each in verdicts):
        return False
    ranks = {rank for each in verdicts for rank in each.ranks}
    return not fault.ranks or ranks == set(fault.ranks)


def _group_of(verdict: RankVerdict) -> str:
    """Its name; of a hang, which names one collective in it too, without that."""
    return verdict.group.rpartition(" of group ")[2] if verdict.klass == HANG else verdict.group


def try_job(name: str, seed: int, *, summed_up: Collection[str] = ()) -> Trial:
    """Simulate and diagnose, on one thread. ``summed_up``: as of `fill`."""
    import duckdb

    job = simulate(name, seed)
    with duckdb.connect(config={"threads": 1}) as connection:
        fill(connection, job, summed_up=summed_up)
        query = queries_of(connection, "otelgpu.diagnose.ranks")
        report = diagnose(query, rejected={}, limits=[])
    return Trial(job=job, verdicts=report.verdicts)


def row(name: str, trials: Sequence[Trial]) -> str:
    """A line of the table."""
    due = [each for each in trials if each.is_due]
    costs = [cost for each in due if (cost := each.cost) is not None]
    wrong, undecided = (sum(each.is_wrong for each in trials), sum(each.is_undecided for each in trials))
    if name == HEALTHY or name in ROUTINES:
        return f"| {name} | {len(trials)} | | | {undecided} | {wrong} | |"
    said = "{1:.2f} ({0:.2f}–{2:.2f})".format(*np.quantile(costs, [0.05, 0.5, 0.95])) if costs else ""
    found = sum(each.is_found for each in due)
    return f"| {name} | {len(trials)} | {len(due)} | {found} | {undecided} | {wrong} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="jobs of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--sums", nargs="+", default=[], help="kinds of own work, summed up by step; no others"
    )
    parser.add_argument("names", nargs="*", default=[HEALTHY, *ROUTINES, *FAULTS])
    options = parser.parse_args()
    print("| what | jobs | cost ≥ 2 % | found | inconclusive | wrong | cost, of the true one (5–95 %) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    everything: list[Trial] = []
    for name in options.names:
        seeds = range(options.first, options.first + options.seeds)
        trials = [try_job(name, seed, summed_up=options.sums) for seed in seeds]
        print(row(name, trials), flush=True)
        everything += trials
        for each in trials:
            if each.is_wrong or (each.is_due and not each.is_found):
                said = [(one.klass, one.cause, list(one.ranks[:4])) for one in each.verdicts]
                fault = each.job.fault
                print(
                    f"    seed {each.job.seed}, {each.job.share:.1%}: {fault.ranks[:4] if fault else ()} {said}"
                )
    print(row("all faults", [each for each in everything if each.job.fault is not None]))


if __name__ == "__main__":
    main()
