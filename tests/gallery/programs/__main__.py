"""Run one of the programs."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.gallery.programs import healthy, stalls

if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    program = getattr(stalls, name, None) or getattr(healthy, name)
    program(folder)
