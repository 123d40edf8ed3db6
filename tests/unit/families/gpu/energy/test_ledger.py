"""Whatever comes in whatever order: what a GPU's counter grew by is idle, requests' or nobody's, to the nanojoule."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.facts import EngineStep
from otelgpu.families.gpu.energy.accounts import Account
from otelgpu.families.gpu.energy.ledger import (
    CALLS_KNOWN_NS,
    GIVEN_UP_NS,
    LONGEST_WAIT_NS,
    STEPS_KNOWN_NS,
    Ledger,
)
from otelgpu.families.gpu.energy.signals import Use
from otelgpu.families.gpu.energy.work import Work
from otelgpu.model.devices import (
    DeviceReadings,
    DeviceSeen,
    EnergyRead,
    ProcessDevices,
    ProcessReading,
    Quantity,
)
from tests.rig.examples import examples

MS, S = 1_000_000, 1_000_000_000
MJ = 1_000_000  # nanojoules
FIRST, SECOND = "GPU-1", "GPU-2"
SERVER, ENGINE, OTHER = 10, 11, 12
PARENTS = {ENGINE: SERVER}


def lineage(tgid: int) -> list[int]:
    return [tgid, *([PARENTS[tgid]] if tgid in PARENTS else [])]


class Host:
    """A ledger with a clock, and counters that are read."""

    def __init__(self, *, idle_milliwatts: int = 0) -> None:
        self.work = Work(lineage)
        self.ledger = Ledger(self.work, idle_milliwatts=idle_milliwatts)
        self.now_ns = S
        self.counter = Counter({FIRST: 7_000, SECOND: 9_000})  # millijoules
        self.closed: dict[int, Account] = {}

    def pass_by(self, ns: int) -> Host:
        self.now_ns += ns
        return self

    def use(self, millijoules: int, uuid: str = FIRST) -> Host:
        self.counter[uuid] += millijoules
        return self

    def read(self, *uuids: str) -> Host:
        for uuid in uuids or (FIRST,):
            self.ledger.read(EnergyRead(time_ns=self.now_ns, uuid=uuid, millijoules=self.counter[uuid]))
        return self

    def on(self, *processes: tuple[int, int | None], uuid: str = FIRST, busy: int = 0) -> Host:
        readings = tuple(
            ProcessReading(tgid=tgid, device=uuid, utilization_percent=percent) for tgid, percent in processes
        )
        values = {Quantity.UTILIZATION_PERCENT: busy}
        self.ledger.note(DeviceReadings(time_ns=self.now_ns, uuid=uuid, values=values, processes=readings))
        return self

    def begin(self, key: int, tgid: int = SERVER) -> Host:
        self.work.begin(key, tgid, self.now_ns)
        return self

    def end(self, key: int) -> Host:
        self.work.end(key, self.now_ns)
        return self

    def step(self, ns: int, *members: tuple[int, int], tgid: int = ENGINE) -> Host:
        self.work.add_steps([EngineStep(tgid, self.now_ns - ns, self.now_ns, members)])
        return self

    def call(self, key: int, ns: int, tgid: int = ENGINE, *, device: bool = False) -> Host:
        at = np.array([self.now_ns - ns], dtype=np.uint64)
        self.work.add_calls(
            np.array([tgid], dtype=np.uint32),
            np.array([key], dtype=np.int64),
            at,
            np.array([ns], dtype=np.uint64),
            device=device,
        )
        return self

    def settle(self, *, final: bool = False, hears_engines: bool = True) -> Host:
        self.ledger.settle(self.now_ns, hears_engines=hears_engines, final=final)
        return self

    def close(self, key: int) -> Account | None:
        account = self.ledger.close(key)
        if account is not None:
            self.closed[key] = account
        return account

    def charged(self, key: int) -> int:
        """Nanojoules, once the interval has been settled."""
        self.pass_by(LONGEST_WAIT_NS).settle()
        account = self.close(key)
        return account.nanojoules if account is not None else 0

    def used(self, use: str, uuid: str = FIRST) -> int:
        return self.ledger.used[uuid, use]


def serving() -> Host:
    """An engine on the first GPU, under a server."""
    host = Host().read()
    return host.on((ENGINE, None))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.sampled_from([FIRST, SECOND]), st.integers(0, 50_000)),
        st.tuples(st.just("begin"), st.integers(1, 6), st.sampled_from([SERVER, OTHER])),
        st.tuples(st.just("end"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("close"), st.integers(1, 6), st.booleans()),
        st.tuples(
            st.just("step"),
            st.integers(1, 300),
            st.lists(st.tuples(st.integers(0, 6), st.integers(0, 900)), max_size=3),
        ),
        st.tuples(st.just("call"), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("launch"), st.sampled_from([ENGINE, OTHER]), st.just(0)),
        st.tuples(st.just("settle"), st.booleans(), st.just(0)),
        st.tuples(st.just("on"), st.sampled_from([FIRST, SECOND]), st.integers(0, 100)),
        st.tuples(st.just("lose"), st.sampled_from([FIRST, SECOND]), st.just(0)),
        st.tuples(st.just("gone"), st.sampled_from([SERVER, ENGINE, OTHER]), st.just(0)),
    ).flatmap(lambda event: st.tuples(st.integers(0, 2_000), st.just(event))),
    min_size=20,
    max_size=60,
)


@examples(80)
@given(EVENTS, st.sampled_from([0, 60_000]))
def test_no_nanojoule_is_lost_or_made_up(events: list, idle_milliwatts: int) -> None:
    host = Host(idle_milliwatts=idle_milliwatts).read(FIRST, SECOND)
    host.on((ENGINE, None)).on((ENGINE, None), (OTHER, None), uuid=SECOND).begin(1).begin(2, OTHER)
    expected: Counter[str] = Counter()
    last = {uuid: (host.now_ns, host.counter[uuid]) for uuid in (FIRST, SECOND)}
    for passed_ms, (kind, what, more) in events:
        host.pass_by(passed_ms * MS)
        match kind:
            case "read":
                before = last.get(what)
                most = 20_000 * ((host.now_ns - before[0]) + S) // MJ if before else 50_000
                host.use(min(more, most), what).read(what)
                if before is None or before[0] < host.now_ns:
                    expected[what] += (host.counter[what] - before[1]) * MJ if before else 0
                    last[what] = host.now_ns, host.counter[what]
            case "begin":
                host.begin(what, more)
            case "end":
                host.end(what)
            case "close":
                host.ledger.close(what, counts=more)
            case "step":
                host.step(what * MS, *more)
            case "call":
                host.call(what, 20 * MS, device=more)
            case "launch":
                host.work.launch(what, host.now_ns - MS, host.now_ns)
            case "settle":
                host.settle(hears_engines=what)
            case "on":
                host.on((ENGINE, more), (OTHER, 100 - more), uuid=what, busy=more)
            case "lose":
                host.ledger.lose(what)
                last.pop(what, None)
            case "gone":
                host.ledger.forget_process(what)
    host.settle(final=True)
    for key in list(host.work.flights):
        host.ledger.close(key)
    for uuid in (FIRST, SECOND):
        parts = [host.used(use, uuid) for use in (Use.IDLE, Use.REQUESTS, Use.UNATTRIBUTED)]
        assert min(parts) >= 0
        assert sum(parts) == expected[uuid]


def test_an_interval_without_work_is_idle_and_tells_what_idling_takes() -> None:
    host = serving().pass_by(10 * S).use(700_000).read()
    host.begin(1).pass_by(S).use(300_000).step(S, (1, 1)).end(1).read()
    assert host.charged(1) == 230_000 * MJ
    assert host.used(Use.IDLE) == 770_000 * MJ
    assert host.closed[1].idle_power == "measured"


def test_a_request_that_is_heard_of_after_the_reading_of_its_time_is_charged() -> None:
    host = serving().pass_by(10 * S).use(700_000).read().pass_by(S).use(300_000).read()
    host.pass_by(S).settle(hears_engines=False)
    began_ns, ended_ns = host.now_ns - 1500 * MS, host.now_ns - 1100 * MS
    host.work.begin(1, SERVER, began_ns)
    host.work.end(1, ended_ns)
    assert not host.ledger.is_known(1, ended_ns, host.now_ns)
    assert host.charged(1) == 230_000 * MJ


def test_members_of_a_step_are_charged_by_their_tokens() -> None:
    host = serving().begin(1).begin(2).pass_by(100 * MS).use(40).step(50 * MS, (1, 3), (2, 1)).read()
    host.end(1).end(2)
    assert (host.charged(1), host.charged(2)) == (30 * MJ, 10 * MJ)
    assert {account.method for account in host.closed.values()} == {"steps"}
    assert host.closed[1].time_ns + host.closed[2].time_ns == 100 * MS  # both were under way all the time


def test_a_member_that_nobody_knows_is_nobodys() -> None:
    host = serving().begin(1).pass_by(100 * MS).use(40).step(50 * MS, (1, 3), (0, 1)).read().end(1)
    assert (host.charged(1), host.used(Use.UNATTRIBUTED)) == (30 * MJ, 10 * MJ)


def test_steps_share_by_how_long_each_was_in_the_interval_and_go_before_calls() -> None:
    host = serving().begin(1).begin(2).pass_by(40 * MS).step(30 * MS, (1, 5)).pass_by(60 * MS).use(40)
    host.step(10 * MS, (2, 1)).call(2, 30 * MS).call(2, 30 * MS, device=True).read().end(1).end(2)
    assert (host.charged(1), host.charged(2)) == (30 * MJ, 10 * MJ)


def test_a_step_whose_members_are_not_known_is_shared_by_who_was_under_way_in_it() -> None:
    host = serving().begin(1).pass_by(40 * MS).step(10 * MS, (1, 5)).begin(2).pass_by(60 * MS).use(40)
    host.step(30 * MS).read().end(1).end(2)
    assert (host.charged(1), host.charged(2)) == (25 * MJ, 15 * MJ)
    assert (host.closed[1].method, host.closed[2].method) == ("concurrency", "concurrency")


def test_calls_count_where_there_are_no_steps() -> None:
    host = serving().begin(1).begin(2).pass_by(100 * MS).use(40)
    host.call(1, 10 * MS).call(2, 30 * MS).read().end(1).end(2)
    assert (host.charged(1), host.charged(2)) == (10 * MJ, 30 * MJ)
    assert host.closed[1].method == "calls"


def test_measured_device_time_goes_before_calls() -> None:
    host = serving().begin(1).begin(2).pass_by(100 * MS).use(40).call(1, 30 * MS).call(2, 10 * MS)
    host.call(1, 10 * MS, device=True).call(2, 30 * MS, device=True).read().end(1).end(2)
    assert (host.charged(1), host.charged(2)) == (10 * MJ, 30 * MJ)
    assert host.closed[1].method == "device_time"


def test_requests_under_way_share_by_how_long_they_were_where_no_more_is_known() -> None:
    host = serving().begin(1).pass_by(50 * MS).begin(2).pass_by(50 * MS).use(30).read().end(1).end(2)
    assert (host.charged(1), host.charged(2)) == (20 * MJ, 10 * MJ)
    assert host.closed[1].method == "concurrency"


def test_all_gpus_of_a_process_are_shared_by_its_requests() -> None:
    host = Host().read(FIRST, SECOND).on((ENGINE, None)).on((ENGINE, None), uuid=SECOND)
    host.begin(1).pass_by(100 * MS).use(30).use(50, SECOND).step(90 * MS, (1, 5)).read(FIRST, SECOND).end(1)
    assert host.charged(1) == 80 * MJ
    assert host.closed[1].by_device == {FIRST: 30 * MJ, SECOND: 50 * MJ}
    assert host.closed[1].time_ns == 200 * MS


def test_processes_of_one_gpu_share_by_utilisation_and_equally_without_it() -> None:
    for first, second, expected in ((30, 10, 30), (None, None, 20), (30, 0, 20)):
        host = Host().read().on((ENGINE, first), (OTHER, second)).begin(1).begin(2, OTHER)
        host.pass_by(100 * MS).use(40).read().end(1).end(2)
        assert (host.charged(1), host.charged(2)) == (expected * MJ, (40 - expected) * MJ)


def test_a_process_that_is_not_observed_has_its_part_by_utilisation() -> None:
    host = Host().read().on((ENGINE, 30), (99, 10)).begin(1).pass_by(100 * MS).use(40).read().end(1)
    assert (host.charged(1), host.used(Use.UNATTRIBUTED)) == (30 * MJ, 10 * MJ)


def test_work_without_requests_is_nobodys_beyond_idling() -> None:
    host = serving().pass_by(10 * S).use(700_000).read()
    host.pass_by(S).use(300_000)
    host.work.launch(ENGINE, host.now_ns - 500 * MS, host.now_ns)
    host.read().pass_by(STEPS_KNOWN_NS).settle()
    assert (host.used(Use.IDLE), host.used(Use.UNATTRIBUTED)) == (770_000 * MJ, 230_000 * MJ)


def test_a_busy_gpu_of_which_nothing_is_observed_is_not_idle() -> None:
    host = serving().pass_by(10 * S).use(700_000).read()
    host.pass_by(10 * S).on(busy=90).use(6_000_000).read().pass_by(STEPS_KNOWN_NS).settle()
    assert (host.used(Use.IDLE), host.used(Use.UNATTRIBUTED)) == (1_400_000 * MJ, 5_300_000 * MJ)


def test_what_calls_a_device_is_on_the_one_that_it_sees_where_the_driver_says_nothing() -> None:
    host = Host().read(FIRST, SECOND)
    host.ledger.show(ProcessDevices(tgid=ENGINE, time_ns=0, uuids=(SECOND,)))
    host.begin(1).pass_by(100 * MS).use(30).use(50, SECOND).call(1, 10 * MS).read(FIRST, SECOND).end(1)
    assert host.charged(1) == 50 * MJ


def test_a_mig_device_is_charged_for_at_its_gpu() -> None:
    host = Host()
    host.ledger.see(DeviceSeen(time_ns=1, uuid="MIG-1", index=-1, minor=-1, model="H200 MIG", parent=SECOND))
    host.read(FIRST, SECOND)
    host.ledger.show(ProcessDevices(tgid=ENGINE, time_ns=0, uuids=("MIG-1",)))
    host.begin(1).pass_by(100 * MS).use(30).use(50, SECOND).call(1, 10 * MS).read(FIRST, SECOND).end(1)
    assert host.charged(1) == 50 * MJ


def test_a_long_request_is_charged_over_many_readings_and_no_more_once_it_is_closed() -> None:
    host = serving().begin(1)
    for _ in range(50):
        host.pass_by(100 * MS).use(10).step(100 * MS, (1, 1)).read().settle()
    host.end(1)
    assert host.charged(1) == 500 * MJ
    host.pass_by(100 * MS).use(10).step(100 * MS, (1, 1)).read().pass_by(LONGEST_WAIT_NS).settle()
    assert host.used(Use.UNATTRIBUTED) == 10 * MJ


def test_an_interval_waits_for_the_steps_of_requests_under_way_and_no_longer_than_that() -> None:
    host = serving().begin(1).pass_by(100 * MS).use(10).step(90 * MS, (1, 1)).read()
    assert host.settle().ledger.is_waiting
    # The next step is under way for two seconds: without its end the second interval is not known.
    host.pass_by(100 * MS).use(10).read().pass_by(STEPS_KNOWN_NS).settle()
    assert host.ledger.is_waiting
    host.pass_by(S).step(2 * S, (1, 1)).settle()
    assert not host.ledger.is_waiting
    host.pass_by(100 * MS).use(10).read().pass_by(LONGEST_WAIT_NS).settle()
    assert not host.ledger.is_waiting


def test_without_engines_calls_are_known_soon() -> None:
    host = serving().begin(1).pass_by(100 * MS).use(10).call(1, MS).read().pass_by(CALLS_KNOWN_NS)
    assert not host.settle(hears_engines=False).ledger.is_waiting


def test_a_request_waits_for_the_reading_after_its_end() -> None:
    host = serving().begin(1).call(1, MS).pass_by(50 * MS).end(1)
    ended_ns = host.now_ns
    assert host.ledger.wants_readings(host.now_ns)
    assert not host.ledger.is_known(1, ended_ns, host.now_ns)
    host.pass_by(50 * MS).use(10).read().pass_by(CALLS_KNOWN_NS).settle(hears_engines=False)
    assert host.ledger.is_known(1, ended_ns, host.now_ns)
    assert not host.ledger.wants_readings(host.now_ns)
    assert host.charged(1) == 10 * MJ


def test_a_driver_that_does_not_answer_holds_up_one_request_for_a_while_and_no_other() -> None:
    host = serving().call(1, MS)
    for key, known_at_once in ((1, False), (2, True)):
        host.begin(key).pass_by(50 * MS).end(key)
        assert host.ledger.is_known(key, host.now_ns, host.now_ns) == known_at_once
        host.pass_by(GIVEN_UP_NS)
        assert host.ledger.is_known(key, host.now_ns - GIVEN_UP_NS, host.now_ns)
    assert host.ledger.counters == {"readings_missing": 1}


def test_without_requests_nobody_wants_readings() -> None:
    host = serving()
    assert not host.ledger.wants_readings(host.now_ns)
    host.begin(1, OTHER).pass_by(MS)
    assert not host.ledger.wants_readings(host.now_ns)  # whose process calls no device
    assert host.ledger.is_known(1, host.now_ns, host.now_ns)
    host.begin(2).pass_by(MS)
    assert host.ledger.wants_readings(host.now_ns)
    assert not host.ledger.wants_readings(host.now_ns + 3600 * S)  # it never ends
