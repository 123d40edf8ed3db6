"""Trees on the console: which traces are shown when, and that they stay bounded and harmless."""

from __future__ import annotations

import io

import numpy as np
from hypothesis import given

from otelgpu.export.console.exporter import MAX_WAITING, ConsoleExporter
from otelgpu.model.quantities import duration, size
from otelgpu.model.spans import Attribute, Links, SpanColumns, SpanKind
from tests.rig.examples import examples
from tests.unit.export.builders import span_batches, spans, text

PARENT = np.full((1, 8), 7, dtype=np.uint8)
MS = np.uint64(1_000_000)


def root(**columns: object) -> SpanColumns:
    """The SERVER span that is the parent of what ``spans`` makes."""
    given = {
        "kind": SpanKind.SERVER,
        "span_id": PARENT,
        "parent_span_id": np.zeros((1, 8), dtype=np.uint8),
        "name": text(["POST /v1/chat/completions"]),
        "start_unix_ns": np.array([0], dtype=np.uint64),
        "end_unix_ns": np.array([412 * MS], dtype=np.uint64),
    }
    return spans(1, **(given | columns))


def test_a_span_says_how_many_links_it_has() -> None:
    links = Links(
        span=np.array([1, 1, 2]),
        trace_id=np.zeros((3, 16), dtype=np.uint8),
        span_id=np.zeros((3, 8), dtype=np.uint8),
        flags=np.zeros(3, dtype=np.uint32),
        dropped=np.array([0, 5, 0], dtype=np.uint32),
    )
    lines = shown([spans(3, links=links), root()]).splitlines()[2:]
    assert [line.split("  ")[-1] for line in lines] == ["500 ns", "7 links", "1 link"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*calls: list[SpanColumns], max_lines: int = 40) -> str:
    out = io.StringIO()
    exporter = ConsoleExporter(out, max_lines=max_lines)
    for batches in calls:
        exporter.export_spans(batches)
    return out.getvalue()


def test_a_request_is_a_tree_with_what_matters() -> None:
    notes = (
        Attribute(key="http.response.status_code", values=np.array([200])),
        Attribute(key="gen_ai.latency.time_to_first_token", values=np.array([0.0351])),
        Attribute(key="gen_ai.usage.output_tokens", values=np.array([64])),
        Attribute(key="url.path", values=text(["/not/shown"])),
    )
    calls = (
        Attribute(key="otelgpu.count", values=np.array([32, 0]), present=np.array([True, False])),
        Attribute(key="cuda.size", values=np.array([0, 3 << 20]), present=np.array([False, True])),
    )
    work = spans(2, name=text(["cudaLaunchKernel flash_fwd", "cudaMemcpyAsync"]), attributes=calls)
    assert shown([work, root(attributes=notes)]).splitlines() == [
        "trace 000102030405060708090a0b0c0d0e0f  llm",
        "  POST /v1/chat/completions  412 ms  200  ttft 35.1 ms  64 tokens",
        "    cudaLaunchKernel flash_fwd  500 ns  ×32",
        "    cudaMemcpyAsync  500 ns  3.0 MiB",
    ]


def test_a_trace_waits_for_its_root() -> None:
    assert shown([spans(3)]) == ""
    assert shown([spans(3)], [root()]).count("work") == 3


def test_a_root_with_a_remote_parent_completes_its_trace() -> None:
    assert "POST" in shown([root(parent_span_id=np.ones((1, 8), dtype=np.uint8))])


def test_flush_and_close_show_what_waits() -> None:
    out = io.StringIO()
    exporter = ConsoleExporter(out)
    exporter.export_spans([spans(2)])
    assert exporter.stats()["spans_queued"] == 2
    exporter.close(1)
    assert out.getvalue().count("work") == 2
    assert exporter.stats()["spans_accepted"] == 2


def test_a_trace_has_a_bounded_number_of_lines_and_counts_the_rest() -> None:
    lines = shown([spans(5000), root()], max_lines=10).splitlines()
    assert len(lines) == 11
    assert lines[1].startswith("  POST")
    assert lines[-1] == "  … and 4992 more spans"


def test_waiting_traces_are_bounded() -> None:
    n = MAX_WAITING + 5
    ids = np.arange(n, dtype=np.uint64).repeat(2).view(np.uint8).reshape(n, 16)
    out = io.StringIO()
    exporter = ConsoleExporter(out)
    exporter.export_spans([spans(n, trace_id=ids)])
    assert exporter.stats()["spans_queued"] == MAX_WAITING
    assert out.getvalue().count("trace ") == 5


def test_control_characters_never_reach_the_terminal() -> None:
    name = text(["GET /\x1b[2J\r\n\u202eevil"])
    assert "\x1b" not in shown([root(name=name)])
    assert "\u202e" not in shown([root(name=name)])
    assert len(shown([root(name=name)]).splitlines()) == 2


def test_a_terminal_gets_colours_and_the_same_words() -> None:
    out = Terminal()
    ConsoleExporter(out).export_spans([root(status=np.array([2], dtype=np.uint8))])
    assert "\x1b[1;31m" in out.getvalue()
    assert "412 ms" in out.getvalue()


def test_a_stream_that_cannot_encode_a_character_gets_a_substitute() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    ConsoleExporter(stream).export_spans([root(end_unix_ns=np.array([5000], dtype=np.uint64))])
    assert b"5.00 ?s" in raw.getvalue()


def test_a_broken_pipe_is_counted() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    exporter = ConsoleExporter(Broken())
    exporter.export_spans([spans(2), root()])
    stats = exporter.stats()
    assert (stats["spans_given"], stats["spans_lost_write_failed"], stats["spans_queued"]) == (3, 3, 0)


def test_spans_that_are_each_others_parents_do_not_hang() -> None:
    ids = np.array([[1] * 8, [2] * 8], dtype=np.uint8)
    out = io.StringIO()
    exporter = ConsoleExporter(out)
    exporter.export_spans([spans(2, span_id=ids, parent_span_id=ids[::-1])])
    exporter.close(1)
    assert "… and 2 more spans" in out.getvalue()


@given(span_batches())
@examples(50)
def test_any_columns_are_accounted_for(columns: SpanColumns) -> None:
    exporter = ConsoleExporter(io.StringIO())
    exporter.export_spans([columns])
    exporter.close(1)
    stats = exporter.stats()
    assert stats["spans_given"] == len(columns) == stats["spans_accepted"]


def test_durations_and_sizes_have_three_digits() -> None:
    assert [duration(n) for n in (0, 999, 1000, 12_345, 999_400, 999_600, 1.5e9, 3.6e12)] == [
        *("0 ns", "999 ns", "1.00 µs", "12.3 µs", "999 µs", "1.00 ms", "1.50 s", "3600 s")
    ]
    assert [size(n) for n in (0, 1023, 1024, 5 << 30, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "1024.0 TiB",
    ]
