"""Device facts can be written to a capture as they are, and come back equal."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.devices import (
    NO_INDEX,
    DeviceGone,
    DeviceInput,
    DeviceReadings,
    DeviceSeen,
    ProcessDevices,
    ProcessReading,
    Quantity,
)

times = st.integers(0, 2**63 - 1)
percents = st.none() | st.integers(0, 100)
processes = st.builds(
    ProcessReading,
    tgid=st.integers(1, 2**31),
    device=st.text(max_size=8),
    memory_bytes=st.none() | st.integers(0, 2**62),
    utilization_percent=percents,
    encoder_percent=percents,
    decoder_percent=percents,
)
inputs = st.one_of(
    st.builds(DeviceSeen, time_ns=times, index=st.integers(NO_INDEX, 63), minor=st.integers(NO_INDEX, 63)),
    st.builds(
        DeviceReadings,
        time_ns=times,
        values=st.dictionaries(st.sampled_from(Quantity), st.integers(0, 2**62)),
        processes=st.lists(processes, max_size=3).map(tuple),
    ),
    st.builds(DeviceGone, time_ns=times),
    st.builds(
        ProcessDevices,
        tgid=st.integers(1, 2**31),
        time_ns=times,
        uuids=st.lists(st.text(max_size=8)).map(tuple),
    ),
)


@given(inputs)
def test_an_input_comes_back_from_messagepack(item: DeviceInput) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=type(item)) == item


def test_a_quantity_that_nobody_knows_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unheard_of"):
        msgspec.convert({"time_ns": 1, "uuid": "GPU-1", "values": {"unheard_of": 1}}, DeviceReadings)
