"""Tests against real backends; where one was not built, each is skipped with the command that builds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.collector import Collector, missing_collector, running_collector
from tests.backends.engine_session import record_engine
from tests.backends.jaeger import Jaeger, missing_jaeger, running_jaeger
from tests.backends.prometheus import Prometheus, missing_prometheus, running_prometheus
from tests.backends.zipkin import Zipkin, missing_zipkin, running_zipkin
from tests.rig.marks import mark_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_folder(items, Path(__file__).parent, pytest.mark.backends, missing_collector())


@pytest.fixture(scope="session")
def engine_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded session of the example engine."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to observe the engine")
    capture = tmp_path_factory.mktemp("engine") / "engine.capture"
    record_engine(capture)
    return capture


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """A Collector of the test's own, with nothing in its files."""
    with running_collector(tmp_path) as running:
        yield running


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Jaeger]:
    """A Jaeger of the test's own, without traces."""
    if missing := missing_jaeger():
        pytest.skip(missing)
    with running_jaeger(tmp_path) as running:
        yield running


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus of the test's own, without metrics."""
    if missing := missing_prometheus():
        pytest.skip(missing)
    with running_prometheus(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def zipkin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zipkin]:
    """A Zipkin for all tests: it takes seconds to start."""
    if missing := missing_zipkin():
        pytest.skip(missing)
    with running_zipkin(tmp_path_factory.mktemp("zipkin")) as running:
        yield running
