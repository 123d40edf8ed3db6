"""Pictures of the page that ``otelgpu diagnose ranks -o`` makes, for the documentation.

``python -m examples.diagnosis_pictures [--folder docs/images]``, as root, with Chromium. Of one the job is real: the
example's ranks, of which one begins to load slowly, under ``otelgpu run``; what it shows was measured then. Of the
other it is simulated: 256 ranks, of which those of one host are slow.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.rig.browser_session import BrowserSession, browser_session
from tests.rig.jobs.shape import Shape
from tests.rig.jobs.simulation import simulate
from tests.rig.jobs.table import write

_OTELGPU: Final = str(Path(sys.executable).with_name("otelgpu"))
_SIZE: Final = (1280, 900)
_SETTLED: Final = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
_TRAINING: Final = (
    "--ranks",
    "8",
    "--late-rank",
    "3",
    "--late-ms",
    "20",
    "--late-from",
    "80",
    "--steps",
    "160",
)
_FOUND: Final = 3
_MANY: Final = Shape(steps=400, replicas=64, tensor=4, ranks_per_host=8)
_SEED: Final = 3


def main() -> None:
    """Make both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, browser_session() as browser:
        browser.resize(*_SIZE)
        for name, made in (("ranks", trained(Path(scratch))), ("many-ranks", simulated(Path(scratch)))):
            show(browser, made, options.folder / f"diagnose-{name}.png")


def trained(folder: Path) -> Path:
    """The input of a job that ran here."""
    lines = folder / "ranks.jsonl"
    loop = (sys.executable, "-m", "examples.training", *_TRAINING)
    subprocess.run(
        [_OTELGPU, "run", "--quiet", f"--export=file:{lines}", "--", *loop], check=True, timeout=300
    )
    return lines


def simulated(folder: Path) -> Path:
    """The input of one that is simulated."""
    path = folder / "simulated.parquet"
    write(path, simulate("a host's ranks", _SEED, _MANY))
    return path


def show(browser: BrowserSession, given: Path, picture: Path) -> None:
    """The page of what is diagnosed in it."""
    page = given.with_suffix(".html")
    done = subprocess.run(
        [_OTELGPU, "diagnose", "ranks", given, "-o", page], capture_output=True, text=True, timeout=300
    )
    if done.returncode != _FOUND:
        raise SystemExit(f"{given.name}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    print(done.stdout.splitlines()[0])
    browser.open(page.absolute().as_uri())
    browser.evaluate(_SETTLED)
    browser.picture(picture)


if __name__ == "__main__":
    main()
