// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family profile: where threads are and what they wait for, by stack. One header for each subject; which of its
 * programs are loaded is decided by the first word of their names (otelgpu/families/profiles/discover/programs.py).
 */
#include "cpu.h"
#include "waits.h"
#include "syscalls.h"
#include "files.h"
#include "block.h"
#include "calls.h"
#include "user.h"

RECORD(profile_sample);
RECORD(profile_stack);
ENUM(profile_kind);
ENUM(profile_state);
ENUM(stack_end);

char LICENSE[] SEC("license") = "Dual BSD/GPL";
