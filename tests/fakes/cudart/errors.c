/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of errors, as libcudart.so.12.9.79 answers them. */
#include "runtime.h"

#define ERRORS(X)                                                                                  \
	X(cudaSuccess, "no error")                                                                 \
	X(cudaErrorInvalidValue, "invalid argument")                                               \
	X(cudaErrorMemoryAllocation, "out of memory")                                              \
	X(cudaErrorInitializationError, "initialization error")                                    \
	X(cudaErrorCudartUnloading, "driver shutting down")                                        \
	X(cudaErrorInvalidConfiguration, "invalid configuration argument")                         \
	X(cudaErrorInvalidDevicePointer, "invalid device pointer")                                 \
	X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                    \
	X(cudaErrorInsufficientDriver,                                                             \
	  "CUDA driver version is insufficient for CUDA runtime version")                          \
	X(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable")        \
	X(cudaErrorMissingConfiguration, "__global__ function call is not configured")             \
	X(cudaErrorInvalidDeviceFunction, "invalid device function")                               \
	X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                 \
	X(cudaErrorInvalidDevice, "invalid device ordinal")                                        \
	X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                        \
	X(cudaErrorInvalidResourceHandle, "invalid resource handle")                               \
	X(cudaErrorIllegalState, "the operation cannot be performed in the present state")         \
	X(cudaErrorNotReady, "device not ready")                                                   \
	X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                     \
	X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                \
	X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                       \
	X(cudaErrorAssert, "device-side assert triggered")                                         \
	X(cudaErrorHardwareStackError, "hardware stack error")                                     \
	X(cudaErrorMisalignedAddress, "misaligned address")                                        \
	X(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space")  \
	X(cudaErrorInvalidPc, "invalid program counter")                                           \
	X(cudaErrorLaunchFailure, "unspecified launch failure")                                    \
	X(cudaErrorDeviceUninitialized, "invalid device context")                                  \
	X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                     \
	X(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled")                       \
	X(cudaErrorHostMemoryAlreadyRegistered,                                                    \
	  "part or all of the requested memory range is already mapped")                           \
	X(cudaErrorHostMemoryNotRegistered,                                                        \
	  "pointer does not correspond to a registered memory region")                             \
	X(cudaErrorGraphExecUpdateFailure,                                                         \
	  "the graph update was not performed because it included changes which violated "         \
	  "constraints specific to instantiated graph update")                                     \
	X(cudaErrorNotSupported, "operation not supported")                                        \
	X(cudaErrorSystemDriverMismatch,                                                           \
	  "system has unsupported display driver / cuda driver combination")                       \
	X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")   \
	X(cudaErrorStreamCaptureInvalidated,                                                       \
	  "operation failed due to a previous error during capture")                               \
	X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began") \
	X(cudaErrorStreamCaptureImplicit,                                                          \
	  "operation would make the legacy stream depend on a capturing blocking stream")          \
	X(cudaErrorUnknown, "unknown error")

const char *error_name(cudaError_t error)
{
	switch ((int)error) {
#define NAME(code, text) \
	case code:       \
		return #code;
		ERRORS(NAME)
#undef NAME
	}
	return "unrecognized error code";
}

const char *error_text(cudaError_t error)
{
	switch ((int)error) {
#define TEXT(code, text) \
	case code:       \
		return text;
		ERRORS(TEXT)
#undef TEXT
	}
	return "unrecognized error code";
}
