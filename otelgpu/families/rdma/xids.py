"""What the Xids of NVIDIA's driver mean, and what to do about each.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors, for Ampere and newer):
code, mnemonic and the column of the immediate action. The class is ours, after the mnemonic. A code that is not here
is reported as unknown. SXids of NVSwitches carry their own word, Fatal or Non-fatal, in the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

UNKNOWN: Final = "unknown"


class Xid(Struct, frozen=True):
    """What one code means. ``kind``: application, memory, nvlink, bus, firmware, engine, driver or notice."""

    name: str
    kind: str
    action: str


ACTIONS: Final[Mapping[str, str]] = {
    "IGNORE": "nothing: it is reported for information, or follows from another Xid",
    "RESTART_APP": "restart the application; the GPU goes on",
    "RESTART_VM": "restart the virtual machine",
    "RESET_GPU": "end what runs on the GPU and reset it (nvidia-smi --gpu-reset)",
    "RESTART_BM": "restart the whole machine",
    "CHECK_MECHANICALS": "check power and seating of the board",
    "CHECK_UVM": "see what the driver's unified memory module logged",
    "UPDATE_SWFW": "update driver and firmware",
    "CONTACT_SUPPORT": "contact the hardware's vendor",
    "WORKFLOW_XID_45": "follow the Xid before it; alone, an end of the application explains it",
    "WORKFLOW_XID_48": "drain the GPU and reset it, which retires the memory; replace it if it recurs",
    "WORKFLOW_NVLINK_ERR": "reset the GPUs of the link; replace what it recurs on",
    "WORKFLOW_NVLINK5_ERR": "decode the line with NVIDIA's catalogue; mostly reset the GPUs of the link",
    "XID_154": "do what the line names: the driver sums up other Xids here",
    UNKNOWN: "see NVIDIA's Xid catalogue",
}
"""NVIDIA's resolution buckets → what to do, in our words."""

_APP: Final = "RESTART_APP"
_RESET: Final = "RESET_GPU"
_NOTHING: Final = "IGNORE"


def _engines(kind: str, stem: str, numbers: Mapping[int, Iterable[int]]) -> dict[int, Xid]:
    """First code → the numbers of the engines whose codes follow it."""
    return {
        first + offset: Xid(f"{stem}{number}_ERROR", kind, _APP)
        for first, of in numbers.items()
        for offset, number in enumerate(of)
    }


XIDS: Final[Mapping[int, Xid]] = {
    8: Xid("FIFO_ERROR_IDLE_TIMEOUT", "engine", _APP),
    11: Xid("GR_ERROR_MISSING_HW", "application", _APP),
    13: Xid("GR_EXCEPTION", "application", _APP),
    14: Xid("FAKE_ERROR", "notice", _NOTHING),
    25: Xid("GR_ILLEGAL_NOTIFY", "application", _APP),
    31: Xid("FIFO_ERROR_MMU_ERR_FLT", "application", _APP),
    32: Xid("PBDMA_ERROR", "bus", _APP),
    37: Xid("FECS_ERR_UNIMP_FIRMWARE_METHOD", "firmware", _NOTHING),
    38: Xid("FECS_ERR_WATCHDOG_TIMEOUT", "firmware", _NOTHING),
    **_engines(
        "engine", "CE", {39: range(3), 70: range(3, 6), 75: range(6, 9), 85: (9,), 126: range(10, 20)}
    ),
    43: Xid("RESETCHANNEL_VERIF_ERROR", "application", _NOTHING),
    44: Xid("GR_FAULT_DURING_CTXSW", "engine", _NOTHING),
    45: Xid("PREEMPTIVE_REMOVAL", "application", "WORKFLOW_XID_45"),
    46: Xid("GPU_TIMEOUT_ERROR", "engine", _RESET),
    48: Xid("GPU_ECC_DBE", "memory", "WORKFLOW_XID_48"),
    54: Xid("SILENT_RUNNING_PWR_REDUCED_CLOCKING", "bus", "CHECK_MECHANICALS"),
    60: Xid("SEC2_ERROR", "engine", _APP),
    62: Xid("PMU_HALT_ERROR", "firmware", _RESET),
    63: Xid("INFOROM_DRAM_RETIREMENT_EVENT", "memory", _NOTHING),
    64: Xid("INFOROM_DRAM_RETIREMENT_FAILURE", "memory", _RESET),
    66: Xid("FECS_ERR_REG_ACCESS_VIOLATION", "driver", _NOTHING),
    67: Xid("FECS_ERR_VERIF_VIOLATION", "driver", _NOTHING),
    **_engines("engine", "NVDEC", {68: (0,), 83: (1, 2), 88: (3, 4), 96: (5, 6, 7)}),
    69: Xid("GR_CLASS_ERROR", "application", _APP),
    74: Xid("NVLINK_ERROR", "nvlink", "WORKFLOW_NVLINK_ERR"),
    78: Xid("VGPU_START_ERROR", "driver", "UPDATE_SWFW"),
    79: Xid("GPU_HAS_FALLEN_OFF_THE_BUS", "bus", "RESTART_BM"),
    80: Xid("PBDMA_PUSHBUFFER_CRC_MISMATCH", "bus", _APP),
    **_engines("engine", "NVJPG", {82: (0,), 99: range(1, 8)}),
    **_engines("engine", "OFA", {86: (0,), 139: (1,)}),
    92: Xid("EXCESSIVE_SBE_INTERRUPTS", "memory", _NOTHING),
    93: Xid("INFOROM_ERASE_LIMIT_EXCEEDED", "firmware", _NOTHING),
    94: Xid("CONTAINED_ERROR", "memory", _APP),
    95: Xid("UNCONTAINED_ERROR", "memory", _RESET),
    106: Xid("SMBPBI_TEST_MESSAGE", "notice", _NOTHING),
    107: Xid("SMBPBI_TEST_MESSAGE_SILENT", "notice", _NOTHING),
    109: Xid("CTXSW_TIMEOUT_ERROR", "engine", _RESET),
    110: Xid("SEC_FAULT_ERROR", "firmware", _RESET),
    119: Xid("GSP_RPC_TIMEOUT", "firmware", _RESET),
    120: Xid("GSP_ERROR", "firmware", _RESET),
    121: Xid("C2C_ERROR", "nvlink", _NOTHING),
    136: Xid("ALI_TRAINING_FAIL", "nvlink", _RESET),
    137: Xid("NVLINK_PRIV_ERR", "application", _NOTHING),
    140: Xid("UNRECOVERABLE_ECC_ERROR_ESCAPE", "memory", _RESET),
    141: Xid("FAST_PATH_ERROR", "engine", _NOTHING),
    142: Xid("NVENC3_ERROR", "engine", "CONTACT_SUPPORT"),
    143: Xid("GPU_INIT_ERROR", "firmware", _RESET),
    **{
        144 + offset: Xid(f"NVLINK_{unit}_ERROR", "nvlink", "WORKFLOW_NVLINK5_ERR")
        for offset, unit in enumerate(("SAW", "RLW", "TLW", "TREX", "NVLPW_CTRL", "NETIR", "MSE"))
    },
    151: Xid("KEY_ROTATION_ERROR", "firmware", "RESTART_VM"),
    154: Xid("GPU_RECOVERY_ACTION_CHANGED", "notice", "XID_154"),
    155: Xid("NVLINK_SW_DEFINED_ERROR", "nvlink", _RESET),
    156: Xid("RESOURCE_RETIREMENT_EVENT", "memory", _RESET),
    157: Xid("RESOURCE_RETIREMENT_FAILURE", "memory", _NOTHING),
    158: Xid("GPU_FATAL_TIMEOUT", "engine", _RESET),
    159: Xid("CHI_NON_DATA_ERROR", "nvlink", "CHECK_UVM"),
    160: Xid("CHANNEL_RETIREMENT_EVENT", "memory", _NOTHING),
    161: Xid("CHANNEL_RETIREMENT_FAILURE", "memory", _NOTHING),
    # The catalogue names no action for these yet.
    167: Xid("PCIE_FATAL_TIMEOUT", "bus", UNKNOWN),
    168: Xid("REDUCED_GPU_MEMORY_CAPACITY", "memory", UNKNOWN),
    169: Xid("SEC2_HALT_ERROR", "firmware", UNKNOWN),
    171: Xid("UNCORRECTABLE_DRAM_ERROR", "memory", UNKNOWN),
    172: Xid("UNCORRECTABLE_SRAM_ERROR", "memory", UNKNOWN),
}
"""Code → what it means; mnemonics without ``ROBUST_CHANNEL_``."""

NOT_KNOWN: Final = Xid(UNKNOWN, UNKNOWN, UNKNOWN)


def meaning(code: int) -> Xid:
    """What an Xid of ``code`` means, or that it is unknown."""
    return XIDS.get(code, NOT_KNOWN)
