"""The fake as a fixture; nothing here runs where it cannot be built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig import missing_compiler
from tests.unit.fakes.fake import Device


@pytest.fixture(scope="session", autouse=True)
def compiler() -> None:
    """Skip when the fakes cannot be built."""
    if missing := missing_compiler():
        pytest.skip(f"{missing} is not installed: the fakes are not built")


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device()
    device.lib.cudaGetLastError()
    yield device
    device.lib.cudaDeviceSynchronize()
