// SPDX-License-Identifier: Apache-2.0
//
// The host stubs of the example engine's kernels, as a library of CUDA kernels has them: C++ functions
// whose *address* names the kernel to cudaLaunchKernel. The engine looks them up with dlsym and launches
// them; their code never runs. There is no device code behind them, so a real GPU answers each launch
// with cudaErrorInvalidDeviceFunction (see LLM_TOLERATE_LAUNCH_ERRORS in README.md).
//
// noipa keeps the linker and the compiler from merging stubs: each needs its own address.
#define STUB __attribute__((noipa, visibility("default")))

struct __nv_bfloat16; // as in cuda_bf16.h

STUB void rms_norm(const __nv_bfloat16 *, const __nv_bfloat16 *, __nv_bfloat16 *, int)
{
	__builtin_trap();
}

STUB void gemm_bf16(const __nv_bfloat16 *, const __nv_bfloat16 *, __nv_bfloat16 *, int, int, int)
{
	__builtin_trap();
}

template <int HEAD_DIM>
STUB void flash_attention_fwd(const __nv_bfloat16 *, const __nv_bfloat16 *, __nv_bfloat16 *, int)
{
	__builtin_trap();
}
template STUB void flash_attention_fwd<128>(const __nv_bfloat16 *, const __nv_bfloat16 *,
					    __nv_bfloat16 *, int);

template <int HEAD_DIM>
STUB void paged_attention_decode(const __nv_bfloat16 *, const __nv_bfloat16 *, __nv_bfloat16 *, int)
{
	__builtin_trap();
}
template STUB void paged_attention_decode<128>(const __nv_bfloat16 *, const __nv_bfloat16 *,
					       __nv_bfloat16 *, int);

STUB void sample_argmax(const float *, int *, int)
{
	__builtin_trap();
}
