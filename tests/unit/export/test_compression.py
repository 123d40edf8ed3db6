"""Bodies are what their Content-Encoding says, with and without the libraries that make them sooner."""

from __future__ import annotations

import gzip
import sys
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.export.base import ExportError
from otelgpu.export.otlp.compression import Compression, compressor
from tests.unit.export.test_settings import fault

BODIES = st.binary(max_size=3000) | st.binary(min_size=1, max_size=20).map(lambda part: part * 1000)


@given(BODIES)
def test_a_body_of_any_content_comes_out_again(body: bytes) -> None:
    assert compressor(Compression.NONE)(body) == body
    assert gzip.decompress(compressor(Compression.GZIP)(body)) == body
    assert zstandard.ZstdDecompressor().decompress(compressor(Compression.ZSTD)(body)) == body


def test_gzip_is_isal_s_where_that_is_installed() -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    body = b"0123456789" * 1000
    made = compressor(Compression.GZIP)(body)
    assert made[10:-8] == isal_zlib.compress(body, 2, wbits=-zlib.MAX_WBITS)


def test_without_isal_gzip_is_zlib_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    assert compressor(Compression.GZIP)(b"body" * 100) == gzip.compress(b"body" * 100, 3, mtime=0)


def test_without_zstandard_zstd_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ExportError, match="zstandard") as caught:
        compressor(Compression.ZSTD)
    assert "pip install" in (caught.value.hint or "")


def test_grpc_has_no_zstd() -> None:
    error = fault(PROTOCOL="grpc", COMPRESSION="zstd")
    assert "'zstd' is not known" in str(error)
    assert "zstd" not in (error.hint or "")
