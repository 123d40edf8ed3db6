"""What parses bytes that others wrote, each as a function that raises nothing but what it says it does.

A target takes any bytes. Its seeds are valid input: what a fuzzer starts from, and what a test without one runs.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec

from otelgpu.diagnose.collective_calls import Gatherer
from otelgpu.diagnose.collective_report import analyze
from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.families.requests.http2.frame_search import FrameSearch
from otelgpu.families.requests.http2.parser import MAX_OPEN, Http2
from otelgpu.families.requests.llm.reader import GenerationReader, grpc_reader, http_reader, realtime_reader
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts
from otelgpu.families.requests.zmtp.parser import ZmtpParser, recognise
from otelgpu.model.exchange import Role
from otelgpu.otlp_json.profile_reader import read_profile_lines
from otelgpu.otlp_json.reader import Reader
from otelgpu.processes.go_functions import go_functions
from otelgpu.processes.maps import parse_maps
from otelgpu.render.pprof import pprof
from otelgpu.render.pprof_reader import read_pprof
from otelgpu.symbols.cubin import CubinError, kernel_names, ptx_entries
from otelgpu.symbols.debuginfo import embedded_symbols
from otelgpu.symbols.demangle import demangle, short_name
from otelgpu.symbols.fatbin import read_names
from otelgpu.symbols.kernel_symbols import KernelSymbols
from otelgpu.symbols.perf_map import PerfMap
from otelgpu.symbols.registrations import read_registrations
from otelgpu.view.batch import Batch
from tests.fuzz import connections, hosts, records, workers
from tests.rig.unwind_rows import read_unwind_table, unwind_table
from tests.unit.elf.go_builders import FUNCTION, Base, go_elf
from tests.unit.families.profiles.python.frames import Frames, advance, cfa_offset, saved
from tests.unit.render.profile_columns import profile

_DATA = Path(__file__).parents[1] / "unit" / "symbols" / "data"
_MAX_BYTES = 1 << 20  # decompressed: enough for what a fuzzer makes, and quick


@dataclass(frozen=True)
class Target:
    """``run`` on ``seeds``, files or bytes, or what makes them."""

    run: Callable[[bytes], None]
    seeds: tuple[Path | bytes, ...] | Callable[[], tuple[bytes, ...]]

    def read_seeds(self) -> list[bytes]:
        seeds = self.seeds() if callable(self.seeds) else self.seeds
        return [seed.read_bytes() if isinstance(seed, Path) else seed for seed in seeds]


def fatbin(data: bytes) -> None:
    names = read_names(memoryview(data), max_bytes=_MAX_BYTES).names
    assert all(len(name) <= 4096 for name in names)


def otlp_json(data: bytes) -> None:
    """A file of lines, through everything that reads some."""
    lines = data.split(b"\n")
    batch, gatherer = Batch(Reader()), Gatherer()
    batch.take(lines)
    msgspec.json.encode(batch.columns())
    gatherer.take(lines)
    analyze(gatherer.columns(), gatherer.skips)
    for batch_read in read_profile_lines(lines).profiles:
        assert batch_read.stack.max() < len(batch_read.stacks)


def read_any_pprof(data: bytes) -> None:
    """A profile that some tool wrote; not compressed, for a fuzzer does not get through that."""
    if data[:2] == b"\x1f\x8b":
        return
    try:
        batches = read_pprof(data)
    except ValueError:
        return
    for batch in batches:
        assert batch.stack.max() < len(batch.stacks)


def cubin(data: bytes) -> None:
    ptx_entries(data)
    try:
        names = kernel_names(data)
    except CubinError:
        return
    assert all(len(name) <= 4096 for name in names)


def eh_frame(data: bytes) -> None:
    """A file, or a section alone."""
    try:
        table = (
            read_unwind_table(ElfImage(data))
            if data[:4] == b"\x7fELF"
            else unwind_table(data or b"\0", 0x2000)
        )
    except ElfError:
        return
    assert (table.rows["pc"][1:] >= table.rows["pc"][:-1]).all()


def perf_map(data: bytes) -> None:
    """A file that a JIT compiler wrote, and an address: its first eight bytes."""
    name = PerfMap(data[8:]).name_at(int.from_bytes(data[:8], "little"))
    assert name is None or (name.isprintable() and 0 < len(name) <= 1024)


def kernel_symbols(data: bytes) -> None:
    found = KernelSymbols(data[8:]).name_at(int.from_bytes(data[:8], "little"))
    assert found is None or len(found[0]) <= 512


def elf(data: bytes) -> None:
    try:
        image = ElfImage(data)
        offsets = image.function_offsets(["main", "plain", "cudaLaunchKernel"])
        for place in (0, 0x1000, len(data) - 1, *offsets.values()):
            image.symbol_at(place)
            image.address_of(place)
            image.constant_text(place)
        image.code()
        embedded_symbols(image)
        image.add_symbols(ElfImage(data, symbols_only=True))
        image.symbol_at(0x1000)
    except ElfError:
        pass


_GO_FUNCTIONS = ("crypto/tls.(*Conn).Read", "crypto/tls.(*Conn).Write")


def go_table(data: bytes) -> None:
    """The functions of a Go program, and the code of two."""
    try:
        image = ElfImage(data)
    except ElfError:
        return
    functions = go_functions(image, _GO_FUNCTIONS)
    for function in functions.found.values():
        assert all(0 <= function.entry <= place < len(data) for place in function.returns)
    assert not (functions.found and functions.unknown)


def registrations(data: bytes) -> None:
    try:
        image = ElfImage(data)
        found = read_registrations(image)
    except ElfError:
        return
    names = (image.constant_text(address) or b"" for address in found.stubs.values())
    assert all(name.decode("ascii").isprintable() for name in names)


def names(data: bytes) -> None:
    text = data.decode("utf-8", "backslashreplace")
    full = demangle(text)
    assert len(full) <= 4096
    assert short_name(full) or not full


def maps(data: bytes) -> None:
    for mapping in parse_maps(data):
        mapping.file_offset(mapping.start)


_ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
_BUDGET_BYTES = 1 << 16


def zmtp(data: bytes) -> None:
    """Found open, and from the beginning; a hole in the middle, as long as the last byte says."""
    hole = data[-1] if data else 0
    half = len(data) // 2
    for late in (False, True):
        recognise(data, True, late)
        output = ParserOutput(_BUDGET_BYTES)
        parser = ZmtpParser(ConnectionFacts(identity=1, role=Role.CLIENT, late=late), output)
        calls = iter(Call(number, number, 0, 1, 1, 1, None) for number in range(4))
        if not late:
            parser.feed(next(calls), _ZMTP_GREETING, 0, from_client=True)
        parser.feed(next(calls), data[:half], 0, from_client=True)
        parser.gap(next(calls), hole, half, from_client=True)
        parser.feed(next(calls), data[half:], half + hole, from_client=True)
        parser.close(0)
        assert output.reserve(_BUDGET_BYTES)


def _zmtp_message(*bodies: object) -> bytes:
    frames = [body if isinstance(body, bytes) else msgspec.msgpack.encode(body) for body in bodies]
    last = len(frames) - 1
    return b"".join(
        bytes([2 | (at < last)]) + len(frame).to_bytes(8, "big") + frame for at, frame in enumerate(frames)
    )


_ZMTP_REQUEST = ["r-1", [1, 2], None, {}, None, 1.5, None, None, None, None, None, 0, 0, 0]

_LLM_PATHS = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/generate",
    "/generate_stream",
    "/completion",
    "/completions",
    "/api/chat",
    "/inference/v1/generate",
    "/v2/models/m/generate_stream",
    "/v2/models/m/infer",
    "/v1/models/g:streamGenerateContent",
)


class _Head:
    """A head with the headers that matter to a reader."""

    status = 200

    def __init__(self, kind: bytes, encoding: bytes) -> None:
        self._values = {b"content-type": kind, b"content-encoding": encoding}

    def last(self, name: bytes) -> bytes:
        return self._values.get(name, b"")

    def all(self, name: bytes) -> list[bytes]:
        return [value for value in (self.last(name),) if value]


def llm(data: bytes) -> None:
    """The first byte says which API, the second how it is sent; the rest is the request and the response."""
    api, way, body = data[:1], data[1:2] or b"\0", data[2:]
    kind = (b"application/json", b"text/event-stream", b"application/x-ndjson")[way[0] % 3]
    encoding = (b"", b"gzip", b"deflate")[way[0] // 3 % 3]
    output = ParserOutput(_BUDGET_BYTES, capture_content=bool(way[0] & 128))
    reader = _llm_reader(api[0] if api else 0, output)
    half = len(body) // 2
    if reader.request_head(_Head(b"application/json", encoding)):
        reader.request_body(body)
    reader.request_ended()
    reader.request_message(body, 1)
    if reader.response_head(_Head(kind, encoding)):
        reader.response_body(body[:half], 2)
        if way[0] & 64:
            reader.response_gap(3)
        reader.response_body(body[half:], 4)
    reader.response_message(body, 5)
    reader.response_ended()
    reported = reader.generation()
    assert (
        reported is None
        or len(reported.request_model + reported.response_model + reported.response_id) <= 3 * 256
    )
    assert output.reserve(_BUDGET_BYTES)


def _llm_reader(number: int, output: ParserOutput) -> GenerationReader:
    number %= len(_LLM_PATHS) + 3
    if number < len(_LLM_PATHS):
        reader = http_reader("POST", _LLM_PATHS[number], output)
    elif number == len(_LLM_PATHS):
        reader = realtime_reader("/v1/realtime", output)
    else:
        name = "ModelInfer" if number & 1 else "ModelStreamInfer"
        reader = grpc_reader(f"inference.GRPCInferenceService/{name}", output)
    assert reader is not None
    return reader


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP2_PIECE = struct.Struct("<BB")  # direction and kind of a chunk, then its length


def http2(data: bytes) -> None:
    """The first byte says which end looks, and since when; then come chunks of either direction, or holes."""
    output = ParserOutput(_BUDGET_BYTES)
    way = data[0] if data else 0
    facts = ConnectionFacts(identity=1, role=Role(1 + way % 2), late=bool(way & 2))
    parser = Http2(facts, output)
    offsets = {True: 0, False: 0}
    position, time_ns = 1, 0
    while position + _HTTP2_PIECE.size <= len(data) and not parser.ignored:
        kind, size = _HTTP2_PIECE.unpack_from(data, position)
        position += _HTTP2_PIECE.size
        time_ns += 1000
        call = Call(time_ns, time_ns + 500, 0, 1, 2, 3, None)
        from_client = bool(kind & 1)
        if kind & 2:
            parser.gap(call, size, offsets[from_client], from_client=from_client)
        else:
            chunk = data[position : position + size]
            position += size
            parser.feed(call, chunk, offsets[from_client], from_client=from_client)
            size = len(chunk)
        offsets[from_client] += size
        assert len(parser.streams) <= MAX_OPEN
    parser.close(time_ns + 1000)
    assert not parser.busy and output.reserve(_BUDGET_BYTES)
    assert len({exchange.key for exchange in output.exchanges}) == len(output.exchanges)


def http2_late(data: bytes) -> None:
    """Found open, both ways, in calls of as many bytes as the first says; frames are found by what they look like."""
    size = 1 + (data[0] if data else 0)
    output = ParserOutput(_BUDGET_BYTES)
    parser = Http2(ConnectionFacts(identity=1, role=Role.SERVER, late=True), output)
    search = FrameSearch(from_client=True)
    for start in range(1, len(data), size):
        chunk = data[start : start + size]
        found = search.feed(chunk, start, fresh=True)
        assert found is None or 0 <= found < len(chunk)
        for from_client in (True, False):
            call = Call(start, start + 1, 0, 1, 2, 3, None)
            parser.feed(call, chunk, start - 1, from_client=from_client)
        assert len(parser.streams) <= MAX_OPEN
    parser.close(len(data))
    assert not parser.busy and output.reserve(_BUDGET_BYTES)


def _http2_pieces(way: int, *chunks: tuple[int, bytes]) -> bytes:
    return bytes((way,)) + b"".join(_HTTP2_PIECE.pack(kind, len(data)) + data for kind, data in chunks)


def _http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


_GRPC_HEADERS = b"\x83\x86\x44\x04/a/b\x5f\x10application/grpc"

TARGETS = {
    "heads": Target(connections.heads, connections.HEAD_SEEDS),
    "connection": Target(connections.connection, connections.CONNECTION_SEEDS),
    "websocket": Target(connections.websocket, connections.WEBSOCKET_SEEDS),
    "collectives": Target(records.collectives, records.collective_seeds),
    "verbs": Target(records.verbs, records.verbs_seeds),
    "kernel_log": Target(hosts.kernel_log, hosts.KERNEL_LOG_SEEDS),
    "netlink": Target(hosts.netlink, hosts.NETLINK_SEEDS),
    "worker_answers": Target(workers.answers, workers.answer_seeds),
    "mounts": Target(workers.mounts, workers.MOUNT_SEEDS),
    "communicator": Target(hosts.communicator, hosts.COMMUNICATOR_SEEDS),
    "debug_info": Target(hosts.debug_info, hosts.debug_info_seeds),
    "http2": Target(
        http2,
        (
            _http2_pieces(
                0,
                (1, _PREFACE + _http2_frame(4, 0, 0, bytes(6)) + _http2_frame(1, 4, 1, _GRPC_HEADERS)),
                (1, _http2_frame(0, 9, 1, b"\2\0\0\0\0\1x\0\0")),
                (0, _http2_frame(4, 0, 0) + _http2_frame(1, 4, 1, b"\x88\x5f\x10application/grpc")),
                (
                    0,
                    _http2_frame(0, 0, 1, b"\0\0\0\0\1y") + _http2_frame(1, 5, 1, b"\0\x0bgrpc-status\1\x30"),
                ),
            ),
            _http2_pieces(
                3,
                (1, _http2_frame(1, 1, 3, b"\xbe") + _http2_frame(9, 4, 3, b"\x82\xbf")),
                (0, _http2_frame(5, 4, 3, b"\0\0\0\2\x82") + _http2_frame(1, 4, 3, b"\x48\x03\x32\x30\x30")),
                (0, _http2_frame(3, 0, 3, bytes(4)) + _http2_frame(7, 0, 0, bytes(8))),
            ),
        ),
    ),
    "http2_late": Target(
        http2_late,
        (
            b"\xffthe rest of a frame"
            + _http2_frame(1, 4, 3, b"\xbe\x83\x86\xc0")
            + _http2_frame(0, 1, 3, b'{"model":"m","messages":[1]}')
            + _http2_frame(6, 0, 0, bytes(8))
            + _http2_frame(1, 4, 3, b"\x88\xbf")
            + _http2_frame(
                0, 1, 3, b'data: {"id":"c","model":"m","choices":[{"delta":{"content":"x"}}]}\n\n'
            ),
            b"\x20"
            + _http2_frame(1, 4, 5, b"\xbe\x83\xbf")
            + _http2_frame(0, 1, 5, b"\0\0\0\0\5\x0a\1m\x2a\0") * 3,
        ),
    ),
    "fatbin": Target(fatbin, tuple(sorted(_DATA.glob("*.fatbin")))),
    "cubin": Target(cubin, (_DATA / "kernels.cubin", b".version 8.0\n.visible .entry k(\n")),
    "eh_frame": Target(
        eh_frame,
        (
            _DATA / "stripped.program",
            Frames()
            .shared()
            .function(0x1000, 64, advance(1) + cfa_offset(16) + saved(6, 2) + b"\x0a\x0b")
            .function(0x1100, 64, b"\x0f\x03\x76\x78\x06\x10\x06\x02\x76\0" + advance(3) + b"\x07\x10")
            .content,
        ),
    ),
    "perf_map": Target(
        perf_map,
        (
            bytes((0, 16, 0, 0, 0, 0, 0, 0))
            + b"1000 80 LazyCompile:*fib /app/fib.js:1\n1040 10 py::f:/app/a.py\n",
            bytes(8) + b"0 1 a\n-1 0 b\nffffffffffffffff 1 c",
        ),
    ),
    "kernel_symbols": Target(
        kernel_symbols,
        (
            bytes.fromhex("10000081ffffffff")
            + b"ffffffff81000000 T _stext\nffffffff81000100 t f\t[nvidia_uvm]\n0000000000000000 t g\n",
        ),
    ),
    "elf": Target(elf, (_DATA / "stripped.program",)),
    "go_table": Target(
        go_table, tuple(go_elf(dict.fromkeys(_GO_FUNCTIONS, FUNCTION), base) for base in get_args(Base))
    ),
    "registrations": Target(registrations, (_DATA / "stripped.program",)),
    "names": Target(
        names,
        (
            b"_ZN5model5scaleILi3EfEEvPT0_",
            b"_Z21__device_stub__Z1fPfS_",
            b"_RINvC1a1fDNtC1b4Workp4ItemmEL_ThEASbj3_QeFG_RL0_hEuKln5_E",
            b"__nv_static_25__f05f2698_4_k_cu_c1bc4f3f__Z5quietPd",
            b"void f<(a < b)>::operator()(int (*)(char)) const::{lambda(auto:1)#2}::operator()<int>(int)",
        ),
    ),
    "llm": Target(
        llm,
        (
            b'\x00\x01data: {"id":"c","model":"m","choices":[{"delta":{"content":"x"}}],"usage":{}}\n\n',
            b'\x01\x81data: {"type":"response.output_text.delta","delta":"x"}\n\n',
            b'\x02\x00{"type":"message","id":"i","usage":{"input_tokens":1,"cache_read_input_tokens":2}}',
            b'\x04\x41data: {"text":"x","meta_info":{"completion_tokens":1,"finish_reason":{"type":"stop"}}}\n\n',
            b'\x05\x01data: {"token":{"text":"x"},"details":{"generated_tokens":1}}\n\n',
            b'\x06\x00{"content":"x","stop":true,"timings":{"prompt_ms":1.5}}',
            b'\x08\x02{"model":"m","message":{"content":"x"},"done":true,"eval_count":1}\n',
            b'\x0c\x00[{"candidates":[{"content":{"parts":[{"text":"x"}]}}],"usageMetadata":{}}]',
            b'\x0d\x00{"type":"response.done","response":{"usage":{"output_tokens":1}}}',
            b"\x0e\x00\x12\x07\x0a\x01m\x1a\x017\x2a\x00",
            b"\x00\x04" + gzip.compress(b"data: {}\n\n", mtime=0),
        ),
    ),
    "zmtp": Target(
        zmtp,
        (
            _zmtp_message(
                b"\0", [*_ZMTP_REQUEST, {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, False, "r"]
            ),
            _zmtp_message(
                [0, [["r-1", [5]], ["r-2", [6], None, None, None, 1]], {"num_running_reqs": 2}, 1.5]
            ),
            _zmtp_message(["TokenizedGenerateReqInput", "r-1", None, "text", None]),
            _zmtp_message(["BatchTokenIDOutput", ["r-1"], None, [None], *[None] * 9, [3]]),
        ),
    ),
    "otlp_json": Target(
        otlp_json,
        (
            b'{"resourceSpans":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"a"}}]},'
            b'"scopeSpans":[{"scope":{"name":"otelgpu.nccl"},"spans":[{"traceId":"' + b"0" * 31 + b'1",'
            b'"spanId":"AAAAAAAAAAE=","startTimeUnixNano":"5","endTimeUnixNano":7,"attributes":['
            b'{"key":"nccl.phase","value":{"stringValue":"wait"}}],"parentSpanId":"'
            + b"0"
            * 15
            + b'1"}]}]}]}\n'
            b'{"resourceMetrics":[{"scopeMetrics":[{"scope":{"name":"otelgpu"},"metrics":[{"name":'
            b'"otelgpu.losses","sum":{"dataPoints":[{"asInt":"3","timeUnixNano":"9"}]}}]}]}]}\n',
            b'{"resourceProfiles":[{"scopeProfiles":[{"profiles":[{"samples":[{"stackIndex":1,"values":["3"],'
            b'"timestampsUnixNano":["4"],"linkIndex":1}],"sampleType":{"typeStrindex":1}}]}]}],"dictionary":{'
            b'"stringTable":["","cpu"],"stackTable":[{},{"locationIndices":[1]}],"locationTable":[{},{"lines":'
            b'[{"functionIndex":1}]}],"functionTable":[{},{"nameStrindex":1}],"linkTable":[{},{"traceId":"zz"}]}}\n',
        ),
    ),
    "pprof": Target(read_any_pprof, lambda: (gzip.decompress(pprof([profile({("main", "py:f:1"): 3})])),)),
    "maps": Target(
        maps, (b"55d0-55d1 r-xp 00001000 08:01 42    /app/axpy (deleted)\n7f00-7f01 rw-p 0 0:0 0\n",)
    ),
}
