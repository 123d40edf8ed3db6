/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Parameter structs of the CUDA API, as far as they are read. The same in CUDA 11
 * to 13: driver_types.h (runtime) and cuda.h (driver).
 */
#ifndef OTELGPU_CUDA_LAYOUTS_H
#define OTELGPU_CUDA_LAYOUTS_H

#include "../lib/types.h"

#define LAYOUT(type, member, offset) \
	_Static_assert(__builtin_offsetof(struct type, member) == (offset), #type "." #member)

/* cudaLaunchConfig_t; CUlaunchConfig, whose shared memory has 4 bytes and 4 of padding */
struct launch_config {
	__u32 grid[3];
	__u32 block[3];
	__u64 shared_bytes;
	__u64 stream;
};
LAYOUT(launch_config, stream, 32);

/* struct cudaLaunchParams (until CUDA 12) */
struct launch_params {
	__u64 function;
	__u32 grid[3];
	__u32 block[3];
	__u64 arguments;
	__u64 shared_bytes;
	__u64 stream;
};
LAYOUT(launch_params, stream, 48);

/* CUDA_LAUNCH_PARAMS */
struct driver_launch_params {
	__u64 function;
	__u32 grid[3];
	__u32 block[3];
	__u32 shared_bytes;
	__u32 padding;
	__u64 stream;
};
LAYOUT(driver_launch_params, stream, 40);

/* struct cudaPitchedPtr */
struct pitched_pointer {
	__u64 pointer;
	__u64 pitch;
	__u64 width;
	__u64 height;
};

/* struct cudaMemcpy3DParms */
struct copy_3d {
	__u64 source_array;
	__u64 source_position[3];
	struct pitched_pointer source;
	__u64 destination_array;
	__u64 destination_position[3];
	struct pitched_pointer destination;
	__u64 extent[3];
	__u32 direction;
	__u32 padding;
};
LAYOUT(copy_3d, destination, 96);
LAYOUT(copy_3d, direction, 152);

/* struct cudaMemcpy3DPeerParms */
struct copy_3d_peer {
	__u64 source_array;
	__u64 source_position[3];
	struct pitched_pointer source;
	__u32 source_device;
	__u32 padding;
	__u64 destination_array;
	__u64 destination_position[3];
	struct pitched_pointer destination;
	__u32 destination_device;
	__u32 padding_2;
	__u64 extent[3];
};
LAYOUT(copy_3d_peer, destination, 104);
LAYOUT(copy_3d_peer, extent, 144);

/* CUmemorytype */
enum memory_type {
	MEMORY_TYPE_HOST = 1,
	MEMORY_TYPE_DEVICE = 2,
	MEMORY_TYPE_ARRAY = 3,
	MEMORY_TYPE_UNIFIED = 4,
};

/* Where a copy of the driver begins or ends, within CUDA_MEMCPY2D and CUDA_MEMCPY3D */
struct copy_end {
	__u32 type; /* enum memory_type */
	__u32 padding;
	__u64 host;
	__u64 device;
	__u64 array;
};
LAYOUT(copy_end, array, 24);

/* CUDA_MEMCPY2D */
struct driver_copy_2d {
	__u64 source_position[2];
	struct copy_end source;
	__u64 source_pitch;
	__u64 destination_position[2];
	struct copy_end destination;
	__u64 destination_pitch;
	__u64 extent[2];
};
LAYOUT(driver_copy_2d, destination, 72);
LAYOUT(driver_copy_2d, extent, 112);

/* CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER */
struct driver_copy_3d {
	__u64 source_position[4]; /* the last: level of detail */
	struct copy_end source;
	__u64 source_context;
	__u64 source_pitch;
	__u64 source_height;
	__u64 destination_position[4];
	struct copy_end destination;
	__u64 destination_context;
	__u64 destination_pitch;
	__u64 destination_height;
	__u64 extent[3];
};
LAYOUT(driver_copy_3d, destination, 120);
LAYOUT(driver_copy_3d, extent, 176);

/* struct cudaChannelFormatDesc: bits per component */
struct channel_format {
	__s32 bits[4];
};

/* CUDA_ARRAY_DESCRIPTOR */
struct driver_array {
	__u64 width;
	__u64 height;
	__u32 format;
	__u32 channels;
};

/* CUDA_ARRAY3D_DESCRIPTOR */
struct driver_array_3d {
	__u64 width;
	__u64 height;
	__u64 depth;
	__u32 format;
	__u32 channels;
};

/* CUmemAllocationProp, as far as where the memory is */
struct physical_properties {
	__u32 type;
	__u32 handle_types;
	__u32 location_type; /* CUmemLocationType */
	__u32 location;
};
#define LOCATION_DEVICE 1

#endif
