"""Runs a kernel's guest and writes down what works there; ``python -m tests.vm.measure 6.1 7`` from the checkout.

In: lines of kernels; with ``-k PATTERN`` only features like that are measured, and others stay as they were.
Out: ``build/vm/<line>.json``: what ``otelgpu check`` says there, and what became of each test of `features`. BPF
objects and fakes are those that were built outside.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.vm import guest
from tests.vm.features import FEATURES, node_ids
from tests.vm.kernels import SUITES, Kernel, RigError, fetch

RESULTS: Final = guest.ROOT / "build" / "vm"
_TIMEOUT_S: Final = 3600  # with nothing else on the machine a kernel takes a few minutes
_ENDS_S: Final = 120  # for boot, check and end
_TEST_TIMEOUT_S: Final = 600
_MESSAGE_CHARACTERS: Final = 300


def measure(kernel: Kernel, features: Mapping[str, str] = FEATURES) -> dict[str, Any]:
    """``release``, ``check`` (of its JSON), ``features`` (feature → "passed" or why not), ``seconds``.

    Raises `RigError`.
    """
    with tempfile.TemporaryDirectory(prefix="otelgpu-vm-out-") as folder:
        out = Path(folder)
        python = guest.ROOT / ".venv" / "bin" / "python"
        options = ("-q", "-p", "no:cacheprovider", "--tb=line", f"--timeout={_TEST_TIMEOUT_S}")
        # Interrupted in time it writes down what ran.
        within = ("timeout", "-s", "INT", str(_TIMEOUT_S - _ENDS_S))
        tests = shlex.join(
            [
                *within,
                str(python),
                "-m",
                "pytest",
                *node_ids(features),
                *options,
                f"--junitxml={out}/tests.xml",
            ]
        )
        # Where the first object does not load, `check` says why, and no test could say more.
        loads = 'import json, sys; sys.exit(not json.load(open(sys.argv[1]))["families"][0]["present"])'
        command = (
            f"export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={guest.ROOT}\n"
            f"export TMPDIR=$(bash {guest.SCRIPTS}/disk.sh)\n"
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
            "features": _outcomes(report, features) if report.exists() else {},
            "seconds": round(finished.seconds),
        }


def _outcomes(report: Path, features: Mapping[str, str]) -> dict[str, str]:
    cases = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name')}"
        failed = [child for child in case if child.tag in ("failure", "error", "skipped")]
        cases[name] = (
            (failed[0].get("message") or failed[0].tag)[:_MESSAGE_CHARACTERS] if failed else "passed"
        )
    return {feature: cases.get(test, "did not run") for feature, test in features.items()}


def main(words: list[str]) -> int:
    """Measure those."""
    parser = argparse.ArgumentParser(description="What works on other kernels.")
    parser.add_argument("lines", nargs="+", choices=SUITES)
    parser.add_argument("-k", dest="pattern", default="", help="only features like this (regular expression)")
    asked = parser.parse_args(words)
    features = {name: test for name, test in FEATURES.items() if re.search(asked.pattern, name)}
    RESULTS.mkdir(parents=True, exist_ok=True)
    for line in asked.lines:
        path = RESULTS / f"{line}.json"
        try:
            kernel = fetch(line)
            print(f"  GUEST    {kernel.release} …", flush=True)
            result = measure(kernel, features)
        except RigError as error:
            print(f"vm: {error}", file=sys.stderr)
            return 1
        known = json.loads(path.read_text()) if path.exists() else {}
        if known.get("release") == result["release"]:
            result["features"] = known["features"] | result["features"]
        path.write_text(json.dumps(result, indent=1) + "\n")
        passed = sum(result["features"].get(name) == "passed" for name in features)
        print(
            f"  MEASURED {kernel.release}: {passed} of {len(features)} features, {result['seconds']} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
