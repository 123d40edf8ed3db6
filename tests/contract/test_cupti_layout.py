"""otelgpu/inject/cupti_abi.h against the headers of the CUPTI wheels of CUDA 12 and 13."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.rig.fakes import ROOT, missing_compiler

SITE = Path(sysconfig.get_path("purelib"), "nvidia")
WHEELS = {
    "12": (SITE / "cuda_cupti/include", SITE / "cuda_runtime/include"),
    "13": (SITE / "cu13/include", SITE / "cu13/include"),
}
# The record struct that each of ours is the beginning of, and the oldest release's form that has all of it.
RECORDS = {"Kernel": 5, "Memcpy": 4, "MemcpyPtoP": 3, "Memset": 3}
COMMON = [
    "kind",
    "start",
    "end",
    "deviceId",
    "contextId",
    "streamId",
    "correlationId",
    "graphNodeId",
    "graphId",
]
FIELDS = {
    "Kernel": [*COMMON, "name"],
    "Memcpy": [*COMMON, "bytes", "copyKind"],
    "MemcpyPtoP": [*COMMON, "bytes", "copyKind", "srcDeviceId", "dstDeviceId"],
    "Memset": [*COMMON, "bytes", "value"],
}
CALLBACK = ["callbackSite", "functionName", "correlationData", "correlationId"]
CONSTANTS = re.findall(r"\b(CUPTI_[A-Z0-9_]+) = \d+", (ROOT / "otelgpu/inject/cupti_abi.h").read_text())


def said(
    folder: Path, includes: list[Path], headers: list[str], structs: dict[str, list[str]]
) -> dict[str, int]:
    """Offsets of fields and values of constants, as a C compiler has them."""
    prints = [f'P("{s}.{f}", offsetof({s}, {f}));' for s, fields in structs.items() for f in fields]
    prints += [f'P("{name}", {name});' for name in CONSTANTS]
    source = folder / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        + "".join(f"#include <{header}>\n" for header in headers)
        + '#define P(name, value) printf("%s %lu\\n", name, (unsigned long)(value))\n'
        + "int main(void) { "
        + "\n".join(prints)
        + " }\n"
    )
    command = ["gcc", "-w", "-o", folder / "layout", source, *(f"-I{include}" for include in includes)]
    subprocess.run(command, check=True, timeout=60)
    lines = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True).stdout.split("\n")
    return {name: int(value) for name, value in (line.split() for line in lines if line)}


@pytest.mark.parametrize("release", WHEELS)
def test_what_we_read_is_where_cupti_writes_it(tmp_path: Path, release: str) -> None:
    if missing := missing_compiler():
        pytest.skip(missing)
    cupti, runtime = WHEELS[release]
    for header in (cupti / "cupti_activity.h", runtime / "cuda.h"):
        if not header.exists():
            pytest.skip(f"no {header.name}: the CUPTI and runtime wheels of CUDA {release} are not installed")
    # The wheel leaves crt/ out; nothing of builtin_types.h matters here.
    (tmp_path / "builtin_types.h").write_text("")
    structs: dict[str, list[str]] = {"CUpti_CallbackData": CALLBACK}
    text = (cupti / "cupti_activity.h").read_text() + (cupti / "cupti_activity_deprecated.h").read_text()
    for base, oldest in RECORDS.items():
        forms = [int(n) for n in re.findall(rf"^}} CUpti_Activity{base}(\d+);", text, re.M)]
        assert max(forms) >= oldest
        for form in (n for n in forms if n >= oldest):
            structs[f"CUpti_Activity{base}{form}"] = FIELDS[base]
    theirs = said(tmp_path, [tmp_path, cupti, runtime], ["cupti_activity.h"], structs)
    ours_of = {"CUpti_CallbackData": CALLBACK} | {f"CUpti_Activity{b}": FIELDS[b] for b in RECORDS}
    # CUPTI_VERSION_OLDEST is ours; it is a macro and so not among CONSTANTS.
    ours = said(tmp_path, [ROOT / "otelgpu/inject"], ["cupti_abi.h"], ours_of)
    expected = {name: value for name, value in ours.items() if "." not in name}
    for struct, fields in structs.items():
        own = re.sub(r"\d+$", "", struct)
        expected |= {f"{struct}.{field}": ours[f"{own}.{field}"] for field in fields}
    assert theirs == expected
    assert len(CONSTANTS) >= 15


def test_every_counter_is_in_the_manual() -> None:
    manual = (ROOT / "docs/reference/cupti.md").read_text()
    in_c = re.findall(r"COUNTER\((\w+)\)", (ROOT / "otelgpu/inject/cupti.h").read_text())
    modules = [f"families/gpu/device_time/{name}" for name in ("join", "names", "device_work")]
    text = "".join((ROOT / f"otelgpu/{module}.py").read_text() for module in modules)
    in_python = re.findall(r'(?:_count\(|counters\[)"(\w+)"', text)
    assert len(in_c) == 20
    assert len(in_python) >= 9
    assert [name for name in in_c + in_python if f"`{name}`" not in manual] == []
