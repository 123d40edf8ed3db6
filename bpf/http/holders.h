/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whose the entries in the tables of connections are: which process, under a number that no other has again, and how
 * many it and its container may have. Entries of a process that has ended are nobody's from that moment on, and never
 * taken for those of the next owner of its id; user space takes them out.
 */
#ifndef OTELGPU_HOLDERS_H
#define OTELGPU_HOLDERS_H

#include "http.h"
#include "../lib/dynamic_share.h"
#include "../lib/scope.h"
#include <bpf/bpf_tracing.h>

#define CONNECTIONS	131072 /* of all processes; half of them of one at most */
#define TLS_SESSIONS	65536
#define GO_CALLS	(2 * TLS_SESSIONS) /* of each session one that reads, one that writes */
#define HOLDERS		32768
#define HOLDING_CGROUPS 8192

/* Tables that have shares. */
enum http_table {
	HTTP_TABLE_CONNECTIONS = 0,
	HTTP_TABLE_SESSIONS = 1,
	HTTP_TABLE_GO_CALLS = 2,
	HTTP_TABLE_HOLDERS = 3,
	HTTP_TABLES = 4,
};

/* A process that has, or had, entries. */
struct holder {
	__u64 number; /* the key of its entries */
	__u64 cgroup; /* whose share it is; 0: user space made it, and it has begun no connection since */
	__u64 held[HTTP_TABLE_HOLDERS]; /* entries, by enum http_table */
	__u64 refused;			/* for want of a share, ever */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HOLDERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* tgid */
	__type(value, struct holder);
} holders SEC(".maps");

struct holding {
	__u64 held[HTTP_TABLES];
};

/* What the processes of a cgroup hold. Of one that began and ended nothing for longest it is forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, HOLDING_CGROUPS);
	__type(key, __u64);
	__type(value, struct holding);
} holding_cgroups SEC(".maps");

/* Entries that were put in and taken out, ever: by programs, and by user space. Each count has one side that writes. */
struct http_turnover {
	__u64 in[HTTP_TABLES];
	__u64 out[HTTP_TABLES];
};

struct http_turnover http_turnover = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct http_turnover);
} user_turnover SEC(".maps");

__u64 http_holders = 0;	    /* the last number given: enum connection_number */
__u64 http_left_behind = 0; /* processes that ended and had entries */

static __always_inline __u64 places_of(__u32 table)
{
	return table == HTTP_TABLE_CONNECTIONS ? CONNECTIONS
	       : table == HTTP_TABLE_SESSIONS  ? TLS_SESSIONS
	       : table == HTTP_TABLE_GO_CALLS  ? GO_CALLS
					       : HOLDERS;
}

static __always_inline __u64 free_places(__u32 table)
{
	struct http_turnover *user;
	__u64 taken = http_turnover.in[table] - http_turnover.out[table];
	__u32 first = 0;

	user = bpf_map_lookup_elem(&user_turnover, &first);
	if (user)
		taken += user->in[table] - user->out[table];
	return taken < places_of(table) ? places_of(table) - taken : 0;
}

/* That of a cgroup; NULL: there is no room for it, and its processes have a share each. */
static __always_inline struct holding *holding_of(__u64 cgroup)
{
	struct holding *found = bpf_map_lookup_elem(&holding_cgroups, &cgroup), none = {};

	if (found)
		return found;
	bpf_map_update_elem(&holding_cgroups, &cgroup, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&holding_cgroups, &cgroup);
}

static __always_inline void take_from(struct holding *cgroup, __u32 table, __u64 number)
{
	/* It may have been forgotten meanwhile. */
	if (cgroup && cgroup->held[table] >= number)
		__sync_fetch_and_sub(&cgroup->held[table], number);
}

/* The holder that a process is; NULL: it has no connections. */
static __always_inline struct holder *holder_of(__u32 tgid)
{
	return bpf_map_lookup_elem(&holders, &tgid);
}

/* The current process as a holder. NULL, and counted, if there is no room. */
static __noinline struct holder *begin_holding(__u32 tgid)
{
	struct holder *found = holder_of(tgid), fresh = {};
	__u64 own = bpf_get_current_cgroup_id();
	struct holding *cgroup;

	/* Made by user space: what it holds is its cgroup's from now on. */
	if (found && (found->cgroup || __sync_val_compare_and_swap(&found->cgroup, 0, own)))
		return found;
	cgroup = holding_of(own);
	if (found) {
		if (cgroup) {
			__sync_fetch_and_add(&cgroup->held[HTTP_TABLE_HOLDERS], 1);
			__sync_fetch_and_add(&cgroup->held[HTTP_TABLE_CONNECTIONS],
					     found->held[HTTP_TABLE_CONNECTIONS]);
		}
		return found;
	}
	if (cgroup && !within_dynamic_share(0, cgroup->held[HTTP_TABLE_HOLDERS] + 1,
					    free_places(HTTP_TABLE_HOLDERS), HOLDERS)) {
		count(COUNTER_CONNECTION_SHARE_SPENT);
		return NULL;
	}
	fresh.number = __sync_fetch_and_add(&http_holders, 1) + 1;
	fresh.cgroup = own;
	if (!bpf_map_update_elem(&holders, &tgid, &fresh, BPF_NOEXIST)) {
		__sync_fetch_and_add(&http_turnover.in[HTTP_TABLE_HOLDERS], 1);
		if (cgroup)
			__sync_fetch_and_add(&cgroup->held[HTTP_TABLE_HOLDERS], 1);
	}
	found = holder_of(tgid); /* another thread's, perhaps */
	if (!found)
		count(COUNTER_CONNECTION_TABLE_FULL);
	return found;
}

/* Whether a process may have one entry more in a table, of which it is charged then; a refusal is counted. */
static __noinline bool take_place(struct holder *holder, __u32 table)
{
	struct holding *cgroup = holding_of(holder->cgroup);
	__u64 all;

	if (table >= HTTP_TABLE_HOLDERS)
		return false;
	all = cgroup ? cgroup->held[table] : 0;
	if (!within_dynamic_share(holder->held[table] + 1, all + 1, free_places(table),
				  places_of(table))) {
		__sync_fetch_and_add(&holder->refused, 1);
		count(COUNTER_CONNECTION_SHARE_SPENT);
		return false;
	}
	__sync_fetch_and_add(&holder->held[table], 1);
	__sync_fetch_and_add(&http_turnover.in[table], 1);
	if (cgroup)
		__sync_fetch_and_add(&cgroup->held[table], 1);
	return true;
}

/* An entry was taken out, or never came in. `charged`: its holder was charged for it. */
static __noinline void give_place_back(__u32 tgid, __u32 table, bool charged)
{
	struct holder *holder = holder_of(tgid);

	if (table >= HTTP_TABLE_HOLDERS)
		return;
	__sync_fetch_and_add(&http_turnover.out[table], 1);
	if (!holder || !charged)
		return;
	__sync_fetch_and_sub(&holder->held[table], 1);
	take_from(bpf_map_lookup_elem(&holding_cgroups, &holder->cgroup), table, 1);
}

/* The last thread of a process ends: what it held is nobody's. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(holder_ends, struct task_struct *task)
{
	struct holding *cgroup;
	struct holder *holder;
	struct holder ended;
	__u32 tgid;

	(void)ctx;
	if (BPF_CORE_READ(task, signal, live.counter) != 0)
		return 0;
	tgid = identify(task).tgid;
	holder = holder_of(tgid);
	if (!holder)
		return 0;
	ended = *holder;
	if (bpf_map_delete_elem(&holders, &tgid))
		return 0;
	__sync_fetch_and_add(&http_turnover.out[HTTP_TABLE_HOLDERS], 1);
	__sync_fetch_and_add(&http_left_behind, 1);
	if (!ended.cgroup)
		return 0;
	cgroup = bpf_map_lookup_elem(&holding_cgroups, &ended.cgroup);
	take_from(cgroup, HTTP_TABLE_HOLDERS, 1);
	take_from(cgroup, HTTP_TABLE_CONNECTIONS, ended.held[HTTP_TABLE_CONNECTIONS]);
	take_from(cgroup, HTTP_TABLE_SESSIONS, ended.held[HTTP_TABLE_SESSIONS]);
	take_from(cgroup, HTTP_TABLE_GO_CALLS, ended.held[HTTP_TABLE_GO_CALLS]);
	return 0;
}

#endif
