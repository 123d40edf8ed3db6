"""What an allocation of device memory is for, by the frames that it was made under. Pure.

In: frames, the leaf first. Out: a category, and the frame that says so. The innermost frame that any rule fits decides:
a convolution's workspace in a forward pass is workspace, an activation that is computed again in the backward pass is
an activation. Names are those of PyTorch, vLLM, SGLang, Transformers, DeepSpeed, CUDA's libraries and NCCL; what fits
none of them is unknown, and no guess is made by size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from otelgpu.render.frames import Frame, Kind

WEIGHTS: Final = "weights"
KV_CACHE: Final = "kv_cache"
ACTIVATIONS: Final = "activations"
GRADIENTS: Final = "gradients"
OPTIMIZER: Final = "optimizer"
WORKSPACE: Final = "workspace"
CACHE: Final = "allocator_cache"
UNKNOWN: Final = "unknown"

CATEGORIES: Final[Mapping[str, str]] = {
    WEIGHTS: "parameters and buffers of the model",
    KV_CACHE: "keys and values of the tokens that are being served",
    ACTIVATIONS: "what a forward pass makes",
    GRADIENTS: "what a backward pass makes, and buckets for their reduction",
    OPTIMIZER: "state of the optimizer",
    WORKSPACE: "scratch memory of libraries: cuBLAS, cuDNN, NCCL's buffers, …",
    CACHE: "reserved by the framework's allocator and used by no tensor: kept for later, or in fragments",
    UNKNOWN: "what no rule fits",
}
"""Category → what is in it."""


class Rule(NamedTuple):
    """Fits a frame whose function and file both fit; "" fits all. ``kind``: of the frame."""

    category: str
    kind: Kind
    function: str
    file: str


_PYTHON, _NATIVE = Kind.PYTHON, Kind.NATIVE
_NAME: Final = r"(?:^|\.)"  # a qualified name ends with it

RULES: Final = (
    Rule(KV_CACHE, _PYTHON, r"kv_?cache|KVCache", ""),
    Rule(KV_CACHE, _PYTHON, "", r"/(?:cache_engine|cache_utils|memory_pool|kv_cache\w*)\.py$"),
    Rule(OPTIMIZER, _PYTHON, "", r"/torch/optim/|/(?:apex|bitsandbytes|deepspeed|galore\w*)/.*optim"),
    Rule(GRADIENTS, _PYTHON, _NAME + r"backward$", r"/torch/(?:autograd/|_tensor\.py)"),
    Rule(GRADIENTS, _PYTHON, r"_grad_bucket|allocate_grads|\bgrad_buffer", ""),
    Rule(GRADIENTS, _PYTHON, "", r"/torch/nn/parallel/distributed\.py$|/_fsdp_(?:param|collectives)\w*\.py$"),
    Rule(GRADIENTS, _NATIVE, r"torch::autograd::(?:Engine|AccumulateGrad|generated)|c10d::Reducer", ""),
    Rule(
        WEIGHTS,
        _PYTHON,
        _NAME
        + r"(?:load_(?:state_dict|weights?|model|checkpoint\w*|safetensors|file)|_load_from_state_dict|from_pretrained"
        r"|create_weights|reset_parameters|to_empty|_load_pretrained_model)$",
        "",
    ),
    Rule(WEIGHTS, _PYTHON, _NAME + r"_apply$", r"/torch/nn/modules/module\.py$"),
    Rule(WEIGHTS, _PYTHON, _NAME + r"__init__$|__new__$", r"/torch/nn/(?:modules/|parameter\.py)"),
    Rule(WEIGHTS, _PYTHON, "", r"/model_loader/|/safetensors/|/torch/serialization\.py$"),
    Rule(ACTIVATIONS, _PYTHON, _NAME + r"forward$", ""),
    Rule(ACTIVATIONS, _PYTHON, _NAME + r"_(?:wrapped_)?call_impl$", r"/torch/nn/modules/module\.py$"),
    Rule(WORKSPACE, _NATIVE, r"[wW]ork[sS]pace|CUDABlasHandle|cublas\w*(?:Create|Init)|cudnn\w*Create", ""),
    Rule(WORKSPACE, _NATIVE, "", r"/lib(?:cublas|cudnn|nccl|cusparse|cusolver|cufft|nvshmem)[\w.-]*$"),
    Rule(WORKSPACE, _PYTHON, r"[wW]orkspace|scratch_buffer", ""),
)
"""Of one frame the first that fits."""

_ALLOCATOR: Final = re.compile(r"CUDACachingAllocator|HIPCachingAllocator|c10::\w+::.*CachingAllocator")
_COMPILED: Final = [
    (rule.category, rule.kind, re.compile(rule.function), re.compile(rule.file)) for rule in RULES
]
_MOST_FRAMES: Final = 256


class Purpose(NamedTuple):
    """What an allocation is for. ``evidence``: the label of the frame that says so; "" of what is unknown."""

    category: str
    evidence: str


NOTHING_SAYS: Final = Purpose(UNKNOWN, "")


@lru_cache(maxsize=65_536)
def _of_frame(frame: Frame) -> str:
    file = frame.file.replace("\\", "/")
    for category, kind, function, place in _COMPILED:
        if frame.kind is kind and function.search(frame.name) and place.search(file):
            return category
    return ""


def purpose_of(frames: Sequence[Frame]) -> Purpose:
    """Of what was allocated under these frames."""
    for frame in frames[:_MOST_FRAMES]:
        if category := _of_frame(frame):
            return Purpose(category, frame.label)
    return NOTHING_SAYS


def is_of_allocator(frames: Sequence[Frame]) -> bool:
    """Whether a framework's caching allocator took it from the driver: tensors are given pieces of it."""
    return any(
        frame.kind is Kind.NATIVE and _ALLOCATOR.search(frame.name) is not None
        for frame in frames[:_MOST_FRAMES]
    )
