"""Near the limit things are given up in order, at most four times a second; after a calm they are not any more."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from otelgpu.memory_limit import DEFAULT_BYTES, HIGH, LEVELS, LOW, Container, MemoryLimit, resident_bytes
from otelgpu.model.shares import Headroom, Pool

LIMIT = 100 << 20


class Used:
    """A limit of which the memory that is used, and the time, are as a test says."""

    def __init__(self) -> None:
        self.bytes, self.now, self.forgotten = 0, 0.0, 0
        self.headroom = Headroom()
        self.limit = MemoryLimit(
            LIMIT, self.headroom, self.forget, resident=lambda: self.bytes, clock=lambda: self.now
        )

    def forget(self) -> None:
        self.forgotten += 1

    def look(self, part: float, after_s: float = 0.25) -> bool:
        self.bytes, self.now = int(part * LIMIT), self.now + after_s
        return self.limit.look()


@pytest.fixture
def used() -> Used:
    return Used()


def test_below_the_limit_nothing_is_given_up(used: Used) -> None:
    assert not any(used.look(HIGH) for _ in range(100))
    assert (used.limit.level, used.headroom.steps, used.forgotten, used.limit.conditions) == (0, 0, 0, [])


def test_what_can_be_read_again_goes_first_and_then_half_of_all_else_at_each_look(used: Used) -> None:
    steps = []
    for _ in range(LEVELS):
        assert used.look(1.0)
        steps.append(used.headroom.steps)
    assert steps == list(range(LEVELS))
    assert not used.look(1.0)  # there is no more
    assert used.forgotten == LEVELS + 1
    assert used.limit.conditions == ["memory is short (level 5 of 5): the limit is 100 MiB"]


def test_it_looks_four_times_a_second_at_most(used: Used) -> None:
    assert used.look(1.0)
    assert not any(used.look(1.0, after_s=0.01) for _ in range(24))
    assert used.look(1.0, after_s=0.02)


def test_levels_are_taken_back_one_by_one_after_a_calm(used: Used, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    used.look(1.0), used.look(1.0)
    assert not used.look(LOW, after_s=9)
    assert used.look(LOW, after_s=1.5) and used.limit.level == 1
    assert not used.look((HIGH + LOW) / 2, after_s=9.9)  # neither calm nor short: from then on anew
    assert not used.look(LOW, after_s=9)
    assert used.look(LOW, after_s=1.5) and used.limit.level == 0
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "100 MiB are used of 100",
        "65 MiB are used of 100",
    ]


def test_a_pool_has_less_and_who_holds_most_is_refused_first() -> None:
    headroom = Headroom()
    pool = Pool(1600, headroom=headroom)
    flood, victim = pool.share_of(1, "a"), pool.share_of(2, "b")
    assert flood.reserve(600) and victim.reserve(10)
    headroom.steps = 1
    assert pool.free == 190 and not flood.reserve(10) and victim.reserve(10)
    headroom.steps = 4
    assert pool.free < 0 and not victim.reserve(1)
    assert [share.process for share in pool.most_first()] == [1, 2]
    flood.release(600)
    assert pool.free == 80 and victim.reserve(1)
    headroom.steps = 0
    assert pool.free == 1579


def container(folder: Path, *, own: str = "0::/pods/agent\n", **files: str) -> Container:
    proc, root = folder / "proc", folder / "cgroup"
    (root / "pods" / "agent").mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text(own)
    for name, text in files.items():
        place, _, file = name.partition("__")
        (root / {"pod": "pods", "own": "pods/agent"}[place] / file.replace("_", ".")).write_text(text)
    return Container(proc=proc, root=root)


def test_what_a_container_leaves_is_what_all_else_in_it_does_not_have(tmp_path: Path) -> None:
    found = container(
        tmp_path,
        pod__memory_max="max\n",
        own__memory_max="1000\n",
        own__memory_current="700\n",
        own__memory_stat="anon 5\ninactive_file 100\nslab_reclaimable 50\n",
    )
    assert found.left_for(400) == 900 - (700 - 150 - 400)
    assert found.left_for(560) == 900  # nothing else, as far as it shows


def test_the_narrowest_of_the_containers_around_counts(tmp_path: Path) -> None:
    found = container(
        tmp_path,
        own__memory_max="5000\n",
        own__memory_current="1\n",
        pod__memory_max="1000\n",
        pod__memory_current="300\n",
        pod__memory_stat="\n",
    )
    assert found.left_for(300) == 900


def legacy(folder: Path, own: str, **files: str) -> Container:
    """Of a hierarchy of version 1, with the names of its files; ``own``: /proc/self/cgroup."""
    proc, root = folder / "proc", folder / "cgroup"
    proc.mkdir()
    (proc / "cgroup").write_text(own)
    (root / "memory" / "pods" / "agent").mkdir(parents=True)
    for name, text in files.items():
        place, _, file = name.partition("__")
        target = root / "memory" / {"top": "", "pod": "pods", "own": "pods/agent"}[place]
        (target / f"memory.{file}").write_text(text)
    return Container(proc=proc, root=root)


HYBRID = "9:name=systemd:/\n4:memory:/pods/agent\n2:cpu,cpuacct:/elsewhere\n0::/system\n"
NO_LIMIT = "9223372036854771712\n"


def test_a_container_of_version_1_leaves_what_all_else_in_it_does_not_have(tmp_path: Path) -> None:
    found = legacy(
        tmp_path,
        HYBRID,
        top__limit_in_bytes=NO_LIMIT,
        pod__limit_in_bytes=NO_LIMIT,
        own__limit_in_bytes="1000\n",
        own__usage_in_bytes="700\n",
        own__stat="inactive_file 1\ntotal_rss 5\ntotal_inactive_file 100\n",
    )
    assert found.left_for(400) == 900 - (700 - 100 - 400)


def test_the_narrowest_of_version_1_counts_and_one_without_a_limit_is_none(tmp_path: Path) -> None:
    found = legacy(
        tmp_path,
        HYBRID,
        top__limit_in_bytes=NO_LIMIT,
        pod__limit_in_bytes="1000\n",
        pod__usage_in_bytes="300\n",
        pod__stat="",
        own__limit_in_bytes=NO_LIMIT,
    )
    assert found.left_for(300) == 900


def test_a_container_that_sees_only_its_own_part_of_version_1_has_its_limit(tmp_path: Path) -> None:
    found = legacy(
        tmp_path,
        "4:memory:/docker/0123\n",  # the host's path, which is not in the container
        top__limit_in_bytes="1000\n",
        top__usage_in_bytes="400\n",
        top__stat="",
    )
    assert found.left_for(400) == 900


@pytest.mark.parametrize("limit", [NO_LIMIT, "-1\n", "9" * 5000, "", "some"])
def test_what_is_no_limit_in_version_1_is_none(tmp_path: Path, limit: str) -> None:
    found = legacy(tmp_path, HYBRID, own__limit_in_bytes=limit, own__usage_in_bytes="1\n", own__stat="")
    assert found.left_for(1) == 0


def test_with_memory_in_version_2_beside_version_1_it_is_where_that_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "cgroup" / "unified" / "pods" / "agent").mkdir(parents=True)
    for name, text in {"max": "1000\n", "current": "300\n", "stat": ""}.items():
        (tmp_path / "cgroup" / "unified" / "pods" / "agent" / f"memory.{name}").write_text(text)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text("1:cpu:/\n0::/pods/agent\n")
    assert Container(proc=tmp_path / "proc", root=tmp_path / "cgroup").left_for(300) == 900


@pytest.mark.parametrize(
    "own", ["", "1:memory:/x\n", "1:memory:/../x\n", "0::/../elsewhere\n", "0::/gone\n", "0\n::\n"]
)
def test_without_a_container_that_can_be_read_there_is_no_limit_of_one(tmp_path: Path, own: str) -> None:
    assert container(tmp_path, own=own).left_for(1) == 0


def test_without_any_limit_it_is_the_default() -> None:
    made = MemoryLimit(0, Headroom(), lambda: None)
    made._container = Container(proc=Path("/nowhere"))
    made._looked = -1.0
    made.look()
    assert made.limit_bytes == DEFAULT_BYTES


def test_the_kernels_kills_in_a_container_are_counted_in_both_versions(tmp_path: Path) -> None:
    for name in "one", "two", "none":
        (tmp_path / name).mkdir()
    two = container(
        tmp_path / "two", own__memory_max="1000\n", own__memory_events="low 0\noom 3\noom_kill 2\n"
    )
    one = legacy(
        tmp_path / "one",
        HYBRID,
        own__limit_in_bytes="1000\n",
        own__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
    )
    assert (one.kills, two.kills, one.limit_bytes, two.limit_bytes) == (5, 2, 1000, 1000)
    unlimited = container(tmp_path / "none", own__memory_max="max\n", own__memory_events="oom_kill 2\n")
    assert (unlimited.kills, unlimited.limit_bytes) == (0, 0)


@pytest.mark.parametrize("events", ["", "oom_kill\n", "oom_kill x\n", "oom_kill 1 2\n", "oom 3\n"])
def test_kills_that_cannot_be_read_are_none(tmp_path: Path, events: str) -> None:
    assert container(tmp_path, own__memory_max="1000\n", own__memory_events=events).kills == 0


def test_what_is_resident_is_what_the_kernel_says() -> None:
    status = Path("/proc/self/status").read_text()
    kib = int(status.split("VmRSS:")[1].split()[0])
    assert resident_bytes() == pytest.approx(kib << 10, rel=0.05)


def test_who_visits_an_agents_container_ends_before_it() -> None:
    says = (
        "from otelgpu.memory_limit import end_first as f; f(); print(open('/proc/self/oom_score_adj').read())"
    )
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1000"
