"""Write the versions that are installed in this environment to ``requirements/constraints.txt``.

Run it by ``make constraints`` after an upgrade that passed the tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "requirements" / "constraints.txt"

HEADER = """\
# What `make setup` installs, to the version. Written by `make constraints` (tools/pin_versions.py).
"""


def main() -> None:
    """Freeze and write."""
    freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--exclude", "otelgpu"]
    installed = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
    lines = sorted(installed.splitlines(), key=str.lower)
    CONSTRAINTS.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"  PINNED   {len(lines)} lines in {CONSTRAINTS.name}")


if __name__ == "__main__":
    main()
