"""A real node, or an API server alone; one at a time, as both listen where a cluster does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.node import ApiServer, Cluster, missing_api_server, missing_cluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    if missing := missing_cluster():
        pytest.skip(missing)
    started = Cluster()
    try:
        yield started
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
