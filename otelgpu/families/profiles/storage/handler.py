"""Calls on files in a session: measured, and passed on to whoever has steps. Pure."""

from __future__ import annotations

from otelgpu.engine.facts import FilesCalled
from otelgpu.engine.services import Services
from otelgpu.families.profiles.storage.decode import FileDecoder
from otelgpu.families.profiles.storage.file_calls import FileSession
from otelgpu.model.inputs import Batch


class FileHandler:
    """Offers the names of files."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._emit, self._decoder = services.emit, FileDecoder()
        self._files = FileSession(session.metrics, session.processes.resource)
        services.offers.file_name = self._files.name

    def take(self, batch: Batch) -> None:
        """Calls that took long."""
        calls = self._decoder.files(batch)
        self._files.take(calls)
        self._emit(FilesCalled(calls))
