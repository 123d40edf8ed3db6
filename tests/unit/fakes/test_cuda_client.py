"""The compiled client of examples/cuda_client makes exactly the calls that it says."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.rig import build_fakes, fake_cudart_path, read_ledger, run_cuda_client, start_cuda_client
from tests.unit.fakes.fake import REPEATABLE, real_cudart


class TestCudaClient:
    def test_23_calls_are_exactly_23_of_each(self, tmp_path: Path) -> None:
        ledger = tmp_path / "ledger.jsonl"
        result = run_cuda_client(
            calls=23,
            functions=("all",),
            threads=3,
            exit_code=7,
            times=True,
            env={"FAKE_CUDART_LEDGER": str(ledger)},
        )
        assert {function: result.calls[function] for function in REPEATABLE} == dict.fromkeys(REPEATABLE, 23)
        assert read_ledger(ledger) == Counter(result.calls)
        assert Counter(function for function, _ in result.times) == Counter(result.calls)
        assert (result.failures, result.exit_code) == ({}, 7)

    def test_a_handle_launch_reaches_cuda_launch_kernel(self, tmp_path: Path) -> None:
        ledger = tmp_path / "ledger.jsonl"
        result = run_cuda_client(launch="handle", env={"FAKE_CUDART_LEDGER": str(ledger)})
        assert result.calls["__cudaLaunchKernel"] == 23
        assert read_ledger(ledger)["cudaLaunchKernel"] == 23

    def test_waits_before_its_first_call_when_started(self) -> None:
        with start_cuda_client(calls=3) as client:
            attached_ns = time.monotonic_ns()
            result = client.finish()
        assert result.pid == client.pid
        assert result.start_ns > attached_ns and result.calls["cudaLaunchKernel"] == 3

    def test_the_late_variant_has_no_library_until_it_opens_it(self) -> None:
        with start_cuda_client(late_ms=50) as client:
            assert "libcudart" not in Path(f"/proc/{client.pid}/maps").read_text()
            started_ns = time.monotonic_ns()
            result = client.finish()
        assert result.opened_ns - started_ns >= 50_000_000
        assert result.library == str(fake_cudart_path()) and result.calls["cudaLaunchKernel"] == 23

    def test_counts_its_failing_calls_into_the_real_library(self) -> None:
        result = run_cuda_client(calls=5, functions=("cudaMalloc", "cudaFree"), library=real_cudart())
        assert Path(result.library) == real_cudart().resolve()
        assert (result.calls["cudaMalloc"], result.calls["cudaFree"]) == (5, 5)

    def test_its_kernels_keep_their_names(self) -> None:
        with (build_fakes() / "cuda_client").open("rb") as file:
            symbols = ELFFile(file).get_section_by_name(".symtab")
            assert isinstance(symbols, SymbolTableSection)
            names = {symbol.name for symbol in symbols.iter_symbols()}
        assert {"_Z9flash_fwdPKfPfi", "_Z8rms_normIfLi128EEvPKT_PS0_i"} <= names
