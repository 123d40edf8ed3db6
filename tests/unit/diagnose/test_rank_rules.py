"""What single rules say of small tables that are made by hand, and what they leave unsaid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pytest

duckdb = pytest.importorskip("duckdb")

from otelgpu.diagnose.ranks.diagnosis import diagnose  # noqa: E402
from otelgpu.diagnose.ranks.peers import median_of_others, running_median, runs  # noqa: E402
from otelgpu.diagnose.ranks.pipeline_places import stages_of  # noqa: E402
from otelgpu.diagnose.ranks.sentences import sentence  # noqa: E402
from otelgpu.diagnose.ranks.verdicts import RanksReport  # noqa: E402
from otelgpu.diagnose.ranks.wording import numbered  # noqa: E402
from otelgpu.store.queries import queries_of  # noqa: E402
from otelgpu.store.sums import summed  # noqa: E402
from otelgpu.store.tables import EVIDENCE, OPS, STEP_SPANS, Column  # noqa: E402

Row = dict[str, Any]
Seconds = Callable[[int, int], float]  # of (rank, step)


def report_of(rows: list[Row], evidence: list[Row] | None = None) -> RanksReport:
    with duckdb.connect(config={"threads": 1}) as connection:
        for table, columns, given in (
            ("ops", OPS, rows),
            ("evidence", EVIDENCE, evidence or []),
            ("step_spans", STEP_SPANS, []),
        ):
            names = ", ".join(f"{column.name} {column.type}" for column in columns)
            connection.execute(f"CREATE TABLE {table} ({names})")
            if given:
                connection.register("given", {column.name: _values(column, given) for column in columns})
                connection.execute(f"INSERT INTO {table} SELECT * FROM given")
        connection.execute(f"CREATE VIEW step_sums AS {summed('ops')}")
        query = queries_of(connection, "otelgpu.diagnose.ranks")
        return diagnose(query, rejected={"rows_incomplete": 1}, limits=["a limit"])


def _values(column: Column, rows: list[Row]) -> np.ndarray[Any, Any]:
    if column.type == "VARCHAR":
        return np.array([row.get(column.name, "") for row in rows], dtype=object)
    dtype = np.float64 if column.type == "DOUBLE" else np.int64
    return np.array([row.get(column.name, 0) for row in rows], dtype=dtype)


def data_parallel(
    compute: Seconds | None, host: Seconds, *, ranks: int = 4, steps: int = 20, input: Seconds | None = None
) -> Iterator[Row]:
    """Each rank's host code, input and computing, then an all-reduce that ends for all when the last has come."""
    for step in range(steps):
        own = {
            rank: [
                (kind, seconds(rank, step))
                for kind, seconds in (("input", input), ("host", host), ("compute", compute))
                if seconds is not None
            ]
            for rank in range(ranks)
        }
        # what a rank computes takes its time, whether device time is recorded or not
        begin, last = 100.0 * step, max(sum(seconds for _, seconds in kinds) for kinds in own.values())
        for rank, kinds in own.items():
            skew = 0.04 * (-1) ** rank
            common = {
                "job": "j",
                "step": step,
                "rank": rank,
                "host": f"host-{rank // 2}",
                "lane": f"dp {rank}",
            }
            now = begin + skew
            for kind, seconds in kinds:
                yield common | {"kind": kind, "t0": now, "t1": now + seconds}
                now += seconds
            end = begin + skew + last + 0.001
            yield common | {"kind": "coll", "grp": "dp", "seq": step, "n": ranks, "t0": now, "t1": end}
            yield common | {"kind": "step", "t0": begin + skew, "t1": end, "seq": -1}


def jitter(seconds: float) -> Seconds:
    return lambda rank, step: seconds * (1 + 0.002 * np.sin(1.7 * rank + 2.3 * step))


def test_a_device_that_computes_longer_is_the_slow_rank_of_four() -> None:
    """8.8 against 4.8 ms, the case that lateness of calls blamed on all four."""
    report = report_of(
        list(
            data_parallel(
                lambda rank, step: 0.0088 if rank == 2 else jitter(0.0048)(rank, step), jitter(0.001)
            )
        )
    )
    (verdict,) = report.verdicts
    assert (verdict.klass, verdict.cause, verdict.ranks, verdict.hosts) == (
        "slow_worker",
        "compute",
        [2],
        ["host-1"],
    )
    assert verdict.factor == pytest.approx(8.8 / 4.8, rel=0.01)
    assert verdict.cost is not None
    assert verdict.cost.seconds_per_step == pytest.approx(0.004, rel=0.01)
    assert verdict.persistent
    assert sentence(verdict).startswith("Slow rank 2 (host-1): computing takes 1.83 times as long")


@pytest.mark.parametrize("kind", ["host", "input"])
def test_slow_host_code_and_slow_input_are_seen_without_device_time(kind: str) -> None:
    def slow(rank: int, step: int) -> float:
        return jitter(0.001)(rank, step) + 0.004 * (rank == 3)

    normal = jitter(0.001)
    rows = data_parallel(None, slow if kind == "host" else normal, input=slow if kind == "input" else normal)
    (verdict,) = report_of(list(rows)).verdicts
    assert (verdict.klass, verdict.cause, verdict.ranks) == ("slow_worker", kind, [3])


def test_without_device_time_a_slow_device_is_what_is_missing_and_who_came_last_a_lead() -> None:
    rows = [
        row
        for row in data_parallel(lambda rank, _: 0.0088 if rank == 2 else 0.0048, jitter(0.001))
        if row["kind"] != "compute"
    ]
    report = report_of(rows)
    (verdict,) = report.verdicts
    assert (verdict.klass, verdict.ranks) == ("inconclusive", ())
    assert "device time" in verdict.evidence[0].text
    assert verdict.evidence[1].ranks == [2]
    assert "no device time: slow computing cannot be told" in report.limits


def test_seven_steps_are_too_few() -> None:
    rows = data_parallel(lambda rank, _: 0.01 if rank else 0.02, jitter(0.001), steps=7)
    (verdict,) = report_of(list(rows)).verdicts
    assert verdict.klass == "inconclusive"
    assert "7 steps" in verdict.evidence[0].text


def test_one_rank_has_no_peers() -> None:
    (verdict,) = report_of(list(data_parallel(jitter(0.01), jitter(0.001), ranks=1))).verdicts
    assert verdict.klass == "inconclusive"


def test_a_time_that_no_operation_shows_is_not_guessed() -> None:
    """Rank 1 comes last always, its own work is as long as the others'."""
    rows = [
        row | ({"t1": row["t0"] + 0.01} if row["kind"] == "host" else {})
        for row in data_parallel(jitter(0.005), lambda rank, _: 0.02 if rank == 1 else 0.01)
    ]
    (verdict,) = report_of(rows).verdicts
    assert verdict.klass == "inconclusive"
    assert verdict.evidence[1].ranks == [1]


def test_who_comes_last_by_a_little_is_not_waited_for_while_others_pause() -> None:
    """Rank 1 takes half a percent longer; both ranks are stopped for 20 ms in steps of their own, ten in sixty."""
    rows = data_parallel(
        lambda rank, step: 0.01 * (1 + 0.005 * rank),
        lambda rank, step: jitter(0.001)(rank, step) + 0.02 * ((step + 3 * rank) % 6 == 0),
        ranks=2,
        steps=60,
    )
    assert report_of(list(rows)).verdicts == []


def test_a_rank_that_did_steps_twice_is_no_slow_rank_in_them() -> None:
    rows = list(data_parallel(jitter(0.005), jitter(0.001)))
    again = [
        row | {"t0": row["t0"] + 5000, "t1": row["t1"] + 5000}
        for row in rows
        if row["rank"] == 1 and row["step"] < 9
    ]
    report = report_of(rows + again)
    assert report.verdicts == []
    assert any("more than once" in limit for limit in report.limits)


def habitual(ranks: Collection[int], mark: str, slow: int = -1, every: int = 10) -> list[Row]:
    """Ranks work 50 ms more on the host every few steps, which are named so."""

    def does(rank: int, step: int) -> bool:
        return rank in ranks and step % every == every - 1

    rows = data_parallel(
        lambda rank, step: jitter(0.005)(rank, step) * (1.5 if rank == slow else 1),
        lambda rank, step: jitter(0.001)(rank, step) + 0.05 * does(rank, step),
        steps=80,
    )
    return [
        row | {"name": mark if row["kind"] == "step" and does(row["rank"], row["step"]) else ""}
        for row in rows
    ]


def test_what_a_rank_did_beside_training_makes_it_no_slow_rank_and_is_told_with_its_cost() -> None:
    report = report_of(habitual([0], "checkpoint"))
    assert report.verdicts == []
    (marked,) = report.marked
    assert (marked.kind, marked.ranks, marked.steps) == ("checkpoint", [0], 8)
    assert marked.seconds == pytest.approx(8 * 0.05, rel=0.01)
    assert marked.share == pytest.approx(0.4 / (80 * 0.007 + 0.4), rel=0.01)
    assert any(
        limit.startswith("checkpoint in 8 steps (rank 0): compared with no") for limit in report.limits
    )
    assert [each.ranks for each in report_of(habitual([0], "")).verdicts] == [[0]]


def test_a_slow_rank_is_found_beside_those_that_evaluate() -> None:
    (verdict,) = report_of(habitual([0, 1], "evaluation", slow=2)).verdicts
    assert (verdict.klass, verdict.cause, verdict.ranks) == ("slow_worker", "compute", [2])


def test_units_that_only_sends_have_are_none_of_computing() -> None:
    """Computing is in the input as one sum a step: it is divided into no units, of which all but one were empty."""
    rows = [
        row | {"role": f"stage {row['rank'] // 4}", "lane": f"replica {row['rank'] % 4}"}
        for row in data_parallel(jitter(0.01), jitter(0.001), ranks=8)
    ]
    sent = [
        row | {"kind": "p2p", "grp": row["lane"], "n": 2, "unit": unit, "seq": 10 * row["step"] + unit}
        for row in rows
        if row["kind"] == "coll"
        for unit in range(4)
    ]
    assert report_of(rows + sent).verdicts == []


def test_a_step_in_which_most_ranks_did_something_else_is_left_out() -> None:
    report = report_of(habitual(range(4), "checkpoint"))
    assert (report.verdicts, report.input.steps) == ([], 72)


def test_what_a_rank_does_in_every_third_step_is_its_training() -> None:
    report = report_of(habitual([0], "checkpoint", every=3))
    assert [(each.klass, each.ranks) for each in report.verdicts] == [("slow_worker", [0])]
    assert report.marked == []
    assert any("more than 25% of the steps of ranks 0" in limit for limit in report.limits)


def test_pauses_are_a_ranks_own_where_it_has_more_of_them_than_the_others() -> None:
    def own(rank: int, step: int) -> float:
        return 0.03 * (rank == 2 and step % 8 == 3)

    def everyones(rank: int, step: int) -> float:
        return 0.03 * ((7 * step + 11 * rank) % 20 == 3)

    def many(rank: int, step: int) -> float:
        return 0.03 * ((7 * step + 3 * rank) % 8 == 3)

    def by_chance(rank: int, step: int) -> float:
        """One rank has 9 of them, the others 5 or 6: a tenth of its steps, and no more than it may be."""
        return 0.03 * (step in {rank: range(rank, 80, 15), 2: range(3, 80, 9)}.get(rank, ()))

    found = []
    for pause in (own, everyones, many, by_chance):

        def host(rank: int, step: int, pause: Seconds = pause) -> float:
            return jitter(0.001)(rank, step) + pause(rank, step)

        rows = data_parallel(jitter(0.01), host, steps=80)
        found.append([(each.klass, each.cause, each.ranks) for each in report_of(list(rows)).verdicts])
    assert found == [[("slow_worker", "host", [2])], [], [], []]


def pausing(run: Collection[int], *, others: bool) -> Seconds:
    """Rank 0 pauses in the steps of ``run``; with ``others`` all ranks do in steps of their own, one of twelve."""
    usual = jitter(0.05)

    def host(rank: int, step: int) -> float:
        pauses = step in run if rank == 0 else others and (step + 5 * rank) % 12 == 0
        return usual(rank, step) + 0.2 * pauses

    return host


@pytest.mark.parametrize(("run", "others"), [(4, True), (4, False), (9, True)])
def test_pauses_that_come_close_together_are_no_slow_rank_where_every_rank_has_as_many(
    run: int, others: bool
) -> None:
    host = pausing(range(20, 20 + run), others=others)
    verdicts = report_of(list(data_parallel(jitter(0.01), host, ranks=8, steps=48))).verdicts
    by_chance = run == 4 and others
    assert [(each.ranks, each.first_step) for each in verdicts] == ([] if by_chance else [([0], 20)])


def test_a_rank_that_pauses_as_others_do_and_is_slow_besides_is_found() -> None:
    paused = pausing(range(20, 24), others=True)

    def host(rank: int, step: int) -> float:
        return paused(rank, step) * (1.5 if rank == 0 and 16 <= step < 30 else 1)

    (verdict,) = report_of(list(data_parallel(jitter(0.01), host, ranks=8, steps=48))).verdicts
    assert verdict.ranks == [0] and verdict.first_step in (15, 16, 17)


@pytest.mark.parametrize(
    ("ranks", "since", "said"),
    [
        ([1], 8, [("slow_worker", (1,), 8)]),  # most of the run
        ([1], 24, [("slow_worker", (1,), 24)]),
        ([0, 1], 12, [("global_slowdown", (0, 1), 12)]),
        ([], 0, []),
    ],
)
def test_a_stage_of_one_rank_is_told_to_have_changed(
    ranks: Collection[int], since: int, said: list[tuple[str, tuple[int, ...], int]]
) -> None:
    usual = jitter(0.05)

    def host(rank: int, step: int) -> float:
        return usual(rank, step) * (3 if rank in ranks and step >= since else 1)

    rows = data_parallel(jitter(0.01), host, ranks=2, steps=30)
    report = report_of([row | {"role": f"stage {row['rank']}"} for row in rows])
    found = [(each.klass, tuple(each.ranks), each.first_step) for each in report.verdicts]
    assert found == said


def test_pauses_are_found_where_own_time_is_short_and_varies() -> None:
    """A garbage collector's, of 30 ms every fifth step, on top of 1 to 3 ms."""
    found = []
    for pause_s in (0.03, 0.0):

        def host(rank: int, step: int, pause_s: float = pause_s) -> float:
            return 0.002 * (1 + 0.5 * np.sin(1.7 * rank + 2.3 * step)) + pause_s * (
                rank == 2 and step % 5 == 3
            )

        rows = data_parallel(None, host, steps=80)
        found.append([(each.klass, each.cause, each.ranks) for each in report_of(list(rows)).verdicts])
    assert found[0] == [("slow_worker", "host", [2])]
    assert [klass for klass, *_ in found[1]] == ["inconclusive"]  # no device time


def test_ranks_that_are_missing_are_said() -> None:
    rows = [row for row in data_parallel(jitter(0.005), jitter(0.001)) if row["rank"] != 3]
    report = report_of(rows)
    assert report.verdicts == []
    assert "1 ranks or more are not in the input, by the sizes of their groups" in report.limits


def test_what_was_rejected_and_the_limits_of_the_input_are_in_the_report() -> None:
    report = report_of(list(data_parallel(jitter(0.005), jitter(0.001))))
    assert (report.input.ranks, report.input.steps, report.input.hosts) == (4, 20, 2)
    assert report.input.rejected == {"rows_incomplete": 1}
    assert report.limits[0] == "a limit"


def dumps(
    waiting: dict[int, list[tuple[str, int]]], came: dict[int, list[tuple[str, int]]]
) -> tuple[list[Row], ...]:
    """Flight Recorder's: (group, number) of the calls of each rank that wait, and of those that have ended."""
    rows, evidence = [], []
    for calls, pending in ((came, False), (waiting, True)):
        for rank, each in calls.items():
            for group, number in each:
                time = float(number)
                rows.append(
                    {
                        "step": -1,
                        "rank": rank,
                        "host": f"host-{rank}",
                        "kind": "coll",
                        "name": "all_reduce",
                        "grp": group,
                        "seq": number,
                        "n": 3 if group == "dp" else 2,
                        "t0": time,
                        "t1": time + 0.5,
                    }
                )
                if pending:
                    evidence.append(
                        {
                            "rank": rank,
                            "t0": time,
                            "t1": time + 1,
                            "name": "collective_pending",
                            "value": number,
                        }
                    )
    return rows, evidence


def test_who_did_not_come_to_a_collective_hangs_the_others() -> None:
    ended = {rank: [("dp", number) for number in range(1, 9)] for rank in range(3)}
    rows, evidence = dumps({0: [("dp", 9)], 2: [("dp", 9)]}, ended)
    report = report_of(rows, evidence)
    (verdict,) = report.verdicts
    assert (verdict.klass, verdict.ranks, verdict.hosts) == ("hang", [1], ["host-1"])
    assert verdict.group == "all_reduce number 9 of group dp"
    assert "never came to all_reduce number 9" in sentence(verdict)
    assert report.input.ranks == 3


def test_who_waits_in_another_collective_is_a_victim_of_it() -> None:
    """Rank 1 is not in the group's call for it waits for rank 3, which is the one."""
    ended = {rank: [("dp", number) for number in range(1, 9)] for rank in range(3)}
    ended[3] = [("tp", 1)]
    rows, evidence = dumps({0: [("dp", 9)], 2: [("dp", 9)], 1: [("tp", 2)]}, ended)
    rows += dumps({}, {1: [("tp", 1)]})[0]
    assert [verdict.ranks for verdict in report_of(rows, evidence).verdicts] == [[3]]


def test_who_waits_in_a_receive_is_a_victim_of_whom_it_waits_for() -> None:
    """Rank 1 waits for what rank 3 is to send, and neither came to the collective of all."""
    ended = {rank: [("world", number) for number in range(1, 9)] for rank in range(4)}
    rows, evidence = dumps({0: [("world", 9)], 2: [("world", 9)], 1: [("pipe", 20)]}, ended)
    rows = [row | {"kind": "p2p"} if row["grp"] == "pipe" else row for row in rows]
    assert [verdict.ranks for verdict in report_of(rows, evidence).verdicts] == [[3]]


def test_of_collectives_that_a_rank_missed_the_one_waited_in_longest_is_named() -> None:
    ended = {rank: [("dp", 1), ("tp", 1)] for rank in range(3)}
    rows, evidence = dumps({0: [("dp", 9)], 2: [("tp", 2)]}, ended)
    rows = [row for row in rows if (row["grp"], row["rank"]) not in {("dp", 2), ("tp", 0)}]
    rows = [row | {"t1": row["t1"] + 7 * (row["grp"] == "tp" and row["seq"] == 2)} for row in rows]
    (verdict,) = report_of(rows, evidence).verdicts
    assert (verdict.ranks, verdict.group) == ([1], "all_reduce number 2 of group tp")


def test_ranks_that_wait_for_each_other_are_named_together() -> None:
    """Two groups, and each rank has called the collective of another one first."""
    ended = {rank: [("a", 1), ("b", 1)] for rank in (0, 1)}
    rows, evidence = dumps({0: [("a", 2)], 1: [("b", 2)]}, ended)
    (verdict,) = report_of(rows, evidence).verdicts
    assert (verdict.klass, verdict.ranks) == ("hang", [0, 1])


def test_a_member_of_which_nothing_was_seen_is_said_to_be_missing() -> None:
    ended = {rank: [("dp", 1)] for rank in (0, 2)}
    rows, evidence = dumps({0: [("dp", 2)], 2: [("dp", 2)]}, ended)
    (verdict,) = report_of(rows, evidence).verdicts
    assert (verdict.klass, verdict.ranks) == ("hang", [])
    assert "who is not in the input" in sentence(verdict)


@pytest.mark.parametrize(
    ("ranks", "pairs", "found"),
    [
        (6, [(0, 2), (2, 4), (1, 3), (3, 5)], [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
        (3, [(0, 1), (1, 2), (2, 0)], [(0, 0), (1, 0), (2, 0)]),  # a ring
        (4, [(0, 1), (0, 2), (0, 3)], None),
        (4, [(0, 1), (1, 2)], None),  # rank 3 sends to nobody
        (2, [], None),
    ],
)
def test_stages_follow_from_who_sends_to_whom(
    ranks: int, pairs: list[tuple[int, int]], found: list[tuple[int, int]] | None
) -> None:
    assert stages_of(pairs, ranks) == found


def test_medians_of_the_others() -> None:
    values = np.array([[1.0, 5.0, 2.0, np.nan], [3.0, np.nan, np.nan, np.nan]])
    found = median_of_others(values)
    assert found[0].tolist() == [3.5, 1.5, 3.0, 2.0]
    assert np.isnan(found[1, 0])
    assert found[1, 1:].tolist() == [3.0] * 3


def test_a_running_median_passes_over_pauses_and_runs_over_short_ones() -> None:
    values = np.array([0, 0, 9, 0, 0, 5, 5, 5, 5, 5, 0, 0], dtype=float)
    smooth = running_median(values[:, None])[:, 0]
    assert smooth[2] == 0
    assert smooth[7] == 5
    flags = np.array([True, True, False, True, True, True, True, False])[:, None]
    assert runs(flags, 4)[:, 0].tolist() == [False, False, False, True, True, True, True, False]


@pytest.mark.parametrize(
    ("ranks", "said"), [([3], "rank 3"), ([0, 1, 2, 3, 9], "ranks 0–3, 9"), ([1, 2], "ranks 1, 2")]
)
def test_ranks_in_words(ranks: list[int], said: str) -> None:
    assert numbered(ranks) == said
