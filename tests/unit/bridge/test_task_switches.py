"""Every step of every task sees its own span, on whatever loop and thread it runs."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.bridge.observed import LIBRARY, run

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="otelgpu.bridge has no library: no Python.h at build time"
)

LOOPS = {
    "asyncio": "run, new_loop = asyncio.run, asyncio.new_event_loop",
    "uvloop": "import uvloop; run, new_loop = uvloop.run, uvloop.new_event_loop",
    "uvloop, imported first": "uvloop = sys.modules['uvloop']\nrun, new_loop = uvloop.run, uvloop.new_event_loop",
}


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    if "uvloop" in request.param:
        pytest.importorskip("uvloop")
    return LOOPS[request.param]


def start(loop: str, body: str, folder: Path) -> None:
    if "sys.modules" in loop:  # what a site or a server does that imports uvloop first
        (folder / "sitecustomize.py").write_text("import uvloop\n")
    run(loop + "\n" + textwrap.dedent(body), folder)


@pytest.mark.slow
def test_a_hundred_tasks_see_their_own_span_at_every_step(loop: str, tmp_path: Path) -> None:
    start(
        loop,
        """
        import random
        def callback(ids):
            check()
            assert published() == ids
        async def task(number):
            assert published() is None
            rng = random.Random(number)
            with tracer.start_as_current_span(f"task {number}"):
                ids = published()
                for _ in range(10):
                    await asyncio.sleep(rng.choice((0, rng.random() / 200)))
                    check()
                    assert published() == ids
                    with tracer.start_as_current_span("inner"):
                        await asyncio.sleep(0)
                        check()
                        assert published() != ids
                asyncio.get_running_loop().call_soon(callback, ids)
                asyncio.get_running_loop().call_later(0.001, callback, ids)
                await asyncio.get_running_loop().run_in_executor(None, lambda: None)
                check()
                assert await asyncio.to_thread(published) == ids
                future = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_soon_threadsafe(future.set_result, None)
                await future
                check()
            return number
        async def main():
            assert sorted(await asyncio.gather(*map(task, range(100)))) == list(range(100))
            assert published() is None
            with tracer.start_as_current_span("main"):
                child = asyncio.create_task(asyncio.sleep(0.001))
                await child
                check()
        run(main())
        assert published() is None
        """,
        tmp_path,
    )


def test_callbacks_of_transports_and_exception_handlers_are_followed(loop: str, tmp_path: Path) -> None:
    start(
        loop,
        """
        seen = []
        class Echo(asyncio.Protocol):
            def connection_made(self, transport): self.transport = transport
            def data_received(self, data):
                check()
                seen.append("data")
                with tracer.start_as_current_span("in a protocol"):
                    check()
                    self.transport.write(data)
                check()
        def handler(loop, exception_context):
            check()
            seen.append("handler")
        def failing():
            check()
            raise LookupError
        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(handler)
            with tracer.start_as_current_span("listening"):
                server = await loop.create_server(Echo, "127.0.0.1", 0)
            with tracer.start_as_current_span("client"):
                loop.call_soon(failing)
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                check()
                writer.write(b"x")
                assert await reader.read(1) == b"x"
                check()
                writer.close()
                await writer.wait_closed()
            server.close()
            assert published() is None
            async for step in stream():
                check()
        async def stream():
            for _ in range(3):
                with tracer.start_as_current_span("asynchronous generator"):
                    await asyncio.sleep(0)
                    check()
                    yield
        run(main())
        assert sorted(set(seen)) == ["data", "handler"], seen
        """,
        tmp_path,
    )


def test_what_runs_after_the_loop_has_its_own_span_again(loop: str, tmp_path: Path) -> None:
    start(
        loop,
        """
        with tracer.start_as_current_span("of the last callback"):
            last = contextvars.copy_context()
        loop = new_loop()
        with tracer.start_as_current_span("around the loop"):
            loop.call_soon(loop.stop, context=last)
            loop.run_forever()
            check()
        loop.close()
        assert published() is None
        """,
        tmp_path,
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are of Python 3.12")
def test_eager_tasks_are_followed(tmp_path: Path) -> None:
    run(
        """
        async def child():
            check()
            with tracer.start_as_current_span("child"):
                check()
                await asyncio.sleep(0)
                check()
        async def main():
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            with tracer.start_as_current_span("main"):
                task = asyncio.create_task(child())
                check()
                await task
                check()
        asyncio.run(main())
        """,
        tmp_path,
    )


def test_contexts_entered_by_hand_are_followed_and_errors_are_the_same(tmp_path: Path) -> None:
    run(
        """
        import pytest
        empty = contextvars.copy_context()
        with tracer.start_as_current_span("carried") as span:
            carried = contextvars.copy_context()
            assert empty.run(published) is None
            check()
            assert empty.run(lambda *a, **k: (a, k), 1, 2, three=3) == ((1, 2), {"three": 3})
            def entered_again():
                with pytest.raises(RuntimeError, match="already entered"):
                    carried.run(check)
                check()
            carried.run(entered_again)
            check()
        assert published() is None
        assert carried.run(published).span_id == span.get_span_context().span_id
        with pytest.raises(TypeError, match="missing 1 required"):
            carried.run()
        assert published() is None
        def fail():
            check()
            raise LookupError("as it was")
        with pytest.raises(LookupError, match="as it was"):
            carried.run(fail)
        assert published() is None
        """,
        tmp_path,
    )
