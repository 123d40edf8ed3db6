"""The fake libcudart has the names, versions and calling conventions of the real one."""

from __future__ import annotations

import ctypes
import threading

from tests.rig import fake_cudart_path
from tests.unit.fakes.fake import (
    BAD_FUNCTION,
    INVALID_CONFIGURATION,
    INVALID_VALUE,
    NO_CONFIGURATION,
    OUT_OF_MEMORY,
    REPEATABLE,
    STUB,
    SUCCESS,
    Device,
    Dim3,
    exported_versions,
    real_cudart,
)


class TestAbi:
    def test_exports_only_functions_of_the_real_library_under_the_same_version(self) -> None:
        fake = exported_versions(fake_cudart_path())
        real = exported_versions(real_cudart())
        assert fake.items() <= real.items()
        assert set(REPEATABLE) <= fake.keys()

    def test_names_errors_as_the_real_library_does(self, device: Device) -> None:
        real = ctypes.CDLL(str(real_cudart()))
        unknown = b"unrecognized error code"
        for function in ("cudaGetErrorName", "cudaGetErrorString"):
            name = getattr(real, function)
            name.restype = ctypes.c_char_p
            given = {code: getattr(device.lib, function)(code) for code in range(1000)}
            known = {code: text for code, text in given.items() if text != unknown}
            assert known == {code: name(code) for code in known}
            assert {SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, BAD_FUNCTION, 700} <= known.keys()

    def test_takes_dim3_by_value(self, device: Device) -> None:
        assert device.launch(grid=(7, 3, 2), block=(16, 8, 8)) == SUCCESS
        assert device.launch(grid=(7, 3, 0)) == INVALID_CONFIGURATION
        assert device.launch(block=(0, 8, 8)) == INVALID_CONFIGURATION
        assert device.launch(block=(1024, 1, 2)) == INVALID_CONFIGURATION

    def test_launch_configuration_is_pushed_and_popped_per_thread(self, device: Device) -> None:
        grid, block, shared, stream = Dim3(), Dim3(), ctypes.c_size_t(), ctypes.c_void_p()

        def pop() -> int:
            into = map(ctypes.byref, (grid, block, shared, stream))
            return int(device.lib.__getattr__("__cudaPopCallConfiguration")(*into))

        push = device.lib.__getattr__("__cudaPushCallConfiguration")
        assert push(Dim3(7, 8, 9), Dim3(4, 5, 6), ctypes.c_size_t(77), ctypes.c_void_p(STUB)) == 0
        statuses: list[int] = []
        other = threading.Thread(target=lambda: statuses.append(pop()))
        other.start()
        other.join()
        assert statuses == [NO_CONFIGURATION]
        assert pop() == SUCCESS
        assert (grid.x, grid.y, grid.z, block.x, block.y, block.z) == (7, 8, 9, 4, 5, 6)
        assert (shared.value, stream.value) == (77, STUB)
        assert pop() == NO_CONFIGURATION
