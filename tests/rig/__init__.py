"""What tests observe: builds the stand-ins and the example programs, starts them, reads what they say.

In: options. Out: paths, running programs, results. Nothing here knows otelgpu.
"""

from tests.rig.cuda_client import CudaClient, CudaClientResult, run_cuda_client, start_cuda_client
from tests.rig.fakes import BUILD, ROOT, build_fakes, fake_cudart_path, missing_compiler, read_ledger
from tests.rig.llm_server import LlmServer, RigError, start_llm_server

__all__ = [
    "BUILD",
    "ROOT",
    "CudaClient",
    "CudaClientResult",
    "LlmServer",
    "RigError",
    "build_fakes",
    "fake_cudart_path",
    "missing_compiler",
    "read_ledger",
    "run_cuda_client",
    "start_cuda_client",
    "start_llm_server",
]
