"""To the service it makes no difference: the same values, tokens, errors and log lines as without the bridge."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.bridge.observed import LIBRARY, ROOT, entry_points, run

needs_library = pytest.mark.skipif(
    not LIBRARY.exists(), reason="otelgpu.bridge has no library: no Python.h at build time"
)


@pytest.mark.slow
@needs_library
def test_any_sequence_of_calls_behaves_as_with_contextvars(tmp_path: Path) -> None:
    run(
        """
        from hypothesis import given, settings, strategies as st
        from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

        def outcome(call, *args):
            try:
                result = call(*args)
            except Exception as error:
                return type(error), "Token" in str(error) or str(error)
            return type(result) if isinstance(result, contextvars.Token) else result

        spans = [trace.set_span_in_context(tracer.start_span(str(i))) for i in range(3)]
        values = [*spans, context.Context(), context.Context({"a": 1}), None, 5]
        steps = st.one_of(
            st.tuples(st.just("attach"), st.sampled_from(range(len(values)))),
            st.tuples(st.just("detach"), st.integers(-1, 8)),
            st.tuples(st.just("run"), st.integers(0, 3)),
        )

        def play(runtime, sequence):
            '''The outcome of each step; tokens are detached in any order, twice, and in other Contexts.'''
            tokens, contexts, outcomes = [object()], [], []
            def step(kind, number):
                if kind == "attach":
                    try:
                        token = runtime.attach(values[number])
                    except Exception as error:
                        outcomes.append(type(error))
                    else:
                        tokens.append(token)
                        outcomes.append((type(token), token.old_value is token.MISSING))
                else:
                    outcomes.append(outcome(runtime.detach, tokens[number % len(tokens)]))
                outcomes.append(outcome(runtime.get_current))
                if runtime is ours:
                    current = outcomes[-1]
                    assert published() == (expected() if isinstance(current, dict) else None)
            inside = contextvars.copy_context()
            for kind, number in sequence:
                if kind == "run":
                    contexts.append(inside)
                    inside = contextvars.copy_context() if number == 3 else contexts[number % len(contexts)]
                else:
                    inside.run(step, kind, number)
            return outcomes

        ours, plain = context._RUNTIME_CONTEXT, ContextVarsRuntimeContext()
        assert type(ours).__name__ == "PublishingContext"

        @settings(max_examples=150, deadline=None, database=None)
        @given(st.lists(steps, max_size=30))
        def same(sequence):
            # Not in this thread's Context: what a sequence leaves attached must not meet the next one.
            assert contextvars.Context().run(play, ours, sequence) == contextvars.Context().run(play, plain, sequence)
        same()
        """,
        tmp_path,
    )


@needs_library
def test_detaching_out_of_order_logs_what_it_logs_without_the_bridge(tmp_path: Path) -> None:
    body = """
        first = context.attach(context.set_value("a", 1))
        contextvars.copy_context().run(context.detach, first)
        second = context.attach(context.set_value("a", 2))
        context.detach(first); context.detach(second); context.detach(second); context.detach("no token")
        print(context.get_current())
        """
    ours = run(body, tmp_path)
    plain = run(body, tmp_path, OTEL_PYTHON_CONTEXT="contextvars_context")
    assert ours.stdout == plain.stdout
    errors = [
        re.findall(r"^\w*Error: .*", re.sub("0x[0-9a-f]+", "0x", done.stderr), re.MULTILINE)
        for done in (ours, plain)
    ]
    assert errors[0] == errors[1]
    assert (
        ours.stderr.count("Failed to detach context") == plain.stderr.count("Failed to detach context") == 3
    )


@needs_library
def test_it_imports_nothing_but_the_api(tmp_path: Path) -> None:
    entry_points(tmp_path)
    names = "import sys, opentelemetry.context; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def modules(context: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", names],
            env=environment | {"OTEL_PYTHON_CONTEXT": context},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return set(done.stdout.split())

    added = {name.partition(".")[0] for name in modules("otelgpu") - modules("contextvars_context")}
    assert added - sys.stdlib_module_names == {"otelgpu"}


def test_without_the_library_the_service_runs_as_it_did(tmp_path: Path) -> None:
    (tmp_path / "otelgpu").mkdir()
    (tmp_path / "otelgpu/__init__.py").touch()
    (tmp_path / "otelgpu/bridge").mkdir()
    for source in (ROOT / "otelgpu/bridge").glob("*.py"):
        (tmp_path / "otelgpu/bridge" / source.name).write_bytes(source.read_bytes())
    entry_points(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "from opentelemetry import context; print(type(context._RUNTIME_CONTEXT).__name__)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OTEL_PYTHON_CONTEXT": "otelgpu"},
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == "ContextVarsRuntimeContext\n"
    assert done.stderr.count("\n") == 1
    assert "does not publish the active spans of this process" in done.stderr
