"""What an agent says of itself on its health address: ``/healthz``, ``/readyz``, and the samples of ``/metrics``."""

from __future__ import annotations

import os
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]
"""By name and labels."""


class Health:
    """Of the agent on a port of the loopback interface; it need not be there yet."""

    def __init__(self, port: int) -> None:
        self.port = port

    def environment(self) -> dict[str, str]:
        """This process's, for an agent that is to answer there."""
        return {**os.environ, "OTELGPU_HEALTH_ADDRESS": f":{self.port}"}

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def scrape(self) -> Samples:
        """What ``/metrics`` has; it may be a second old."""
        status, text = self.get("/metrics")
        assert status == 200, text
        found: Samples = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def libraries_of(self, pid: int) -> float:
        """How many of a process's libraries have probes."""
        return total(self.scrape(), "otelgpu_process_libraries", process_pid=str(pid))


def total(samples: Samples, name: str, **labels: str) -> float:
    """Of all series with these labels."""
    wanted = set(labels.items())
    return sum(value for key, value in samples.get(name, {}).items() if wanted <= set(key))
