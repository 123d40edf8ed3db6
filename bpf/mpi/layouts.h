/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Handles of MPI libraries. MPICH and what is made of it (Intel MPI, MVAPICH, Cray MPICH): an int, of which bits 30 and 31
 * say where the object is kept, bits 26 to 29 what it is, and, of a built-in datatype, bits 8 to 15 its size
 * (src/include/mpir_handlemem.h, mpir_datatype.h; the same in 3.x and 4.x). Open MPI: an address; of a datatype that of
 * a struct opal_datatype_t (opal/datatype/opal_datatype.h; the same in 1.7 to 5.0), measured on 4.1.4.
 */
#ifndef OTELGPU_MPI_LAYOUTS_H
#define OTELGPU_MPI_LAYOUTS_H

#include "../lib/arguments.h"

#define MPICH_KIND(handle)   ((__u32)(handle) >> 30)
#define MPICH_OBJECT(handle) ((__u32)(handle) >> 26 & 0xf)
#define MPICH_SIZE(handle)   ((__u32)(handle) >> 8 & 0xff)
#define MPICH_BUILTIN	     1
#define MPICH_COMMUNICATOR   1
#define MPICH_DATATYPE	     3

#define OMPI_DATATYPE_FLAGS_AT	16 /* uint16_t; before it an opal_object_t: a pointer and a count */
#define OMPI_DATATYPE_SIZE_AT	24 /* size_t */
#define OMPI_DATATYPE_COMMITTED 4

#define LARGEST_TYPE (1u << 30)

static __always_inline bool is_mpich_communicator(__u64 handle)
{
	return !(handle >> 32) && MPICH_OBJECT(handle) == MPICH_COMMUNICATOR && MPICH_KIND(handle);
}

/* Bytes of an element; 0: not known. */
static __always_inline __u64 element_bytes(__u64 datatype)
{
	__u64 size = 0;
	__u16 flags = 0;

	if (!(datatype >> 32) && MPICH_OBJECT(datatype) == MPICH_DATATYPE && MPICH_KIND(datatype))
		return MPICH_KIND(datatype) == MPICH_BUILTIN ? MPICH_SIZE(datatype) : 0;
	if (datatype < 4096 ||
	    bpf_probe_read_user(&flags, sizeof(flags), (void *)(datatype + OMPI_DATATYPE_FLAGS_AT)))
		return 0;
	if (!(flags & OMPI_DATATYPE_COMMITTED))
		return 0;
	bpf_probe_read_user(&size, sizeof(size), (void *)(datatype + OMPI_DATATYPE_SIZE_AT));
	return size <= LARGEST_TYPE ? size : 0;
}

#endif
