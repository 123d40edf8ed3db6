// SPDX-License-Identifier: Apache-2.0
/* Compiled for BPF, never loaded: its BTF says the agent the layout of the memory. */
#include "memory.h"

RECORD(inject_hello);
RECORD(inject_header);
RECORD(inject_thread);
RECORD(live_request);
ENUM(inject_number);
ENUM(inject_counter);
ENUM(inject_heard);
ENUM(live_answer);
ENUM(cupti_counter);
