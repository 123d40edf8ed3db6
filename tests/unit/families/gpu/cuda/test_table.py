"""The table of observed functions, as it was compiled, against what real libraries export."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from otelgpu.kernel.loader import read_image
from otelgpu.model.operations import DEVICE_KINDS, Memory
from tools.cuda_calls import calls

EXPORTS = Path(__file__).with_name("libcudart_exports.txt")
# Queries, what moves nothing, and what jumps to a function that is observed.
LEFT_OUT = {
    "__cudaLaunchKernel",
    "__cudaLaunchKernel_ptsz",
    "cudaEventCreateFromEGLSync",
    "cudaEventElapsedTime",
    "cudaEventElapsedTime_v2",
    "cudaEventQuery",
    "cudaGraphDestroyNode",
    "cudaLaunchHostFunc",
    "cudaLaunchHostFunc_ptsz",
    "cudaLaunchHostFunc_v2",
    "cudaLaunchHostFunc_v2_ptsz",
}


def exported() -> dict[str, list[str]]:
    lines = (line.split() for line in EXPORTS.read_text().splitlines() if not line.startswith("#"))
    return {name: releases for name, *releases in lines}


def test_every_runtime_function_of_the_table_is_in_a_real_library() -> None:
    assert {call.symbol for call in calls() if call.library == "libcudart"} <= exported().keys()


def test_what_real_libraries_export_and_the_table_lacks_is_left_out_on_purpose() -> None:
    assert exported().keys() - {call.symbol for call in calls()} == LEFT_OUT


def test_per_thread_forms_are_read_as_their_ordinary_ones() -> None:
    by_symbol = {call.symbol: call for call in calls()}
    forms = [symbol for symbol in by_symbol if symbol.endswith(("_ptsz", "_ptds"))]
    assert len(forms) > 80
    for symbol in forms:
        form, plain = by_symbol[symbol], by_symbol[symbol[:-5]]
        assert (form.kind, form.memory, form.shape, form.slots) == (
            plain.kind,
            plain.memory,
            plain.shape,
            plain.slots,
        )


def test_kinds_and_memories_are_numbered_as_the_model_numbers_them() -> None:
    btf = read_image("cuda").btf
    kinds = btf.enumerators("cuda_kind")
    assert {kind.name: kind.value for kind in DEVICE_KINDS}.items() <= {
        name.removeprefix("CUDA_"): number for name, number in kinds.items()
    }.items()
    assert {
        name.removeprefix("CUDA_MEMORY_"): number for name, number in btf.enumerators("cuda_memory").items()
    } == {memory.name: memory.value for memory in Memory}


def test_what_gives_or_takes_memory_says_which() -> None:
    silent = [c.symbol for c in calls() if c.kind in ("ALLOCATION", "FREE", "MAPPING") and c.memory == "NONE"]
    assert silent == []


def test_only_what_returns_nothing_of_use_is_probed_at_the_entry_alone() -> None:
    assert {call.kind for call in calls() if call.entry_only} == {"EVENT", "REGISTRATION"}


def test_numbers_of_functions_fit_a_record() -> None:
    numbers = read_image("cuda").btf.enumerators("cuda_api").values()
    assert max(numbers) < np.iinfo(np.uint16).max
