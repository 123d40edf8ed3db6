"""The summary that ends a session shows names that observed programs chose, and takes none for its own language."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from otelgpu.agent import Outcome
from otelgpu.cli import observe
from otelgpu.cli.guidance import Guidance
from otelgpu.cli.losses import explain
from otelgpu.engine.summary import Summary
from otelgpu.export.destination import Opening
from otelgpu.export.registry import parse_destination
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.losses import Reasons
from otelgpu.model.text import printable
from tools.loss_reasons import loss_reasons


@pytest.mark.parametrize("name", ["[unknown]+0x1000", "[/bold]", "k[link=file:/x]y", ":skull:"])
def test_a_name_with_brackets_is_shown_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary()
    summary.launches.add(np.zeros(3, dtype=np.uint32), np.ones(3, dtype=np.uint64), [name])
    summary.calls["cudaLaunchKernel"] = 3
    summary.errors[f"{name}: cudaErrorInvalidValue"] = 1
    library = f"/srv/{name}/libcudart.so.12"
    observe.print_summary(
        Outcome(summary=summary, exported={}, libraries=[(library, 5, 0)], submitted={}, seconds=1.0)
    )
    shown = capsys.readouterr().err
    assert shown.count(name) == 3
    assert library in shown


def test_calls_are_reported_by_how_they_were_linked(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(stepped=40, steps=5, unattributed=9, ambiguous=1)
    summary.calls["cudaLaunchKernel"] = 100
    summary.linked_by |= {ContextSource.THREAD: 30, ContextSource.WAKEUP: 13, ContextSource.THREAD_CONTEXT: 7}
    assert _rows(summary, capsys) == [
        "Calls: 100",
        "of steps 40 40.0 %, 5 steps",
        "linked to a request 50 50.0 %",
        "by the context that its process published 7",
        "by the thread that read it 30",
        "by the thread that woke another for it 13",
        "without a request 9",
        "on a thread with several requests 1 not linked",
    ]


def test_ways_that_linked_nothing_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(unattributed=3)
    summary.calls["cudaLaunchKernel"] = 3
    assert _rows(summary, capsys) == ["Calls: 3", "linked to a request 0 0.0 %", "without a request 3"]


def test_of_an_engine_that_batches_only_what_is_true_of_it_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    summary = Summary(stepped=97, steps=5, unattributed=3)
    summary.calls["cudaLaunchKernel"] = 100
    assert _rows(summary, capsys) == ["Calls: 100", "of steps 97 97.0 %, 5 steps", "without a request 3"]


def test_what_this_machine_does_not_have_is_no_loss(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _losses_shown({("devices", "library_missing"): 1}, capsys)
    assert lines[0] == "lost     nothing"
    assert lines[1].startswith("not here devices.library_missing: there is no libnvidia-ml.so.1")


def test_a_filter_at_work_is_no_loss(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _losses_shown({("http", "connection_tls"): 4, ("nccl", "ring_full"): 2}, capsys)
    assert lines == [
        "lost     nccl.ring_full 2: no room: the record is lost",
        "intended http.connection_tls 4: TLS: not followed here, but where it is in clear",
    ]


@pytest.mark.parametrize("family", ["../../etc/passwd", "added\x1b[2J", "", "each.json"])
def test_a_reason_that_nothing_explains_is_shown_as_it_is(
    family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = _losses_shown({(family, "of_its_own"): 3}, capsys)
    assert shown == [f"lost     {printable(family)}.of_its_own 3"]


def test_every_reason_of_the_manual_is_explained() -> None:
    assert [pair for pair in loss_reasons() if not explain(*pair)[1]] == []


def test_a_reason_of_another_nature_stands_in_its_table() -> None:
    with pytest.raises(ValueError, match="gone"):
        Reasons("devices", {"here": "a meaning"}, unavailable=("gone",))


def test_the_end_says_where_results_are_and_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    destination = parse_destination("file:my trace.jsonl")
    guidance = Guidance(openings=[Opening(destination, {}, {})], capture=Path("a.capture"))
    assert guidance.beginning("x", "Ctrl-C ends it") == (
        "observing x; results go to a.capture and my trace.jsonl; Ctrl-C ends it"
    )
    exported = {"spans_accepted": 7, "spans_lost_write_failed": 2}
    summary = Summary(losses=Counter({("export", "write_failed"): 2}))  # said once
    observe.print_summary(
        Outcome(summary=summary, exported=exported, libraries=[], submitted={}, seconds=1.0), guidance
    )
    assert capsys.readouterr().err.splitlines() == [
        "exported 7 spans, 0 data points to my trace.jsonl",
        "lost     spans_lost_write_failed 2: the disk or the terminal did not take it",
        "records  none in 1.0 s",
        "lost     nothing",
        "written  a.capture",
        "next     otelgpu view 'my trace.jsonl'",
        "next     otelgpu replay a.capture --export console",
    ]


def test_an_endpoint_is_shown_without_its_secrets() -> None:
    opening = Opening(parse_destination("otlp:http://collector:4318/otlp?key=k"), {}, {})
    assert Guidance(openings=[opening]).beginning("x") == (
        "observing x; results go to http://collector:4318/otlp"
    )


def _losses_shown(losses: dict[tuple[str, str], int], capsys: pytest.CaptureFixture[str]) -> list[str]:
    summary = Summary(losses=Counter(losses))
    observe.print_summary(Outcome(summary=summary, exported={}, libraries=[], submitted={}, seconds=1.0))
    first = ("lost", "intended", "not here")
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(first)]


def test_tls_that_was_not_read_is_reported_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary()
    summary.losses["http", "tls_of_go_unread"] = 136
    summary.losses["http", "ring_full"] = 2
    observe.print_summary(Outcome(summary=summary, exported={}, libraries=[], submitted={}, seconds=1.0))
    shown = capsys.readouterr().err
    assert "not read 136 TLS connections of Go programs (crypto/tls)" in shown
    assert "lost     http.ring_full 2: no room: the record is lost\n" in shown


def _rows(summary: Summary, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of the table of calls, without its frame."""
    observe.print_summary(Outcome(summary=summary, exported={}, libraries=[], submitted={}, seconds=1.0))
    shown = capsys.readouterr().err.partition("exported ")[0]
    lines = [
        " ".join(re.sub("[─━│┃┏┓┗┛└┘┡┩╇┴┳┯┷├┤┼╈┬╋╀╄╃]", " ", line).split()) for line in shown.splitlines()
    ]
    return [line for line in lines if line and line != "calls"]


def test_what_a_runtime_interleaves_is_reported_with_what_helps_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    summary = Summary(multiplexed=Counter({("go",): 7}), requests_multiplexed=Counter({("node",): 24}))
    heading, _, go, node, *helps = _rows(summary, capsys)
    assert heading == "Not linked: the runtime interleaves requests"
    assert (go, node) == ("Go 7 0", "Node.js, libuv 0 24")
    said = " ".join(helps)
    assert "OpenTelemetry for Go" in said and "OpenTelemetry for JavaScript" in said
    assert "opentelemetry-sdk" not in said
