// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context_switches.h"
#include "thread_context.h"

#if defined(__x86_64__)
#define RELOC_CALL R_X86_64_JUMP_SLOT
#define RELOC_DATA R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define RELOC_CALL R_AARCH64_JUMP_SLOT
#define RELOC_DATA R_AARCH64_GLOB_DAT
#else
#error "which relocations bind a function on this architecture?"
#endif

/* --- CPython 3.14 and later ---------------------------------------------------------------------- */

static int watch(int event, PyObject *object)
{
	(void)event;
	(void)object;
	if (published_var() != NULL)
		publish_current();
	return 0;
}

/* --- contextvars.Context.run --------------------------------------------------------------------- */

typedef PyObject *run_function(PyObject *self, PyObject *const *args, Py_ssize_t count,
			       PyObject *keywords);

static run_function *real_run;

static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
	PyObject *result;

	if (published_var() == NULL)
		return real_run(self, args, count, keywords);
	publish_inside(self);
	result = real_run(self, args, count, keywords);
	publish_current(); /* also after a run that was refused: the Context is entered already */
	return result;
}

/*
 * The method's entry in CPython's table of methods, found from its descriptor. Each call reads ml_meth
 * anew (3.11 to 3.13, specialised bytecode too), and the table is not const.
 */
static PyMethodDef *run_method(void)
{
	PyObject *descriptor = PyObject_GetAttrString((PyObject *)&PyContext_Type, "run");
	PyMethodDef *method;

	if (descriptor == NULL)
		return NULL;
	method = Py_TYPE(descriptor) == &PyMethodDescr_Type
			 ? ((struct method_descriptor *)descriptor)->d_method
			 : NULL;
	Py_DECREF(descriptor); /* the type keeps it */
	if (method == NULL || method->ml_flags != (METH_FASTCALL | METH_KEYWORDS) ||
	    strcmp(method->ml_name, "run")) {
		PyErr_SetString(PyExc_RuntimeError, "contextvars.Context.run is not CPython's own");
		return NULL;
	}
	return method;
}

/* --- PyContext_Enter and PyContext_Exit, called by C code ------------------------------------------ */

static int enter(PyObject *context)
{
	int failed = PyContext_Enter(context);

	if (!failed && published_var() != NULL)
		publish_current();
	return failed;
}

static int leave(PyObject *context)
{
	int failed = PyContext_Exit(context);

	if (!failed && published_var() != NULL)
		publish_current();
	return failed;
}

struct library {
	ElfW(Addr) base;
	ElfW(Addr) relro, relro_end; /* read-only since it was relocated */
	const ElfW(Sym) * symbols;
	const char *strings;
};

static ElfW(Addr) fake(const char *name)
{
	if (strcmp(name, "PyContext_Enter") == 0)
		return (ElfW(Addr))enter;
	if (strcmp(name, "PyContext_Exit") == 0)
		return (ElfW(Addr))leave;
	return 0;
}

/* Write one slot of a global offset table. 0, or an errno. */
static int write_slot(const struct library *library, ElfW(Addr) * slot, ElfW(Addr) value)
{
	ElfW(Addr) at = (ElfW(Addr))slot, page = at & -(ElfW(Addr))sysconf(_SC_PAGESIZE);
	size_t size = at + sizeof(*slot) - page;
	int read_only = at >= library->relro && at < library->relro_end;

	if (read_only && mprotect((void *)page, size, PROT_READ | PROT_WRITE) != 0)
		return errno;
	__atomic_store_n(slot, value, __ATOMIC_RELAXED);
	if (read_only && mprotect((void *)page, size, PROT_READ) != 0)
		return errno;
	return 0;
}

/* Redirect the calls among one table of relocations. The number of them, or an errno turned negative. */
static int redirect(const struct library *library, const ElfW(Rela) * table, size_t count)
{
	int redirected = 0, failure;

	for (const ElfW(Rela) *each = table; each < table + count; each++) {
		ElfW(Addr) * slot, value;
		uint32_t type = ELF64_R_TYPE(each->r_info);

		if (type != RELOC_CALL && type != RELOC_DATA)
			continue;
		value = fake(library->strings +
			     library->symbols[ELF64_R_SYM(each->r_info)].st_name);
		slot = (ElfW(Addr) *)(library->base + each->r_offset);
		if (value == 0 || *slot == value)
			continue;
		failure = write_slot(library, slot, value);
		if (failure)
			return -failure;
		redirected++;
	}
	return redirected;
}

static int holds(const struct dl_phdr_info *info, ElfW(Addr) address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];

		if (part->p_type == PT_LOAD &&
		    address - info->dlpi_addr - part->p_vaddr < part->p_memsz)
			return 1;
	}
	return 0;
}

static int redirect_library(struct dl_phdr_info *info, size_t size, void *total)
{
	struct library library = { .base = info->dlpi_addr };
	const ElfW(Dyn) *dynamic = NULL;
	const ElfW(Rela) *calls = NULL, *others = NULL;
	size_t calls_size = 0, others_size = 0;
	int redirected[2];

	(void)size;
	if (holds(info, (ElfW(Addr))enter))
		return 0; /* this one calls the real functions */
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];

		if (part->p_type == PT_DYNAMIC)
			dynamic = (const void *)(library.base + part->p_vaddr);
		if (part->p_type == PT_GNU_RELRO) {
			library.relro = library.base + part->p_vaddr;
			library.relro_end = library.relro + part->p_memsz;
		}
	}
	for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
		/* glibc has turned these offsets into addresses, but for the vDSO's. */
		const void *table = (const void *)dynamic->d_un.d_ptr;

		if (dynamic->d_tag == DT_SYMTAB)
			library.symbols = table;
		if (dynamic->d_tag == DT_STRTAB)
			library.strings = table;
		if (dynamic->d_tag == DT_JMPREL)
			calls = table;
		if (dynamic->d_tag == DT_RELA)
			others = table;
		if (dynamic->d_tag == DT_PLTRELSZ)
			calls_size = dynamic->d_un.d_val;
		if (dynamic->d_tag == DT_RELASZ)
			others_size = dynamic->d_un.d_val;
	}
	if ((ElfW(Addr))library.symbols < library.base ||
	    (ElfW(Addr))library.strings < library.base)
		return 0;
	redirected[0] = calls == NULL ? 0 : redirect(&library, calls, calls_size / sizeof(*calls));
	redirected[1] =
		others == NULL ? 0 : redirect(&library, others, others_size / sizeof(*others));
	for (int i = 0; i < 2; i++) {
		if (redirected[i] < 0)
			return redirected[i]; /* ends the walk */
		*(int *)total += redirected[i];
	}
	return 0;
}

int follow_libraries(void)
{
	int total = 0, failure;

	if (PyContext_AddWatcher != NULL)
		return 0;
	failure = dl_iterate_phdr(redirect_library, &total);
	if (failure == 0)
		return total;
	errno = -failure;
	PyErr_SetFromErrno(PyExc_OSError);
	return -1;
}

int follow_switches(void)
{
	PyMethodDef *method;

	if (PyContext_AddWatcher != NULL)
		return PyContext_AddWatcher(watch) < 0 ? -1 : 0;
	method = run_method();
	if (method == NULL)
		return -1;
	real_run = (run_function *)(void *)method->ml_meth;
	method->ml_meth = (PyCFunction)(void *)run;
	return 0;
}
