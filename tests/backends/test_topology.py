"""``otelgpu topology`` of a live Collector: services that a real agent observed, by gateway.yaml's service graph."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otelgpu.cli.collector_access import Access
from otelgpu.cli.topology_collector import read_service_graphs
from otelgpu.otlp_json.reader import Skips
from otelgpu.topology.services import Services
from tests.backends.configured import configured_collector, wait_for
from tests.backends.engine_session import OTELGPU
from tests.rig import service_chain
from tests.rig.ports import free_ports

REQUESTS = 11
SETTINGS = {"SAMPLING_WAIT": "1s", "SPAN_METRICS_INTERVAL": "1s"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to observe the services")
def test_calls_of_a_live_collector_are_those_that_there_were(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    files = ["gateway.yaml", "backends/prometheus-scrape.yaml"]
    with configured_collector(tmp_path, files, SCRAPE_LISTEN=f"127.0.0.1:{port}", **SETTINGS) as collector:
        command: list[str | Path] = [
            OTELGPU,
            "run",
            "--quiet",
            "--families",
            "http",
            f"--export=otlp:{collector.grpc}",
            "--",
        ]
        command += [sys.executable, "-P", service_chain.__file__, str(REQUESTS)]
        environ = os.environ | {"OTEL_SERVICE_NAME": "client", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        subprocess.run(command, env=environ, check=True, timeout=90, capture_output=True)
        url = f"http://127.0.0.1:{port}"

        def counted() -> bool:
            services = Services(0)
            read_service_graphs([url], services, Skips(), [], Access())
            return len(services.calls()) == 3

        wait_for(counted, "three pairs of services")
        done = subprocess.run(
            [OTELGPU, "topology", url, "--json"], capture_output=True, text=True, check=True, timeout=60
        )
    found = json.loads(done.stdout)
    calls = [(each["client"], each["server"], each["calls"], each["errors"]) for each in found["calls"]]
    asked = ("client", "front", REQUESTS, REQUESTS // service_chain.FAILS_EACH)
    assert calls == sorted([asked, *service_chain.truth(REQUESTS)])
    assert all(0 < each["mean_s"] < 10 for each in found["calls"])
    assert found["rejected"] == {}
