"""Pictures of terminals for the documentation: the demo, ``otelgpu run``, ``profile`` and ``top`` at work.

``python -m examples.terminal_pictures [--folder docs/images] [NAME …]``, as root. Each is a session on this machine:
the example LLM server on the fake libcudart, the training loop that stalls. What is shown was measured then: numbers
differ from run to run. Where this checkout lies is written as ``~/otelgpu``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from examples.llm_server.client import Load, run
from otelgpu.cli.commands import cli
from otelgpu.cli.top.app import TopApp
from otelgpu.cli.top.observer import Channel, Observer
from tests.rig import start_llm_server
from tests.rig.top_terminal import asked_all_the_time
from tools.record_terminal import Shell, picture, shell, without_fonts

_ROOT: Final = Path(__file__).resolve().parent.parent
_CHECKOUT: Final = "~/otelgpu"
_COLUMNS: Final = 100
_TOP_SIZE: Final = (_COLUMNS, 28)
_TOP_SECONDS: Final = 20.0


@contextmanager
def session() -> Iterator[Shell]:
    """A shell as the tutorial has it, in a folder that looks like a checkout and keeps nothing."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{_ROOT}",
        "LLM_CUDART": "build/fakes/libcudart.so.12",
        "FAKE_CUDART_KERNEL_US": "500",
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("examples", "build"):
            (folder / name).symlink_to(_ROOT / name)
        with shell(_COLUMNS, folder, environment) as made:
            yield made


def drawn(bash: Shell, title: str) -> str:
    """All of a session."""
    found = (os.path.realpath(sys.prefix), f"{_CHECKOUT}/.venv"), (f"{_ROOT}", _CHECKOUT)
    text = bash.written
    for place, name in found:
        text = text.replace(place, name)
    return picture(text, columns=_COLUMNS, title=title)


def demo() -> str:
    """What ``make demo`` prints, of four requests."""
    with session() as bash:
        bash.type("python -m examples.demo --requests 4\n")
        return drawn(bash, "make demo")


def observed_run() -> str:
    """The server under ``otelgpu run``, asked twenty times, and stopped with Ctrl-C."""
    with session() as bash:
        listening = bash.type(
            "otelgpu run --export file:first.jsonl -- python examples/llm_server --port 0\n",
            until=r"listening on (\S+)\r\n",
        )
        run(
            Load(
                url=listening[1],
                requests=20,
                concurrency=2,
                stream=True,
                max_tokens=16,
                api="chat",
                model="example-7b",
                prompt="Report me about tracing.",
                traceparent=False,
            )
        )
        bash.type("\x03")
        return drawn(bash, "otelgpu run")


def profile() -> str:
    """Where the training loop that stalls spends its time."""
    with session() as bash:
        bash.type(
            "otelgpu profile -t python,file -- python -m examples.training_loop --steps 20 --folder .\n"
        )
        return drawn(bash, "otelgpu profile")


def top() -> str:
    """``otelgpu top`` beside the server under load, as Textual draws it."""
    with start_llm_server() as server, asked_all_the_time(server):

        def observe(channel: Channel) -> None:
            cli.main(["top", "-p", f"{server.pid}"], prog_name="otelgpu", standalone_mode=False, obj=channel)

        observer = Observer(observe)
        try:
            return without_fonts(asyncio.run(_top_drawn(observer)))
        finally:
            observer.end()


async def _top_drawn(observer: Observer) -> str:
    app = TopApp(reports=observer.reports, log=observer.log)
    async with app.run_test(size=_TOP_SIZE) as pilot:
        await asyncio.sleep(_TOP_SECONDS)
        await pilot.press("1")
        await pilot.pause(1.5)
        return app.export_screenshot(title="otelgpu top -p PID")


PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "demo": demo,
    "run": observed_run,
    "profile": profile,
    "top": top,
}


def main() -> None:
    """Write those that are named, or all."""
    arguments = argparse.ArgumentParser(prog="python -m examples.terminal_pictures", description=__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("docs/images"))
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    options = arguments.parse_args()
    for name in options.names or PICTURES:
        made = PICTURES[name]()
        (options.folder / f"terminal-{name}.svg").write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
