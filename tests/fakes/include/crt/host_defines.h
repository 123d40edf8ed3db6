/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the headers of PyPI's nvidia-cuda-runtime-cu12 take from crt/host_defines.h, which is in
 * nvidia-cuda-nvcc-cu12 only: marks for nvcc that mean nothing to a host compiler.
 */
#ifndef FAKE_CRT_HOST_DEFINES_H
#define FAKE_CRT_HOST_DEFINES_H

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDACB
#define __host__
#define __device__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes)	 __attribute__((aligned(bytes)))
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __specialization_static

#endif
