"""A real node, on which nothing is left in the end, or an API server alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.cluster.node import (
    ApiServer,
    Cluster,
    kept_on,
    missing_api_server,
    missing_cluster,
    wait_until,
)


class _Parts(LoadScopeScheduling):
    """Modules before API servers are one part, those that share a node the other; of other folders each is its own."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if "tests/cluster/" not in module:
            return module
        return "api" if "/test_api_" in module else "node"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Two workers: while one waits for pods, the other asks API servers."""
    return _Parts(config, log)


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
    """For one module."""
    if missing := missing_api_server():
        pytest.skip(missing)
    started = ApiServer()
    try:
        yield started
    finally:
        started.stop()
