"""What is known of an exchange under way is what the finished one says."""

from __future__ import annotations

from typing import Any

from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.protocol import ConnectionFacts
from otelgpu.model.exchange import Endpoint, Exchange, Role

OF_THE_CONNECTION = {
    "connection": "identity",
    "server": "server",
    "client": "client",
    "role": "role",
    "tls": "tls",
}
OF_PLUGINS = {"protocol": "http", "span_name": "", "attributes": ()}


def test_each_field_has_its_own_value() -> None:
    """The finished one is made by position: a value in another field would be of no other type."""
    values: dict[str, Any] = {name: f"{name} of it" for name in OpenExchange.__struct_fields__}
    facts = ConnectionFacts(
        identity=7,
        role=Role.CLIENT,
        tls=True,
        server=Endpoint(address="server", port=1),
        client=Endpoint(address="client", port=2),
    )
    found = OpenExchange(**{**values, "generation": None}).finish(facts)
    expected = {name: values.get(name) for name in Exchange.__struct_fields__}
    expected |= {name: getattr(facts, of) for name, of in OF_THE_CONNECTION.items()}
    expected |= {**OF_PLUGINS, "generation": None}
    assert {name: getattr(found, name) for name in Exchange.__struct_fields__} == expected
