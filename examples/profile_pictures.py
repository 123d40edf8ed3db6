"""Pictures of profiles for the documentation: a flame graph with device time, a differential one, a heat map.

``python -m examples.profile_pictures [--folder docs/images] [--keep DIR]``, as root, with Chromium. Runs the example
LLM server on the fake libcudart and libcupti, under ``otelgpu run``, twice; and the training loop that stalls,
under ``otelgpu profile``. What is shown was measured then: numbers differ from run to run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from examples.llm_server.client import Load, run
from otelgpu.cli.page_files import page_files
from otelgpu.model.profiles import ProfileColumns
from otelgpu.render.format import read_profiles, render, rendered_difference
from tests.rig import start_llm_server
from tests.rig.browser_session import BrowserSession, browser_session

_OTELGPU: Final = str(Path(sys.executable).with_name("otelgpu"))
_FAKES: Final = Path("build/fakes").absolute()
_SIZE: Final = (1400, 800)
_SETTLED: Final = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
_SECONDS: Final = 12.0


def main() -> None:
    """Make them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    parser.add_argument("--keep", type=Path, help="keep the pages and profiles here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, browser_session() as browser:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        short, long = serve(folder / "short.jsonl", max_tokens=4), serve(folder / "long.jsonl", max_tokens=48)
        (folder / "flame.html").write_bytes(render(long, [], "flame.html", page_files(), title="LLM server"))
        (folder / "difference.html").write_bytes(
            rendered_difference(
                "difference.html",
                short,
                long,
                page_files(),
                labels=("4 tokens", "48 tokens"),
                title="LLM server",
            )
        )
        train(folder)
        browser.resize(*_SIZE)
        flame_graph(browser, folder / "flame.html", options.folder / "profile-flame-graph.png")
        difference(browser, folder / "difference.html", options.folder / "profile-difference.png")
        heat_map(browser, folder / "training.heat.html", options.folder / "profile-heat-map.png")


def serve(lines: Path, max_tokens: int) -> list[ProfileColumns]:
    """What was profiled of the server while it answered requests for so many tokens."""
    lines.unlink(missing_ok=True)
    command = ("run", "--source=inject", "--device-time", "--profiles=cpu,kernel", f"--export=file:{lines}")
    environment = {
        "LD_LIBRARY_PATH": str(_FAKES),
        "FAKE_CUDART_DRIVER": "libcuda.so.1",
        "FAKE_CUDART_KERNEL_US": "500",
        "OTELGPU_PROFILE_FREQUENCY_HZ": "199",
    }
    with start_llm_server(env=environment, prefix=(_OTELGPU, *command, "--quiet", "--")) as server:
        load = Load(
            url=server.url,
            requests=8,
            concurrency=2,
            stream=True,
            max_tokens=max_tokens,
            api="chat",
            model="example-7b",
            prompt="Report me about flame graphs.",
            traceparent=False,
        )
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            run(load)
        server.process.terminate()
        server.process.wait(60)
    return read_profiles(lines.name, lines.read_bytes())


def train(folder: Path) -> None:
    """A heat map of the training loop."""
    output = folder / "training.heat.html"
    command = (
        _OTELGPU,
        "profile",
        "-t",
        "cpu,offcpu,file",
        "--frequency",
        "199",
        "--quiet",
        "-o",
        output,
        "--",
    )
    loop = (sys.executable, "-m", "examples.training_loop", "--steps", "60", "--folder", folder)
    subprocess.run([*command, *loop], check=True, timeout=300)


def flame_graph(browser: BrowserSession, page: Path, picture: Path) -> None:
    """Python, native and kernel frames, and what launches ran on the device."""
    browser.open(page.absolute().as_uri())
    browser.evaluate(_SETTLED)
    browser.picture(picture)


def difference(browser: BrowserSession, page: Path, picture: Path) -> None:
    """Which kernels longer answers launch more of, and less."""
    browser.open(page.absolute().as_uri())
    browser.evaluate(
        "(() => { const s = document.getElementById('type');"
        " s.selectedIndex = [...s.options].findIndex((each) => each.text.startsWith('kernel_launches'));"
        " s.dispatchEvent(new Event('change')); })()"
    )
    browser.evaluate(_SETTLED)
    browser.picture(picture)


def heat_map(browser: BrowserSession, page: Path, picture: Path) -> None:
    """Some seconds of it selected."""
    browser.open(page.absolute().as_uri())
    box = browser.evaluate(
        "(() => { const b = document.getElementById('heat-map').getBoundingClientRect();"
        " return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
    )
    for kind, x, y in (("mousePressed", 0.3, 0.75), ("mouseMoved", 0.55, 0.3), ("mouseReleased", 0.55, 0.3)):
        at = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        browser.send("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **at)
    browser.evaluate(_SETTLED)
    said = browser.evaluate("document.getElementById('heat-status').textContent")
    print(json.dumps({"selected": said}))
    browser.picture(picture)


if __name__ == "__main__":
    main()
