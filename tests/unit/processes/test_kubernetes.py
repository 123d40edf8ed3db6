"""What the downward API sets for the agent."""

from __future__ import annotations

from otelgpu.processes.kubernetes import OwnPod, own_pod
from tests.unit.processes.processes_builders import POD


def test_the_downward_api_is_read_from_the_environment() -> None:
    variables = {
        "OTELGPU_NODE_NAME": "node-1",
        "OTELGPU_POD_NAME": " a ",
        "OTELGPU_POD_NAMESPACE": "n",
        "OTELGPU_POD_UID": POD,
    }
    assert own_pod(variables) == OwnPod(node="node-1", name="a", namespace="n", uid=POD)
    assert own_pod({}) == OwnPod()


def test_a_name_is_bounded() -> None:
    assert len(own_pod({"OTELGPU_POD_NAME": "p" * 9999}).name) == 253
