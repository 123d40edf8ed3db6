// SPDX-License-Identifier: Apache-2.0
/*
 * Which real function a wrapper calls, and the ways to a function that pass the
 * linker by: dlsym(), dlvsym() and cuGetProcAddress().
 *
 * An exported wrapper calls what its caller would have been linked to without it
 * (linking.h). There may be several copies of the CUDA runtime in a process, so the
 * answer belongs to the place of the call; it is looked up once for each.
 */
#define _GNU_SOURCE
#include "inject.h"
#include "linking.h"

#include <dlfcn.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* -- The real dlsym ----------------------------------------------------------------------- */

/* glibc's own, found in its symbol table: whoever asks the linker for dlsym gets ours. */
static struct {
	void *(*dlsym)(void *, const char *);
	void *(*dlvsym)(void *, const char *, const char *);
} real;

/* For the tail calls of the stubs below. */
HIDDEN void *real_dlsym, *real_dlvsym;

static int look_into(struct dl_phdr_info *info, size_t size, void *unused)
{
	const char *name = strrchr(info->dlpi_name, '/');
	struct tables tables = { 0 };
	void *found;

	(void)size;
	(void)unused;
	name = name ? name + 1 : info->dlpi_name;
	/* Before glibc 2.34 they were in libdl. */
	if (strncmp(name, "libc.so.", 8) && strncmp(name, "libdl.so.", 9))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			tables = read_tables((void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr),
					     info->dlpi_addr);
#define TAKE(function)                                                                      \
	do {                                                                                \
		found = defined(&tables, info->dlpi_addr, #function);                       \
		if (found && !__atomic_load_n((void **)&real.function, __ATOMIC_ACQUIRE))   \
			__atomic_store_n((void **)&real.function, found, __ATOMIC_RELEASE); \
	} while (0)
	TAKE(dlvsym);
	TAKE(dlsym);
#undef TAKE
	return 0;
}

/* Idempotent, so that it needs no lock: calls come before constructors run, and from any thread. */
static int have_real(void)
{
	if (!__atomic_load_n(&real_dlsym, __ATOMIC_ACQUIRE)) {
		dl_iterate_phdr(look_into, NULL);
		__atomic_store_n(&real_dlvsym, (void *)real.dlvsym, __ATOMIC_RELEASE);
		if (real.dlvsym)
			__atomic_store_n(&real_dlsym, (void *)real.dlsym, __ATOMIC_RELEASE);
	}
	return real_dlsym != NULL;
}

/* The linker's lock is taken for it: not to be waited for in a child of fork(). */
__attribute__((constructor)) static void find_real(void)
{
	have_real();
}

/* -- Names -------------------------------------------------------------------------------- */

/* Functions that give addresses of functions: known by name as those of the table are. */
enum { GET_PROC_ADDRESS = API_COUNT, GET_PROC_ADDRESS_V2, KNOWN_NAMES };

#define NAMES_ROOM 1024 /* a power of two */
_Static_assert(NAMES_ROOM >= 2 * KNOWN_NAMES, "open addressing wants room");

static __u16 names[NAMES_ROOM]; /* hash -> number, 0: empty */
static __u32 names_ready;

static const char *known_name(__u16 number)
{
	if (number == GET_PROC_ADDRESS)
		return "cuGetProcAddress";
	if (number == GET_PROC_ADDRESS_V2)
		return "cuGetProcAddress_v2";
	return api_names[number];
}

static __u32 hash_of(const char *name)
{
	__u32 hash = 2166136261U;

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619U;
	return hash;
}

static void enter_names(void)
{
	/* Whoever comes second writes the same: a name's place depends on nothing but the table. */
	for (__u16 number = 1; number < KNOWN_NAMES; number++) {
		__u32 at = hash_of(known_name(number));

		while (names[at & (NAMES_ROOM - 1)] && names[at & (NAMES_ROOM - 1)] != number)
			at++;
		__atomic_store_n(&names[at & (NAMES_ROOM - 1)], number, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&names_ready, 1, __ATOMIC_RELEASE);
}

/* A function's number, or 0 when it is none of ours. */
static __u16 number_of(const char *name)
{
	__u16 number;

	if (name[0] != 'c' && name[0] != '_')
		return 0;
	if (!__atomic_load_n(&names_ready, __ATOMIC_ACQUIRE))
		enter_names();
	for (__u32 at = hash_of(name);; at++) {
		number = names[at & (NAMES_ROOM - 1)];
		if (!number || !strcmp(known_name(number), name))
			return number;
	}
}

__u16 api_number(const char *name)
{
	__u16 number = number_of(name);

	return number < API_COUNT ? number : 0;
}

/* -- What a caller is linked to ----------------------------------------------------------- */

/* Nobody defines it: the program asked whether a weak symbol is there, and believed it. */
static __u64 not_there(__u64 a, __u64 b, __u64 c, __u64 d, __u64 e, __u64 f, struct stack_words s)
{
	(void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)s;
	return 302; /* cudaErrorSharedObjectSymbolNotFound and CUDA_ERROR_… */
}

/*
 * Place of a call -> real function. An entry is made once and never changes: the
 * function is written before the key.
 */
#define SITES	    8192 /* a power of two; beyond it each call is looked up */
#define SITE_PROBES 8
#define SITE_TAKEN  1

static struct site {
	__u64 key;
	cuda_function *function;
} sites[SITES];

static __attribute__((noinline, cold)) cuda_function *remember(__u16 api, const void *caller,
							       __u64 key, __u32 at)
{
	cuda_function *function = (cuda_function *)linked_to(api_names[api], caller);

	if (!function)
		return not_there; /* and ask again: a library may come later */
	for (__u32 i = 0; i < SITE_PROBES; i++) {
		struct site *site = &sites[(at + i) & (SITES - 1)];
		__u64 empty = 0;

		if (__atomic_compare_exchange_n(&site->key, &empty, SITE_TAKEN, 0, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE)) {
			site->function = function;
			__atomic_store_n(&site->key, key, __ATOMIC_RELEASE);
			break;
		}
		if (empty == key)
			break;
	}
	return function;
}

cuda_function *called_from(__u16 api, const void *caller)
{
	__u64 key = (__u64)caller ^ (__u64)api << 48; /* user addresses have 47 bits */
	__u32 at = (__u32)((key * 0x9e3779b97f4a7c15ULL) >> 40);

	for (__u32 i = 0; i < SITE_PROBES; i++) {
		struct site *site = &sites[(at + i) & (SITES - 1)];
		__u64 seen = __atomic_load_n(&site->key, __ATOMIC_ACQUIRE);

		if (likely(seen == key))
			return site->function;
		if (!seen)
			break;
	}
	return remember(api, caller, key, at);
}

/* -- Addresses that are given out --------------------------------------------------------- */

cuda_function *bound[API_COUNT][COPIES];

/* A wrapper that calls `address`, or `address` itself when all are taken by other copies. */
static void *wrapper_of(__u16 api, void *address)
{
	if (!address || is_ours(address))
		return address;
	for (unsigned int copy = 0; copy < COPIES; copy++) {
		cuda_function *empty = NULL;

		if (__atomic_compare_exchange_n(&bound[api][copy], &empty, (cuda_function *)address,
						0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
		    empty == (cuda_function *)address)
			return own_function(api, copy + 1);
	}
	count_globally(INJECT_COPIES_EXHAUSTED);
	return address;
}

typedef __u64 get_proc_address(const char *, void **, int, __u64, void *);
static get_proc_address *real_get_proc_address[2]; /* a process has one libcuda */

#define MAX_NAME 128

/*
 * The function of the table that is at `address`. cuGetProcAddress is asked for a
 * name without its version (cuMemAlloc), and answers by flags with one of several
 * (cuMemAlloc_v2, …_ptsz): libcuda's symbols say which.
 */
static __u16 number_at(const char *name, void *address)
{
	static const char *const suffixes[] = { "_v3_ptsz", "_v2_ptsz", "_ptsz",
						"_v3_ptds", "_v2_ptds", "_ptds",
						"_v3",	    "_v2",	"" };
	char full[MAX_NAME + 16];
	size_t length = strnlen(name, MAX_NAME);
	const struct link_map *object;
	struct tables tables;
	__u16 number, likely_number = 0;

	if (length == MAX_NAME)
		return 0;
	memcpy(full, name, length);
	object = object_at(address);
	if (object)
		tables = read_tables(object->l_ld, object->l_addr);
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(*suffixes); i++) {
		strcpy(full + length, suffixes[i]);
		number = number_of(full);
		if (!number)
			continue;
		if (object && defined(&tables, object->l_addr, full) == address)
			return number;
		if (i >= 6 && !likely_number)
			likely_number = number; /* not exported under any name: the newest layout */
	}
	return likely_number;
}

static void *given_out(__u16 number, void *address)
{
	if (number < API_COUNT)
		return wrapper_of(number, address);
	if (!is_ours(address))
		__atomic_store_n(&real_get_proc_address[number - GET_PROC_ADDRESS],
				 (get_proc_address *)address, __ATOMIC_RELEASE);
	return number == GET_PROC_ADDRESS ? (void *)cuGetProcAddress : (void *)cuGetProcAddress_v2;
}

static __u64 asked_for_address(__u16 number, const char *symbol, void **address, int version,
			       __u64 flags, void *found, const void *caller)
{
	get_proc_address **slot = &real_get_proc_address[number - GET_PROC_ADDRESS];
	get_proc_address *function = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
	__u64 result;
	__u16 given;

	if (!function) {
		function = (get_proc_address *)linked_to(known_name(number), caller);
		if (!function)
			return 302;
		__atomic_store_n(slot, function, __ATOMIC_RELEASE);
	}
	result = function(symbol, address, version, flags, found);
	if ((__u32)result || !symbol || !address || !*address || is_ours(*address))
		return result;
	given = number_at(symbol, *address);
	if (given)
		*address = given_out(given, *address);
	return result;
}

/* cuda.h, CUDA 11.3 to 11.8 and from 12.0; the first has no fifth argument, which is passed along unread. */
EXPORTED __u64 cuGetProcAddress(const char *symbol, void **address, int version, __u64 flags,
				void *found)
{
	return asked_for_address(GET_PROC_ADDRESS, symbol, address, version, flags, found,
				 __builtin_return_address(0));
}

EXPORTED __u64 cuGetProcAddress_v2(const char *symbol, void **address, int version, __u64 flags,
				   void *found)
{
	return asked_for_address(GET_PROC_ADDRESS_V2, symbol, address, version, flags, found,
				 __builtin_return_address(0));
}

/* -- dlsym and dlvsym --------------------------------------------------------------------- */

struct answer {
	void *address;
	__u64 answered; /* 0: let the real one do it */
};

/* Called by the stubs below. */
HIDDEN struct answer answer_dlsym(void *handle, const char *name, const char *version,
				  const void *caller)
{
	struct answer answer = { NULL, 1 };
	__u16 number;
	void *found;

	if (!have_real())
		return answer;
	number = name && handle != RTLD_NEXT ? number_of(name) : 0;
	if (!number) {
		answer.answered = 0;
		return answer;
	}
	if (handle == RTLD_DEFAULT)
		found = version ? real.dlvsym(RTLD_NEXT, name, version) : linked_to(name, caller);
	else
		found = version ? real.dlvsym(handle, name, version) : real.dlsym(handle, name);
	if (handle == RTLD_DEFAULT ? !found && !version : is_ours(found))
		found = real.dlsym(RTLD_NEXT, name); /* if there is none, dlerror() says so */
	if (found)
		answer.address = given_out(number, found);
	return answer;
}

/*
 * What RTLD_NEXT and RTLD_DEFAULT mean depends on who calls: the real function must
 * see the caller's return address, so it is jumped to, which C cannot say.
 */
#define STUB(name, version)                                                  \
	__asm__(".text\n"                                                    \
		".globl " #name "\n"                                         \
		".type " #name ", @function\n" #name ":\n"                   \
		"	.cfi_startproc\n"                                          \
		"	endbr64\n"                                                 \
		"	push %rdi\n"                                               \
		"	.cfi_adjust_cfa_offset 8\n"                                \
		"	push %rsi\n"                                               \
		"	.cfi_adjust_cfa_offset 8\n"                                \
		"	push %rdx\n"                                               \
		"	.cfi_adjust_cfa_offset 8\n"                                \
		"	mov 24(%rsp), %rcx\n" version "	call answer_dlsym\n" \
		"	mov %rdx, %rcx\n"                                          \
		"	pop %rdx\n"                                                \
		"	.cfi_adjust_cfa_offset -8\n"                               \
		"	pop %rsi\n"                                                \
		"	.cfi_adjust_cfa_offset -8\n"                               \
		"	pop %rdi\n"                                                \
		"	.cfi_adjust_cfa_offset -8\n"                               \
		"	test %rcx, %rcx\n"                                         \
		"	jz 1f\n"                                                   \
		"	ret\n"                                                     \
		"1:	jmp *real_" #name "(%rip)\n"                         \
		"	.cfi_endproc\n"                                            \
		".size " #name ", . - " #name "\n")

STUB(dlsym, "	xor %edx, %edx\n");
STUB(dlvsym, "");
