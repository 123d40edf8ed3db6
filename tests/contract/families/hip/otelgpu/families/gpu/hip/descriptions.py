"""What names of HIP calls mean."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "hip.launch.calls": Described("Kernel launches in the request, phase or window.", "64"),
        "hip.memcpy.calls": Described("Copies.", "9"),
        "hip.memcpy.size": Described("Bytes copied.", "1048576"),
        "hip.synchronize.calls": Described("Waits for a stream, an event or the device.", "33"),
        "hip.kernel.module": Described("File of a kernel that has no name.", "libmodel.so"),
        "hip.kernel.build_id": Described("The GNU build id of that file.", "1b2c7e…"),
        "hip.kernel.offset": Described("Where the kernel's stub begins in that file, in bytes.", "6699"),
        "hip.kernel.name": Described(
            "Full demangled name; `module+0xoffset` when no symbol names it.", "axpy(float, …)"
        ),
        "hip.grid.x": Described("Blocks in the grid, first dimension.", "256"),
        "hip.grid.y": Described("Second dimension.", "1"),
        "hip.grid.z": Described("Third dimension.", "1"),
        "hip.block.x": Described("Threads in a block, first dimension.", "128"),
        "hip.block.y": Described("Second dimension.", "1"),
        "hip.block.z": Described("Third dimension.", "1"),
        "hip.shared_memory.size": Described("Dynamic shared memory, in bytes.", "4096"),
        "hip.stream": Described("The stream's handle; 0: the default stream.", "94027391"),
        "hip.size": Described("Bytes copied, set or allocated.", "1048576"),
        "hip.memory.kind": Described(
            "What was allocated: `device`, `managed`, `pool` (stream-ordered) or `host` (pinned).", "device"
        ),
        "hip.memory.address": Described("Address given or freed.", "139871234048000"),
        "hip.memcpy.kind": Described("Direction of a copy.", "hipMemcpyHostToDevice"),
        "hip.device.index": Described("The ordinal by which the process calls the device.", "0"),
    },
)
