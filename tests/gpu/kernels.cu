/* SPDX-License-Identifier: Apache-2.0 */
/* A program as nvcc makes it: host stubs, fat binary, static runtime. Its kernels must be reported by name. */
#include <cstdio>

template <int WIDTH> __global__ void scale_rows(float *values, float factor)
{
	values[blockIdx.x * WIDTH + threadIdx.x] *= factor;
}

namespace otelgpu
{
__global__ void add_one(float *values)
{
	values[threadIdx.x] += 1.0f;
}
} // namespace otelgpu

int main()
{
	float *values = nullptr;

	cudaMalloc(&values, 64 * 128 * sizeof(float));
	cudaMemset(values, 0, 64 * 128 * sizeof(float));
	for (int i = 0; i < 23; i++) {
		scale_rows<128><<<64, 128>>>(values, 2.0f);
		otelgpu::add_one<<<1, 128>>>(values);
	}
	cudaError_t status = cudaDeviceSynchronize();
	cudaFree(values);
	std::printf("%s\n", cudaGetErrorString(status));
	return status != cudaSuccess;
}
