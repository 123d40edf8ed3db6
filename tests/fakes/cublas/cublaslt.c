/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cuBLASLt that computes nothing: the functions whose arguments have the shapes of a product, with the names and the
 * ABI of cublasLt.h.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default"), noipa))

struct layout {
	uint64_t data[8];
};

EXPORTED int cublasLtMatrixLayoutInit_internal(struct layout *layout, size_t size, int type,
					       uint64_t rows, uint64_t columns, int64_t ld)
{
	if (size < sizeof(*layout))
		return 7; /* CUBLAS_STATUS_INVALID_VALUE */
	*layout = (struct layout){ { (uint64_t)type, rows, columns, (uint64_t)ld } };
	return 0;
}

EXPORTED int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows,
					uint64_t columns, int64_t ld)
{
	struct layout *made = malloc(sizeof(*made));

	if (!made)
		return 3; /* CUBLAS_STATUS_ALLOC_FAILED */
	*made = (struct layout){ { (uint64_t)type, rows, columns, (uint64_t)ld } };
	*layout = made;
	return 0;
}

EXPORTED int cublasLtMatrixLayoutDestroy(struct layout *layout)
{
	free(layout);
	return 0;
}

EXPORTED int cublasLtMatmul(void *handle, void *computation, const void *alpha, const void *a,
			    struct layout *a_layout, const void *b, struct layout *b_layout,
			    const void *beta, const void *c, struct layout *c_layout, void *d,
			    struct layout *d_layout, const void *algorithm, void *workspace,
			    size_t workspace_size, void *stream)
{
	(void)handle, (void)computation, (void)alpha, (void)a, (void)a_layout, (void)b;
	(void)b_layout, (void)beta, (void)c, (void)c_layout, (void)d, (void)d_layout;
	(void)algorithm, (void)workspace, (void)workspace_size, (void)stream;
	return 0;
}
