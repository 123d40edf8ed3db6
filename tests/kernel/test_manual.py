"""The tutorial and the how-to pages, as a reader follows them: their commands, typed in a checkout, do what is said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig import ROOT
from tests.rig.fakes import build_fakes
from tests.rig.manual import PAGES, blocks

pytestmark = [pytest.mark.usefixtures("kernel"), pytest.mark.long]

LIMIT_S = 200
SHOWN = {
    "first-slow-token": (r"gen_ai\.usage\.input_tokens=3000", "cudaStreamSynchronize", r"first\.html"),
    "memory-leak": (r"leak\.html", r"(?m)^leak \(leak\.py:14\)$"),
    "overhead": ("otelgpu: observing true",),
    "probes": ("fsync",),
    "profile-thirty-seconds": ("file_time", "write_checkpoint"),
    "slow-rank": (r"Slow rank 3 ", r"rank 3 against rank ", r"do_nanosleep +rank\.py:\d+ Trainer\.load"),
    "stalls": (
        r"writes 50\.0 MB to checkpoint\.bin at slow_ai_simulator\.py:32 save",
        r"vfs_write ← ksys_write",
    ),
    "topology": (r"(?m)^1 node, \d+ GPUs?, \d+ NICs?$",),
}
"""What the reader of each page that has something to run is to see: patterns."""
CODES = {"topology": (0, 3)}
"""What a page's last command may end with, where programs of other tests may have faults that it finds."""


def runnable() -> dict[str, str]:
    """Page → its commands."""
    scripts = {
        page.stem: [each.text for each in blocks(page.read_text()) if not each.not_run] for page in PAGES
    }
    return {name: "\n".join(texts) + "\n" for name, texts in scripts.items() if texts}


def checkout(folder: Path) -> None:
    """Looks like one, and what is written there is nobody's."""
    for entry in ROOT.iterdir():
        (folder / entry.name).symlink_to(entry)


def test_of_every_page_that_is_run_it_is_known_what_it_shows() -> None:
    assert runnable().keys() == SHOWN.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_the_commands_of_a_page_do_what_it_says(name: str, tmp_path: Path) -> None:
    build_fakes()
    checkout(tmp_path)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
    }
    ran = subprocess.run(
        ["bash", "-eu", "-c", runnable()[name]],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode in CODES.get(name, (0,)), ran.stdout
    shown = ran.stdout + "".join(f"{path.name}\n" for path in tmp_path.iterdir() if not path.is_symlink())
    assert [each for each in SHOWN[name] if not re.search(each, shown)] == [], ran.stdout
