/* SPDX-License-Identifier: Apache-2.0 */
/* A cuBLAS that computes nothing: its matrix products, with the names and the ABI of cublas_api.h. */
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default"), noipa))
#define SHAPE	 void *handle, int transa, int transb, int m, int n, int k, const void *alpha

struct layout;
int cublasLtMatmul(void *handle, void *computation, const void *alpha, const void *a,
		   struct layout *a_layout, const void *b, struct layout *b_layout,
		   const void *beta, const void *c, struct layout *c_layout, void *d,
		   struct layout *d_layout, const void *algorithm, void *workspace,
		   size_t workspace_size, void *stream);

static int computed;

static int compute(int m, int n, int k)
{
	computed += m + n + k;
	return 0;
}

#define PLAIN(name)                                                                                \
	EXPORTED int name(SHAPE, const void *a, int lda, const void *b, int ldb, const void *beta, \
			  void *c, int ldc)                                                        \
	{                                                                                          \
		(void)handle, (void)transa, (void)transb, (void)alpha, (void)a, (void)lda;         \
		(void)b, (void)ldb, (void)beta, (void)c, (void)ldc;                                \
		return compute(m, n, k);                                                           \
	}
#define STRIDED(name)                                                                       \
	EXPORTED int name(SHAPE, const void *a, int lda, long long stride_a, const void *b, \
			  int ldb, long long stride_b, const void *beta, void *c, int ldc,  \
			  long long stride_c, int batches)                                  \
	{                                                                                   \
		(void)handle, (void)transa, (void)transb, (void)alpha, (void)a, (void)lda;  \
		(void)stride_a, (void)b, (void)ldb, (void)stride_b, (void)beta, (void)c;    \
		(void)ldc, (void)stride_c, (void)batches;                                   \
		return compute(m, n, k);                                                    \
	}
#define BATCHED(name)                                                                          \
	EXPORTED int name(SHAPE, const void *const *a, int lda, const void *const *b, int ldb, \
			  const void *beta, void *const *c, int ldc, int batches)              \
	{                                                                                      \
		(void)handle, (void)transa, (void)transb, (void)alpha, (void)a, (void)lda;     \
		(void)b, (void)ldb, (void)beta, (void)c, (void)ldc, (void)batches;             \
		return compute(m, n, k);                                                       \
	}

PLAIN(cublasSgemm_v2)
PLAIN(cublasDgemm_v2)
PLAIN(cublasCgemm_v2)
PLAIN(cublasZgemm_v2)
PLAIN(cublasHgemm)
STRIDED(cublasHgemmStridedBatched)
STRIDED(cublasSgemmStridedBatched)
STRIDED(cublasDgemmStridedBatched)
STRIDED(cublasCgemmStridedBatched)
STRIDED(cublasZgemmStridedBatched)
BATCHED(cublasHgemmBatched)
BATCHED(cublasSgemmBatched)
BATCHED(cublasDgemmBatched)
BATCHED(cublasCgemmBatched)
BATCHED(cublasZgemmBatched)

EXPORTED int cublasSgemmEx(SHAPE, const void *a, int a_type, int lda, const void *b, int b_type,
			   int ldb, const void *beta, void *c, int c_type, int ldc)
{
	(void)handle, (void)transa, (void)transb, (void)alpha, (void)a, (void)a_type, (void)lda;
	(void)b, (void)b_type, (void)ldb, (void)beta, (void)c, (void)c_type, (void)ldc;
	return compute(m, n, k);
}

/* One that leaves the work to cuBLASLt: it is one product all the same. */
EXPORTED int cublasGemmEx(SHAPE, const void *a, int a_type, int lda, const void *b, int b_type,
			  int ldb, const void *beta, void *c, int c_type, int ldc, int compute_type,
			  int algorithm)
{
	(void)transa, (void)transb, (void)a_type, (void)lda, (void)b_type, (void)ldb;
	(void)c_type, (void)ldc, (void)compute_type, (void)algorithm;
	compute(m, n, k);
	return cublasLtMatmul(handle, NULL, alpha, a, NULL, b, NULL, beta, c, NULL, c, NULL, NULL,
			      NULL, 0, NULL);
}

EXPORTED int cublasGemmStridedBatchedEx(SHAPE, const void *a, int a_type, int lda,
					long long stride_a, const void *b, int b_type, int ldb,
					long long stride_b, const void *beta, void *c, int c_type,
					int ldc, long long stride_c, int batches, int compute_type,
					int algorithm)
{
	(void)handle, (void)transa, (void)transb, (void)alpha, (void)a, (void)a_type, (void)lda;
	(void)stride_a, (void)b, (void)b_type, (void)ldb, (void)stride_b, (void)beta, (void)c;
	(void)c_type, (void)ldc, (void)stride_c, (void)batches, (void)compute_type;
	(void)algorithm;
	return compute(m, n, k);
}

EXPORTED int cublasGemmBatchedEx(SHAPE, const void *const *a, int a_type, int lda,
				 const void *const *b, int b_type, int ldb, const void *beta,
				 void *const *c, int c_type, int ldc, int batches, int compute_type,
				 int algorithm)
{
	(void)handle, (void)transa, (void)transb, (void)alpha, (void)a, (void)a_type, (void)lda;
	(void)b, (void)b_type, (void)ldb, (void)beta, (void)c, (void)c_type, (void)ldc;
	(void)batches, (void)compute_type, (void)algorithm;
	return compute(m, n, k);
}
