"""What the name of a CUDA function reports."""

from __future__ import annotations

import pytest

from otelgpu.families.gpu.cuda.functions import (
    CONTEXT_STEPS,
    PEER_ACCESS,
    Functions,
    api_level,
    canonical,
    context_step,
)
from tests.unit.families.records import btf


@pytest.mark.parametrize(
    ("exported", "name"),
    [
        ("cudaMalloc", "cudaMalloc"),
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("cuStreamSynchronize_ptsz", "cuStreamSynchronize"),
        ("cudaMemcpy_ptds", "cudaMemcpy"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
        ("cuCtxCreate_v4", "cuCtxCreate"),
        ("cuMemcpy3D_v2_ptds", "cuMemcpy3D"),
        ("__cudaRegisterFunction", "__cudaRegisterFunction"),
        ("cudaMemcpy_ptsz_v2", "cudaMemcpy_ptsz"),  # only the forms that there are
        ("_v2", ""),
    ],
)
def test_the_forms_of_a_function_have_one_name(exported: str, name: str) -> None:
    assert canonical(exported) == name


def test_a_set_of_functions_holds_their_forms() -> None:
    chosen = Functions("cuMemFree", "cudaFree")
    assert [name in chosen for name in ("cuMemFree_v2", "cudaFree", "cuMemFreeHost", 7)] == [
        True,
        True,
        False,
        False,
    ]


def test_every_function_that_is_observed_is_the_runtimes_or_the_drivers() -> None:
    names = [name.removeprefix("API_") for name in btf("cuda").enumerators("cuda_api")]
    levels = {name: api_level(name) for name in names if name not in ("NONE", "COUNT")}
    assert levels == {name: "driver" if name[2].isupper() else "runtime" for name in levels}
    assert set(levels.values()) == {"driver", "runtime"}


@pytest.mark.parametrize("name", sorted([*CONTEXT_STEPS, *PEER_ACCESS.names]))
def test_functions_that_are_reported_apart_are_observed(name: str) -> None:
    observed = {canonical(api.removeprefix("API_")) for api in btf("cuda").enumerators("cuda_api")}
    assert name in observed


def test_the_runtime_keeps_the_primary_context() -> None:
    assert [context_step(name) for name in ("cuMemAlloc_v2", "cuLaunchKernel")] == [None, None]
    assert (context_step("cudaMalloc") or context_step("cuInit")) is not None
