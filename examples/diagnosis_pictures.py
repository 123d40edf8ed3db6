"""Pictures of the pages that ``otelgpu diagnose ranks -o`` and ``topology -o`` make, for the documentation.

``python -m examples.diagnosis_pictures [--folder docs/images]``, as root, with Chromium. Of one the job is real: the
example's ranks, of which one begins to load slowly, under ``otelgpu run``; what it shows was measured then. Of the
other it is simulated: 256 ranks, of which those of one host are slow. The clusters of topologies are simulated too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.rig.browser_session import BrowserSession, browser_session
from tests.rig.cluster import Cluster
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
_CLUSTERS: Final = (1, 16, 1000)
_NODES_PER_JOB: Final = 250
_FAULTS: Final = {(0, 3): "xid", (5, 1): "absent", (7, 7): "port", (409, 4): "broken"}
"""Of (node, GPU), as far as a cluster has them."""


def main() -> None:
    """Make all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, browser_session() as browser:
        browser.resize(*_SIZE)
        for name, made in (("ranks", trained(Path(scratch))), ("many-ranks", simulated(Path(scratch)))):
            show(browser, ("diagnose", "ranks"), made, options.folder / f"diagnose-{name}.png")
        for nodes in _CLUSTERS:
            given = Path(scratch) / f"cluster-{nodes}.jsonl"
            Cluster(nodes=nodes, faults=_FAULTS, nodes_per_job=_NODES_PER_JOB).write(given)
            show(browser, ("topology",), given, options.folder / f"topology-{nodes}.png")


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


def show(browser: BrowserSession, command: Sequence[str], given: Path, picture: Path) -> None:
    """The page of what a command finds in it."""
    page = given.with_suffix(".html")
    done = subprocess.run(
        [_OTELGPU, *command, given, "-o", page], capture_output=True, text=True, timeout=300
    )
    if done.returncode != _FOUND:
        raise SystemExit(f"{given.name}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    print(done.stdout.splitlines()[0])
    browser.open(page.absolute().as_uri())
    browser.evaluate(_SETTLED)
    browser.picture(picture)


if __name__ == "__main__":
    main()
