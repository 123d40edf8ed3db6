"""Children that this program forks once it exports by gRPC: gRPC starts nothing in them, and they live."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CHILDREN = 20
ENDPOINT = "http://127.0.0.1:9"  # discard: nobody listens, and gRPC's threads are there all the same
PROGRAM = f"""
import json, os, time
from otelgpu.kernel.privileges.guard import Guard
environ = {{{{"OTEL_EXPORTER_OTLP_ENDPOINT": "{ENDPOINT}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}}}}
{{exports}}
guards = [Guard(lambda: None) for _ in range({CHILDREN})]
time.sleep(0.2)
stand = sum(guard.stands() for guard in guards)
threads = [len(os.listdir(f"/proc/{{{{guard._child}}}}/task")) for guard in guards]
print(json.dumps([stand, len(os.listdir("/proc/self/task")), threads]))
for guard in guards:
    guard.dismiss()
os._exit(0)
"""
AGENT = """
from otelgpu.export.base import Payload, Signal
from otelgpu.export.otlp.grpc import GrpcTransport
from otelgpu.export.otlp.settings import OtlpSettings
transport = GrpcTransport(OtlpSettings.from_environment(environ, Signal.TRACES))
transport.send(Payload(signal=Signal.TRACES, body=b"", items=1), 0.2)
"""
SDK = """
from otelgpu.export.sdk import open_providers
providers = open_providers(environ | {"OTEL_EXPORTER_OTLP_TIMEOUT": "200"})
"""
METRICS = f"""
environ["OTEL_LOGS_EXPORTER"] = "none"
{SDK}
providers.meters.get_meter("test").create_counter("n").add(1)
providers.meters.force_flush(200)
"""
LOGS = f"""
environ["OTEL_METRICS_EXPORTER"] = "none"
{SDK}
from opentelemetry._logs import LogRecord
providers.loggers.get_logger("test").emit(LogRecord(body="n"))
providers.loggers.force_flush(200)
"""
EXPORTS = {
    # How, and the threads of a child: the SDK itself starts the one that batches log records anew.
    "the agent's": (AGENT, 1),
    "the SDK's, of metrics": (METRICS, 1),
    "the SDK's, of logs": (LOGS, 2),
}


@pytest.mark.parametrize("exports", EXPORTS)
@pytest.mark.parametrize("said", ["", "1"])
def test_children_have_no_thread_of_grpc_and_live(
    exports: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", said)
    if not said:
        monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT")
    how, wanted = EXPORTS[exports]
    program = [sys.executable, "-c", PROGRAM.format(exports=how)]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    stand, threads, of_children = json.loads(ran.stdout)
    assert threads > 2  # gRPC's are there, or nothing is shown here
    assert of_children == [wanted] * CHILDREN
    assert stand == CHILDREN
