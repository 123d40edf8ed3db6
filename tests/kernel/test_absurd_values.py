"""Every observed function, called with values that no program should pass: reported once each, and readable as OTLP.

The program and its libraries are made here from the table of functions; the functions do nothing but answer.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.contract.otlp_servers import http_server
from tests.kernel.observing import OTELGPU, PROBED, Watch, read_spans
from tools.cuda_calls import calls

ARGUMENTS: Final = 12  # some of them on the stack
ANSWERS: Final = (0, 1, 700, 999, -1, -(2**31), 2**31 - 1)
VALUES: Final = (
    *(
        "0",
        "1",
        "0xfffUL",
        "-1L",
        "1UL << 63",
        "(1UL << 63) - 1",
        "1UL << 47",
        "0xdeadUL << 48",
    ),
    "(unsigned long)text",  # a MiB of bytes that are no UTF-8, with no end to them
    "(unsigned long)numbers",  # a pointer to the greatest numbers
)
UNMAPPED: Final = (
    "0x10000UL",
    "0xffffffffUL",
    "(unsigned long)text + TEXT_BYTES - 1",
    "(unsigned long)text + TEXT_BYTES",
)
"""Where a library in the process would fault as the function itself does; the kernel does not."""

PROGRAM: Final = """
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define TEXT_BYTES (1UL << 20)
typedef int function(%(types)s);
%(declarations)s
static function *const functions[] = { %(names)s };
extern int cudart_answer, cuda_answer;
int main(int argc, char **argv)
{
	char *text = mmap(NULL, TEXT_BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static unsigned long numbers[512];
	const int answers[] = { %(answers)s };
	munmap(text + TEXT_BYTES, 4096);
	memset(text, 0xff, TEXT_BYTES);
	memset(numbers, 0xff, sizeof(numbers));
	const unsigned long values[] = { %(values)s };
	if (argc > 1) { fputs("ready\\n", stderr); getchar(); }
	for (unsigned v = 0; v < sizeof(values) / sizeof(*values); v++) {
		cudart_answer = cuda_answer = answers[v %% (sizeof(answers) / sizeof(*answers))];
		for (unsigned f = 0; f < sizeof(functions) / sizeof(*functions); f++)
			functions[f](%(passed)s);
	}
	(void)argv;
	return 0;
}
"""


def build(folder: Path, values: tuple[str, ...]) -> Path:
    folder.mkdir(parents=True)
    for library_name, name in (("libcudart", "libcudart.so.12"), ("libcuda", "libcuda.so.1")):
        answer = f"{library_name.removeprefix('lib')}_answer"
        stubs = "".join(
            f"int {call.symbol}(void) {{ return {answer}; }}\n"
            for call in calls()
            if call.library == library_name
        )
        (folder / f"{library_name}.c").write_text(f"int {answer};\n{stubs}")
        options = ("-w", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{name}")
        subprocess.run(["gcc", *options, "-o", folder / name, folder / f"{library_name}.c"], check=True)
    symbols = sorted(PROBED)
    (folder / "program.c").write_text(
        PROGRAM
        % {
            "types": ", ".join(["unsigned long"] * ARGUMENTS),
            "declarations": "\n".join(f"extern function {symbol};" for symbol in symbols),
            "names": ", ".join(symbols),
            "answers": ", ".join(f"(int){answer}L" for answer in ANSWERS),
            "values": ", ".join(values),
            "passed": ", ".join(["values[v]"] * ARGUMENTS),
        }
    )
    libraries = [folder / "libcudart.so.12", folder / "libcuda.so.1"]
    options = ("-Wall", "-Wextra", "-Werror", "-O1", f"-Wl,-rpath,{folder}")
    subprocess.run(["gcc", *options, "-o", folder / "program", folder / "program.c", *libraries], check=True)
    return folder / "program"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """For each source a program, and how often it calls each function."""
    folder = tmp_path_factory.mktemp("absurd")
    everything = (*VALUES, *UNMAPPED)
    return {
        "uprobe": (build(folder / "uprobe", everything), len(everything)),
        "inject": (build(folder / "inject", VALUES), len(VALUES)),
    }


@pytest.mark.parametrize("how", ["sessions", "pairs", "entries"])
def test_each_call_is_recorded_once_whatever_it_was_given(
    watch: Callable[..., Watch], programs: dict[str, tuple[Path, int]], how: str
) -> None:
    program, times = programs["uprobe"]
    watching = watch(sessions=how == "sessions", return_probes=how != "entries")
    with subprocess.Popen(
        [program, "wait"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None and process.stderr.readline() == "ready\n"
        watching.observe(process.pid)
        watching.during(lambda: process.communicate("go\n", timeout=50))
    assert process.returncode == 0
    assert watching.calls(process.pid) == dict.fromkeys(PROBED, times)
    lost = {reason for _, reason in watching.losses()}
    assert "argument_unreadable" in lost
    # Beside those: what is launched is nowhere, and the process has ended when that is asked.
    assert lost <= {"argument_unreadable", "batch_cut", "address_unmapped", "process_gone"}


@pytest.mark.parametrize("options", [(), ("--source=inject",)], ids=["uprobe", "inject"])
def test_what_is_exported_can_be_read_and_counts_every_call(
    programs: dict[str, tuple[Path, int]], options: tuple[str, ...], tmp_path: Path
) -> None:
    program, times = programs["inject" if options else "uprobe"]
    traces = tmp_path / "traces.jsonl"
    with http_server() as server:
        export = (f"--export=otlp:{server.address}", f"--export=file:{traces}")
        command = [OTELGPU, "run", "--detail=all", *options, *export, "--", program]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "error" not in done.stderr and "Traceback" not in done.stderr
        names: Counter[str] = Counter()
        for request in server.requests:
            if request.path.endswith("/traces"):
                for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
                    spans = [span for scope in resource.scope_spans for span in scope.spans]
                    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
                    names.update(span.name.split()[0] for span in spans)
            else:
                assert ExportMetricsServiceRequest.FromString(request.body).resource_metrics
    assert {name: count for name, count in names.items() if name in PROBED} == dict.fromkeys(PROBED, times)
    assert names.total() == sum(span_names(traces).values())


def span_names(path: Path) -> Counter[str]:
    return Counter(span["name"] for span in read_spans(path))
