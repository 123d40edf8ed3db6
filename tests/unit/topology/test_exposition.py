"""Prometheus' text of a service graph → calls of services; what is none is rejected, and nothing raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.otlp_json.reader import Skips
from otelgpu.topology import services
from otelgpu.topology.exposition import NoMetrics, take
from otelgpu.topology.graph import Call
from otelgpu.topology.services import REQUESTS, SECONDS, TIMED, Services
from tests.rig.cluster import START
from tests.rig.examples import examples

DATA = Path(__file__).parent / "data"
TOTAL = REQUESTS
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def taken(text: bytes | str) -> tuple[list[Call], dict[str, int], int]:
    found, skips = Services(0), Skips()
    take(text.encode() if isinstance(text, str) else text, found, skips, "given", START)
    return found.calls(), dict(skips.counts), found.beyond


def test_what_a_collector_shows_is_what_was_sent_to_it() -> None:
    """Of gateway.yaml and backends/prometheus-scrape.yaml: seven requests, of which one failed in the last service."""
    calls, rejected, _ = taken((DATA / "servicegraph.txt").read_bytes())
    assert [(each.client, each.server, each.calls, each.errors) for each in calls] == [
        ("front", "router", 7, 0),
        ("router", 'model "x"\\y', 7, 1),
        ("user", "front", 7, 0),
    ]
    assert [round(each.mean_s, 6) for each in calls] == [0.015, 0.008, 0.03]
    assert rejected == {}


def quoted(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@given(names, names, st.integers(0, 2**53))
@examples(100)
def test_names_come_back_as_they_are(client: str, server: str, count: int) -> None:
    text = f'# HELP x\n{TOTAL}{{client="{quoted(client)}",server="{quoted(server)}"}} {count}\n'
    ((call,), rejected, _) = taken(text)
    assert (call.client, call.server, call.calls, rejected) == (client, server, count, {})


@pytest.mark.parametrize(
    "rest",
    [
        *(" 7", "{", '{client="a"', '{client="a,server="b"} 7', '{client="a";server="b"} 7', "{} "),
        *('{client="a",server="b"}', '{client="a",server="b"} x', '{client="a" server="b"} 7'),
        *('{client="a",server="b"} NaN', '{client="a",server="b"} +Inf', '{client="a",server="b"} -1'),
        '{client="\udcff",server="b"} 7',
    ],
)
def test_a_sample_that_is_none_is_rejected_and_the_next_is_taken(rest: str) -> None:
    good = f'{TOTAL}{{client="a",server="b",}} 2 1700000000000\n'
    calls, rejected, _ = taken(f"# x\n{TOTAL}{rest}\n{good}".encode("utf-8", "surrogateescape"))
    assert ([each.calls for each in calls], rejected) == ([2], {"metrics_unreadable": 1})


def test_where_the_first_that_was_rejected_stands_is_remembered() -> None:
    skips = Skips()
    take(f"# x\nup 1\n{TOTAL} 7\n{TOTAL} 8\n".encode(), Services(0), skips, "given", START)
    assert str(skips.first["metrics_unreadable"]) == "given:3: it has no labels"


@pytest.mark.parametrize("text", ["<!DOCTYPE html>\n", "{}", "\x00", "not found\n", "[1]"])
def test_a_text_of_something_else_is_said_to_be(text: str) -> None:
    with pytest.raises(NoMetrics):
        taken(f"{text}\n{TOTAL}{{client='a'}} 7\n")


def test_an_exporter_that_has_nothing_yet_has_no_calls() -> None:
    assert taken("") == taken("\n") == taken("up 1\n") == taken('up{a="b"} NaN') == ([], {}, 0)


@given(st.binary(max_size=60), st.text('{}"\\,=ab \n', max_size=60))
@examples(200)
def test_nothing_that_it_says_raises(noise: bytes, rest: str) -> None:
    taken(b"# x\n" + noise + f"\n{TOTAL}{rest}\n{TOTAL}{{client={rest}".encode())


def test_what_is_beyond_the_bound_is_counted_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_SERIES", 100)
    pairs = [f'{{client="c{at}",server="s"}} 1\n' for at in range(107)]
    lines = [f"{name}{pair}" for name in (SECONDS, TIMED, REQUESTS) for pair in pairs]
    calls, _, beyond = taken("# x\n" + "".join(lines))
    assert (len(calls), beyond) == (100, 7 + 2 * 107)  # counts first, though they come last
