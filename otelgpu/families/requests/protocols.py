"""The protocols that connections are asked for: the built-in ones first, then those that others installed."""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.http1 import parser as http1
from otelgpu.families.requests.http2 import parser as http2
from otelgpu.families.requests.plugins import Plugins, load_plugins
from otelgpu.families.requests.protocol import ProtocolSpec
from otelgpu.families.requests.zmtp import parser as zmtp

BUILT_IN: Final[tuple[ProtocolSpec, ...]] = (http1.SPEC, zmtp.SPEC, http2.SPEC)
"""On a connection found open, a long ZMTP frame looks like DATA of HTTP/2; what ZMTP asks for is stricter."""


def installed() -> Plugins:
    """The plug-ins of this installation, loaded at the first call."""
    return load_plugins(frozenset(spec.name for spec in BUILT_IN))
