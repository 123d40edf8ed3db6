"""The kernel's tables of connections: whose entries are counted as whose, and go with those whose they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from otelgpu.families.requests.discover import connections
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.tables import CountedTable, Rows
from otelgpu.processes.connections import Found, OpenConnection
from tests.kernel.captured_connections import captured_connections, traffic_program
from tests.kernel.observing import Watch
from tests.rig.certificates import make_certificate

TABLES = ("connections", "tls_sessions", "go_calls", "holders")


@pytest.fixture
def watch() -> Iterator[Watch]:
    with Watch(families=("http",)) as made:
        made.pump(0.3)
        yield made


def loaded_by(watch: Watch) -> LoadedFamily:
    return watch.source._loaded["http"]


def entries(watch: Watch) -> dict[str, int]:
    return {name: len(loaded_by(watch).map(name).list_keys()) for name in TABLES}


def held(connections: int, tls_sessions: int, holders: int) -> dict[str, int]:
    """Of programs that are not of Go."""
    return dict(zip(TABLES, (connections, tls_sessions, 0, holders), strict=True))


def counted(watch: Watch) -> dict[str, int]:
    """The same, as programs and user space count what goes in and out."""
    loaded = loaded_by(watch)
    dtype = loaded.image.btf.dtype("http_turnover")
    parts = loaded.variable("http_turnover"), loaded.map("user_turnover").get(bytes(4))
    both = [np.frombuffer(part or b"", dtype)[0] for part in parts]
    inside = sum(part["in"].astype(int) - part["out"].astype(int) for part in both)
    return dict(zip(TABLES, map(int, inside), strict=True))


def rows(watch: Watch, name: str, key: str, value: str) -> Rows:
    btf = loaded_by(watch).image.btf
    return CountedTable(loaded_by(watch).map(name), np.dtype([("key", key)]), btf.dtype(value)).read()[
        "value"
    ]


def test_entries_go_with_their_process_and_nobody_elses(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SWEEP_ROWS", 16)  # in many parts
    certificate = make_certificate(tmp_path)
    with traffic_program() as stays:
        with traffic_program() as ends:
            watch.observe(stays.pid, ends.pid)
            watch.during(lambda: stays.do("hold", "tcp", 20))
            watch.during(lambda: ends.do("hold", "unix", 60))
            for each in (stays, ends):
                watch.during(lambda each=each: each.do("hold_tls", str(certificate)))
            assert entries(watch) == counted(watch) == held(2 * (20 + 60 + 1 + 1), 4, 2)
            assert sorted(map(list, rows(watch, "holders", "<u4", "holder")["held"])) == [
                [42, 2, 0],
                [122, 2, 0],
            ]
            (cgroup,) = rows(watch, "holding_cgroups", "<u8", "holding")
            assert list(cgroup["held"]) == [164, 4, 0, 2]
        watch.pump(1)
        assert entries(watch) == counted(watch) == held(42, 2, 1)
        (cgroup,) = rows(watch, "holding_cgroups", "<u8", "holding")
        assert list(cgroup["held"]) == [42, 2, 0, 1]
        watch.start_anew()
        watch.during(lambda: stays.do("talk_on", 5))
        assert len(captured_connections(watch)) == 2
        watch.during(lambda: (stays.do("let_go"), stays.do("let_go_tls")))
        assert entries(watch) == counted(watch) == held(0, 0, 1)
    watch.pump(1)
    assert set(entries(watch).values()) == set(counted(watch).values()) == {0}
    assert not any(rows(watch, "holding_cgroups", "<u8", "holding")["held"][0])


def test_connections_from_before_are_charged_to_the_cgroup_that_goes_on_with_them(watch: Watch) -> None:
    with traffic_program() as early:
        early.do("hold", "tcp", 10)
        watch.observe(early.pid)
        (holder,) = rows(watch, "holders", "<u4", "holder")
        assert (list(holder["held"]), holder["cgroup"]) == ([20, 0, 0], 0)
        watch.during(lambda: early.do("hold", "tcp", 1))
        (holder,) = rows(watch, "holders", "<u4", "holder")
        assert list(holder["held"]) == [22, 0, 0]
        (cgroup,) = rows(watch, "holding_cgroups", "<u8", "holding")
        assert list(cgroup["held"]) == [22, 0, 0, 1]
        assert entries(watch) == counted(watch) == held(22, 0, 1)
        watch.observe(early.pid)  # again: they are known
        assert entries(watch) == counted(watch) == held(22, 0, 1)
    watch.pump(1)
    assert set(entries(watch).values()) == set(counted(watch).values()) == {0}


def test_of_what_a_process_had_open_before_half_of_what_is_free_is_followed(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [OpenConnection(descriptor, "UNKNOWN") for descriptor in range(1000, 101_000)]
    monkeypatch.setattr(connections, "open_connections", lambda tgid: Found(many))
    with traffic_program() as first, traffic_program() as second, traffic_program() as third:
        watch.observe(first.pid, second.pid)
        assert entries(watch) == counted(watch) == held(98_304, 0, 2)
        assert watch.total("http", "found_beyond_share") == 200_000 - 98_304
        watch.during(lambda: second.do("hold", "unix", 50))
        assert watch.total("http", "connection_share_spent") == 100  # it has its share
        monkeypatch.undo()
        watch.observe(third.pid)
        watch.during(lambda: third.do("hold", "unix", 50))
        assert watch.total("http", "connection_share_spent") == 100  # others have theirs
        assert entries(watch) == counted(watch) == held(98_404, 0, 3)
    watch.pump(3)
    assert set(entries(watch).values()) == set(counted(watch).values()) == {0}
