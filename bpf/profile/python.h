/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The Python frames of the current thread, as CPython 3.9 to 3.14 keep them (without free threading).
 *
 * User space says of each process where its interpreter's state lies and how that version lays its structures out
 * (otelgpu/families/profiles/discover/interpreters.py, otelgpu/symbols/cpython/layout.py). A thread's state is the one whose thread_id is the
 * thread pointer (pthread_self() of glibc and musl); it is looked for once and then checked at each use.
 *
 * A thread of the process that has no state, or none of whose frames run, has no Python frames: that is no loss.
 */
#ifndef OTELGPU_PYTHON_H
#define OTELGPU_PYTHON_H

#include "stack.h"

#define PYTHON_PROCESSES 4096
#define PYTHON_THREADS	 16384
#define PYTHON_OWN	 4 /* interpreters that a thread is in */
/* Thread states that one sample looks at; the next one goes on from there. */
#define PYTHON_STATES 1024
/* Frames of one stack, those that are no function's too. */
#define PYTHON_STEPS (2 * MAX_PYTHON_FRAMES)

/*
 * How frames are linked. Up to 3.10 by PyFrameObject, each in an evaluation of its own, and f_lasti is a number. In
 * 3.11 by _PyInterpreterFrame, of which is_entry marks those that an evaluation began with. Since 3.12 an
 * evaluation begins below a frame of its own, which is no function's.
 */
enum python_frames {
	PYTHON_FRAMES_OBJECTS = 1,
	PYTHON_FRAMES_ENTRIES = 2,
	PYTHON_FRAMES_SHIMS = 3,
};
ENUM(python_frames);

/*
 * The owner of such a frame: FRAME_OWNED_BY_CSTACK in 3.12 and 3.13, FRAME_OWNED_BY_INTERPRETER in 3.14. What is
 * above is no function's and no evaluation's either.
 */
#define PYTHON_OWNER_SHIM 3

/* _PyStackRef (3.14) has tags in its low bits; objects are aligned to 8. */
#define PYTHON_POINTER(word) ((word) & ~7ULL)

/* One process' interpreter. Members are offsets in CPython's structures, where nothing else is said. */
struct python_process {
	__u64 runtime;		/* address of _PyRuntime */
	__u32 interpreters;	/* _PyRuntime.interpreters.head */
	__u32 next_interpreter; /* PyInterpreterState.next */
	__u32 threads;		/* PyInterpreterState.threads.head */
	__u16 next_thread;	/* PyThreadState.next */
	__u16 thread_id;	/* PyThreadState.thread_id */
	__u16 frame;		/* PyThreadState.frame, .cframe or .current_frame */
	__u16 cframe_current;	/* _PyCFrame.current_frame */
	__u16 code;		/* of a frame: f_code or f_executable */
	__u16 previous;		/* f_back or previous */
	__u16 instruction;	/* f_lasti, prev_instr or instr_ptr */
	__u16 owner;		/* is_entry (3.11) or owner */
	__u16 frame_bytes; /* how much of a frame is read: to the end of the last of these four */
	__u16 bytecode;	   /* PyCodeObject.co_code_adaptive */
	__u8 frames;	   /* enum python_frames */
	__u8 lasti_unit;   /* bytes that one step of f_lasti stands for */
	__u8 has_cframe;
	__u8 reserved[5];
};

/* tgid -> its interpreter. Filled and emptied by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PYTHON_PROCESSES);
	__type(key, __u32);
	__type(value, struct python_process);
} interpreters SEC(".maps");

/* What is known of a thread. */
struct python_thread {
	__u64 states[PYTHON_OWN]; /* its PyThreadStates when last looked for */
	__u64 interpreter;	  /* where a search is: at this PyInterpreterState ... */
	__u64 next;		  /* ... and this thread state; both 0: at the start */
	__u64 pointer;		  /* thread pointer that is looked for */
	__u64 again_ns;		  /* not looked for again before that */
	__u32 looked;		  /* thread states in this search */
	__u16 own;		  /* of `states` */
	__u16 several; /* there are several interpreters: all its states that run frames are wanted */
};

/* tgid << 32 | tid -> its thread state. Forgets those that were used least lately. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PYTHON_THREADS);
	__type(key, __u64);
	__type(value, struct python_thread);
} python_threads SEC(".maps");

static __always_inline bool read_python(void *into, __u32 size, __u64 address)
{
	return address && !bpf_probe_read_user(into, size, (void *)address);
}

static __always_inline __u64 python_word(__u64 address)
{
	__u64 word = 0;

	read_python(&word, sizeof(word), address);
	return word;
}

/* -- The thread's state --------------------------------------------------------------------------------- */

static __always_inline bool is_state_of(const struct python_process *process, __u64 state,
					__u64 thread_pointer)
{
	return state && python_word(state + process->thread_id) == thread_pointer;
}

static __always_inline __u64 running_frame(const struct python_process *process, __u64 state)
{
	__u64 frame = python_word(state + process->frame);

	if (process->has_cframe && frame)
		frame = python_word(frame + process->cframe_current);
	return frame;
}

static __always_inline bool has_several_interpreters(const struct python_process *process)
{
	__u64 first = python_word(process->runtime + process->interpreters);

	return first && python_word(first + process->next_interpreter);
}

/*
 * One step of a search: look at the next thread state. 1: the search is over. Of its own for the verifier, which
 * looks at it once for all steps; so are the others below.
 */
__attribute__((noinline)) int look_at_state(const struct python_process *process,
					    struct python_thread *thread)
{
	__u64 state, own;

	if (!process || !thread)
		return 1;
	if (!thread->interpreter)
		return 1;
	state = thread->next;
	if (!state) {
		thread->interpreter = python_word(thread->interpreter + process->next_interpreter);
		if (thread->interpreter)
			thread->next = python_word(thread->interpreter + process->threads);
		return 0;
	}
	thread->looked++;
	thread->next = python_word(state + process->next_thread);
	if (!is_state_of(process, state, thread->pointer))
		return 0;
	if (thread->several && !running_frame(process, state))
		return 0;
	own = thread->own;
	asm volatile("" : "+r"(own)); /* the bound is to be that of this register */
	if (own >= PYTHON_OWN)
		return 1;
	thread->states[own] = state;
	thread->own = own + 1;
	return !thread->several;
}

/*
 * Look for the thread's state; if there are several interpreters, for its states in all of them, the youngest first:
 * calls were made into that last. Costs about 0.1 us for each state that is looked at.
 */
__attribute__((noinline)) int find_state(const struct python_process *process,
					 struct python_thread *thread)
{
	bool ended = false;

	if (!process || !thread)
		return 0;
	if (!thread->interpreter || thread->several) {
		thread->interpreter = python_word(process->runtime + process->interpreters);
		thread->next = 0;
		if (thread->interpreter)
			thread->next = python_word(thread->interpreter + process->threads);
		thread->looked = 0;
	}
	thread->own = 0;
	for (int i = 0; i < PYTHON_STATES; i++) {
		if (look_at_state(process, thread)) {
			ended = true;
			break;
		}
	}
	if (!ended) {
		count(COUNTER_PYTHON_THREADS_CUT); /* goes on from here, at the next sample */
		return 0;
	}
	thread->interpreter = 0;
	thread->next = 0;
	/* Threads that never run Python are to cost little: one part in thousands of their time. */
	if (!thread->own)
		thread->again_ns = bpf_ktime_get_ns() + thread->looked * 250000ULL;
	return 0;
}

/* What is known of the current thread; NULL: it has no Python state. */
static __always_inline struct python_thread *thread_of(const struct python_process *process,
						       struct identity who)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u64 thread_pointer = BPF_CORE_READ(task, thread.fsbase);
	__u64 key = (__u64)who.tgid << 32 | who.tid;
	struct python_thread *thread, none = {};

	thread = bpf_map_lookup_elem(&python_threads, &key);
	if (!thread) {
		bpf_map_update_elem(&python_threads, &key, &none, BPF_ANY);
		thread = bpf_map_lookup_elem(&python_threads, &key);
		if (!thread)
			return NULL;
	}
	thread->several = has_several_interpreters(process);
	if (thread->own && !thread->several &&
	    is_state_of(process, thread->states[0], thread_pointer)) {
		thread->own = 1;
		return thread;
	}
	if (!thread->own && thread->pointer == thread_pointer &&
	    bpf_ktime_get_ns() < thread->again_ns)
		return NULL;
	thread->pointer = thread_pointer;
	find_state(process, thread);
	return thread->own ? thread : NULL;
}

/* -- Frames --------------------------------------------------------------------------------------------- */

/*
 * Behind the longest stack there is room: for one frame that is read, and for how far the walk is. That is the
 * address of the frame to look at, and both words of the one before, which is not reported yet.
 */
#define PYTHON_FRAME_AT	   (STACK_WORDS - 16)
#define PYTHON_FRAME_BYTES 128
#define PYTHON_NEXT	   (STACK_WORDS - 17)
#define PYTHON_CODE	   (STACK_WORDS - 18)
#define PYTHON_WHERE	   (STACK_WORDS - 19)
#define PYTHON_ROOM	   (STACK_WORDS - 24)

_Static_assert(PYTHON_ROOM >= MAX_KERNEL_FRAMES + MAX_USER_FRAMES + 2 * MAX_PYTHON_FRAMES,
	       "what the walk needs lies behind the longest stack");

static __always_inline __u64 frame_word(const struct stack *stack, __u64 offset)
{
	offset = offset / 8 & (PYTHON_FRAME_BYTES / 8 - 1);
	asm volatile("" : "+r"(offset)); /* the bound is to be that of this register */
	return stack->words[PYTHON_FRAME_AT + offset];
}

static __always_inline __u8 frame_byte(const struct stack *stack, __u64 offset)
{
	return frame_word(stack, offset) >> (offset % 8 * 8);
}

/* The byte offset in the code of the instruction of the frame that was read, -1 or -2 before the first. */
static __always_inline __u32 frame_instruction(const struct python_process *process,
					       const struct stack *stack, __u64 code)
{
	__u64 word = frame_word(stack, process->instruction);

	if (process->frames == PYTHON_FRAMES_OBJECTS)
		return (__u32)(word >> (process->instruction % 8 * 8)) * process->lasti_unit;
	return word - code - process->bytecode;
}

/* The frame before, if there is one, with `flags`; false where there is no room. */
static __always_inline bool report_python_frame(struct stack *stack, __u64 flags)
{
	if (stack->python >= MAX_PYTHON_FRAMES || stack->count > PYTHON_ROOM - 2) {
		stack->end = STACK_TOO_DEEP;
		return false;
	}
	push_word(stack, stack->words[PYTHON_CODE]);
	push_word(stack, stack->words[PYTHON_WHERE] | flags);
	stack->python++;
	stack->words[PYTHON_CODE] = 0;
	stack->words[PYTHON_WHERE] = 0;
	return true;
}

/* One frame. 1: it was the last one. */
__attribute__((noinline)) int walk_python_frame(const struct python_process *process,
						struct stack *stack)
{
	__u32 bytes;
	__u64 code;
	__u8 owner;

	if (!process || !stack || !stack->words[PYTHON_NEXT])
		return 1;
	bytes = process->frame_bytes & (PYTHON_FRAME_BYTES - 1);
	if (!read_python(&stack->words[PYTHON_FRAME_AT], bytes, stack->words[PYTHON_NEXT])) {
		stack->end = STACK_PYTHON_DAMAGED;
		return 1;
	}
	owner = frame_byte(stack, process->owner);
	if (process->frames == PYTHON_FRAMES_SHIMS && owner >= PYTHON_OWNER_SHIM) {
		if (owner == PYTHON_OWNER_SHIM && !report_python_frame(stack, PYTHON_ENTRY))
			return 1;
	} else {
		if (stack->words[PYTHON_CODE] && !report_python_frame(stack, 0))
			return 1;
		code = PYTHON_POINTER(frame_word(stack, process->code));
		if (!code) {
			stack->end = STACK_PYTHON_DAMAGED;
			return 1;
		}
		stack->words[PYTHON_CODE] = code;
		stack->words[PYTHON_WHERE] = frame_instruction(process, stack, code);
		if (process->frames == PYTHON_FRAMES_OBJECTS ||
		    (process->frames == PYTHON_FRAMES_ENTRIES && owner))
			stack->words[PYTHON_WHERE] |= PYTHON_ENTRY;
	}
	stack->words[PYTHON_NEXT] = frame_word(stack, process->previous);
	return 0;
}

#define PYTHON_TYPE 8 /* PyObject.ob_type */

static __always_inline __u64 type_of_code(const struct python_process *process, __u64 frame)
{
	__u64 code = PYTHON_POINTER(python_word(frame + process->code));

	return python_word(code + PYTHON_TYPE);
}

/*
 * 3.11 and 3.12: an evaluation links its _PyCFrame, on the stack, some instructions before it writes into it which
 * frame runs. What lies there until then is no frame, as a rule: its code is not of the type of the code before.
 * 0: it is one; else the frame before it.
 */
static __always_inline __u64 frame_before_begun(const struct python_process *process, __u64 state)
{
	__u64 cframe = python_word(state + process->frame) + process->cframe_current;
	__u64 before = python_word(cframe + 8); /* _PyCFrame.previous is behind .current_frame */

	if (before)
		before = python_word(before + process->cframe_current);
	if (!before || type_of_code(process, python_word(cframe)) == type_of_code(process, before))
		return 0;
	return before;
}

/* The frames of one state. 1: there is no room for more, or they are damaged. */
__attribute__((noinline)) int walk_python_state(const struct python_process *process,
						struct stack *stack, __u64 state)
{
	__u64 before = 0;

	if (!process || !stack)
		return 1;
	stack->words[PYTHON_NEXT] = running_frame(process, state);
	stack->words[PYTHON_CODE] = 0;
	stack->words[PYTHON_WHERE] = 0;
	if (process->has_cframe)
		before = frame_before_begun(process, state);
	if (before) {
		stack->words[PYTHON_NEXT] = before;
		report_python_frame(stack, PYTHON_ENTRY); /* the evaluation that begins */
	}
	for (int i = 0; i < PYTHON_STEPS; i++)
		if (walk_python_frame(process, stack))
			break;
	if (stack->words[PYTHON_CODE])
		report_python_frame(stack, 0);
	return stack->end != STACK_COMPLETE;
}

/* The innermost frames, by which it is said where a thread is. */
#define PYTHON_PLACE_FRAMES 4

/* One frame into `stack->hash`, and on to the next. 1: there is none. */
static __always_inline int place_in_frame(const struct python_process *process, struct stack *stack)
{
	__u64 code;

	if (!stack->words[PYTHON_NEXT])
		return 1;
	if (!read_python(&stack->words[PYTHON_FRAME_AT],
			 process->frame_bytes & (PYTHON_FRAME_BYTES - 1),
			 stack->words[PYTHON_NEXT]))
		return 1;
	code = PYTHON_POINTER(frame_word(stack, process->code));
	stack->hash = mix(mix(stack->hash, code), frame_instruction(process, stack, code));
	stack->words[PYTHON_NEXT] = frame_word(stack, process->previous);
	return 0;
}

/* How much of where a thread is in Python its place reports. */
enum python_place {
	PYTHON_PLACE_NONE = 0, /* it runs none */
	PYTHON_PLACE_ALL = 1,
	PYTHON_PLACE_INNER = 2, /* there are callers further out */
};

/*
 * Where the current thread is in Python, into `stack->hash`: at a fraction of what its stack costs; enum python_place.
 * Of its own for the verifier.
 */
__attribute__((noinline)) int place_in_python(struct stack *stack)
{
	struct python_process *process;
	struct python_thread *thread;
	__u32 tgid;

	if (!stack)
		return PYTHON_PLACE_NONE;
	tgid = stack->who.tgid;
	process = bpf_map_lookup_elem(&interpreters, &tgid);
	if (!process)
		return PYTHON_PLACE_NONE;
	thread = thread_of(process, stack->who);
	if (!thread || thread->several)
		return PYTHON_PLACE_NONE;
	stack->words[PYTHON_NEXT] = running_frame(process, thread->states[0]);
	if (!stack->words[PYTHON_NEXT])
		return PYTHON_PLACE_NONE;
	for (int i = 0; i < PYTHON_PLACE_FRAMES; i++)
		if (place_in_frame(process, stack))
			break;
	return stack->words[PYTHON_NEXT] ? PYTHON_PLACE_INNER : PYTHON_PLACE_ALL;
}

/*
 * Appends the frames to the stack's words: to be called when the native ones are there. An evaluation that has just
 * begun and runs no function yet is reported as a frame of code 0.
 */
__attribute__((noinline)) int walk_python(struct stack *stack)
{
	struct python_process *process;
	struct python_thread *thread;
	__u8 native_end;
	__u32 tgid;

	if (!stack)
		return 0;
	tgid = stack->who.tgid;
	process = bpf_map_lookup_elem(&interpreters, &tgid);
	if (!process)
		return 0;
	thread = thread_of(process, stack->who);
	if (!thread)
		return 0;
	native_end = stack->end;
	stack->end = STACK_COMPLETE;
	for (int i = 0; i < PYTHON_OWN; i++)
		if (i >= thread->own || walk_python_state(process, stack, thread->states[i]))
			break;
	if (native_end != STACK_COMPLETE)
		stack->end = native_end;
	return 0;
}

#endif
