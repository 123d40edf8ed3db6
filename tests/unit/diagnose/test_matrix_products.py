"""FLOPs of matrix products, from hits of probes on cuBLAS and cuBLASLt, whatever they hold."""

from __future__ import annotations

from collections import Counter
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.diagnose.utilization import matrix_products as module
from otelgpu.diagnose.utilization.figures import figures
from otelgpu.diagnose.utilization.findings import Loop
from otelgpu.diagnose.utilization.matrix_products import UNKNOWN, MatrixProducts, matrix_products
from otelgpu.families.user_probes.probe_file import parse
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute, SpanColumns, Text
from tests.rig.examples import examples
from tests.unit.diagnose.gpu_jobs import PEAK, device
from tests.unit.export.builders import spans as made_spans

Hit = tuple[str, int, int, tuple[int, ...]]  # function, begin, end, m n k batches type: -1: absent
VALUES = ("m", "n", "k", "batches", "type")
BF16 = 14


def spans(*hits: Hit, pid: int | str = 7, tid: int = 7, scope: str = "otelgpu.probe") -> SpanColumns:
    names = list(dict.fromkeys(name for name, *_ in hits))
    table = np.array([(*values, *[-1] * 5)[:5] for *_, values in hits], dtype=np.int64)
    arguments = [
        Attribute(key=f"otelgpu.probe.argument.{name}", values=table[:, place], present=table[:, place] != -1)
        for place, name in enumerate(VALUES)
    ]
    return made_spans(
        len(hits),
        resource=resource({"process.pid": pid}),
        scope=scope,
        start_unix_ns=np.array([begin for _, begin, _, _ in hits], dtype=np.uint64),
        end_unix_ns=np.array([end for _, _, end, _ in hits], dtype=np.uint64),
        name=Text(codes=np.array([names.index(name) for name, *_ in hits]), table=tuple(names)),
        attributes=(Attribute(key="thread.id", values=np.full(len(hits), tid)), *arguments),
    )


def of(*batches: SpanColumns) -> MatrixProducts:
    return matrix_products(batches, Counter())


@pytest.mark.parametrize(
    ("function", "values", "flops", "dtype"),
    [
        ("cublasSgemm_v2", (2, 3, 4), 48, "tf32"),
        ("cublasDgemm_v2", (2, 3, 4), 48, "fp64"),
        ("cublasHgemm", (2, 3, 4), 48, "fp16"),
        ("cublasCgemm_v2", (2, 3, 4), 192, "tf32"),
        ("cublasZgemmBatched", (2, 3, 4, 5), 960, "fp64"),
        ("cublasSgemmStridedBatched", (2, 3, 4, 5), 240, "tf32"),
        ("cublasGemmEx", (2, 3, 4, -1, BF16), 48, "bf16"),
        ("cublasSgemmEx", (2, 3, 4, -1, 2), 48, "fp16"),
        ("cublasGemmEx", (2, 3, 4, -1, 99), 48, UNKNOWN),
        ("cublasGemmStridedBatchedEx", (2, 3, 4, 10), 480, UNKNOWN),
    ],
)
def test_a_product_takes_two_flops_for_each_multiplication(
    function: str, values: tuple[int, ...], flops: float, dtype: str
) -> None:
    found = of(spans((function, 10, 20, values)))
    assert (found.flops, found.calls, found.unknown) == ({dtype: flops}, 1, 0)


def test_every_function_that_is_probed_is_known() -> None:
    file = resources.files("otelgpu.diagnose.utilization").joinpath("matrix_probes.json")
    probes = parse(file.read_text(), "matrix_probes.json")
    names = [probe.name for probe in probes]
    assert len(names) == 22 and "cublasGemmEx" in names
    for probe in probes:
        given = {each.name for each in probe.arguments}
        assert given <= set(VALUES)
        if "Lt" not in probe.name:
            assert {"m", "n", "k"} <= given
            assert of(spans((probe.name, 1, 2, (2, 2, 2)))).calls == 1


def layout(at: int, rows: int, columns_: int, dtype: int = BF16) -> Hit:
    return "cublasLtMatrixLayoutCreate", at, at + 1, (rows, columns_, -1, -1, dtype)


def test_layouts_give_the_product_whichever_operand_is_transposed() -> None:
    product = ("cublasLtMatmul", 40, 50, ())
    for a in ((2, 4), (4, 2)):
        for b in ((4, 3), (3, 4)):
            found = of(spans(layout(10, *a), layout(20, *b), layout(30, 2, 3), product))
            assert found.flops == {"bf16": pytest.approx(48)}
    four = of(spans(layout(10, 2, 4), layout(20, 4, 3), layout(30, 2, 3), layout(35, 2, 3), product))
    assert four.flops == {"bf16": pytest.approx(48)}


def test_a_product_whose_layouts_were_not_seen_is_counted_as_unknown() -> None:
    made = (layout(10, 2, 4), layout(20, 4, 3), layout(30, 2, 3), ("cublasLtMatmul", 40, 50, ()))
    again = ("cublasLtMatmul", 60, 70, ())
    two = (layout(80, 2, 4), layout(81, 4, 3), ("cublasLtMatmul", 90, 95, ()))
    found = of(spans(*made, again, *two))
    assert (found.calls, found.unknown) == (1, 2)


def test_what_one_call_of_cublas_calls_itself_is_one_product() -> None:
    found = of(spans(("cublasLtMatmul", 12, 18, ()), ("cublasGemmEx", 10, 20, (2, 3, 4))))
    assert (found.calls, found.unknown) == (1, 0)


def test_threads_do_not_share_layouts() -> None:
    mine = spans(layout(10, 2, 4), layout(20, 4, 3), ("cublasLtMatmul", 40, 50, ()))
    assert of(mine, spans(layout(30, 2, 3), tid=8)).unknown == 1


def test_other_spans_and_processes_without_a_number_are_passed_over() -> None:
    hit = ("cublasGemmEx", 10, 20, (2, 3, 4))
    assert (
        of(spans(hit, scope="otelgpu.cuda"), spans(hit, pid="x"), spans(("own", 1, 2, (2, 3, 4)))).calls == 0
    )


def test_hits_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HITS", 1)
    hit, rejected = ("cublasGemmEx", 10, 20, (2, 3, 4)), Counter[str]()
    assert matrix_products([spans(hit), spans(hit, hit)], rejected).calls == 1
    assert rejected == {"products_beyond_limit": 2}


_WORDS = st.integers(-(1 << 63), (1 << 63) - 1)
_NAMES = st.sampled_from(
    ("cublasGemmEx", "cublasZgemmBatched", "cublasLtMatrixLayoutCreate", "cublasLtMatmul")
)


@examples(100)
@given(
    st.lists(st.tuples(_NAMES, st.integers(0, 50), st.integers(0, 50), st.tuples(*[_WORDS] * 5)), min_size=1)
)
def test_whatever_a_program_calls_with_the_sum_is_a_number(hits: list[Hit]) -> None:
    found = of(spans(*hits))
    assert all(np.isfinite(flops) and flops > 0 for flops in found.flops.values())
    assert found.calls + found.unknown <= len(hits)


# -- the figure ----------------------------------------------------------------------------------------------


def shown(products: MatrixProducts, loop: Loop | None, *, known: bool = True) -> dict[str, object]:
    peak = PEAK if known else None
    return {each.name: each for each in figures(loop, 0.0, [device()] * 2, peak, None, products)}


def test_the_share_of_the_peak_is_of_all_devices_and_a_lower_bound(loop: Loop) -> None:
    found = shown(MatrixProducts(flops={"bf16": 4e14}, calls=1200, unknown=3), loop)
    seconds = loop.length_ns / 1e9
    assert found["mfu"].value == pytest.approx(0.4 / (2 * seconds))  # type: ignore[attr-defined]
    assert found["matrix_flops_per_second"].value == pytest.approx(4e14 / seconds)  # type: ignore[attr-defined]
    text = found["mfu"].text  # type: ignore[attr-defined]
    assert text.startswith("at least: from 1,200 calls of cuBLAS, 3 more without shapes; ")
    assert "what other kernels did is not counted" in text


def test_of_a_type_without_a_peak_that_of_bf16_is_taken() -> None:
    assert MatrixProducts(flops={"fp64": 5e12, UNKNOWN: 5e12}).seconds_at({"bf16": 10, "fp16": 1}) == 1.0
    assert MatrixProducts(flops={"fp64": 5e12}).seconds_at({"fp16": 5, "fp32": 1}) == 1.0


def test_without_calls_or_a_peak_or_a_loop_it_says_what_is_missing(loop: Loop) -> None:
    one = MatrixProducts(flops={"bf16": 4e14}, calls=1)
    for products, where, known, said in (
        (MatrixProducts(unknown=2), loop, True, "no call of cuBLAS"),
        (one, None, True, "no call of cuBLAS"),
        (one, loop, False, "no peak figures of 'NVIDIA Test'"),
    ):
        found = shown(products, where, known=known)["mfu"]
        assert found.value is None and said in found.text  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def loop() -> Loop:
    from otelgpu.diagnose.utilization.diagnosis import diagnose
    from tests.unit.diagnose.gpu_jobs import GpuTimeline, job

    timeline = GpuTimeline()
    for _ in range(40):
        timeline.launch()
        timeline.synchronize(40)
    _, judged = diagnose(job(timeline))
    assert judged[0].loop is not None
    return judged[0].loop
