"""Real RDMA programs over soft RoCE in a guest: what is reported of each queue pair is what its program said it did.

Recorded in the guest, replayed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kernel.observing import read_metrics, read_spans, run_otelgpu
from tests.vm import guest, rdma
from tests.vm.kernels import fetched

LINE = "7"
PLAIN = ("pingpong", "write_bw")
EXTENDED = ("pingpong_extended", "send_lat")
EXACT = (*PLAIN, *EXTENDED)
LOSSY = "lossy"
RPING_ROUNDS = 50
REPORTED, LATE_REPORTED = "reported", "late.reported"
# The functions of the extended API are known from the first queue pair that has them; probes are there a moment later.
WARM_UP = "warm_up"

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the programs said, and with ``reported``, the replayed capture."""
    kernel = fetched(LINE)
    if kernel is None or (missing := guest.missing_programs()):
        pytest.skip("no kernel in the cache: run `make vm`" if kernel is None else str(missing))
    folder = tmp_path_factory.mktemp("rdma")
    capture = rdma.record(kernel, folder, [*PLAIN, WARM_UP, *EXTENDED, "rping", LOSSY])
    for source, reported in ((capture, REPORTED), (folder / "late.capture", LATE_REPORTED)):
        replayed = run_otelgpu("replay", str(source), f"--export=file:{folder}/{reported}")
        assert replayed.returncode == 0, replayed.stderr
    return folder


def pairs(folder: Path, reported: str = REPORTED) -> dict[tuple[str, int], dict[str, Any]]:
    """(device, number) → attributes of the queue pair's span, of which there is one."""
    spans = [
        span["attributes"] for span in read_spans(folder / reported) if span["name"] == "RDMA queue pair"
    ]
    found = {(each["rdma.device"], each["rdma.qp.number"]): each for each in spans}
    assert len(found) == len(spans)
    return found


def total(folder: Path, metric: str, posted: rdma.Posted, reported: str = REPORTED) -> int:
    """Of the series that is marked as all of this queue pair's is, and of no other of that number."""
    of_number = [
        point
        for point in read_metrics(folder / reported).get(metric, [])
        if point["attributes"].get("rdma.qp.number") == posted.number
        and point["attributes"].get("rdma.device", posted.device) == posted.device
        and point["attributes"]["rdma.operation"] == posted.operation
    ]
    wanted = {"rdma.device": posted.device, "rdma.port": 1, "rdma.qp.type": "rc"}
    assert all(wanted.items() <= point["attributes"].items() for point in of_number)
    return sum(int(point["asInt"]) for point in of_number)


@pytest.mark.parametrize("name", EXACT)
def test_work_requests_and_bytes_are_those_the_program_says(recorded: Path, name: str) -> None:
    assert rdma.codes(recorded, name) == "0 0"
    posted = list(rdma.said(recorded, name))
    assert posted
    found = pairs(recorded)
    for each in posted:
        reported = found[each.device, each.number]
        assert (reported["rdma.total.work_requests"], reported["rdma.total.bytes"]) == (
            each.work_requests,
            each.bytes,
        )
        assert not reported.get("rdma.qp.late")
        assert total(recorded, "rdma.qp.work_requests", each) == each.work_requests
        assert total(recorded, "rdma.qp.io", each) == each.bytes


def test_a_program_attached_to_late_is_counted_from_then_on(recorded: Path) -> None:
    """Its receives were posted before, its sends after."""
    assert rdma.codes(recorded, rdma.LATE) == "0 0"
    (server,) = [each for each in rdma.said(recorded, rdma.LATE) if each.device == "rxeB"]
    ((_, reported),) = pairs(recorded, LATE_REPORTED).items()
    assert (reported["rdma.device"], reported["rdma.qp.number"], reported["rdma.qp.late"]) == (
        "rxeB",
        server.number,
        True,
    )
    assert (reported["rdma.total.work_requests"], reported["rdma.total.bytes"]) == (
        server.work_requests,
        server.bytes,
    )
    assert total(recorded, "rdma.qp.work_requests", server, LATE_REPORTED) == server.work_requests
    assert total(recorded, "rdma.qp.io", server, LATE_REPORTED) == server.bytes


def test_polls_are_observed_all_the_time_with_a_budget_of_everything(recorded: Path) -> None:
    for each in rdma.said(recorded, "pingpong"):
        reported = pairs(recorded)[each.device, each.number]
        assert reported.get("rdma.observed.poll_ratio", 1.0) > 0.99
        assert reported["rdma.total.failures"] == 0 < reported["rdma.total.completions"]


def test_both_ends_of_a_connection_are_in_one_trace(recorded: Path) -> None:
    connects = [span for span in read_spans(recorded / "reported") if span["name"] == "RDMA connect"]
    ends = {
        (s["attributes"].get("rdma.device", ""), s["attributes"]["rdma.qp.number"]): s["traceId"]
        for s in connects
    }
    by_device = {each.device: each for each in rdma.said(recorded, "pingpong")}
    client, server = by_device["rxeA"], by_device["rxeB"]
    assert ends["rxeA", client.number] == ends["rxeB", server.number]


def test_rping_reads_and_writes_once_in_each_round(recorded: Path) -> None:
    """Source of the numbers: rdma-core, librdmacm/examples/rping.c; the server reads, writes and answers twice."""
    assert rdma.codes(recorded, "rping") == "0 0"
    points = read_metrics(recorded / "reported")["rdma.qp.work_requests"]
    by_operation: dict[str, int] = {}
    for point in points:
        operation = point["attributes"]["rdma.operation"]
        if operation == "read" or (operation == "write" and int(point["asInt"]) == RPING_ROUNDS):
            by_operation[operation] = by_operation.get(operation, 0) + int(point["asInt"])
    assert by_operation == {"read": RPING_ROUNDS, "write": RPING_ROUNDS}


def test_what_the_wire_lost_is_counted_as_the_driver_does(recorded: Path) -> None:
    assert rdma.codes(recorded, LOSSY) == "0 0"
    naks = {each: rdma.counter(recorded, LOSSY, each, "rcvd_seq_err") for each in ("rxeA", "rxeB")}
    assert naks["rxeA"] > 0 == naks["rxeB"]  # the sender alone is reported
    metrics = read_metrics(recorded / "reported")
    for metric, which in (
        ("rdma.port.naks", "rcvd_seq_err"),
        ("rdma.port.out_of_sequence", "out_of_seq_request"),
        ("rdma.port.retries", "completer_retry_err"),
    ):
        for device in ("rxeA", "rxeB"):
            reported = [
                int(point["asInt"])
                for point in metrics[metric]
                if point["attributes"]["rdma.device"] == device
                and point["attributes"].get("rdma.kind", "sequence") in ("sequence", "completer")
            ]
            assert sum(reported) == rdma.counter(recorded, LOSSY, device, which), (metric, device)


def test_losses_are_those_of_the_queue_pair_that_lost(recorded: Path) -> None:
    """None is another queue pair's; some are nobody's, where times of completions do not settle it (loss.py)."""
    lossy = {each.number for each in rdma.said(recorded, LOSSY)}
    losses: dict[int | None, int] = {}
    for point in read_metrics(recorded / "reported").get("rdma.qp.losses", []):
        if point["attributes"]["rdma.loss.counter"] == "rcvd_seq_err" and int(point["asInt"]):
            number = point["attributes"].get("rdma.qp.number")
            losses[number] = losses.get(number, 0) + int(point["asInt"])
    assert set(losses) <= {*lossy, None}
    assert losses.get(None, 0) < sum(losses.values()) / 2
    assert sum(losses.values()) == rdma.counter(recorded, LOSSY, "rxeA", "rcvd_seq_err")
