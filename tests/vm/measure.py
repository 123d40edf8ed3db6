"""Runs a kernel's guest and writes down what works there; ``python -m tests.vm.measure 6.1 7`` from the checkout.

In: lines of kernels. Out: ``build/vm/<line>.json``: what ``otelgpu check`` says there, and what became of each test of
`features`. No compiler runs in the guest: objects and stand-ins are those that were built outside.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, Final

from tests.vm import guest
from tests.vm.features import FEATURES, node_ids
from tests.vm.kernels import Kernel, RigError, fetch

RESULTS: Final = guest.ROOT / "build" / "vm"
_TIMEOUT_S: Final = 900
_TEST_TIMEOUT_S: Final = 240
_MESSAGE_CHARACTERS: Final = 300


def measure(kernel: Kernel) -> dict[str, Any]:
    """``release``, ``check`` (of its JSON), ``features`` (feature → "passed" or why not), ``seconds``.

    Raises `RigError`.
    """
    with tempfile.TemporaryDirectory(prefix="otelgpu-vm-out-") as folder:
        out = Path(folder)
        python = guest.ROOT / ".venv" / "bin" / "python"
        options = ("-q", "-p", "no:cacheprovider", "--tb=line", f"--timeout={_TEST_TIMEOUT_S}")
        tests = shlex.join(
            [str(python), "-m", "pytest", *node_ids(), *options, f"--junitxml={out}/tests.xml"]
        )
        # Where the first object does not load, `check` says why, and no test could say more.
        loads = 'import json, sys; sys.exit(not json.load(open(sys.argv[1]))["families"][0]["present"])'
        command = (
            "export PYTHONDONTWRITEBYTECODE=1\n"
            f"{python.parent / 'otelgpu'} check --json -p 1 >{out}/check.json\n"
            f"{python} -c {shlex.quote(loads)} {out}/check.json && {tests}"
        )
        finished = guest.run(kernel, command, out=out, timeout_s=_TIMEOUT_S)
        try:
            check = json.loads((out / "check.json").read_text())
        except (OSError, ValueError) as error:
            raise RigError(f"otelgpu check said nothing on {kernel.release}: {finished.err}") from error
        report = out / "tests.xml"
        return {
            "release": kernel.release,
            "check": {name: check[name] for name in ("features", "families")},
            "features": _outcomes(report) if report.exists() else {},
            "seconds": round(finished.seconds),
        }


def _outcomes(report: Path) -> dict[str, str]:
    cases = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name')}"
        failed = [child for child in case if child.tag in ("failure", "error", "skipped")]
        cases[name] = (
            (failed[0].get("message") or failed[0].tag)[:_MESSAGE_CHARACTERS] if failed else "passed"
        )
    return {feature: cases.get(test, "did not run") for feature, test in FEATURES.items()}


def main(lines: list[str]) -> int:
    """Measure those."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for line in lines:
        try:
            kernel = fetch(line)
            print(f"  GUEST    {kernel.release} …", flush=True)
            result = measure(kernel)
        except RigError as error:
            print(f"vm: {error}", file=sys.stderr)
            return 1
        (RESULTS / f"{line}.json").write_text(json.dumps(result, indent=1) + "\n")
        passed = sum(outcome == "passed" for outcome in result["features"].values())
        print(
            f"  MEASURED {kernel.release}: {passed} of {len(FEATURES)} features, {result['seconds']} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
