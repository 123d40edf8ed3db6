"""Queries from files: columns of numpy out, and nothing on standard output."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

duckdb = pytest.importorskip("duckdb")

from otelgpu.store.database import Store  # noqa: E402
from otelgpu.store.files import StoreError  # noqa: E402
from otelgpu.store.queries import queries_of  # noqa: E402


def test_a_query_gives_its_columns() -> None:
    with Store() as store:
        found = queries_of(store.connection, "otelgpu.diagnose.ranks")("ranks")
    assert list(found) == ["rank", "host", "other_host", "role", "lane"]
    assert all(isinstance(values, np.ndarray) and len(values) == 0 for values in found.values())


def test_a_file_that_is_damaged_behind_its_beginning_is_an_error_in_words() -> None:
    with Store() as store:
        store.connection.execute("CREATE OR REPLACE VIEW step_sums AS SELECT error('cut') AS job")
        with pytest.raises(StoreError, match=r"the input cannot be read: .*cut"):
            queries_of(store.connection, "otelgpu.diagnose.ranks")("jobs")


def test_a_long_query_draws_nothing_over_what_is_printed() -> None:
    """In a program without a file DuckDB takes itself for interactive."""
    program = (
        "from otelgpu.store.database import Store\n"
        "with Store() as store:\n"
        "    print(store.connection.execute(\"SELECT current_setting('enable_progress_bar')\").fetchall())\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout == "[(False,)]\n"
