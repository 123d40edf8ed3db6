// What the fixtures in this folder were made of: see make.sh.
#include <stdio.h>

// No kernel, but a function of its own in the device code.
__device__ __noinline__ float helper(float x) { return x * x; }

__global__ void axpy(float a, float *x, float *y) { y[threadIdx.x] += a * helper(x[threadIdx.x]); }

namespace model {
template <int N, class T> __global__ void scale(T *x) { x[threadIdx.x] *= N; }
} // namespace model

extern "C" __global__ void plain(int *x) { x[0] = 1; }

int main()
{
	const void *stubs[] = {(const void *)axpy, (const void *)model::scale<3, float>, (const void *)plain};

	for (int i = 0; i < 3; i++)
		printf("%p\n", stubs[i]);
	fflush(stdout);
	getchar();
	return 0;
}
