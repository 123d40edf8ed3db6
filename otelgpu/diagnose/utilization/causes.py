"""The fifteen causes of low utilisation of GPUs, what each means and what to do. Pure.

The taxonomy is that of Gao et al., An Empirical Study on Low GPU Utilization of Deep Learning Jobs, ICSE 2024
(doi:10.1145/3597503.3639232): 706 issues in 400 jobs.
What a thread waits for is named by :mod:`otelgpu.diagnose.stall`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.stall import causes as stall

INTERACTIVE: Final = "interactive"
OVERSUBSCRIPTION: Final = "oversubscription"
UNRELEASED: Final = "unreleased"
NOT_DEEP_LEARNING: Final = "not_deep_learning"
BATCH_SIZE: Final = "batch_size"
GPU_MEMORY: Final = "gpu_memory"
CHECKPOINTING: Final = "checkpointing"
HOST_TRANSFER: Final = "host_transfer"
PREPROCESSING: Final = "preprocessing"
REMOTE_READ: Final = "remote_read"
EXTERNAL_DATA: Final = "external_data"
RESULT_UPLOAD: Final = "result_upload"
DATA_EXCHANGE: Final = "data_exchange"
LIBRARY_INSTALLATION: Final = "library_installation"
API_MISUSE: Final = "api_misuse"


class LowUse(Struct, frozen=True, kw_only=True):
    """What is said of a cause. ``seen``: the evidence it takes; ``next``: what to do, ``code``: how."""

    group: str
    meaning: str
    seen: str
    says: str
    next: str
    code: str


CAUSES: Final[Mapping[str, LowUse]] = {
    INTERACTIVE: LowUse(
        group="job",
        meaning="somebody types, and the GPU waits for them",
        seen="a notebook's kernel, IPython or Python on a terminal, and no work queued most of the time",
        says="is interactive and leaves the GPU idle between commands",
        next="develop on a small or shared GPU, end kernels that are idle, and submit long runs as scripts",
        code="c.MappingKernelManager.cull_idle_timeout = 1800  # jupyter_server_config.py; in a notebook: exit()",
    ),
    OVERSUBSCRIPTION: LowUse(
        group="job",
        meaning="the job has more GPUs than it uses, or a GPU has more jobs than it can serve",
        seen="devices that the job may use and has no memory on and no calls to; others' kernels on its device",
        says="does not fit its GPUs",
        next="ask for as many GPUs as are used, or use all of them; give a device that is shared to one job",
        code="CUDA_VISIBLE_DEVICES=0 python train.py  # or all: torchrun --nproc-per-node=gpu train.py",
    ),
    UNRELEASED: LowUse(
        group="job",
        meaning="the work is done, and the process still holds the GPU",
        seen="no call of CUDA any more, the process waits, and it has the device open or memory on it",
        says="holds the GPU and does nothing with it any more",
        next="end the process when its work is done, or free the device and work on",
        code="del model\ntorch.cuda.empty_cache()  # or let the process end: sys.exit()",
    ),
    NOT_DEEP_LEARNING: LowUse(
        group="job",
        meaning="the job computes on CPUs, with the GPU as an extra",
        seen="CUDA without a framework of deep learning, few launches, and a thread that runs on a CPU",
        says="computes on the CPU and hardly uses the GPU that it holds",
        next="run it on a node without a GPU, or move its work to the GPU",
        code="import cupy as np  # in place of numpy; or submit it to a queue without GPUs",
    ),
    BATCH_SIZE: LowUse(
        group="model",
        meaning="each kernel has too little to do: the host takes longer to launch it than the device to run it",
        seen="launches back to back of small grids or short kernels, and free memory on the device",
        says="launches kernels that are too small for the GPU",
        next="a larger batch as long as it fits into memory; or fewer launches: CUDA graphs, torch.compile",
        code="loader = DataLoader(dataset, batch_size=8 * batch_size)\n"
        'model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs',
    ),
    GPU_MEMORY: LowUse(
        group="model",
        meaning="memory of the device is allocated and freed in the loop, which waits for the device",
        seen="calls that allocate or free, in which the device is idle",
        says=stall.CAUSES[stall.DEVICE_MEMORY].says,
        next=stall.CAUSES[stall.DEVICE_MEMORY].next,
        code=f"{stall.CAUSES[stall.DEVICE_MEMORY].code}\n"
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
    ),
    CHECKPOINTING: LowUse(
        group="model",
        meaning="the model is written to a file on the thread that feeds the GPU",
        seen="writes, syncs and opens of files on that thread while the device is idle",
        says="writes a checkpoint, and the GPU waits",
        next="write it in another thread or process, of a copy, or less often",
        code="import torch.distributed.checkpoint as dcp\n"
        "dcp.async_save(state, checkpoint_id=path)  # or a thread of its own, of a copy on the host",
    ),
    HOST_TRANSFER: LowUse(
        group="data",
        meaning="copies between host and device block, for the host's memory is not pinned, or nobody overlaps them",
        seen="copies that block, by line, with their bytes and bandwidth",
        says=stall.CAUSES[stall.DEVICE_COPY].says,
        next=stall.CAUSES[stall.DEVICE_COPY].next,
        code=stall.CAUSES[stall.DEVICE_COPY].code,
    ),
    PREPROCESSING: LowUse(
        group="data",
        meaning="the next batch is read, decoded or made while the GPU waits",
        seen="waits for a worker or a pipe, reads of local files, or Python that runs while the device is idle",
        says="prepares data while the GPU waits",
        next="prepare batches in worker processes, ahead of time; or once, and store them",
        code=stall.CAUSES[stall.INPUT].code,
    ),
    REMOTE_READ: LowUse(
        group="data",
        meaning="input is read from a file system that is on another machine",
        seen="reads under functions of NFS, FUSE, Ceph, Lustre, CIFS or 9p while the device is idle",
        says="reads from a remote file system while the GPU waits",
        next="copy the data to a local disk before, or read ahead with more workers",
        code="rsync -a /mnt/nfs/dataset/ /local/dataset/  # before the job; DataLoader(…, prefetch_factor=8)",
    ),
    EXTERNAL_DATA: LowUse(
        group="data",
        meaning="the job waits for another service: a download, a database, an API",
        seen="waits to receive or connect on a socket while the device is idle",
        says="waits for data from another service while the GPU waits",
        next="fetch it before the job, or ahead, in another thread",
        code="pending = executor.submit(fetch, url)  # in the loop; data = pending.result() in the next step",
    ),
    RESULT_UPLOAD: LowUse(
        group="data",
        meaning="results are sent away on the thread that feeds the GPU",
        seen="writes to a remote file system, or sends on a socket, while the device is idle",
        says="sends results away while the GPU waits",
        next="send them from another thread, or write them locally and send them at the end",
        code="uploader = ThreadPoolExecutor(max_workers=1)  # once\nuploader.submit(upload, path)  # in the loop",
    ),
    DATA_EXCHANGE: LowUse(
        group="data",
        meaning="ranks wait for each other's data",
        seen="host time in collectives",
        says="waits in collectives",
        next="otelgpu diagnose ranks, with the files of all ranks, says who is waited for; exchange less often",
        code="with model.no_sync():  # but in every n-th step: gradients are exchanged once in n\n    loss.backward()",
    ),
    LIBRARY_INSTALLATION: LowUse(
        group="library",
        meaning="the framework that is installed cannot use the GPU",
        seen="a framework without any library of CUDA in the process, on a machine with a GPU",
        says="computes on the CPU, for its framework has no library of CUDA",
        next="install the framework's build for CUDA, and let the program fail where it finds no GPU",
        code="pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128\n"
        "assert torch.cuda.is_available()",
    ),
    API_MISUSE: LowUse(
        group="library",
        meaning="the host looks at results, or waits, in each step, and the device runs dry (`.item()`, synchronize)",
        seen="small copies to the host, or synchronisations, after which the device has nothing queued; "
        "`CUDA_LAUNCH_BLOCKING`",
        says="waits for the GPU time and again, and lets it run dry",
        next=stall.CAUSES[stall.DEVICE_SYNC].next,
        code=stall.CAUSES[stall.DEVICE_SYNC].code,
    ),
}
"""Cause → what it means, the job's first, then the model's, the data's and the libraries'."""

OF_STALLS: Final[Mapping[str, str]] = {
    stall.FILE_WRITE: CHECKPOINTING,
    stall.FILE_SYNC: CHECKPOINTING,
    stall.FILE_CHANGE: CHECKPOINTING,
    stall.FILE_READ: PREPROCESSING,
    stall.INPUT: PREPROCESSING,
    stall.NETWORK: EXTERNAL_DATA,
    stall.DEVICE_COPY: HOST_TRANSFER,
    stall.DEVICE_MEMORY: GPU_MEMORY,
    stall.DEVICE_SYNC: API_MISUSE,
    stall.COLLECTIVE: DATA_EXCHANGE,
}
"""What a thread waits for → the cause; what is not in it is none of the fifteen, and a remark."""

_REMOTE: Final = ("nfs_", "nfs4_", "fuse_", "ceph_", "ll_", "cifs_", "smb2_", "v9fs_", "p9_")
_SENDS: Final = ("sendto", "sendmsg", "sendmmsg", "sendfile")


def cause_of_wait(cause: str, kernel: tuple[str, ...], syscall: str) -> str:
    """Of a cause of :mod:`otelgpu.diagnose.stall`; "": none of the fifteen. ``kernel``: frames of the wait."""
    is_remote = any(name.startswith(_REMOTE) for name in kernel)
    if cause in (stall.FILE_READ, stall.PAGE_FAULTS) and is_remote:
        return REMOTE_READ
    if cause in stall.FILES and is_remote:
        return RESULT_UPLOAD
    if cause == stall.NETWORK and (
        syscall in _SENDS or any(name.startswith("tcp_sendmsg") for name in kernel)
    ):
        return RESULT_UPLOAD
    return OF_STALLS.get(cause, "")
