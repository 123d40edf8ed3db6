"""``helm test``: what the chart makes for it, what the script in its pod says. With a real agent: tests/backends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import kubernetes_validate
import pytest

from tests.deploy.manifests import CHART, KUBERNETES, Objects, missing_helm, render

SCRIPT = CHART / "files/request.py"
NAME = "otelgpu-test"
TRACES = "--set=test.traces=http://jaeger.monitoring:16686/api/v3/traces/{id}"
REQUEST = "--set=test.request=http://llm-server.serving:8000/health"
ELSEWHERE = "--set=test.agent=http://10.98.0.7:13134"
HELM = pytest.mark.skipif(missing_helm() is not None, reason=str(missing_helm()))


def made_for_test(mode: str, *options: str) -> Objects:
    return render(mode, *options, tests=True)


def variables(objects: Objects) -> dict[str, str]:
    (container,) = objects["Pod", NAME]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


@HELM
@pytest.mark.parametrize(
    ("mode", "options", "kinds"),
    [
        ("daemonset", (), {"ConfigMap", "Service", "NetworkPolicy", "Pod"}),
        ("daemonset", ("--set=networkPolicy.enabled=false",), {"ConfigMap", "Service", "Pod"}),
        ("daemonset", (ELSEWHERE,), {"ConfigMap", "NetworkPolicy", "Pod"}),
        ("daemonset", (TRACES,), {"ConfigMap", "Pod"}),
        ("daemonset", (TRACES, REQUEST, "--set=imagePullSecrets[0].name=registry"), {"ConfigMap", "Pod"}),
        ("sidecar", (), set()),
        ("sidecar", (TRACES,), set()),
        ("sidecar", (TRACES, REQUEST), {"ConfigMap", "Pod"}),
    ],
)
def test_there_is_what_the_test_needs_and_kubernetes_knows_it(
    mode: str, options: tuple[str, ...], kinds: set[str]
) -> None:
    objects = made_for_test(mode, *options)
    assert {kind for kind, _ in objects} == kinds
    for each in objects.values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
        assert "before-hook-creation" in each["metadata"]["annotations"]["helm.sh/hook-delete-policy"]


@HELM
def test_pod_runs_the_script_as_any_pod_may() -> None:
    objects = made_for_test("daemonset")
    spec = objects["Pod", NAME]["spec"]
    (container,) = spec["containers"]
    assert objects["ConfigMap", NAME]["data"]["request.py"].rstrip() == SCRIPT.read_text().rstrip()
    assert container["command"][-1] == "/test/request.py"
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (
        spec["nodeSelector"]
        == render("daemonset")["DaemonSet", "otelgpu"]["spec"]["template"]["spec"]["nodeSelector"]
    )


@HELM
def test_pod_asks_the_agent_of_its_node_and_is_let_in() -> None:
    objects, installed = made_for_test("daemonset"), render("daemonset")
    agent = installed["DaemonSet", "otelgpu"]["spec"]["template"]
    service = objects["Service", NAME]["spec"]
    assert service["selector"].items() <= agent["metadata"]["labels"].items()
    assert service["internalTrafficPolicy"] == "Local"
    assert variables(objects)["AGENT_URL"] == f"http://{NAME}.otelgpu:13134"
    policy = objects["NetworkPolicy", NAME]["spec"]
    assert policy["podSelector"] == installed["NetworkPolicy", "otelgpu"]["spec"]["podSelector"]
    (peer,) = policy["ingress"][0]["from"]
    labels = objects["Pod", NAME]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert not service["selector"].items() <= labels.items()  # its own Service does not lead to it


@HELM
def test_values_reach_the_script() -> None:
    found = variables(made_for_test("sidecar", TRACES, REQUEST, "--set=test.timeoutSeconds=30"))
    assert found["REQUEST_URL"] == REQUEST.partition("request=")[2]
    assert found["TRACES_URL"] == TRACES.partition("traces=")[2]
    assert found["TIMEOUT_SECONDS"] == "30"


@contextlib.contextmanager
def serving(*answers: tuple[int, str]) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers in turn, the last for ever; its address, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(**settings: str) -> tuple[int, str]:
    """Exit code, and the line it said."""
    environment: Mapping[str, str] = {"TIMEOUT_SECONDS": "2.5", **settings}
    done = subprocess.run(
        [sys.executable, "-I", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def figures(spans: int, failing: float = 0, lost: int = 0) -> str:
    name = "otel_sdk_exporter_span_exported_total"
    return (
        f'{name}{{server_port="1"}} {spans}\n{name}{{error_type="queue_full"}} {lost}\n'
        f"otelgpu_exporter_failing_seconds {failing}\n"
    )


def test_a_trace_that_comes_after_a_while_is_found() -> None:
    with serving((404, ""), (200, '{"path": "/otelgpu-helm-test"}')) as (backend, asked):
        code, said = run(TRACES_URL=f"{backend}/api/traces/{{id}}")
    assert code == 0 and said.startswith("found: a request to /otelgpu-helm-test is the trace ")
    (trace,) = {path.rpartition("/")[2] for path in asked}  # one trace, asked for again
    assert len(trace) == 32 and trace in said and len(asked) == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [((404, ""), "the backend has no trace"), ((200, "{}"), "says nothing of /otelgpu-helm-test")],
)
def test_a_trace_that_does_not_come_is_said(answer: tuple[int, str], why: str) -> None:
    with serving(answer) as (backend, _):
        code, said = run(TRACES_URL=f"{backend}/{{id}}")
    assert code == 1 and said.startswith("not found: ") and why in said


def test_requests_go_where_they_are_to() -> None:
    with serving((200, "ok")) as (service, requests), serving((200, "GET /v1/models 200")) as (backend, _):
        code, said = run(REQUEST_URL=f"{service}/v1/models?x=1#y", TRACES_URL=f"{backend}/{{id}}")
    assert (code, requests) == (0, ["/v1/models?x=1"]), said


def test_a_service_and_a_backend_that_do_not_answer_are_named() -> None:
    nowhere = "http://127.0.0.1:9"
    code, said = run(REQUEST_URL=nowhere, TRACES_URL="http://127.0.0.1:9/{id}")
    assert code == 1 and said.startswith(f"not found: {nowhere} does not answer: ")
    code, said = run(TRACES_URL=f"{nowhere}/{{id}}")
    assert code == 1 and f"the backend does not answer at {nowhere}/{{id}}: " in said
    code, said = run(AGENT_URL=nowhere)
    assert code == 1 and f"the agent of this node does not answer at {nowhere}: " in said


def test_an_agent_that_delivers_is_found_by_its_figures() -> None:
    with serving((503, ""), *((200, figures(100 + 2 * n)) for n in range(9))) as (agent, asked):
        code, said = run(AGENT_URL=agent, TIMEOUT_SECONDS="20")
    assert (code, said) == (0, "found: the agent delivered 10 spans while 5 requests were made")
    assert set(asked) == {"/metrics"}


def test_an_agent_that_does_not_deliver_is_said_to_and_what_it_lost_is_not_delivered() -> None:
    with serving(*((200, figures(100, 12.5, lost=50 * n)) for n in range(9))) as (agent, _):
        code, said = run(AGENT_URL=agent, TIMEOUT_SECONDS="7.5")
    assert code == 1
    assert said.startswith("not found: the agent delivered 0 spans while ")
    assert "its destination has accepted nothing for 12.5 s" in said
