"""What is known of a job's processes beside what they called. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

FRAMEWORKS: Final = {
    "libtorch_cpu.so": "PyTorch",
    "libtensorflow_framework.so": "TensorFlow",
    "libtensorflow_cc.so": "TensorFlow",
    "_pywrap_tensorflow_internal.so": "TensorFlow",
    "libjax_common.so": "JAX",
    "xla_extension.so": "JAX",
    "libpaddle.so": "PaddlePaddle",
    "libonnxruntime.so": "ONNX Runtime",
    "libnvinfer.so": "TensorRT",
    "libggml-base.so": "llama.cpp",
    "libmxnet.so": "MXNet",
}
"""Beginning of a mapped file's name → what computes with it."""
OF_CUDA: Final = ("libtorch_cuda.so", "libcudart.so", "libcudart-", "libcuda.so", "xla_cuda_plugin.so")
"""Beginnings of the names of files without which nothing of a framework runs on a GPU of NVIDIA's."""
INTERACTIVE: Final = ("ipykernel", "ipykernel_launcher", "IPython", "jupyter-console", "ipython")
"""Modules and programs that somebody types into."""


class JobProcess(Struct, frozen=True, kw_only=True):
    """``interactive``: how it is known that somebody types, "": nobody does. ``frameworks``: that are loaded.

    ``has_cuda``: a library of CUDA is loaded; ``holds_device``: it has a device file of a GPU open; ``blocking``:
    ``CUDA_LAUNCH_BLOCKING`` is set; ``visible``: how many devices ``CUDA_VISIBLE_DEVICES`` leaves it, None: all.
    ``libraries``: versions; ``environment``: of job_facts.VARIABLES those that it has.
    """

    pid: int
    program: str = ""
    interactive: str = ""
    frameworks: Sequence[str] = ()
    has_cuda: bool = False
    holds_device: bool = False
    blocking: bool = False
    visible: int | None = None
    libraries: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}


def frameworks_of(files: Sequence[str]) -> list[str]:
    """By the last parts of the paths of mapped files."""
    return list(
        dict.fromkeys(
            framework for name in files for start, framework in FRAMEWORKS.items() if name.startswith(start)
        )
    )


def has_cuda(files: Sequence[str]) -> bool:
    """Likewise."""
    return any(name.startswith(OF_CUDA) for name in files)


def interactive_by(command: Sequence[str], *, has_terminal: bool) -> str:
    """Why a program is taken for one that somebody types into; "" of others. ``has_terminal``: it reads one."""
    for part in command[1:4]:
        name = part.rpartition("/")[2]
        if name in INTERACTIVE or name.partition(".")[0] in INTERACTIVE:
            return f"its command has {name}"
    program = command[0].rpartition("/")[2] if command else ""
    if program in INTERACTIVE:
        return f"it is {program}"
    if program.startswith("python") and has_terminal:
        if "-i" in command[1:]:
            return "it is python -i on a terminal"
        if all(part.startswith("-") for part in command[1:]) and "-c" not in command and "-m" not in command:
            return "it is python on a terminal, without a script"
    return ""
