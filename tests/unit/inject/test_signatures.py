"""Every function that the library stands in for has arguments that its one shape of wrapper passes on.

Six integer registers and STACK_WORDS words of stack, and no floating point: checked against CUDA's own headers.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pytest

from tests.rig.fakes import ROOT

CALLS = ROOT / "bpf" / "cuda" / "calls.h"
INJECT = ROOT / "otelgpu" / "inject" / "inject.h"
HEADERS = [
    Path(sysconfig.get_path("purelib"), "nvidia", toolkit, "include", name)
    for toolkit in ("cuda_runtime", "cu13")
    for name in ("cuda_runtime_api.h", "cuda.h")
]
REGISTERS = 6
# By value: how many words. What is longer than two goes to the stack (System V AMD64 ABI, 3.2.3).
STRUCT_WORDS = {
    "dim3": 2,
    "cudaExtent": 3,
    "cudaPos": 3,
    "cudaPitchedPtr": 4,
    "cudaIpcMemHandle_t": 8,
    "cudaIpcEventHandle_t": 8,
    "CUipcMemHandle": 8,
    "CUipcEventHandle": 8,
}


def stack_words(arguments: list[str]) -> int:
    registers = stack = 0
    for argument in arguments:
        by_value = "*" not in argument and "[" not in argument
        words = max((n for name, n in STRUCT_WORDS.items() if by_value and re.search(rf"\b{name}\b", argument)),
                    default=1)  # fmt: skip
        if words <= 2 and registers + words <= REGISTERS:
            registers += words
        else:
            stack += words
    return stack


@pytest.mark.slow
@pytest.mark.parametrize("header", HEADERS, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_every_argument_is_passed_on(header: Path) -> None:
    if not header.exists():
        pytest.skip(
            f"{header} is not there: nvidia-cuda-runtime-cu12 or nvidia-cuda-runtime is not installed"
        )
    text = re.sub(r"/\*.*?\*/", "", header.read_text(errors="replace"), flags=re.DOTALL)
    room = int(re.findall(r"#define STACK_WORDS\s+(\d+)", INJECT.read_text())[0])
    checked = 0
    for name in set(re.findall(r"\bCALL\((\w+),", CALLS.read_text())):
        for parameters in re.findall(rf"\b{name}\s*\(([^;{{}}]*?)\)\s*;", text):
            arguments = [each.strip() for each in re.sub(r"__dv\(.*?\)", "", parameters).split(",")]
            assert stack_words(arguments) <= room, name
            floating = [
                each for each in arguments if re.search(r"\b(float|double)\b", each) and "*" not in each
            ]
            assert floating == [], name
            checked += 1
    assert checked > 50


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["void **p", "size_t n"], 0),
        (["void *f", "dim3 grid", "dim3 block", "void **args", "size_t shared", "cudaStream_t s"], 2),
        (["void **p", "cudaIpcMemHandle_t handle", "unsigned flags"], 8),
        (["struct cudaPitchedPtr p", "int value", "struct cudaExtent e", "cudaStream_t s"], 7),
    ],
)
def test_words_are_counted_as_the_abi_does(arguments: list[str], words: int) -> None:
    assert stack_words(arguments) == words
