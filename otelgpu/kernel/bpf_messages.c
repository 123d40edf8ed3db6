/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of what libbpf has to say while it opens and loads objects, some 9,000 messages for those of a session are for who
 * debugs libbpf. Each of them would wait for the interpreter's lock, which other threads import modules under, to be
 * thrown away; here they go without it. Warnings and what informs are handed on.
 *
 * Source: enum libbpf_print_level and libbpf_print_fn_t of bpf/libbpf.h.
 */
#include <stdarg.h>

#define LIBBPF_DEBUG 2

typedef int (*print_fn)(int level, const char *format, va_list arguments);

static print_fn receiver;

/* Before the other is given to libbpf; ``function`` is to live as long as that. */
void bpf_messages_to(print_fn function)
{
	receiver = function;
}

int bpf_messages_print(int level, const char *format, va_list arguments)
{
	return level < LIBBPF_DEBUG ? receiver(level, format, arguments) : 0;
}
