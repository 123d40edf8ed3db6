"""``--export otlp`` and ``otlp:URL``: an OTLP server, over gRPC or HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otelgpu.export.base import Exporter, Signal
from otelgpu.export.destination import Destination, Kind, Place, Trial

if TYPE_CHECKING:
    from otelgpu.export.otlp.settings import OtlpSettings

_log: Final = logging.getLogger("otelgpu.export")


@dataclass(frozen=True, slots=True)
class OtlpDestination(Destination):
    """``endpoint`` is a base URL; None leaves it to the environment."""

    endpoint: str | None

    def open(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Exporter:
        """See :meth:`Destination.open`."""
        from otelgpu.export.otlp.exporter import OtlpExporter

        traces, metrics, profiles, logs = settings = self._settings(
            (Signal.TRACES, Signal.METRICS, Signal.PROFILES, Signal.LOGS), environ, defaults
        )
        for host in sorted({each.in_clear_to for each in settings} - {""}):
            _log.warning(
                "what is sent to %s is not encrypted, and who is on the way can read and change it: "
                "use https://, with OTEL_EXPORTER_OTLP_CERTIFICATE for an authority of your own",
                host,
            )
        return OtlpExporter(traces, metrics, profiles, logs)

    def prepare(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        """See :meth:`Destination.prepare`."""
        from otelgpu.export.otlp.exporter import prepare_transport

        for settings in self._settings((Signal.TRACES, Signal.METRICS), environ, defaults):
            prepare_transport(settings)

    def place(self, environ: Mapping[str, str], defaults: Mapping[str, str]) -> Place:
        """See :meth:`Destination.place`: of traces and metrics the addresses, once where they are one."""
        found = self._settings((Signal.TRACES, Signal.METRICS), environ, defaults)
        has_certificates = any(
            name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith(("CERTIFICATE", "CLIENT_KEY"))
            for name in (*environ, *defaults)
        )
        shown = dict.fromkeys(each.shown.removesuffix(each.signal.path) for each in found)
        return Place(" and ".join(shown), has_files=has_certificates)

    def trials(
        self, environ: Mapping[str, str], defaults: Mapping[str, str], *, connects: bool
    ) -> Iterable[Trial]:
        """See :meth:`Destination.trials`."""
        from otelgpu.export.otlp.trial import try_endpoint

        settings = self._settings((Signal.TRACES, Signal.METRICS), environ, defaults)
        distinct = {(each.protocol, each.address): each for each in settings}
        return [try_endpoint(each, connects=connects) for each in distinct.values()]

    def _settings(
        self, signals: Iterable[Signal], environ: Mapping[str, str], defaults: Mapping[str, str]
    ) -> list[OtlpSettings]:
        from otelgpu.export.otlp.settings import OtlpSettings

        return [
            OtlpSettings.from_environment(environ, signal, endpoint=self.endpoint, defaults=defaults)
            for signal in signals
        ]


def _parse(rest: str | None) -> OtlpDestination:
    if rest == "":
        raise ValueError("names no URL")
    return OtlpDestination(rest)


EXPORTER = Kind(
    scheme="otlp",
    forms={
        "otlp": "To the endpoint that the variables or the file name.",
        "otlp:URL": "To that base URL, by HTTP or (port 4317, or `OTEL_EXPORTER_OTLP_PROTOCOL=grpc`) gRPC.",
    },
    parse=_parse,
    url_schemes=("http", "https"),
)
