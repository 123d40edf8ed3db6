"""What serving engines say over ZeroMQ: every version's layout of vLLM, SGLang's classes, doubt, and hostile bytes."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.requests.engines.sglang import SglangReader
from otelgpu.families.requests.engines.vllm import LAYOUTS
from otelgpu.model.engine_messages import EngineItem, EngineOutput, EngineRequest
from tests.rig.examples import examples
from tests.unit.families.requests.zmtp_traffic import READY, Chunk, greeting, losses, message, play, sent

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": PARENT, "tracestate": "vendor=1"}
encode = msgspec.msgpack.encode

VERSIONS = {
    version.strip(): (required.split(), optional.split())
    for version, required, optional in (
        line.split("|")
        for line in (Path(__file__).parent / "data" / "vllm_request_fields.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}
DEFAULTS = {
    "client_index": 0,
    "current_wave": 0,
    "priority": 0,
    "resumable": False,
    "abort_immediately": False,
}
TENSOR = ["bfloat16", [4, 8], 1]  # its bytes are in frame 1 of the tensors
TEXT = {
    "request_id": "cmpl-9",
    "prompt_token_ids": [5, 6, 7],
    "sampling_params": {"max_tokens": 3, "stop": [f"traceparent{PARENT}"]},
    "arrival_time": 1_790_000_000.25,
    "trace_headers": HEADERS,
}
MULTIMODAL = TEXT | {
    "mm_inputs": [{"pixel_values": TENSOR}],
    "mm_kwargs": [{"pixel_values": TENSOR}],
    "mm_features": [{"data": {"image": {"data": TENSOR, "field": ["batched", {}]}}, "identifier": "a1"}],
    "mm_hashes": ["a1"],
    "mm_placeholders": [{"offset": 1, "length": 4, "is_embed": None}],
    "lora_request": ["lora", 1, "/path"],
    "cache_salt": "salt",
    "data_parallel_rank": 1,
    "eos_token_id": 2,
    "client_index": 1,
    "priority": -5,
    "resumable": True,
    "external_req_id": "cmpl",
    "reasoning_ended": True,
    "kv_hints": {"a": [1]},
}
EMBEDDED = TEXT | {"prompt_token_ids": None, "prompt_embeds": TENSOR, "prompt_is_token_ids": [True, False]}
POOLING = TEXT | {"sampling_params": None, "pooling_params": ["embed", 128]}
FORMS = {  # a request, and the field without which a version has none of the kind
    "text": (TEXT, "request_id"),
    "multimodal": (MULTIMODAL, "request_id"),
    "embeds": (EMBEDDED, "prompt_embeds"),
    "pooling": (POOLING, "pooling_params"),
}


def request(version: str, values: dict[str, Any]) -> bytes:
    """An EngineCoreRequest as that version of vLLM encodes it: defaults at the end are left out."""
    required, optional = VERSIONS[version]
    fields = [(name, Any) for name in required] + [(name, Any, DEFAULTS.get(name)) for name in optional]
    made = msgspec.defstruct("EngineCoreRequest", fields, array_like=True, omit_defaults=True)
    known = dict.fromkeys(required) | {
        name: value for name, value in values.items() if name in {*required, *optional}
    }
    return encode(made(**known))


@pytest.mark.parametrize(
    ("version", "form"),
    [(v, f) for v in VERSIONS for f in FORMS if any(FORMS[f][1] in part for part in VERSIONS[v])],
)
def test_requests_of_every_version_are_read(version: str, form: str) -> None:
    values, _ = FORMS[form]
    output = play([Chunk(True, greeting() + READY + message(b"\0", request(version, values), b"t" * 64))])
    (reported,) = output.messages
    prompt = values["prompt_token_ids"]
    assert isinstance(reported, EngineRequest)
    assert (reported.engine, reported.request_id, reported.sent) == ("vllm", "cmpl-9", True)
    assert reported.prompt_tokens == (None if prompt is None else 3)
    if "trace_headers" in VERSIONS[version][1]:
        assert reported.parent is not None
        assert f"00-{reported.parent.trace_id.hex()}-{reported.parent.span_id.hex()}-01" == PARENT
        assert reported.parent.state == "vendor=1"
    else:
        assert reported.parent is None
    assert losses(output) == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_without_trace_headers_have_no_parent(version: str) -> None:
    output = play(
        [Chunk(True, greeting() + message(b"\0", request(version, TEXT | {"trace_headers": None})))]
    )
    assert [reported.parent for reported in output.messages] == [None]
    assert losses(output) == {}


@pytest.mark.parametrize("version", [name for name in VERSIONS if "trace_headers" in VERSIONS[name][1]])
@pytest.mark.parametrize("values", [TEXT, MULTIMODAL], ids=["text", "multimodal"])
def test_of_a_cut_request_the_end_is_read_as_every_version_has_it(
    version: str, values: dict[str, Any]
) -> None:
    data = message(b"\0", request(version, values | {"prompt_token_ids": [70_000] * 9000}))
    chunks = [Chunk(True, greeting()), Chunk(True, data[:16_384]), Chunk(True, len(data) - 20_480)]
    output = play([*chunks, Chunk(True, data[-4096:])])
    (reported,) = output.messages
    assert (reported.request_id, reported.prompt_tokens) == ("cmpl-9", 9000)
    assert reported.parent is not None
    assert reported.parent.span_id.hex() == "b7ad6b7169203331"
    assert losses(output) == {}


def test_text_that_looks_like_trace_headers_is_not_taken_for_them() -> None:
    forged = encode(HEADERS | {"traceparent": PARENT.replace("b7ad", "ffff")})[:-1]
    stop = {
        "max_tokens": 3,
        "stop": [forged.decode("latin-1"), {"traceparent": PARENT.replace("b7ad", "eeee")}],
    }
    values = TEXT | {"prompt_token_ids": [70_000] * 9000, "sampling_params": stop}
    for headers, span_id in ((HEADERS, "b7ad6b7169203331"), (None, None)):
        data = message(b"\0", request("0.33.0", values | {"trace_headers": headers, "external_req_id": "x"}))
        chunks = [Chunk(True, data[:16_384]), Chunk(True, len(data) - 20_480), Chunk(True, data[-4096:])]
        (reported,) = play([Chunk(True, greeting()), *chunks]).messages
        assert (reported.parent.span_id.hex() if reported.parent else None) == span_id


def test_where_the_end_of_a_cut_request_can_be_read_in_two_ways_it_is_not_read() -> None:
    """Bytes after the trace headers that, with what follows them, make just as good an end."""
    forged = encode({"traceparent": PARENT.replace("b7ad", "ffff")}) + encode(None) * 4
    values = MULTIMODAL | {"prompt_token_ids": [70_000] * 9000, "reasoning_parser_kwargs": {"x": forged}}
    data = message(b"\0", request("0.33.0", values))
    chunks = [Chunk(True, data[:16_384]), Chunk(True, len(data) - 20_480), Chunk(True, data[-4096:])]
    output = play([Chunk(True, greeting()), *chunks])
    assert [reported.parent for reported in output.messages] == [None]
    assert losses(output) == {"engine_parent_unseen": 1}


@pytest.mark.parametrize(
    "fields",
    [
        ["r"],
        ["r", [1], None, {}, None, "1.5", None, None, None],  # no time of arrival
        ["r", {}, None, {}, None, 1.5, None, None, None],
        [7, [1], None, {}, None, 1.5, None, None, None],
        ["", [1], None, {}, None, 1.5, None, None, None],
        ["r\n", [1], None, {}, None, 1.5, None, None, None],
        ["r" * 600, [1], None, {}, None, 1.5, None, None, None],
        ["r", [1], None, {}, None, 1.5, None, None, None, None, None, 0, 0, {}, 0],  # headers elsewhere
        {"request_id": "r"},
    ],
)
def test_a_layout_that_no_version_has_is_passed_over_and_counted(fields: object) -> None:
    output = play([Chunk(True, greeting() + message(b"\0", encode(fields)))])
    assert output.messages == []
    assert losses(output) == {"engine_layout_unknown": 1}


def test_a_later_version_that_appends_fields_is_read() -> None:
    values = msgspec.msgpack.decode(request("0.33.0", MULTIMODAL))
    (reported,) = sent(message(b"\0", encode([*values, 1, "new", {}])))
    assert reported.parent is not None


def test_layouts_are_reported_apart_wherever_they_have_trace_headers() -> None:
    for version in VERSIONS:
        kinds = "".join(_KIND[type(value)] for value in msgspec.msgpack.decode(request(version, MULTIMODAL)))
        matching = {layout.trace_headers for layout in LAYOUTS if layout.pattern.fullmatch(kinds)}
        assert len(matching) == 1, version


_KIND = {str: "s", list: "a", dict: "m", float: "f", int: "i", bool: "b", type(None): "n"}
STATS = {"num_running_reqs": 3, "num_waiting_reqs": 2, "kv_cache_usage": 0.5}
ITEM = EngineItem(request_id="r-1", new_tokens=2)
DONE = EngineItem(request_id="r-1", new_tokens=2, finished=True)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (["r-1", [4, 5]], ITEM),
        (["r-1", [4, 5], None, None, None, 0], DONE),
        (["r-1", [4, 5], None, None, None, 1, "</s>"], DONE),
        (["r-1", [4, 5], [["i8", [2], 1]], None, None, None, None, [[1, 0.5]], {}, None, {}], ITEM),
        (["r-1", [4, 5], None, None, 1], DONE),  # up to 0.9.0
        (["r-1", [4, 5], None, None, 0, 128_009], DONE),
        (["r-1", [4, 5], None, None, 0, "</s>"], DONE),
        (["r-1", [], None, None, TENSOR, 0], EngineItem(request_id="r-1", new_tokens=0, finished=True)),
        (["r-1", [4, 5], None, None, msgspec.msgpack.Ext(3, b"abcd"), 1], DONE),
    ],
)
def test_items_of_a_step_are_read_where_the_finish_reason_has_been(
    item: list[Any], expected: EngineItem
) -> None:
    for outputs in ([0, [item], STATS, 1.5], [0, [item], None, 1.5, None, ["r-1"]], [[item], STATS, 1.5]):
        (reported,) = sent(message(encode(outputs), b"tensor"))
        assert isinstance(reported, EngineOutput)
        assert reported.items == (expected,)
        assert (reported.running, reported.waiting) == ((3, 2) if STATS in outputs else (None, None))


def test_the_queue_holds_those_that_were_skipped_as_well() -> None:
    (reported,) = sent(message(encode([0, [], STATS | {"num_skipped_waiting_reqs": 4}, 1.5])))
    assert (reported.items, reported.running, reported.waiting) == ((), 3, 6)


@pytest.mark.parametrize(
    "payload",
    [
        [0, [["r-1", [4], None, None, "stop"]], None, 1.5],
        [0, [["r-1", [4], None, None, None, "stop"]], None, 1.5],
        [0, [["r-1", ["4"]]], None, 1.5],
        [0, [["r-1"]], None, 1.5],
        [0, [["", [4]]], None, 1.5],
        [0, ["r-1"], None, 1.5],
        [0, {}],
        [[[1, 2]], 3, True],  # a coordinator's counts
        [0],
        [[0, 1], [2, 3]],
    ],
)
def test_a_step_in_doubt_is_passed_over_and_counted(payload: list[Any]) -> None:
    output = play([Chunk(True, greeting() + message(encode(payload)))])
    assert output.messages == []
    assert losses(output) == {"engine_layout_unknown": 1}


@pytest.mark.parametrize(
    "bodies",
    [
        (b"\x01", encode(["r-1"])),  # ABORT
        (b"\x03", encode([0, 1, "profile", []])),  # UTILITY
        (b"\x00",),
        (encode([0, [], None, 1.5, [1, None, [None, 2]]]),),  # a utility's result
        (encode({"status": "READY"}),),
        (b"ENGINE_CORE_DEAD",),
        (b"",),
        (encode([]),),
        (encode(["AbortReq", "r-1", None]),),
    ],
)
def test_other_messages_of_engines_say_nothing(bodies: tuple[bytes, ...]) -> None:
    output = play([Chunk(True, greeting() + message(*bodies))])
    assert (output.messages, losses(output)) == ([], {})


def test_a_step_of_which_a_part_is_missing_is_not_reported() -> None:
    data = message(encode([0, [[f"r-{n}", [1]] for n in range(2000)], None, 1.5]))
    output = play([Chunk(True, greeting() + data[:9000]), Chunk(True, 100), Chunk(True, data[9100:])])
    assert output.messages == []
    assert losses(output) == {"engine_messages_cut": 1}


def test_pickles_are_counted_and_never_read() -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (pytest.fail, ("a pickle was read",))

    output = play([Chunk(True, greeting() + message(pickle.dumps(Bomb(), protocol=5)))])
    assert (output.messages, losses(output)) == ([], {"engine_messages_pickled": 1})


# SGLang


def packed(items: array[int]) -> msgspec.msgpack.Ext:
    """As msgpack_utils.enc_hook does it."""
    metadata = encode(items.typecode)
    return msgspec.msgpack.Ext(1, len(metadata).to_bytes(4, "big") + metadata + items.tobytes())


def tokenized(rid: object = "r-1", ids: object = packed(array("q", range(5)))) -> list[Any]:
    after = [None, None, None, {"max_new_tokens": 8}, False, -1, 0, None, True]
    return ["TokenizedGenerateReqInput", rid, None, "the prompt", ids, *after]


def batch(*rows: tuple[str, int, bool]) -> list[Any]:
    rids = [rid for rid, _, _ in rows]
    reasons = [{"type": "length"} if done else None for _, _, done in rows]
    ids = [packed(array("q", [1])) for _ in rows]
    flags = [[True] * len(rows)] * 3
    totals = [total for _, total, _ in rows]
    zeros = [0] * len(rows)
    texts = ["BatchTokenIDOutput", rids, None, reasons, [""] * len(rows), ids, zeros, None, *flags]
    return [*texts, [5] * len(rows), zeros, totals, zeros, None, ["PickleWrapper", b"\x80\x05."]]


def test_tokenized_requests_of_sglang_are_read() -> None:
    data = message(encode(tokenized())) + message(
        encode(["BatchTokenizedGenerateReqInput", None, None, [tokenized("r-2"), tokenized("r-3", None)]])
    )
    reported = [(one.engine, one.request_id, one.prompt_tokens, one.parent) for one in sent(data)]
    assert reported == [("sglang", "r-1", 5, None), ("sglang", "r-2", 5, None), ("sglang", "r-3", None, None)]


def test_new_tokens_of_sglang_are_the_difference_to_the_message_before() -> None:
    steps = [
        batch(("a", 1, False)),
        batch(("a", 3, False), ("b", 1, False)),
        batch(("a", 4, True), ("b", 1, False)),
    ]
    reported = [one.items for one in sent(b"".join(message(encode(step)) for step in steps))]
    assert [[(item.request_id, item.new_tokens, item.finished) for item in items] for items in reported] == [
        [("a", 1, False)],
        [("a", 2, False), ("b", 1, False)],
        [("a", 1, True), ("b", 0, False)],
    ]


def test_tokens_before_a_connection_was_found_are_not_made_up() -> None:
    chunks = [
        Chunk(True, message(encode(batch(("a", 7, False))))),
        Chunk(True, message(encode(batch(("a", 9, True))))),
    ]
    output = play(chunks, late=True)
    assert [one.items[0].new_tokens for one in output.messages] == [0, 2]
    assert losses(output) == {"engine_tokens_unknown": 1}


def test_embeddings_of_sglang_end_their_requests() -> None:
    (reported,) = sent(
        message(encode(["BatchEmbeddingOutput", ["a"], None, [{"type": "stop"}], [[0.5]], [3], [0]]))
    )
    assert reported.items == (EngineItem(request_id="a", new_tokens=0, finished=True),)


@pytest.mark.parametrize(
    "payload",
    [
        tokenized(rid=None),
        tokenized(rid=["a"]),
        tokenized(ids=[1, 2]),
        tokenized(ids=msgspec.msgpack.Ext(1, b"\0\0\0\x09")),
        tokenized(ids=msgspec.msgpack.Ext(1, b"")),
        ["TokenizedGenerateReqInput", "r-1"],
        ["BatchTokenizedGenerateReqInput", None, None, [["r-1"]]],
        batch(("a", 1, False))[:13],
        ["BatchTokenIDOutput", ["a", "b"], *batch(("a", 1, False))[2:]],
        [*batch(("a", 1, False))[:3], ["stop"], *batch(("a", 1, False))[4:]],
    ],
)
def test_a_message_of_sglang_in_doubt_is_passed_over_and_counted(payload: list[Any]) -> None:
    output = play([Chunk(True, greeting() + message(encode(payload)))])
    assert (output.messages, losses(output)) == ([], {"engine_layout_unknown": 1})


def test_of_a_cut_request_of_sglang_the_name_is_known() -> None:
    data = message(encode(tokenized(ids=packed(array("q", range(9000))))))
    output = play([Chunk(True, greeting() + data[:4096]), Chunk(True, len(data) - 4096)])
    assert [(one.request_id, one.prompt_tokens) for one in output.messages] == [("r-1", None)]
    assert losses(output) == {"engine_parent_unseen": 1}


def test_requests_that_sglang_never_ends_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otelgpu.families.requests.engines.sglang.MAX_COUNTED", 3)
    steps = [
        *(batch((f"r-{n}", 1, False)) for n in range(4)),
        batch(("r-0", 2, False)),
        batch(("r-3", 2, False)),
    ]
    output = play([Chunk(True, greeting() + b"".join(message(encode(step)) for step in steps))])
    assert [one.items[0].new_tokens for one in output.messages] == [1, 1, 1, 1, 0, 1]
    assert losses(output) == {"engine_tokens_unknown": 1}
    assert SglangReader(output, late=False).read("AbortReq", None, None) == []  # type: ignore[arg-type]


@examples(150)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats()
        | st.text(max_size=5)
        | st.binary(max_size=5),
        lambda inner: st.lists(inner, max_size=16) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=40,
    ),
    st.sampled_from([(), (b"\0",)]),
)
def test_no_payload_makes_it_raise(payload: object, before: tuple[bytes, ...]) -> None:
    sent(message(*before, encode(payload)))


@pytest.mark.parametrize(
    "payload",
    [b"\x91" * 50_000, b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff" + b"\xa1a" * 65_535, b"\x93\xd9", b"\xc1"],
)
def test_malformed_payloads_are_passed_over(payload: bytes) -> None:
    for bodies in ((payload,), (b"\0", payload)):
        assert sent(message(*bodies)) == []
