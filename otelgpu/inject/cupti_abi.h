/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of CUPTI's interface that is used, from cupti_activity.h, cupti_callbacks.h and
 * cupti_result.h of CUDA 11.1 to 13.5. CUPTI lengthens its records at the end from release to
 * release (CUpti_ActivityKernel6 has 168 bytes, …Kernel13 248) and keeps what stands before: the
 * structs here are that common beginning. tests/contract/test_cupti_layout.py compares them with
 * the headers of the CUDA 12 and 13 wheels.
 */
#ifndef OTELGPU_CUPTI_ABI_H
#define OTELGPU_CUPTI_ABI_H

#include <stddef.h>
#include <stdint.h>

/*
 * cuptiGetVersion(): 14 is CUDA 11.1, the first whose records carry graphNodeId and graphId; up to
 * CUDA 12.9 (28) it counts releases, from 13 it is 10000 × major + 100 × minor.
 */
#define CUPTI_VERSION_OLDEST 14

typedef int CUptiResult;
enum {
	CUPTI_SUCCESS = 0,
	CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
	CUPTI_ERROR_INSUFFICIENT_PRIVILEGES = 35,
	CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39,
	CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES = 40,
};

/* CUpti_ActivityKind */
enum {
	CUPTI_ACTIVITY_KIND_MEMCPY = 1,
	CUPTI_ACTIVITY_KIND_MEMSET = 2,
	CUPTI_ACTIVITY_KIND_KERNEL = 3,
	CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
	CUPTI_ACTIVITY_KIND_MEMCPY2 = 22,
};

/* CUpti_ActivityAttribute */
enum {
	CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE = 0,
	CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT = 2,
};

enum { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 };
enum { CUPTI_CB_DOMAIN_DRIVER_API = 1, CUPTI_CB_DOMAIN_RUNTIME_API = 2 };
enum { CUPTI_API_ENTER = 0, CUPTI_API_EXIT = 1 };

typedef struct CUpti_Subscriber_st *CUpti_SubscriberHandle;
typedef struct CUctx_st *CUcontext;

typedef struct {
	int callbackSite;
	const char *functionName;
	const void *functionParams;
	void *functionReturnValue;
	const char *symbolName;
	CUcontext context;
	uint32_t contextUid;
	uint64_t *correlationData;
	uint32_t correlationId;
} CUpti_CallbackData;

typedef void (*CUpti_CallbackFunc)(void *userdata, int domain, uint32_t cbid, const void *cbdata);
typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t **buffer, size_t *size,
						 size_t *maxNumRecords);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(CUcontext context, uint32_t streamId,
						  uint8_t *buffer, size_t size, size_t validSize);
typedef uint64_t (*CUpti_TimestampCallbackFunc)(void);

#define CUPTI_RECORD __attribute__((packed, aligned(8)))

typedef struct CUPTI_RECORD {
	uint32_t kind;
} CUpti_Activity;

/* CUpti_ActivityKernel6 and later, up to what CUDA 11.1 had */
typedef struct CUPTI_RECORD {
	uint32_t kind;
	uint8_t cacheConfig;
	uint8_t sharedMemoryConfig;
	uint16_t registersPerThread;
	uint32_t partitionedGlobalCacheRequested;
	uint32_t partitionedGlobalCacheExecuted;
	uint64_t start;
	uint64_t end;
	uint64_t completed;
	uint32_t deviceId;
	uint32_t contextId;
	uint32_t streamId;
	int32_t grid[3];
	int32_t block[3];
	int32_t staticSharedMemory;
	int32_t dynamicSharedMemory;
	uint32_t localMemoryPerThread;
	uint32_t localMemoryTotal;
	uint32_t correlationId;
	int64_t gridId;
	const char *name;
	void *reserved0;
	uint64_t queued;
	uint64_t submitted;
	uint8_t launchType;
	uint8_t isSharedMemoryCarveoutRequested;
	uint8_t sharedMemoryCarveoutRequested;
	uint8_t padding;
	uint32_t sharedMemoryExecuted;
	uint64_t graphNodeId;
	uint32_t shmemLimitConfig;
	uint32_t graphId;
} CUpti_ActivityKernel;

/* CUpti_ActivityMemcpy4 and later */
typedef struct CUPTI_RECORD {
	uint32_t kind;
	uint8_t copyKind;
	uint8_t srcKind;
	uint8_t dstKind;
	uint8_t flags;
	uint64_t bytes;
	uint64_t start;
	uint64_t end;
	uint32_t deviceId;
	uint32_t contextId;
	uint32_t streamId;
	uint32_t correlationId;
	uint32_t runtimeCorrelationId;
	uint32_t pad;
	void *reserved0;
	uint64_t graphNodeId;
	uint32_t graphId;
	uint32_t rest;
} CUpti_ActivityMemcpy;

/* CUpti_ActivityMemcpyPtoP3 and later */
typedef struct CUPTI_RECORD {
	uint32_t kind;
	uint8_t copyKind;
	uint8_t srcKind;
	uint8_t dstKind;
	uint8_t flags;
	uint64_t bytes;
	uint64_t start;
	uint64_t end;
	uint32_t deviceId;
	uint32_t contextId;
	uint32_t streamId;
	uint32_t srcDeviceId;
	uint32_t srcContextId;
	uint32_t dstDeviceId;
	uint32_t dstContextId;
	uint32_t correlationId;
	void *reserved0;
	uint64_t graphNodeId;
	uint32_t graphId;
	uint32_t rest;
} CUpti_ActivityMemcpyPtoP;

/* CUpti_ActivityMemset3 and later */
typedef struct CUPTI_RECORD {
	uint32_t kind;
	uint32_t value;
	uint64_t bytes;
	uint64_t start;
	uint64_t end;
	uint32_t deviceId;
	uint32_t contextId;
	uint32_t streamId;
	uint32_t correlationId;
	uint16_t flags;
	uint16_t memoryKind;
	uint32_t pad;
	void *reserved0;
	uint64_t graphNodeId;
	uint32_t graphId;
	uint32_t rest;
} CUpti_ActivityMemset;

_Static_assert(sizeof(CUpti_ActivityKernel) == 160, "as far as graphId");
_Static_assert(sizeof(CUpti_ActivityMemcpy) == 80, "CUpti_ActivityMemcpy4");
_Static_assert(sizeof(CUpti_ActivityMemcpyPtoP) == 88, "CUpti_ActivityMemcpyPtoP3");
_Static_assert(sizeof(CUpti_ActivityMemset) == 80, "CUpti_ActivityMemset3");

#endif
