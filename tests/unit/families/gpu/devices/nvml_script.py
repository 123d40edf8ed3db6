"""The script of the fake NVML (tests/fakes/nvml/script.h), one device or fault a line."""

from __future__ import annotations

from pathlib import Path

UUID = "GPU-5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c4{}"
SIZE = 150_000_000_000

# Key of the fake → value, for a GPU that has everything; NVML_FI_DEV_* numbers are of nvml.h.
EVERYTHING = {
    "utilization": 87,
    "memory_utilization": 31,
    "encoder": 4,
    "decoder": 5,
    "memory_total": SIZE,
    "memory_used": 60_000_000_000,
    "memory_reserved": 600_000_000,
    "power_limit": 700_000,
    "temperature": 61,
    "temperature_slowdown": 87,
    "temperature_shutdown": 92,
    "clock_graphics": 1_980,
    "clock_sm": 1_981,
    "clock_memory": 3_201,
    "clock_video": 1_545,
    "throttle": 0x24,
    "field.3": 11,
    "field.4": 2,
    "field.38": 3,
    "field.45": 4,
    "field.52": 5,
    "field.59": 6,
    "field.74": 1_000,
    "field.75": 2_000,
    "field.76": 3_000,
    "field.77": 4_000,
    "field.79": 5_000,
    "field.82": 70,
    "field.83": 123_456_789,
    "field.94": 7,
    "field.138.all": 800,
    "field.139.all": 900,
    "field.186": 345_678,
    "field.197": 2**40,
    "field.198": 2**41,
}


class Script:
    """What the fake answers from the next call on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = ["driver 570.86.10"]
        self._write()

    def gpu(self, index: int = 0, /, **facts: str | int) -> Script:
        """A GPU of a uuid, a name and ``facts`` (whose names have ``__`` for a dot)."""
        identity = {
            "uuid": UUID.format(index),
            "name": "NVIDIA H200",
            "minor": index,
            "pci": f"00000000:{0x3B + index:02X}:00.0",
        }
        return self._facts(str(index), identity | facts)

    def mig(self, index: int, slot: int, /, **facts: str | int) -> Script:
        """A MIG device of a GPU."""
        uuid = f"MIG-0000000{slot}-86f3-4b5c-ab5c-cf9e1a2b3c4d"
        identity = {"uuid": uuid, "gpu_instance": slot + 7, "compute_instance": 0}
        return self._facts(f"{index}.{slot}", identity | facts)

    def _facts(self, device: str, facts: dict[str, str | int]) -> Script:
        return self.line(*(f"set {device} {key.replace('__', '.')} {value}" for key, value in facts.items()))

    def line(self, *lines: str) -> Script:
        """Lines as they are: ``process``, ``fail`` and ``delay``."""
        self._lines += lines
        self._write()
        return self

    def restart(self) -> Script:
        """Begin again, with nothing."""
        self._lines = ["driver 570.86.10"]
        self._write()
        return self

    def remove(self) -> None:
        """The driver is not loaded."""
        self.path.unlink()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(self._lines) + "\n")
        new.replace(self.path)
