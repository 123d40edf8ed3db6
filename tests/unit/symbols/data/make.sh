#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How the fixtures here were made: nvcc 13.5 of the Python packages nvidia-cuda-nvcc, nvidia-nvvm,
# nvidia-cuda-crt, nvidia-cuda-runtime and nvidia-cuda-cccl, unpacked into $CUDA, and g++ 12. Not run by any test.
#   CUDA=/path/to/nvidia/cu13 ./make.sh
set -euo pipefail
cd "$(dirname "$0")"
nvcc=("$CUDA/bin/nvcc" -frandom-seed=1 kernels.cu)
one=(-gencode arch=compute_80,code=sm_80)
"${nvcc[@]}" "${one[@]}" --fatbin-options -compress-all -compress-mode=speed --fatbin -o lz4.fatbin
"${nvcc[@]}" "${one[@]}" --fatbin-options -compress-all -compress-mode=size --fatbin -o zstd.fatbin
"${nvcc[@]}" -gencode arch=compute_90,code=compute_90 -compress-mode=none --fatbin -o ptx.fatbin
"${nvcc[@]}" "${one[@]}" -gencode arch=compute_86,code=sm_86 --concat --fatbin -o several.fatbin
"${nvcc[@]}" "${one[@]}" --cubin -o kernels.cubin
"${nvcc[@]}" "${one[@]}" --fatbin-options -compress-all -cudart shared -L"$CUDA/lib" \
    -Xlinker -s,-z,noseparate-code,--build-id=none -o stripped.program
