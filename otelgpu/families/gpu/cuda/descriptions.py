"""What names of CUDA calls mean."""

from __future__ import annotations

from typing import Final

from otelgpu.engine.description_tables import Described, Descriptions

DESCRIPTIONS: Final = Descriptions(
    attributes={
        "cuda.launch.calls": Described("Kernel launches in the request, phase or window.", "64"),
        "cuda.graph.launch.calls": Described("Graph launches.", "12"),
        "cuda.memcpy.calls": Described("Copies.", "9"),
        "cuda.memcpy.size": Described("Bytes copied.", "1048576"),
        "cuda.synchronize.calls": Described("Waits for a stream, an event or the device.", "33"),
        "cuda.synchronize.host.duration": Described("Host time in those waits, in seconds.", "0.0812"),
        "cuda.kernel.name": Described(
            "Full demangled name; `[unknown]` when no symbol names it.", "axpy(float, …)"
        ),
        "cuda.kernel.module": Described("File of a kernel that has no name.", "libmodel.so"),
        "cuda.kernel.build_id": Described("The GNU build id of that file.", "1b2c7e…"),
        "cuda.kernel.offset": Described(
            "Where the kernel's host function begins in that file, in bytes.", "6699"
        ),
        "cuda.grid.x": Described("Blocks in the grid, first dimension.", "256"),
        "cuda.grid.y": Described("Second dimension.", "1"),
        "cuda.grid.z": Described("Third dimension.", "1"),
        "cuda.block.x": Described("Threads in a block, first dimension.", "128"),
        "cuda.block.y": Described("Second dimension.", "1"),
        "cuda.block.z": Described("Third dimension.", "1"),
        "cuda.shared_memory.size": Described("Dynamic shared memory, in bytes.", "4096"),
        "cuda.stream": Described("The stream's handle; 0: the default stream.", "94027391"),
        "cuda.graph": Described(
            "The executable graph's handle; absent where the call makes or names none.", "94027555"
        ),
        "cuda.size": Described("Bytes copied, set, allocated or mapped.", "1048576"),
        "cuda.api": Described("Whose function it is: `runtime` (`cuda…`) or `driver` (`cu…`).", "runtime"),
        "cuda.memory.kind": Described(
            "What was allocated: `device`, `managed`, `pool` (stream-ordered), `physical` (cuMemCreate), "
            "`host` or `registered` (pinned host memory), `imported` (another process's), `address` (a range "
            "without memory).",
            "device",
        ),
        "cuda.memory.address": Described(
            "Address, or handle of physical memory, given or freed.", "139871234048000"
        ),
        "cuda.memory.handle": Described(
            "Handle of the physical memory that is mapped; absent when unmapped.", "94027399"
        ),
        "cuda.event": Described("The event's handle.", "94027444"),
        "cuda.graph.nodes": Described("Nodes of the graph, where they are known.", "128"),
        "cuda.graph.definition": Described(
            "Handle of the graph that is captured or made executable.", "94027512"
        ),
        "cuda.module": Described(
            "Handle of the module, library or context; absent where the call names none.", "94027600"
        ),
        "cuda.device.requested": Described(
            "The device (ordinal) or context (handle) that the call makes current; absent in calls about a peer.",
            "0",
        ),
        "cuda.device.peer": Described(
            "The device (ordinal) or context (handle) whose memory is made accessible.", "1"
        ),
        "cuda.synchronized": Described("Handle of the stream or event that was waited for.", "94027391"),
        "cuda.memcpy.kind": Described("Direction of a copy.", "MemcpyHostToDevice"),
        "cuda.device.index": Described("The ordinal by which the process calls the device.", "0"),
    },
)
