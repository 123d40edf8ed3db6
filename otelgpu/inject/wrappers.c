// SPDX-License-Identifier: Apache-2.0
/*
 * The functions that stand in for the CUDA API's, made from the table.
 *
 * Of each function there is the exported one, which calls what its caller was
 * linked to, and COPIES that are bound to one address: what dlsym() and
 * cuGetProcAddress() give for it.
 */
#include "inject.h"

#pragma GCC target("general-regs-only")

#define PARAMETERS __u64 a, __u64 b, __u64 c, __u64 d, __u64 e, __u64 f, struct stack_words stack

/* What a probe would have seen in the registers at the function's first instruction. */
#define BODY(api, function)                                                                   \
	{                                                                                     \
		struct pt_regs regs;                                                          \
		struct call call;                                                             \
		cuda_function *real;                                                          \
		__u64 result;                                                                 \
                                                                                              \
		regs.di = a, regs.si = b, regs.dx = c, regs.cx = d, regs.r8 = e, regs.r9 = f; \
		regs.sp = (__u64)&stack - sizeof(__u64);                                      \
		call.caller = __builtin_return_address(0);                                    \
		real = function;                                                              \
		call_begin(&call, api, &regs);                                                \
		result = real(a, b, c, d, e, f, stack);                                       \
		call_end(&call, result);                                                      \
		return result;                                                                \
	}

#define WRAPPER(symbol, ...) \
	EXPORTED __u64 symbol(PARAMETERS) BODY(API_##symbol, called_from(API_##symbol, call.caller))
#define BOUND(symbol, copy)                              \
	static __u64 bound_##copy##_##symbol(PARAMETERS) \
		BODY(API_##symbol, bound[API_##symbol][copy])
#define BOUND_WRAPPERS(symbol, ...) BOUND(symbol, 0) BOUND(symbol, 1) BOUND(symbol, 2)

/* The table's functions have other types for those who call them. */
CUDA_CALLS(WRAPPER)
CUDA_CALLS(BOUND_WRAPPERS)

const char *const api_names[API_COUNT] = {
#define NAME(symbol, ...) [API_##symbol] = #symbol,
	CUDA_CALLS(NAME)
#undef NAME
};

static cuda_function *const wrappers[API_COUNT][1 + COPIES] = {
#define WRAPPERS(symbol, ...) \
	[API_##symbol] = { symbol, bound_0_##symbol, bound_1_##symbol, bound_2_##symbol },
	CUDA_CALLS(WRAPPERS)
#undef WRAPPERS
};

void *own_function(__u16 api, unsigned int copy)
{
	return (void *)wrappers[api][copy];
}
