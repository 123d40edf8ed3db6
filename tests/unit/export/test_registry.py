"""Exporters are found where they lie, and one more edits no file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from otelgpu.export.destination import Destination, Kind, Trial
from otelgpu.export.registry import forms, kinds

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/llm_session.capture"

TALLY = '''
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from otelgpu.export.base import deliveries_of
from otelgpu.export.destination import Destination, Kind


@dataclass(frozen=True, slots=True)
class TallyDestination(Destination):
    path: str

    def open(self, environ, defaults):
        return Tally(Path(self.path))


class Tally:
    """Counts, and writes the count down at its end."""

    def __init__(self, path):
        self._path = path
        self._counts = Counter()

    def export_spans(self, batches):
        for batch in batches:
            self._counts["spans_given"] += len(batch)
            self._counts["spans_accepted"] += len(batch)

    def export_metrics(self, data, items):
        self._counts["points_given"] += items
        self._counts["points_accepted"] += items

    def export_profiles(self, batches):
        pass

    def flush(self, deadline_s):
        return True

    def close(self, deadline_s):
        self._path.write_text(str(self._counts["spans_accepted"]))

    def stats(self):
        return {f"{items}_{key}": self._counts[f"{items}_{key}"]
                for items in ("spans", "points") for key in ("given", "accepted", "queued")}

    def deliveries(self):
        return deliveries_of("tally", self.stats())


def parse(rest):
    if not rest:
        raise ValueError("names no file for the count")
    return TallyDestination(rest)


EXPORTER = Kind(scheme="tally", forms={"tally:PATH": "How many spans there were."}, parse=parse)
'''
MAIN = """
import sys
import otelgpu.export
otelgpu.export.__path__.append(sys.argv.pop(1))
from otelgpu.cli.main import main
main()
"""


def otelgpu(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, with the exporters of ``folder`` beside its own."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, folder, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "exporters" / "tally"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TALLY)
    return package.parent


def test_exporters_are_found_in_alphabetical_order() -> None:
    assert list(kinds()) == ["console", "file", "otlp", "parquet"]
    assert forms() == "console, file:PATH, otlp, otlp:URL or parquet:DIR"


def test_the_contracts_have_at_most_five_members() -> None:
    members = [name for name in vars(Destination) if not name.startswith("_")]
    assert max(len(members), len(Kind.__struct_fields__), len(Trial.__struct_fields__)) <= 5


@pytest.mark.parametrize("scheme", kinds())
def test_an_exporter_says_how_it_is_written_and_what_that_does(scheme: str) -> None:
    kind = kinds()[scheme]
    assert kind.scheme == scheme
    assert all(form.partition(":")[0] == scheme and says.endswith(".") for form, says in kind.forms.items())


def test_one_more_exporter_is_in_the_help_and_in_the_error_for_an_unknown_one(folder: Path) -> None:
    wanted = "console, file:PATH, otlp, otlp:URL, parquet:DIR or tally:PATH"
    assert wanted in " ".join(otelgpu(folder, "replay", "--help").stdout.split())
    unknown = otelgpu(folder, "replay", GOLDEN, "--export", "jaeger")
    assert (unknown.returncode, wanted in unknown.stderr) == (1, True)
    unfinished = otelgpu(folder, "replay", GOLDEN, "--export", "tally")
    assert "'tally' names no file for the count" in unfinished.stderr


def test_one_more_exporter_gets_the_spans_of_a_session(folder: Path, tmp_path: Path) -> None:
    lines = tmp_path / "out.jsonl"
    done = otelgpu(
        folder, "replay", GOLDEN, "--export", f"tally:{tmp_path}/count", "--export", f"file:{lines}"
    )
    assert done.returncode == 0, done.stderr
    written = sum(
        len(scope["spans"])
        for line in lines.read_text().splitlines()
        for of_resource in json.loads(line).get("resourceSpans", ())
        for scope in of_resource["scopeSpans"]
    )
    assert int((tmp_path / "count").read_text()) == written > 0


def test_check_says_of_one_that_tries_nothing_that_it_was_not_tried(folder: Path) -> None:
    done = otelgpu(folder, "check", "--quick", "--json", "--export", "tally:/x")
    assert '"not tried"' in done.stdout, done.stderr
