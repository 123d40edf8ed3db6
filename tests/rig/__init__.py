"""What tests observe: builds the stand-ins and the example programs, starts them, reads what they say.

In: options. Out: paths, running programs, results. Nothing here knows otelgpu.
"""

from tests.rig.cuda_client import CudaClient, CudaClientResult, run_cuda_client, start_cuda_client
from tests.rig.engine import EngineServer, start_engine_server
from tests.rig.fakes import (
    BUILD,
    ROOT,
    build_fakes,
    cuda_include_flags,
    fake_cuda_path,
    fake_cudart_path,
    missing_compiler,
    read_ledger,
)
from tests.rig.llm_server import LlmServer, RigError, start_llm_server
from tests.rig.programs import (
    PROGRAM_KINDS,
    Checkpoint,
    Live,
    MemoryProgram,
    Program,
    ProgramKind,
    ProgramTruth,
    memory_command,
    program_command,
    program_environment,
    program_path,
    run_memory_program,
    run_program,
    second_copy,
    start_program,
)
from tests.rig.ranks import (
    Ranks,
    RankTruth,
    TrainingTruth,
    fake_nccl_path,
    ranks_command,
    ranks_environment,
    run_ranks,
    start_ranks,
)

__all__ = [
    "BUILD",
    "PROGRAM_KINDS",
    "ROOT",
    "Checkpoint",
    "CudaClient",
    "CudaClientResult",
    "EngineServer",
    "Live",
    "LlmServer",
    "MemoryProgram",
    "Program",
    "ProgramKind",
    "ProgramTruth",
    "RankTruth",
    "Ranks",
    "RigError",
    "TrainingTruth",
    "build_fakes",
    "cuda_include_flags",
    "fake_cuda_path",
    "fake_cudart_path",
    "fake_nccl_path",
    "memory_command",
    "missing_compiler",
    "program_command",
    "program_environment",
    "program_path",
    "ranks_command",
    "ranks_environment",
    "read_ledger",
    "run_cuda_client",
    "run_memory_program",
    "run_program",
    "run_ranks",
    "second_copy",
    "start_cuda_client",
    "start_engine_server",
    "start_llm_server",
    "start_program",
    "start_ranks",
]
