"""Rows of `otelgpu top` from two readings of a session's metrics, and how they are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from otelgpu.cli.commands import cli
from otelgpu.cli.top.exporter import Frames
from otelgpu.cli.top.plain import line, tables
from otelgpu.engine import registry
from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.presentation import How, TopTable, Unit
from otelgpu.engine.top_views import top_views
from otelgpu.families.nccl import metrics as collective_metrics
from otelgpu.families.rdma import names as queue_pair_names
from otelgpu.families.rdma.ports import PortMetrics
from otelgpu.families.requests.signals import gen_ai, http, rpc
from otelgpu.model.fabric import PortReadings, PortSeen
from otelgpu.model.resource import Resource, resource
from otelgpu.render.top.frames import Frame
from otelgpu.render.top.rows import Row, column_keys, rows
from otelgpu.render.top.values import written
from tools.signal_tables import metric_tables, operation_metrics

TRAINER = resource({"service.name": "train", "process.pid": 70})
OTHER = resource({"service.name": "train", "process.pid": 71})
QP: dict[str, str | int] = {
    "rdma.device": "mlx5_0",
    "rdma.port": 1,
    "rdma.qp.number": 300,
    "rdma.qp.type": "rc",
}
qp = queue_pair_names


class Session:
    """Metrics that are fed between two readings."""

    def __init__(self) -> None:
        self.metrics = Metrics(0)

    def add(self, metric: Metric, value: Any, owner: Resource = TRAINER, **labels: str | int) -> None:
        named = {key.replace("__", "."): each for key, each in labels.items()}
        self.metrics.add(metric, "test", owner, named, value)

    def read(self) -> Any:
        return self.metrics.read(1)[0]


def top_table(view: str, name: str) -> TopTable:
    return next(each for each in top_views()[view].top_tables if each.name == name)


def queue_pairs(session: Session, before: Any, seconds: float = 2.0, sort: str = "") -> list[Row]:
    return rows(top_table("rdma", "queue_pairs"), before, session.read(), seconds, sort)


def rdma_frame(pairs: list[Row]) -> Frame:
    return Frame(seconds=2.0, unix_s=0.0, views={"rdma": {"queue_pairs": pairs, "ports": []}})


def add_qp(
    session: Session, metric: Metric, value: Any, owner: Resource = TRAINER, **labels: str | int
) -> None:
    named = {key.replace("__", "."): each for key, each in labels.items()}
    session.metrics.add(metric, "test", owner, QP | named, value)


def test_rates_are_what_came_between_by_the_time_between() -> None:
    session = Session()
    add_qp(session, qp.REQUESTS, 1000, rdma__operation="write")
    add_qp(session, qp.IO, 1 << 20, rdma__operation="write")
    before = session.read()
    add_qp(session, qp.REQUESTS, 50, rdma__operation="write")
    add_qp(session, qp.REQUESTS, 10, rdma__operation="send")
    add_qp(session, qp.IO, 4096, rdma__operation="write")
    (row,) = queue_pairs(session, before)
    assert (row["work_requests_per_s"], row["bytes_per_s"]) == (30.0, 2048.0)
    assert (row["service"], row["pid"], row["device"], row["queue_pair"]) == ("train", 70, "mlx5_0", 300)
    assert (row["outstanding"], row["latency_p50_s"], row["state"]) == (None, None, None)


def test_an_estimate_stands_for_what_was_seen_in_part() -> None:
    session = Session()
    before = session.read()
    add_qp(session, qp.REQUESTS, 10, rdma__operation="write")
    add_qp(session, qp.REQUESTS_ESTIMATED, 80, rdma__operation="write")
    (row,) = queue_pairs(session, before)
    assert row["work_requests_per_s"] == 40.0


def test_percentiles_are_of_what_came_between() -> None:
    session = Session()
    add_qp(session, qp.LATENCY, [1.0] * 100)
    before = session.read()
    add_qp(session, qp.LATENCY, [1e-6] * 98 + [1e-3] * 2)
    (row,) = queue_pairs(session, before)
    p50, p99 = row["latency_p50_s"], row["latency_p99_s"]
    assert isinstance(p50, float) and isinstance(p99, float)
    assert 1e-6 <= p50 < 2.1e-6
    assert 1e-3 <= p99 < 2.1e-3


def test_failures_are_all_but_success_and_stand() -> None:
    session = Session()
    for status, count in (("success", 90), ("retry_exceeded", 2), ("flushed", 1)):
        add_qp(session, qp.COMPLETED, count, rdma__status=status)
    before = session.read()
    add_qp(session, qp.COMPLETED, 10, rdma__status="success")
    (row,) = queue_pairs(session, before)
    assert (row["failures"], row["completions_per_s"]) == (3, 5.0)


def test_what_a_queue_pair_is_comes_from_its_status() -> None:
    session = Session()
    labels: dict[str, str | int] = QP | {"rdma.qp.state": "ready_to_send", "nccl.communicator.hash": "0xabc"}
    session.metrics.set(qp.QUEUE_PAIR_STATUS, "test", TRAINER, labels, 1)
    session.metrics.set(qp.OUTSTANDING, "test", TRAINER, QP, 7)
    session.metrics.set(qp.OBSERVED, "test", TRAINER, QP | {"rdma.path": "post"}, 0.25)
    session.metrics.set(qp.OBSERVED, "test", TRAINER, QP | {"rdma.path": "poll"}, 0.75)
    (row,) = queue_pairs(session, session.read())
    assert (row["state"], row["communicator"], row["outstanding"]) == ("ready_to_send", "0xabc", 7)
    assert row["observed_share"] == 0.25


def test_a_queue_pair_that_is_gone_has_no_row() -> None:
    session = Session()
    add_qp(session, qp.REQUESTS, 1, rdma__operation="write")
    before = session.read()
    session.metrics.forget([TRAINER])
    assert queue_pairs(session, before) == []


def test_rows_are_sorted_by_any_column() -> None:
    session = Session()
    before = session.read()
    for number, (requests, size) in enumerate([(5, 100), (9, 50), (1, 900)]):
        labels: dict[str, str | int] = {"rdma.qp.number": number, "rdma.operation": "write"}
        session.metrics.add(qp.REQUESTS, "test", TRAINER, QP | labels, requests)
        session.metrics.add(qp.IO, "test", TRAINER, QP | labels, size)
    assert [row["queue_pair"] for row in queue_pairs(session, before)] == [2, 0, 1]
    assert [row["queue_pair"] for row in queue_pairs(session, before, sort="work_requests_per_s")] == [
        1,
        0,
        2,
    ]
    assert [row["queue_pair"] for row in queue_pairs(session, before, sort="latency_p99_s")] == [0, 1, 2]
    assert [row["queue_pair"] for row in queue_pairs(session, before, sort="type")] == [0, 1, 2]
    with pytest.raises(KeyError):
        queue_pairs(session, before, sort="nothing")


def test_no_time_has_no_rate() -> None:
    session = Session()
    add_qp(session, qp.REQUESTS, 1, rdma__operation="write")
    assert queue_pairs(session, session.read(), seconds=0.0) == []


def test_ports_are_the_agents() -> None:
    metrics = Metrics(0)
    ports = PortMetrics(metrics, resource({"service.name": "otelgpu", "process.pid": 1}), lambda tgid: None)
    ports.take(
        PortSeen(
            time_ns=1,
            device="mlx5_0",
            port=1,
            state="ACTIVE",
            link_layer="Ethernet",
            rate_bits_per_s=8 * 10**9,
        )
    )
    ports.take(
        PortReadings(time_ns=1, device="mlx5_0", port=1, values={"port_xmit_data": 1, "packet_seq_err": 0})
    )
    before = metrics.read(1)[0]
    ports.take(
        PortReadings(time_ns=2, device="mlx5_0", port=1, values={"port_xmit_data": 51, "packet_seq_err": 4})
    )
    (row,) = rows(top_table("rdma", "ports"), before, metrics.read(2)[0], 2.0)
    assert (row["up"], row["limit_bytes_per_s"]) == (1, 10**9)
    assert (row["sent_bytes_per_s"], row["received_bytes_per_s"], row["naks_per_s"]) == (100.0, None, 2.0)


def test_the_rank_that_is_last_is_named() -> None:
    session = Session()
    labels: Any = {"nccl__communicator__hash": "0xabc", "nccl__operation": "AllReduce"}
    session.add(collective_metrics.LATENESS, [1.0], OTHER, **labels, nccl__rank=2)  # long ago
    before = session.read()
    for owner, rank, late in ((TRAINER, 0, 0.0), (TRAINER, 1, 3e-3), (OTHER, 2, 1e-4)):
        session.add(collective_metrics.LATENESS, [late] * 4, owner, **labels, nccl__rank=rank)
    session.add(collective_metrics.SKEW, [3e-3] * 4, **labels)
    session.add(collective_metrics.BUS, [1e9, 3e9], **labels, nccl__time__source="gpu")
    after = session.read()
    (row,) = rows(top_table("nccl", "communicators"), before, after, 2.0)
    assert (row["communicator"], row["operation"], row["last_rank"]) == ("0xabc", "AllReduce", "1")
    assert row["bus_bytes_per_s"] == 2e9
    assert row["skew_mean_s"] == pytest.approx(3e-3)
    ranks = rows(top_table("nccl", "ranks"), before, after, 2.0)
    assert [(each["rank"], each["pid"]) for each in ranks] == [(1, 70), (2, 71), (0, 70)]
    assert ranks[0]["calls_per_s"] == 2.0


def test_a_process_share_of_waiting() -> None:
    specs = {spec.metric.name: spec.metric for spec in operation_metrics()}
    session = Session()
    before = session.read()
    session.add(specs["gpu.cuda.synchronize.duration"], [0.25, 0.75])
    session.add(specs["gpu.cuda.memory.copies"], [1000.0, 3000.0], cuda__memcpy__kind="h2d")
    session.add(specs["gpu.cuda.kernel.launch.calls"], 20)
    (row,) = rows(top_table("cuda", "processes"), before, session.read(), 2.0)
    assert (row["launches_per_s"], row["waits_per_s"], row["waited_share"]) == (10.0, 1.0, 0.5)
    assert (row["copies_per_s"], row["copied_bytes_per_s"]) == (1.0, 2000.0)


def test_every_metric_of_a_view_exists() -> None:
    found = {spec.metric.name: spec.metric for spec in operation_metrics()}
    of_requests = (each for module in (gen_ai, http, rpc) for each in vars(module).values())
    found |= {each.name: each for each in of_requests if isinstance(each, Metric)}
    found |= {metric.name: metric for table in metric_tables() for metric in table.metrics}
    for each in (each for view in top_views().values() for each in view.top_tables):
        for column in each.columns:
            for name in column.metrics:
                metric = found.get(name)
                assert metric is not None, name
                if column.how in (How.P50, How.P99, How.SUM_RATE, How.WORST):
                    assert metric.instrument is Instrument.HISTOGRAM, name


def test_every_view_is_made_of_families_that_exist() -> None:
    assert {name for view in top_views().values() for name in view.families} <= registry.with_records().keys()


def test_columns_have_names_of_their_own() -> None:
    for each in (each for view in top_views().values() for each in view.top_tables):
        keys = column_keys(each)
        assert len(keys) == len(set(keys))
        assert each.sort in keys


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, Unit.BYTES, "-"),
        ("", Unit.TEXT, "-"),
        (2048.0, Unit.BYTES, "2.0 KiB"),
        (1.5e-6, Unit.SECONDS, "1.50 µs"),
        (0.256, Unit.SHARE, "26 %"),
        (12.0, Unit.COUNT, "12"),
        (1.23456, Unit.COUNT, "1.23"),
        (123456.7, Unit.COUNT, "123457"),
    ],
)
def test_values_are_written_for_people(value: Any, unit: Unit, text: str) -> None:
    assert written(value, unit) == text


def test_frames_are_of_what_came_between_them_and_end() -> None:
    session, now = Session(), [10.0]
    shown: list[tuple[float, Any]] = []
    frames = Frames(
        [top_views()["rdma"]],
        "",
        lambda frame: shown.append((frame.seconds, frame.views["rdma"]["queue_pairs"])),
        clock=lambda: now[0],
        wall_clock=lambda: 0.0,
    )
    for count in (30, 50):
        add_qp(session, qp.REQUESTS, count, rdma__operation="write")
        now[0] += 2.0
        frames.export_metrics(session.read(), 1)
    frames.end()
    frames.export_metrics(session.read(), 1)
    assert [(seconds, found[0]["work_requests_per_s"]) for seconds, found in shown] == [
        (2.0, 15.0),
        (2.0, 25.0),
    ]
    assert (frames.shown, frames.flush(1), frames.stats()) == (2, True, {})


def test_a_name_cannot_steer_the_terminal() -> None:
    session = Session()
    hostile = resource({"service.name": "\x1b[2Jx", "process.pid": 70})
    session.metrics.add(qp.REQUESTS, "test", hostile, QP, 1)
    before = Metrics(0).read(1)[0]
    found = rdma_frame(queue_pairs(session, before))
    console = Console(width=200, markup=False, record=True, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tables([top_views()["rdma"]], found))
    text = console.export_text()
    assert "\x1b" not in text
    assert "RDMA queue pairs" in text and "mlx5_0" in text
    assert json.loads(line("rdma", found))["queue_pairs"][0]["service"] == "\x1b[2Jx"


def test_an_empty_table_says_so_and_a_long_one_is_cut() -> None:
    session = Session()
    before = session.read()
    for number in range(50):
        session.metrics.add(qp.REQUESTS, "test", TRAINER, QP | {"rdma.qp.number": number}, 1)
    many = queue_pairs(session, before)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tables([top_views()["rdma"]], rdma_frame(many)))
    text = console.export_text()
    assert "and 10 more" in text and "nothing yet" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["top", "rdma", "--sort", "nothing"], "there is no column nothing"),
        (["top", "gpu"], "Invalid value"),
        (["top", "-p", "x"], "'x' is no process id"),
        (["top", "--export", "console"], "No such option"),  # what changes nothing is not offered
        (["top", "--detail", "all"], "No such option"),
    ],
    ids=["sort", "view", "pid", "export", "detail"],
)
def test_wrong_usage_is_said(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert said in result.output
