"""The record of each thread follows what opentelemetry-api calls the current span."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.bridge.observed import LIBRARY, run

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="otelgpu.bridge has no library: no Python.h at build time"
)


def test_the_active_span_of_a_thread_is_published(tmp_path: Path) -> None:
    run(
        """
        assert published() is None
        with tracer.start_as_current_span("outer") as outer:
            check()
            assert published().span_id == outer.get_span_context().span_id and published().trace_flags & 1
            with tracer.start_as_current_span("inner") as inner:
                check()
                assert published().span_id == inner.get_span_context().span_id
            check()
            try:
                with tracer.start_as_current_span("failing"):
                    check()
                    raise LookupError
            except LookupError:
                check()
            unrelated = context.attach(context.set_value("key", "value"))
            check()
            context.detach(unrelated)
            assert published() is not None
        assert published() is None
        tracer.start_span("never activated").end()
        assert published() is None

        # A generator leaves its span active between steps, in the contextvar as in the record.
        def steps():
            with tracer.start_as_current_span("generator"):
                yield check()
                yield check()
        generator = steps()
        next(generator); check()
        assert published() is not None
        next(generator); check()
        generator.close(); check()
        assert published() is None
        """,
        tmp_path,
    )


def test_which_span_contexts_are_published(tmp_path: Path) -> None:
    run(
        """
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

        def active(span):
            token = context.attach(trace.set_span_in_context(span))
            seen = published()
            context.detach(token)
            assert published() is None
            return seen

        large, small = 2**128 - 1, 1
        remote = NonRecordingSpan(SpanContext(large, 2**64 - 1, is_remote=True, trace_flags=TraceFlags(3)))
        assert active(remote) == (large, 2**64 - 1, 3)
        unsampled = NonRecordingSpan(SpanContext(small, 2**63, is_remote=False))
        assert active(unsampled) == (small, 2**63, 0)
        for nothing in (trace.INVALID_SPAN, NonRecordingSpan(SpanContext(0, 5, False)),
                        NonRecordingSpan(SpanContext(5, 0, False))):
            assert active(nothing) is None

        class Theirs(trace.Span):  # the API's contract, and none of the SDK's insides
            def __getattr__(self, name): raise AttributeError(name)
            def get_span_context(self): return SpanContext(7 << 64, 8, is_remote=False, trace_flags=TraceFlags(1))
        for name in Theirs.__abstractmethods__: setattr(Theirs, name, Theirs.__dict__.get(name, lambda *_: None))
        Theirs.__abstractmethods__ = frozenset()
        assert active(Theirs()) == (7 << 64, 8, 1)

        # Many more than are remembered, each twice.
        spans = [NonRecordingSpan(SpanContext(i, i + 1, is_remote=False)) for i in range(1, 1000)]
        for i, span in enumerate([*spans, *spans]):
            assert active(span) == (i % 999 + 1, i % 999 + 2, 0)
        """,
        tmp_path,
    )


def test_threads_have_records_of_their_own(tmp_path: Path) -> None:
    run(
        """
        from concurrent.futures import ThreadPoolExecutor
        failures = []
        ready = threading.Barrier(8)
        def work():
            try:
                assert published() is None, "a new thread has no context"
                for _ in range(50):
                    with tracer.start_as_current_span("of a thread"):
                        ready.wait()
                        check()
                        ready.wait()
                    assert published() is None
            except BaseException as error:
                failures.append(error)
                ready.abort()
        with tracer.start_as_current_span("of the main thread"):
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            check()
            assert not failures, failures

            # A context carried by hand, as anyio, Starlette and asyncio.to_thread do.
            with ThreadPoolExecutor(1) as pool:
                carried = pool.submit(contextvars.copy_context().run, lambda: (published(), expected())).result()
                assert carried[0] == carried[1] == expected()
                assert pool.submit(published).result() is None, "the thread was left with the context"
        """,
        tmp_path,
    )


def test_a_thread_that_ends_lets_go_of_what_it_published(tmp_path: Path) -> None:
    run(
        """
        import gc, weakref
        class Value: pass
        value = Value()
        def work(value):
            span = trace.set_span_in_context(tracer.start_span("s"))
            context.attach(context.set_value("kept", value, span))
            assert published() is not None
        thread = threading.Thread(target=work, args=(value,))
        thread.start(); thread.join()
        gone = weakref.ref(value)
        del value, thread
        gc.collect()
        assert gone() is None
        """,
        tmp_path,
    )


def test_a_failure_to_publish_costs_one_warning(tmp_path: Path) -> None:
    done = run(
        """
        class Broken:
            def get_span_context(self): raise ZeroDivisionError("broken span")
        class Odd:
            def get_span_context(self): return ("no", "span context")
        class Huge:
            def get_span_context(self): return trace.SpanContext(2**128, -1, False)
        for span in (Broken(), Odd(), Huge(), object(), 5, Broken()):
            with tracer.start_as_current_span("whole"):
                token = context.attach(context.set_value(trace.propagation._SPAN_KEY, span))
                assert published() is None, span
                assert context.get_current()[trace.propagation._SPAN_KEY] is span
                context.detach(token)
                check()
        for odd in (None, 5, {"a": 1}):
            context.detach(context.attach(odd))
        """,
        tmp_path,
    )
    assert done.stderr.count("\n") == 1
    assert "ZeroDivisionError('broken span')" in done.stderr


def test_what_a_signal_handler_raises_reaches_the_program(tmp_path: Path) -> None:
    run(
        """
        import signal
        class Slow:
            def get_span_context(self):
                signal.raise_signal(signal.SIGUSR1)
                return trace.INVALID_SPAN_CONTEXT
        def leave(*_): raise SystemExit(7)
        signal.signal(signal.SIGUSR1, leave)
        reached = []
        try:
            context.attach(context.set_value(trace.propagation._SPAN_KEY, Slow()))
            for _ in range(1000): pass
        except SystemExit as error:
            reached.append(error.code)
        assert reached == [7]
        """,
        tmp_path,
    )
