"""``otelgpu topology`` of a live Collector: services that a real agent observed, nodes that agents' lines name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otelgpu.cli.collector_access import Access
from otelgpu.cli.topology_collector import read_collectors
from otelgpu.otlp_json.reader import Skips
from otelgpu.topology.gathering import Facts
from tests.backends.configured import configured_collector, wait_for
from tests.backends.engine_session import OTELGPU
from tests.rig import service_chain
from tests.rig.certificates import make_certificate
from tests.rig.cluster import Cluster
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
            facts = Facts()
            read_collectors([url], facts, Skips(), [], Access())
            return len(facts.services.calls()) == 3

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


def test_nodes_and_queue_pairs_of_a_live_collector_are_those_there_are_over_tls(tmp_path: Path) -> None:
    """It shows its certificate, and wants one: of exporter ``prometheus``, as an operator would write it."""
    for name in ("server", "client"):
        (tmp_path / name).mkdir()
    server, client = make_certificate(tmp_path / "server"), make_certificate(tmp_path / "client")
    tls = tmp_path / "tls.yaml"
    files = {"cert_file": str(server), "key_file": str(server), "client_ca_file": str(client)}
    tls.write_text(json.dumps({"exporters": {"prometheus": {"tls": files}}}))
    (port,) = free_ports(1)
    cluster = Cluster(nodes=3, gpus=2)
    settings = {"SCRAPE_LISTEN": f"127.0.0.1:{port}", "RESOURCE_LABELS": "true", **SETTINGS}
    with configured_collector(
        tmp_path, ["gateway.yaml", "backends/prometheus-scrape.yaml", str(tls)], **settings
    ) as collector:
        for line in cluster.lines():
            if b"resourceMetrics" in line:
                collector.send("metrics", json_format.Parse(line, ExportMetricsServiceRequest()))
        asked: list[str | Path] = [
            OTELGPU,
            "topology",
            f"https://localhost:{port}",
            "--json",
            "--ca-file",
            server,
        ]
        known: list[str | Path] = [*asked, "--client-certificate", client, "--client-key", client]

        def there() -> bool:
            access = Access(certificate=str(server), client_certificate=str(client), client_key=str(client))
            facts = Facts()
            read_collectors([f"https://localhost:{port}"], facts, Skips(), [], access)
            return len(facts.queue_pairs.ends) == 2 * len(cluster.edges())

        wait_for(there, "all queue pairs")
        done = subprocess.run(known, capture_output=True, text=True, check=True, timeout=60)
        refused = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    assert (refused.returncode, "it wants a client's certificate" in refused.stderr) == (1, True), (
        refused.stderr
    )
    found = json.loads(done.stdout)
    assert [(node["name"], len(node["gpus"]), len(node["nics"])) for node in found["nodes"]] == [
        (cluster.host(node), 2, 2) for node in range(3)
    ]
    ends = [(each["node"], each["device"], each["number"]) for each in found["queue_pairs"]]
    edges = {frozenset((ends[at], ends[each["peer"]])) for at, each in enumerate(found["queue_pairs"])}
    assert edges == cluster.edges()
    assert (found["marks"], found["rejected"]) == ([], {})
