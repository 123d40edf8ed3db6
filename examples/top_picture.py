"""A picture of ``otelgpu top`` for the documentation, as Textual draws it.

``python -m examples.top_picture [--folder docs/images]``, as root. Observes the example LLM server on the fake
libcudart under load. What is shown was measured then: numbers differ from run to run.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path
from typing import Final

from otelgpu.cli.commands import cli
from otelgpu.cli.top.app import TopApp
from otelgpu.cli.top.observer import Channel, Observer
from tests.rig import start_llm_server
from tests.rig.top_terminal import asked_all_the_time

_SIZE: Final = (110, 30)
_SECONDS: Final = 20.0
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""From another host: a page that shows the picture asks nobody else."""


async def drawn(observer: Observer, view: str) -> str:
    """The program after some seconds, as SVG."""
    app = TopApp(reports=observer.reports, log=observer.log)
    async with app.run_test(size=_SIZE) as pilot:
        await asyncio.sleep(_SECONDS)
        await pilot.press(view)
        await pilot.pause(1.5)
        return _FONTS.sub("", app.export_screenshot(title="otelgpu top -p PID"))


def main() -> None:
    """Write the picture."""
    arguments = argparse.ArgumentParser(prog="python -m examples.top_picture", description=__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("docs/images"))
    folder: Path = arguments.parse_args().folder
    with start_llm_server() as server, asked_all_the_time(server):

        def observe(channel: Channel) -> None:
            cli.main(["top", "-p", f"{server.pid}"], prog_name="otelgpu", standalone_mode=False, obj=channel)

        observer = Observer(observe)
        try:
            picture = asyncio.run(drawn(observer, "1"))
        finally:
            observer.end()
    (folder / "top.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
