"""The file of annotations: read where it has changed, and whatever is in it, it is data."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from otelgpu.families.switches.poll import POLLING
from otelgpu.families.switches.poll.switch_file import INTERVAL_NS, LARGEST, SwitchFile
from otelgpu.model.settings import Settings
from otelgpu.model.switches import MOST_PODS, PodSwitch, SwitchesRead, SwitchesWritten
from tests.rig.examples import examples

ONE = SwitchesRead(switches=(PodSwitch(uid="a", namespace="n", pod="p", value="all 5m"),))


def replace(path: Path, content: bytes) -> None:
    """As who writes it does."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def test_nothing_is_read_unless_a_file_is_named(tmp_path: Path) -> None:
    assert POLLING.open(Settings()) is None
    assert POLLING.open(Settings({"switch_file": ""})) is None
    assert POLLING.open(Settings({"switch_file": str(tmp_path / "file")})) is not None


def test_it_is_read_once_each_time_it_changes_and_looked_at_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "switches.json"
    file = SwitchFile(path)
    assert file.collect(0) == ()
    replace(path, msgspec.json.encode(ONE))
    assert file.collect(1) == ()
    assert file.collect(INTERVAL_NS) == [ONE]
    assert file.collect(2 * INTERVAL_NS) == ()
    replace(path, msgspec.json.encode(SwitchesRead()))
    assert file.collect(3 * INTERVAL_NS) == [SwitchesRead()]
    path.unlink()
    assert file.collect(4 * INTERVAL_NS) == ()
    replace(path, msgspec.json.encode(ONE))
    assert file.collect(5 * INTERVAL_NS) == [ONE]
    assert sum(file.counters.values()) == 0


def test_tries_that_failed_are_counted_and_withdraw_nothing(tmp_path: Path) -> None:
    path = tmp_path / "switches.json"
    file = SwitchFile(path)
    written = [
        (SwitchesWritten(failures=2), []),
        (SwitchesWritten(failures=3), []),
        (SwitchesWritten(switches=ONE.switches, failures=3), [ONE]),
        (SwitchesWritten(failures=1), []),  # it has begun anew
    ]
    for turn, (document, read) in enumerate(written):
        replace(path, msgspec.json.encode(document))
        assert file.collect(turn * INTERVAL_NS) == read
    assert file.counters == {"watch_failed": 4}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"\xff\xfe", b'{"switches": {}}', b'{"switches": [{}]}', b'{"switches": [1]}'),
        b'{"switches": [{"uid": "", "namespace": "n", "pod": "p", "value": "all 5m"}]}',
        b'{"switches": [{"uid": "a", "namespace": "n", "pod": "p", "value": "' + b"x" * 66 + b'"}]}',
        b'{"switches": [{"uid": "a", "namespace": "n", "pod": "p", "value": "\xff"}]}',
        b'{"switches": [{"uid": "a", "namespace": "n", "pod": "p", "value": "v", "written_unix_s": -1}]}',
        b'{"switches": ' + b"[" * 20_000,
        *(b'{"failures": -1}', b'{"failures": 1e300}', b'{"other": ' + b"[" * 20_000),
        msgspec.json.encode(SwitchesRead(switches=ONE.switches * (MOST_PODS + 1))),
    ],
    ids=lambda content: str(content[:24]),
)
def test_what_is_no_such_document_is_counted_and_changes_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "switches.json"
    replace(path, content)
    file = SwitchFile(path)
    assert file.collect(0) == () and file.counters == {"file_malformed": 1}
    assert file.collect(INTERVAL_NS) == () and file.counters == {"file_malformed": 1}


def test_a_link_a_pipe_a_folder_and_a_large_file_are_refused_and_hold_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(msgspec.json.encode(ONE))
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * (LARGEST + 1))
    for name in ("link", "pipe", "large", "."):
        file = SwitchFile(tmp_path / name)
        for turn in range(3):
            assert file.collect(turn * INTERVAL_NS) == ()
        assert file.counters == {"file_refused": 1}, name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "switches.json"
    replace(path, msgspec.json.encode(ONE))
    os.chown(path, 12345, 12345)
    file = SwitchFile(path)
    assert file.collect(0) == () and file.counters == {"file_refused": 1}


@given(st.binary(max_size=400))
@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_counted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "switches.json"
    replace(path, content)
    file = SwitchFile(path)
    found = file.collect(0)
    says_nothing = content.lstrip().startswith(b"{")  # an object without switches: {}
    assert bool(found) != bool(file.counters) or says_nothing
