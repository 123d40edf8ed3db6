"""Two pods in one session: what one asks for is reported of it alone, and every switch is an event."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from otelgpu.engine.pipeline import Pipeline
from otelgpu.families.switches import names
from otelgpu.model.events import Event
from otelgpu.model.inputs import Input, ProcessSeen, Tick
from otelgpu.model.resource import resource
from otelgpu.model.settings import Detail, SignalSettings
from otelgpu.model.switches import PodSwitch, SwitchesRead
from otelgpu.sources.capture import CaptureReader, CaptureWriter, Header
from tests.unit.engine.test_pipeline import LAUNCH_PREFILL, pipeline
from tests.unit.families.records import MS, UNIX_OFFSET_NS, Host
from tests.unit.model.builders import Row, read_out

ASKING, OTHER = 100, 200
UIDS = {ASKING: "uid-asking", OTHER: "uid-other"}
CALLS = 600
"""Of each process: more than the spans that a window has in detail `ops`."""


def switched(*values: str, uid: str = "uid-asking") -> SwitchesRead:
    found = (
        PodSwitch(uid=uid, namespace="n", pod="asking", value=each, manager="kubectl") for each in values
    )
    return SwitchesRead(switches=tuple(found))


def calling(now_ns: int, count: int = CALLS) -> tuple[list[Input], int]:
    """Both processes launch the same kernel as often, outside of any request; and when they are done."""
    made: list[Input] = []
    for tgid in (ASKING, OTHER):
        host = Host(tgid=tgid, now_ns=now_ns)
        host.launch(times=count, took_ns=1000, tid=tgid)
        described = resource({"service.name": "s", "process.pid": tgid, "k8s.pod.uid": UIDS[tgid]})
        first, *rest = host.preamble()[:1], *host.preamble()[2:]
        made += [
            *first,
            ProcessSeen(tgid=tgid, time_ns=0, resource=described),
            *rest,
            *(each.batch for each in host.sent),
        ]
        end_ns = host.now_ns
    return made, end_ns


def play(session: Pipeline, *inputs: Input) -> list[Row]:
    return [row for item in inputs for row in read_out(session.feed(item))]


def launches(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {ASKING: [], OTHER: []}
    for row in rows:
        if row.name == LAUNCH_PREFILL:
            found[int(str(row.resource.get("process.pid")))].append(row)
    return found


def spans_of(switches: SwitchesRead, detail: Detail = "ops") -> tuple[dict[int, int], list[Event]]:
    session = pipeline(settings=SignalSettings(detail=detail))
    inputs, end_ns = calling(1_000 * MS)
    rows = play(session, inputs[0], Tick(time_ns=999 * MS), switches, *inputs, Tick(time_ns=end_ns + MS))
    rows += read_out(session.finish())
    found = launches(rows)
    for each in found.values():
        assert sum(row.get("otelgpu.count") or 1 for row in each) in (0, CALLS)
    return {tgid: len(each) for tgid, each in found.items()}, session.take_events()


def test_the_pod_that_asks_has_each_call_and_its_neighbour_what_it_had() -> None:
    before, events = spans_of(SwitchesRead())
    assert before == {ASKING: 1, OTHER: 1} and events == []
    after, events = spans_of(switched("all 5m"))
    assert after == {ASKING: CALLS, OTHER: before[OTHER]}
    assert [each.attributes[names.STATE] for each in events] == [names.BEGAN, names.ENDED]


def test_where_no_calls_are_reported_the_pod_that_asks_has_them() -> None:
    assert spans_of(SwitchesRead(), "phases")[0] == {ASKING: 0, OTHER: 0}
    assert spans_of(switched("ops 5m"), "phases")[0] == {ASKING: 1, OTHER: 0}


def test_what_is_asked_before_the_first_tick_lasts_from_then_on() -> None:
    session = pipeline()
    inputs, end_ns = calling(1_000_000 * MS, 1)
    play(
        session,
        inputs[0],
        switched("all 5m"),
        *inputs,
        Tick(time_ns=end_ns),
        Tick(time_ns=end_ns + 299_000 * MS),
    )
    assert [each.attributes[names.STATE] for each in session.take_events()] == [names.BEGAN]
    play(session, Tick(time_ns=end_ns + 301_000 * MS))
    assert [each.attributes[names.REASON] for each in session.take_events()] == [names.OVER]


def test_a_pod_that_is_not_here_changes_nothing() -> None:
    assert spans_of(switched("all 5m", uid="uid-elsewhere"))[0] == {ASKING: 1, OTHER: 1}


def test_what_is_refused_changes_nothing_and_is_counted_and_said() -> None:
    session = pipeline()
    inputs, end_ns = calling(1_000 * MS)
    rows = play(
        session, inputs[0], Tick(time_ns=999 * MS), switched("all 5h"), *inputs, Tick(time_ns=end_ns + MS)
    )
    assert {tgid: len(each) for tgid, each in launches(rows + read_out(session.finish())).items()} == {
        ASKING: 1,
        OTHER: 1,
    }
    (event,) = session.take_events()
    assert event.name == "otelgpu.switch" and event.warns
    assert event.attributes == {
        "otelgpu.switch.state": "refused",
        "otelgpu.switch.reason": "malformed",
        "otelgpu.switch.annotation": "otelgpu.io/detail",
        "otelgpu.switch.value": "all 5h",
        "otelgpu.switch.manager": "kubectl",
        "k8s.pod.uid": "uid-asking",
        "k8s.pod.name": "asking",
        "k8s.namespace.name": "n",
    }
    assert event.text == "pod n/asking: an annotation for more detail is refused: malformed"
    assert session.summary.losses["switches", "malformed"] == 1


def test_after_its_time_calls_are_reported_as_before() -> None:
    session = pipeline()
    inputs, end_ns = calling(1_000 * MS)
    play(session, inputs[0], Tick(time_ns=999 * MS), switched("all 1s"), *inputs, Tick(time_ns=end_ns + MS))
    later_ns = end_ns + 20_000 * MS
    play(session, Tick(time_ns=later_ns))
    again, end_ns = calling(later_ns + MS)
    rows = play(session, *again, Tick(time_ns=end_ns + MS)) + read_out(session.finish())
    assert {tgid: len(each) for tgid, each in launches(rows).items()} == {ASKING: 1, OTHER: 1}
    states = [each.attributes.get(names.REASON, "") for each in session.take_events()]
    assert states == [] or states[-1] == names.OVER


def test_names_that_are_none_cannot_command_a_terminal() -> None:
    session = pipeline()
    inputs, _ = calling(1_000 * MS, 1)
    wild = PodSwitch(uid="\x1b[1m", namespace="\x07", pod="a\nb", value="all \x1b]0;x", manager="\x9b")
    play(session, inputs[0], SwitchesRead(switches=(wild,)), Tick(time_ns=MS))
    (event,) = session.take_events()
    assert all(each.isprintable() for each in (event.text, *map(str, event.attributes.values())))


def test_refusals_beyond_twenty_a_minute_are_counted_alone() -> None:
    session = pipeline()
    inputs, _ = calling(1_000 * MS, 1)
    play(session, inputs[0], Tick(time_ns=MS))
    for number in range(30):
        play(session, switched(f"nonsense {number}"), Tick(time_ns=(2 + number) * MS))
    assert len(session.take_events()) == 20
    assert session.summary.losses["switches", "malformed"] == 30
    assert session.summary.losses["switches", "events_withheld"] == 10


def test_a_capture_has_what_was_asked(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.capture", switched("all 5m")
    header = Header(version="0", seed=1, start_unix_ns=UNIX_OFFSET_NS, own={}, btf={})
    writer = CaptureWriter(path, header)
    writer.write(asked)
    writer.close()
    with_reader = CaptureReader(path)
    assert list(with_reader) == [asked]
    with_reader.close()


@pytest.mark.parametrize("served", [False, True])
def test_calls_of_requests_are_reported_in_the_detail_of_their_pod(served: bool) -> None:
    session = pipeline()
    host = Host()
    host.accept()
    host.ask(stream=False)
    host.launch(times=5)
    from tests.unit.families.records import completion

    host.write(completion(prompt_tokens=3, completion_tokens=2))
    described = resource({"service.name": "s", "process.pid": ASKING, "k8s.pod.uid": "uid-asking"})
    first, _, *rest = host.inputs()
    seen = ProcessSeen(tgid=ASKING, time_ns=0, resource=described)
    asked = [switched("all 5m")] if served else []
    rows = play(session, first, Tick(time_ns=MS), *asked, seen, *rest) + read_out(session.finish())
    counts = Counter(row.get("otelgpu.count") or 1 for row in rows if row.name == LAUNCH_PREFILL)
    assert counts == ({1: 5} if served else {5: 1})


def test_a_limit_of_spans_holds_for_a_pod_with_more_detail_too() -> None:
    session = pipeline(settings=SignalSettings(spans_per_second=10))
    inputs, end_ns = calling(1_000 * MS)
    rows = play(session, inputs[0], Tick(time_ns=999 * MS), switched("all 5m"), *inputs, Tick(time_ns=end_ns))
    again, end_ns = calling(end_ns + 10_000 * MS)
    rows += play(session, *again, Tick(time_ns=end_ns)) + read_out(session.finish())
    reported = sum(row.get("otelgpu.count") or 1 for found in launches(rows).values() for row in found)
    capped = session.summary.losses["correlate", "capped_operations"]
    assert capped >= CALLS and reported + capped == 4 * CALLS
