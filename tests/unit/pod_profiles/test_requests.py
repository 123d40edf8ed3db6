"""Which annotations have a profile taken, and which are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.cli.pod_profiles.outcomes import Outcome, Result, event_of, sentence
from otelgpu.cli.pod_profiles.requests import LATEST_S, Change, Kept, Limits, Requests, seconds_of
from otelgpu.families.switches import names
from otelgpu.model.resource import Resource
from otelgpu.model.switches import PodSwitch
from tests.rig.examples import examples

NOW = 1_000_000.0
OWN = Resource(())


def asked(uid: str = "a", value: str = "30s", written_unix_s: int = 0) -> PodSwitch:
    return PodSwitch(
        uid=uid, namespace="serving", pod=f"pod-{uid}", value=value, written_unix_s=written_unix_s
    )


def decided(requests: Requests, *switches: PodSwitch, now_s: float = NOW) -> list[tuple[str, str, str]]:
    return [(each.switch.uid, each.state, each.reason) for each in requests.read(switches, now_s)]


@pytest.mark.parametrize(
    ("value", "seconds"), [("30s", 30), ("1m", 60), ("5s again", 5), ("9999s x-1", 9999)]
)
def test_a_time_is_asked_for_and_again_with_a_word(value: str, seconds: float) -> None:
    assert seconds_of(value) == seconds


@pytest.mark.parametrize(
    "value",
    ["", "30", "0s", "-3s", "30s ", "30 s", "1h", "30S", "٣s", "30s again and again", "30s\n", "99999s"],
)
def test_nothing_else_means_anything(value: str) -> None:
    assert seconds_of(value) == 0
    assert decided(Requests(Limits()), asked(value=value)) == [("a", names.REFUSED, names.MALFORMED)]


def test_one_at_a_time_on_the_node_and_what_comes_meanwhile_does_not_wait() -> None:
    requests = Requests(Limits())
    assert decided(requests, asked("a"), asked("b")) == [
        ("a", names.BEGAN, ""),
        ("b", names.REFUSED, names.TOO_MANY),
    ]
    requests.end(NOW + 30, names.OVER)
    assert decided(requests, asked("a"), asked("b"), now_s=NOW + 200) == []


def test_the_next_one_may_begin_after_a_pause_whoevers_it_is() -> None:
    requests = Requests(Limits(pause_s=60))
    decided(requests, asked("a"))
    requests.end(NOW + 30, names.OVER)
    assert decided(requests, asked("b"), now_s=NOW + 89) == [("b", names.REFUSED, names.TOO_SOON)]
    assert decided(requests, asked("b", "30s again"), now_s=NOW + 90) == [("b", names.BEGAN, "")]


def test_a_clock_that_was_set_back_keeps_nobody_from_it() -> None:
    requests = Requests(Limits(), Kept(ended_unix_s=NOW + 1e6))
    assert decided(requests, asked("a")) == [("a", names.BEGAN, "")]


def test_longer_than_is_allowed_is_refused() -> None:
    assert decided(Requests(Limits(longest_s=30)), asked("a", "31s"))[0][2] == names.TOO_LONG
    assert decided(Requests(Limits(longest_s=30)), asked("a", "30s"))[0][1] == names.BEGAN


def test_what_was_asked_for_long_ago_is_not_begun_by_an_agent_that_is_new() -> None:
    written = int(NOW - LATEST_S - 1)
    assert decided(Requests(Limits()), asked(written_unix_s=written))[0][2] == names.PAST
    assert decided(Requests(Limits()), asked(written_unix_s=written + 1))[0][1] == names.BEGAN


def test_what_was_decided_holds_after_a_new_start_and_what_was_taken_has_ended() -> None:
    before = Requests(Limits())
    decided(before, asked("a"), asked("b"))
    kept = msgspec.json.decode(msgspec.json.encode(before.kept), type=Kept)
    after = Requests(Limits(), kept)
    assert after.end(NOW + 1, names.AGENT_ENDED).switch == asked("a")
    assert decided(after, asked("a"), asked("b"), now_s=NOW + 500) == []


@pytest.mark.parametrize("left", [[], [asked("a", "30s again")], [asked("b", "junk")]])
def test_it_is_withdrawn_with_its_annotation_and_by_another_value(left: list[PodSwitch]) -> None:
    requests = Requests(Limits())
    decided(requests, asked("a"))
    assert not requests.is_withdrawn
    requests.read(left, NOW + 1)
    assert requests.is_withdrawn
    assert requests.end(NOW + 2, names.WITHDRAWN) == Change(
        names.ENDED, asked("a"), names.WITHDRAWN, seconds=30.0
    )
    assert not requests.is_withdrawn


def test_a_pod_that_is_gone_is_forgotten() -> None:
    requests = Requests(Limits())
    decided(requests, asked("a", "junk"))
    decided(requests)
    assert requests.kept.decided == {}


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.sampled_from(["5s", "5s x", "61s", "?"])),
            st.booleans(),
            st.floats(0, 100),
        ),
        max_size=20,
    )
)
@examples(200)
def test_never_two_at_once_nor_sooner_than_the_pause(turns: list[tuple[dict[str, str], bool, float]]) -> None:
    requests, now_s, ended_s = Requests(Limits(longest_s=60, pause_s=60)), NOW, -1e9
    for values, ends, passed_s in turns:
        now_s += passed_s
        running = requests.kept.current is not None
        began = [
            each
            for each in requests.read([asked(uid, value) for uid, value in values.items()], now_s)
            if each.state == names.BEGAN
        ]
        assert len(began) + running <= 1
        assert not began or (now_s - ended_s >= 60 and began[0].seconds == 5)
        if ends and requests.kept.current is not None:
            requests.end(now_s, names.OVER)
            ended_s = now_s


def outcome(state: str, reason: str = "", result: Result | None = None, value: str = "30s") -> Outcome:
    change = Change(state, asked(value=value), reason, seconds_of(value))
    return Outcome(change=change, time_unix_ns=5, result=result)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (outcome(names.BEGAN), "a profile of 30 s began"),
        (outcome(names.REFUSED, names.TOO_SOON), "a profile of 30 s is refused: too_soon"),
        (
            outcome(names.REFUSED, names.MALFORMED, value="x"),
            "an annotation for a profile is refused: malformed",
        ),
        (
            outcome(names.ENDED, names.OVER, Result(samples=2970, file="/f/x.pb.gz")),
            "a profile of 30 s ended: over: 2,970 samples in /f/x.pb.gz",
        ),
        (outcome(names.ENDED, names.OVER, Result(samples=7)), "a profile of 30 s ended: over: 7 samples"),
        (
            outcome(names.ENDED, names.FAILED, Result(error="no room")),
            "a profile of 30 s ended: failed: no room",
        ),
        (outcome(names.ENDED, names.AGENT_ENDED), "a profile of 30 s ended: agent_ended"),
    ],
)
def test_each_is_said_in_a_sentence_and_is_an_event(of: Outcome, said: str) -> None:
    assert sentence(of) == f"pod serving/pod-a: {said}"
    event = event_of(of, OWN)
    assert (event.name, event.text) == ("otelgpu.switch", sentence(of))
    assert event.attributes[names.ANNOTATION] == "otelgpu.io/profile"
    assert event.attributes[names.STATE] == of.change.state
    assert event.attributes["k8s.pod.uid"] == "a"
    assert event.attributes.get(names.REASON, "") == of.change.reason
    assert event.warns == (of.change.state == names.REFUSED or of.change.reason == names.FAILED)
    if of.result is not None:
        assert event.attributes.get(names.FILE, "") == of.result.file


def test_what_a_pod_calls_itself_and_asks_for_steers_no_terminal() -> None:
    hostile = PodSwitch(uid="a", namespace="\x1b[2J", pod="p\n", value="\x1b[0m", manager="\x07")
    event = event_of(Outcome(change=Change(names.BEGAN, hostile, "", 30.0), time_unix_ns=1), OWN)
    assert event.text.isprintable()
    assert all(str(each).isprintable() for each in event.attributes.values())
