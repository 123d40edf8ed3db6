"""The summary that ends a session shows names that observed programs chose, and takes none for its own language."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from otelgpu.agent import Outcome
from otelgpu.cli import observe
from otelgpu.engine.summary import Summary
from otelgpu.model.context_sources import ContextSource


@pytest.mark.parametrize("name", ["[unknown]+0x1000", "[/bold]", "k[link=file:/x]y", ":skull:"])
def test_a_name_with_brackets_is_shown_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary()
    summary.kernels[name] = summary.calls["cudaLaunchKernel"] = 3
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
        "linked to a request 50 50.0 %",
        "by the context that its process published 7",
        "by the thread that read it 30",
        "by the thread that woke another for it 13",
        "of steps 40 40.0 %, 5 steps",
        "without a request 9",
        "on a thread with several requests 1 not linked",
    ]


def test_ways_that_linked_nothing_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(unattributed=3)
    summary.calls["cudaLaunchKernel"] = 3
    assert _rows(summary, capsys) == ["Calls: 3", "linked to a request 0 0.0 %", "without a request 3"]


def test_tls_that_was_not_read_is_reported_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary()
    summary.losses["http", "tls_of_go_unread"] = 136
    summary.losses["http", "ring_full"] = 2
    observe.print_summary(Outcome(summary=summary, exported={}, libraries=[], submitted={}, seconds=1.0))
    shown = capsys.readouterr().err
    assert "not read 136 TLS connections of Go programs (crypto/tls)" in shown
    assert "lost or skipped: http.ring_full 2\n" in shown


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
