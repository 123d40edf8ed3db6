"""SGLang's server on a CPU, with a tiny model: ``sglang_server.py PORT``. It makes no calls.

A process reads requests with uvicorn and makes tokens of them, one schedules and computes, one makes text of tokens;
what they tell each other goes by ZeroMQ.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Never

MODEL = Path("tiny")
OPTIONS = (
    *("--served-model-name=tiny", "--device=cpu", "--dtype=float32", "--attention-backend=torch_native"),
    *("--max-total-tokens=65536", "--mem-fraction-static=0.1", "--max-running-requests=64"),
    *("--disable-radix-cache", "--disable-overlap-schedule", "--skip-server-warmup", "--log-level=warning"),
)


class Kernels(ModuleType):
    """In the place of ``sgl_kernel``, whose wheels are for GPUs: it is imported, PyTorch's own kernels are called."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing


def missing(*_: object, **__: object) -> Never:
    raise NotImplementedError("there is no sgl_kernel here")


# In its children too, which import this first.
os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
sys.modules["sgl_kernel"] = Kernels("sgl_kernel")
sys.modules["sgl_kernel"].__spec__ = ModuleSpec("sgl_kernel", None)

if __name__ == "__main__":
    import tiny_transformer
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    tiny_transformer.write(MODEL)
    where = ("--model-path", str(MODEL.absolute()), "--host=127.0.0.1", f"--port={sys.argv[1]}")
    run_server(prepare_server_args([*where, *OPTIONS]))
