"""A real node, on which nothing is left in the end, or an API server alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.node import (
    ApiServer,
    Cluster,
    kept_on,
    missing_api_server,
    missing_cluster,
    wait_until,
)


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    if missing := missing_cluster():
        pytest.skip(missing)
    started = Cluster()
    try:
        before, pinned = kept_on(started), os.listdir("/sys/fs/bpf")
        yield started
        wait_until(lambda: kept_on(started) <= before, "nothing to be left on the node", 150)
        assert os.listdir("/sys/fs/bpf") == pinned
    finally:
        started.stop()


@pytest.fixture(scope="module")
def api_server() -> Iterator[ApiServer]:
    """Its module comes first by its name, so that it has ended before a node is started."""
    if missing := missing_api_server():
        pytest.skip(missing)
    started = ApiServer()
    try:
        yield started
    finally:
        started.stop()
