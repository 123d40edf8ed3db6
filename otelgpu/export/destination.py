"""What an exporter says of itself, and what ``--export`` texts become. Nothing here does I/O or knows an exporter.

An exporter is a package below ``otelgpu.export`` with an ``EXPORTER``, a :class:`Kind`: how it is written behind
``--export``, what that does, and how the text becomes a :class:`Destination`. The package's ``__init__`` is imported by
every command, so that it imports nothing heavy; what sends is imported when a destination is opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from msgspec import Struct

from otelgpu.export.base import Exporter


class Trial(Struct, frozen=True):
    """What ``otelgpu check`` found of a destination. ``present``: whether it can be used; None: not tried."""

    present: bool | None
    detail: str
    remedy: str = ""
    required: bool = True  # a session does not start without it


class Place(Struct, frozen=True):
    """Where results are, in words of which nothing is secret. ``viewer``: the command that shows them, if one does.

    ``has_files``: files are read or written, which may have been replaced since they were opened: a log that was
    rotated and a certificate that was renewed have their old names.
    """

    shown: str
    viewer: str = ""
    has_files: bool = False


class Destination(ABC):
    """Where results go. Frozen: equal ones would be opened alike.

    ``environ``: the environment, with the ``OTEL_EXPORTER_OTLP_*`` variables; ``defaults``: the same names from a
    configuration file, for what ``environ`` leaves unset.
    """

    is_opened_early: ClassVar[bool] = False
    """Opening it needs privileges that a session gives up before it begins."""

    @abstractmethod
    def open(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Exporter:
        """Make it ready to take spans, metrics and profiles.

        Raises :class:`~otelgpu.export.base.ExportError` for what cannot be opened or used.
        """

    def prepare(  # noqa: B027 - most have nothing of the kind
        self, environ: Mapping[str, str], defaults: Mapping[str, str]
    ) -> None:
        """Import what :meth:`open` needs, while the kernel has other work."""

    def place(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Place:
        """What whoever starts a session is told."""
        return Place("an exporter of its own")

    def trials(
        self, environ: Mapping[str, str], defaults: Mapping[str, str], *, connects: bool
    ) -> Iterable[Trial]:
        """Try what a session would use, without changing anything. ``connects``: over the network too.

        Raises :class:`~otelgpu.export.base.ExportError` for what is not set as it should be.
        """
        return [Trial(None, "not tried")]


class Kind(Struct, frozen=True, kw_only=True):
    """An exporter, as the command line knows it."""

    scheme: str
    """What stands before the colon."""
    forms: Mapping[str, str]
    """How it is written, and what that does: ``{"file:PATH": "Lines appended to the file."}``."""
    parse: Callable[[str | None], Destination]
    """What stands behind the colon (None: there is no colon). Raises ValueError with what is wrong."""
    url_schemes: tuple[str, ...] = ()
    """Of URLs that somebody may have meant for it."""


class Opening(Struct, frozen=True):
    """A destination and all that is said of it, to be opened. Equal ones would be opened alike."""

    destination: Destination
    environ: Mapping[str, str]
    defaults: Mapping[str, str]

    @property
    def place(self) -> Place:
        """See :meth:`Destination.place`."""
        return self.destination.place(self.environ, self.defaults)

    def prepare(self) -> None:
        """See :meth:`Destination.prepare`."""
        self.destination.prepare(self.environ, self.defaults)

    def open(self) -> Exporter:
        """See :meth:`Destination.open`."""
        return self.destination.open(self.environ, self.defaults)
