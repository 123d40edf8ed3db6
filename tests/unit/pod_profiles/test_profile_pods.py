"""``otelgpu profile-pods``: its children, what it keeps, and one of its turns after another."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import msgspec
import pytest

from otelgpu.cli.pod_profiles import command, taking
from otelgpu.cli.pod_profiles.children import ForkedChild
from otelgpu.cli.pod_profiles.command import PodProfiles
from otelgpu.cli.pod_profiles.kept_file import NAME, KeptFile
from otelgpu.cli.pod_profiles.outcomes import Result
from otelgpu.cli.pod_profiles.requests import Kept, Limits
from otelgpu.cli.pod_profiles.taking import Order, file_name, make_room, processes_of_pod
from otelgpu.cli.profile import Finish, Request
from otelgpu.errors import OtelgpuError
from otelgpu.export.memory import MemoryExporter
from otelgpu.families.switches import names
from otelgpu.model.switches import PodSwitch, SwitchesRead


def asked(value: str = "30s", uid: str = "a", pod: str = "p") -> PodSwitch:
    return PodSwitch(uid=uid, namespace="n", pod=pod, value=value)


def sleep() -> bytes:
    time.sleep(60)
    return b""


def test_a_child_returns_what_it_did_and_its_end() -> None:
    ended = ForkedChild(lambda: b"done").wait(30)
    assert (ended.code, ended.returned) == (0, b"done")


def test_a_child_that_fails_has_a_code_and_one_that_hangs_is_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> bytes:
        raise OtelgpuError("no")

    def break_down() -> bytes:
        raise ValueError("a fault of ours")

    assert ForkedChild(refuse).wait(30).code == 1
    assert ForkedChild(break_down).wait(30).code == 70
    hanging = ForkedChild(sleep)
    assert hanging.look() is None
    assert hanging.wait(0).code == -signal.SIGKILL


def test_where_memory_ends_a_child_goes_first() -> None:
    ended = ForkedChild(Path("/proc/self/oom_score_adj").read_bytes).wait(30)
    assert ended.returned == b"1000\n"


def test_the_child_of_who_has_ended_is_killed() -> None:
    """A child that forks one and is killed: the pipe of the second is closed with it."""
    read, write = os.pipe()

    def second() -> bytes:
        os.write(write, b"!")
        return sleep()

    def parent() -> bytes:
        ForkedChild(second).wait(60)
        return b""

    first = ForkedChild(parent)
    os.close(write)
    assert os.read(read, 1) == b"!"
    first.signal(signal.SIGKILL)
    first.wait(30)
    assert select.select([read], [], [], 10)[0] and os.read(read, 1) == b""  # who holds its other end is gone
    os.close(read)


def test_what_was_decided_is_kept_whole_and_for_the_owner(tmp_path: Path) -> None:
    kept = Kept(decided={"a": "30s"}, current=asked(), ended_unix_s=5.0)
    KeptFile(tmp_path).write(kept)
    assert KeptFile(tmp_path).read() == kept
    assert [each.name for each in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"decided": {"a": 1}}', b"[" * 5000, b"\xff", b'{"current":7}']
)
def test_a_file_that_is_none_is_as_if_it_were_not_there(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert KeptFile(tmp_path).read() == Kept()


def test_no_link_is_followed_for_it(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(msgspec.json.encode(Kept(decided={"a": "1s"})))
    (tmp_path / NAME).symlink_to("other")
    assert KeptFile(tmp_path).read() == Kept()


def test_a_folder_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    with pytest.raises(OtelgpuError, match="cannot write"):
        KeptFile(tmp_path / "none").write(Kept(decided={"a": "1s"}))


def test_the_oldest_profiles_make_room_and_nothing_else_does(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"2026010{number}T000000Z-n-p.pb.gz").write_bytes(b"x")
    (tmp_path / NAME).write_bytes(b"x")
    (tmp_path / "20250101T000000Z-n-p.pb.gz").symlink_to(NAME)
    make_room(tmp_path, 3)
    left = sorted(each.name for each in tmp_path.iterdir())
    assert left == [
        *("20250101T000000Z-n-p.pb.gz", "20260103T000000Z-n-p.pb.gz", "20260104T000000Z-n-p.pb.gz"),
        NAME,
    ]


def test_a_pods_name_leads_nowhere() -> None:
    name = file_name(asked(pod="../../etc/" + "x" * 300), 0.0)
    assert name.startswith("19700101T000000Z-n-.._.._etc_xxx") and "/" not in name and len(name) < 200


def test_a_pod_without_processes_has_no_profile() -> None:
    with pytest.raises(OtelgpuError, match="no process of the pod"):
        processes_of_pod("00000000-0000-0000-0000-000000000000")


@pytest.mark.parametrize(("settings", "exported"), [("", ()), ("profiles: [cpu]\n", ("otlp",))])
def test_a_profile_is_a_file_or_goes_to_where_the_agents_own_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, exported: tuple[str, ...]
) -> None:
    """In a child: the size of its files is bounded for good."""
    (tmp_path / "otelgpu.yaml").write_text(settings)

    def profile(request: Request, pids: tuple[int, ...], finish: Finish) -> int:
        assert (pids, request.seconds, request.config.export) == ((5,), 30.0, exported)
        assert request.config.profiles == ("cpu", "python")
        finish(request, MemoryExporter(), "")
        return 0

    monkeypatch.setattr(taking, "processes_of_pod", lambda uid: [5])
    monkeypatch.setattr(taking, "profile_processes", profile)
    order = Order(
        switch=asked(),
        seconds=30.0,
        folder=tmp_path,
        most_files=1,
        config_file=tmp_path / "otelgpu.yaml",
    )
    ended = ForkedChild(lambda: taking.take(order)).wait(60)
    result = msgspec.json.decode(ended.returned, type=Result)
    assert (ended.code, result.error) == (0, "")
    found = [str(each) for each in tmp_path.glob("*.pb.gz")]
    assert found == ([result.file] if not exported else []) and bool(result.file) != bool(exported)


def test_no_file_is_larger_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def profile(request: Request, pids: tuple[int, ...], finish: Finish) -> int:
        finish(request, MemoryExporter(), "")
        return 0

    monkeypatch.setattr("otelgpu.render.format.rendered", lambda *_: b"x" * (taking.LARGEST_FILE + 1))
    monkeypatch.setattr(taking, "processes_of_pod", lambda uid: [5])
    monkeypatch.setattr(taking, "profile_processes", profile)
    order = Order(switch=asked(), seconds=30.0, folder=tmp_path, most_files=1)
    result = msgspec.json.decode(ForkedChild(lambda: taking.take(order)).wait(60).returned, type=Result)
    assert "File too large" in result.error and not list(tmp_path.iterdir())


def _take(order: Order) -> bytes:
    """As many seconds as are asked for, so it goes."""
    if order.seconds == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if order.seconds == 7:
        return msgspec.json.encode(Result(error="refused"))
    if order.seconds == 60:
        time.sleep(60)
    if order.seconds == 59:
        asked_to_end: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: asked_to_end.append(number))
        (order.folder / "ready").touch()
        while not asked_to_end:
            time.sleep(0.01)
        time.sleep(0.3)
        return msgspec.json.encode(Result(samples=len(asked_to_end)))
    return msgspec.json.encode(Result(samples=42, file="f"))


class Played:
    """Children that do what a test has them do, in the place of profiles and reports."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.folder = folder
        monkeypatch.setattr(command, "say", self.said.append)
        monkeypatch.setattr("otelgpu.cli.pod_profiles.taking.take", _take)
        monkeypatch.setattr("otelgpu.cli.pod_profiles.reporting.report", self._report)
        self.profiles = self.new()

    def new(self) -> PodProfiles:
        return PodProfiles(self.folder, Limits(pause_s=0), most_files=2, config_file=None)

    def _report(self, outcomes: tuple[object, ...], config_file: Path | None) -> bytes:
        with open(self.folder / "reported", "a") as file:
            file.write("!" * len(outcomes))
        return b""

    def reports(self) -> int:
        """Events so far."""
        return len((self.folder / "reported").read_text())

    def read(self, *switches: PodSwitch) -> None:
        self.profiles.turn([SwitchesRead(switches=switches)])

    def until(self, words: str) -> None:
        until_s = time.monotonic() + 30
        while not any(words in each for each in self.said):
            assert time.monotonic() < until_s, self.said
            self.profiles.turn([])
            time.sleep(0.02)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("30s", "ended: over: 42 samples in f"),
        ("7s", "ended: failed: refused"),
        ("13s", "ended: failed: what took it ended by signal 9"),
    ],
)
def test_what_became_of_a_profile_is_reported(played: Played, value: str, words: str) -> None:
    played.read(asked(value))
    played.until(words)
    played.profiles.close()
    assert (played.folder / "reported").read_text() == "!!"
    assert KeptFile(played.folder).read().current is None


def test_one_that_is_withdrawn_is_ended(played: Played) -> None:
    played.read(asked("60s"))
    played.read()
    played.until(f"ended: {names.WITHDRAWN}")
    played.profiles.close()


def test_one_that_is_to_end_is_asked_once_so_that_it_writes_what_it_has(played: Played) -> None:
    played.read(asked("59s"))
    until_s = time.monotonic() + 30
    while not (played.folder / "ready").exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    played.read()
    played.until(f"ended: {names.WITHDRAWN}: 1 samples")
    played.profiles.close()


def test_one_that_was_being_taken_when_this_ended_is_not_begun_again(played: Played) -> None:
    KeptFile(played.folder).write(Kept(decided={"a": "60s"}, current=asked("60s")))
    played.profiles = played.new()
    played.read(asked("60s"))
    assert played.said == ["pod n/p: a profile of 60 s ended: agent_ended"]
    played.profiles.close()


def test_a_disk_that_is_full_ends_nothing_and_is_said_once_for_each_decision(
    played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    (played.folder / NAME).unlink()
    (played.folder / NAME / "in the way").mkdir(parents=True)
    played.read(asked("junk"))
    for _ in range(5):
        played.profiles.turn([])
    played.profiles.close()
    assert len(caplog.records) == 1 and "is forgotten when this program ends" in caplog.text


def test_the_end_of_this_program_ends_what_it_does(played: Played) -> None:
    played.read(asked("60s"))
    began_s = time.monotonic()
    played.profiles.close()
    assert time.monotonic() - began_s < 30
    assert "ended: agent_ended" in played.said[-1]


def test_refusals_wait_to_be_reported_together_and_profiles_do_not(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "REPORTS_EVERY_S", 1000.0)

    def reported(count: int) -> None:
        until_s = time.monotonic() + 30
        while not (played.folder / "reported").exists() or played.reports() < count:
            assert time.monotonic() < until_s
            played.profiles.turn([])
            time.sleep(0.02)

    played.read(asked("junk"))
    reported(1)
    played.read(asked("more junk"))
    for _ in range(20):
        played.profiles.turn([])
        time.sleep(0.02)
    assert played.reports() == 1
    played.read(asked("30s"))
    reported(4)  # with it and its end
    played.profiles.close()


def test_refusals_without_end_are_not_all_reported(played: Played) -> None:
    for number in range(command.MOST_REFUSALS + 30):
        played.read(asked(f"junk {number}"))
    assert 2 <= len(played.said) <= command.MOST_REFUSALS + 1
    played.profiles.close()
    assert len((played.folder / "reported").read_text()) == len(played.said)
