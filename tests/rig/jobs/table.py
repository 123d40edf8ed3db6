"""Rows of ``ops`` of a simulated job, by each host's own clock, in DuckDB or as Parquet."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otelgpu.store.sums import summed
from otelgpu.store.tables import CHECKPOINT, COLLECTIVE_PENDING, EVALUATION, EVIDENCE, OWN_KINDS, STEP_SPANS
from tests.rig.jobs.schedule import Operation
from tests.rig.jobs.shape import F64, TOKEN_BYTES, Shape
from tests.rig.jobs.simulation import Job

if TYPE_CHECKING:
    import duckdb

Columns = dict[str, np.ndarray[Any, Any]]
EPOCH_S: Final = 1_790_000_000.0
_STEPS: Final = ("step", CHECKPOINT, EVALUATION)
_PER_STEP: Final = 1_000
"""Operations of a group in a step are fewer."""


def fill(
    connection: duckdb.DuckDBPyConnection, job: Job, name: str = "job-1", *, summed_up: Collection[str] = ()
) -> None:
    """Make the tables, as readers do: what had not ended lasts until the end. Of spans there are none.

    ``summed_up``: kinds of ranks' own work of which there is one row a step, as agents have them, and no others are.
    """
    _fill(connection, job, name)
    if summed_up:
        _sum_up(connection, summed_up)
    for table, declared in (("evidence", EVIDENCE), ("step_spans", STEP_SPANS)):
        columns = ", ".join(f"{column.name} {column.type}" for column in declared)
        connection.execute(f"CREATE OR REPLACE TABLE {table} ({columns})")
    connection.execute(
        "UPDATE ops SET t1 = (SELECT max(t1) FROM ops WHERE isfinite(t1)) WHERE NOT isfinite(t1)"
    )
    connection.execute(
        f"INSERT INTO evidence SELECT job, rank, host, t0, t1, '{COLLECTIVE_PENDING}', seq, name FROM ops "
        "SEMI JOIN pending USING (rank, grp, seq)"
    )
    connection.execute(f"CREATE OR REPLACE TABLE step_sums AS {summed('ops')}")


def _fill(connection: duckdb.DuckDBPyConnection, job: Job, name: str) -> None:
    """``ops``, in which calls that had not ended have no end; ``pending`` has these."""
    rows, names = _rows(job)
    connection.register("simulated", rows)
    connection.register("simulated_names", names)
    connection.execute(_TABLE, [name])
    connection.unregister("simulated")
    connection.unregister("simulated_names")
    unended = "SELECT rank, grp, seq FROM ops WHERE NOT isfinite(t1)"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE pending AS {unended}")


def _sum_up(connection: duckdb.DuckDBPyConnection, kinds: Collection[str]) -> None:
    kept = ", ".join(f"'{kind}'" for kind in kinds)
    own = ", ".join(f"'{kind}'" for kind in OWN_KINDS)
    connection.execute(
        f"CREATE OR REPLACE TABLE ops AS SELECT * FROM ops WHERE kind NOT IN ({own}) UNION ALL BY NAME "
        "SELECT job, step, rank, host, role, lane, 0 AS unit, kind, kind AS name, '' AS grp, -1 AS seq, 0 AS n, "
        "min(t0) AS t0, min(t0) + sum(t1 - t0) AS t1, 0 AS bytes FROM ops "
        f"WHERE kind IN ({kept}) GROUP BY ALL"
    )


def write(path: Path, job: Job, name: str = "job-1") -> None:
    """A Parquet file of ``ops``."""
    import duckdb

    with duckdb.connect() as connection:
        _fill(connection, job, name)
        connection.table("ops").write_parquet(str(path))


_TABLE: Final = """
CREATE OR REPLACE TABLE ops AS
SELECT
    ?::VARCHAR AS job, step::BIGINT AS step, rank::INTEGER AS rank, 'host-' || host AS host,
    CASE WHEN stages > 1 THEN 'stage ' || stage ELSE '' END AS role, 'replica ' || replica AS lane,
    unit::BIGINT AS unit, kind, name, CASE WHEN group_kind = '' THEN '' ELSE group_kind || ' ' || grp END AS grp,
    seq::BIGINT AS seq, n::INTEGER AS n, t0, t1, bytes::BIGINT AS bytes
FROM simulated JOIN simulated_names USING (code)
WHERE isfinite(t0) AND (isfinite(t1) OR kind IN ('coll', 'p2p')) AND (kind <> 'compute' OR t1 > t0)
"""


def group_name(shape: Shape, operation: Operation) -> tuple[str, np.ndarray[Any, Any], int]:
    """Its kind, which group each of the stage's (replica, tensor) is in, and how many members that has."""
    grid = np.indices((shape.replicas, shape.tensor))
    replica, part = grid[0], grid[1]
    kind = operation.group.split(" ")[0]
    stage = operation.stage
    match kind:
        case "tensor":
            return kind, stage * 10_000 + replica, shape.tensor
        case "data":
            return kind, stage * 10_000 + part, shape.replicas
        case "expert":
            return kind, stage * 10_000 + replica // shape.experts * shape.experts * 100 + part, shape.experts
        case "pipe":
            return kind, int(operation.group.split(" ")[1]) * 10_000 + replica * 100 + part, 2
        case _:
            return kind, 0 * replica, shape.ranks


def code_of(group: str) -> str:
    """What `fill` calls the group that a fault names: ``tensor 1 3`` is ``tensor 10003``."""
    kind, stage, *rest = group.split(" ")
    place = 0
    for number in rest:  # a replica or a part, or both
        place = place * 100 + int(number)
    return f"{kind} {int(stage) * 10_000 + place}"


def _rows(job: Job) -> tuple[Columns, Columns]:
    shape = job.shape
    cells, operations = shape.replicas * shape.tensor, job.timeline.operations
    per = shape.steps * cells
    begins = np.concatenate([[0.0], np.cumsum(job.timeline.step_s)[:-1]])
    times = {
        "t0": np.stack([each.start for each in operations]),
        "t1": np.stack([each.end for each in operations]),
    }
    stage = np.array([each.stage for each in operations])
    rank = stage[:, None] * cells + np.arange(cells)
    groups = [group_name(shape, each) for each in operations]
    is_group = np.array([bool(each.group) for each in operations])
    number = np.array([each.number for each in operations])
    seq = np.where(is_group[:, None], np.arange(shape.steps) * _PER_STEP + number[:, None], -1)
    rows: Columns = {
        "step": np.tile(np.repeat(np.arange(shape.steps), cells), len(operations)),
        "rank": np.broadcast_to(rank[:, None, :], (len(operations), shape.steps, cells)).ravel(),
        "stage": np.repeat(stage, per),
        "replica": np.tile(np.repeat(np.arange(shape.replicas), shape.tensor), len(operations) * shape.steps),
        "unit": np.repeat(np.array([each.unit for each in operations]), per),
        "code": np.repeat(np.arange(len(operations)), per),
        "grp": np.broadcast_to(
            np.stack([each[1].ravel() for each in groups])[:, None, :], (len(operations), shape.steps, cells)
        ).ravel(),
        "seq": np.repeat(seq.ravel(), cells),
        "n": np.repeat(np.array([each[2] if each[0] else 0 for each in groups]), per),
        "bytes": _bytes(job).ravel(),
        "t0": (times["t0"] + begins[None, :, None, None]).ravel(),
        "t1": (times["t1"] + begins[None, :, None, None]).ravel(),
    }
    steps = _steps(job, begins)
    rows = {key: np.concatenate([rows[key], steps[key]]) for key in rows}
    rows["host"] = rows["rank"] // shape.ranks_per_host
    rows["stages"] = np.full(len(rows["rank"]), shape.stages)
    _set_clocks(job, rows)
    names: Columns = {
        "code": np.arange(len(operations) + len(_STEPS)),
        "kind": np.array([*(each.kind for each in operations), *["step"] * len(_STEPS)], dtype=object),
        "name": np.array([*(each.name for each in operations), *_STEPS], dtype=object),
        "group_kind": np.array([*(each[0] for each in groups), *[""] * len(_STEPS)], dtype=object),
    }
    return rows, names


def _bytes(job: Job) -> F64:
    """Of (operation, step, replica, tensor): what a copy moves is the batch; of the rest nothing is said."""
    shape = job.shape
    found = np.zeros((len(job.timeline.operations), shape.steps, shape.replicas, shape.tensor))
    if not shape.tells_bytes:
        return found
    tokens = job.length.sum(axis=2)
    for place, operation in enumerate(job.timeline.operations):
        if operation.kind == "copy":
            found[place] = np.round(tokens * TOKEN_BYTES)[:, :, None]
    return found


def _steps(job: Job, begins: F64) -> Columns:
    """Each rank's steps, from the end of the last one's last collective to the end of its own."""
    shape = job.shape
    ranks = np.tile(np.arange(shape.ranks), shape.steps)
    each = np.repeat(np.arange(shape.steps), shape.ranks)
    cells = shape.replicas * shape.tensor
    zeros = np.zeros(len(ranks), dtype=np.int64)
    return {
        "step": each,
        "rank": ranks,
        "stage": ranks // cells,
        "replica": ranks % cells // shape.tensor,
        "unit": zeros,
        "code": len(job.timeline.operations) + _marked(job),
        "grp": zeros,
        "seq": zeros - 1,
        "n": zeros,
        "bytes": zeros.astype(np.float64),
        "t0": begins[each],
        "t1": (begins + job.timeline.step_s)[each],
    }


def _marked(job: Job) -> np.ndarray[Any, Any]:
    """Which of `_STEPS` each step of each rank is."""
    if job.marks is None:
        return np.zeros(job.shape.steps * job.shape.ranks, dtype=np.int64)
    return np.select([job.marks.ravel() == name for name in _STEPS[1:]], range(1, len(_STEPS)), 0)


def _set_clocks(job: Job, rows: Columns) -> None:
    """Each host's clock is off, and runs too fast or too slow."""
    shape, rng = job.shape, np.random.default_rng(job.seed)
    skew = rng.uniform(-shape.skew_s, shape.skew_s, shape.hosts)[rows["host"]]
    drift = rng.uniform(-shape.drift, shape.drift, shape.hosts)[rows["host"]]
    for column in ("t0", "t1"):
        rows[column] = EPOCH_S + rows[column] * (1 + drift) + skew
