/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What each may take of something that all share: a token bucket for a process or a container. Who is over its share
 * is refused, and the others do not notice.
 */
#ifndef OTELGPU_SHARE_H
#define OTELGPU_SHARE_H

#include "types.h"
#include <bpf/bpf_helpers.h>

#define SHARES 8192

struct share {
	__u64 filled_ns; /* when it was full, if it had been filled since without a pause */
};

/* cgroup id, or tgid with SHARE_OF_PROCESS -> its bucket. Who took nothing for longest has a full one again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SHARES);
	__type(key, __u64);
	__type(value, struct share);
} shares SEC(".maps");

#define SHARE_OF_PROCESS (1ULL << 63)

/*
 * Take one of `burst` tokens, of which one comes back every `token_ns`; false: there is none left. Two processors at
 * once may take one more than there is.
 */
static __always_inline bool take_share(__u64 owner, __u64 now, __u64 token_ns, __u64 burst)
{
	struct share fresh = { .filled_ns = now + token_ns };
	struct share *share = bpf_map_lookup_elem(&shares, &owner);

	if (!share) {
		bpf_map_update_elem(&shares, &owner, &fresh, BPF_ANY);
		return true;
	}
	if (share->filled_ns <= now) {
		share->filled_ns = now + token_ns;
		return true;
	}
	if (share->filled_ns - now + token_ns > burst * token_ns)
		return false;
	share->filled_ns += token_ns;
	return true;
}

#endif
