"""Data-parallel training in a few lines: a process a rank, CUDA and NCCL through ctypes. See README.md."""
