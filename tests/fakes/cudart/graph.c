/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: the driver's, under the runtime's names. */
#include "runtime.h"

#include <stdint.h>

_Static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo),
	       "the same bytes");

static CUDA_KERNEL_NODE_PARAMS kernel_params(const struct cudaKernelNodeParams *kernel)
{
	return (CUDA_KERNEL_NODE_PARAMS){
		.func = kernel_of(kernel->func),
		.gridDimX = kernel->gridDim.x,
		.gridDimY = kernel->gridDim.y,
		.gridDimZ = kernel->gridDim.z,
		.blockDimX = kernel->blockDim.x,
		.blockDimY = kernel->blockDim.y,
		.blockDimZ = kernel->blockDim.z,
		.sharedMemBytes = kernel->sharedMemBytes,
	};
}

static cudaError_t add_kernel(cudaGraphNode_t *node, cudaGraph_t graph,
			      const struct cudaKernelNodeParams *kernel)
{
	CUDA_KERNEL_NODE_PARAMS same;

	if (!kernel || !kernel->func)
		return cudaErrorInvalidValue;
	same = kernel_params(kernel);
	return of_driver(driver.cuGraphAddKernelNode_v2(node, graph, NULL, 0, &same));
}

static cudaError_t set_kernel(cudaGraphExec_t executable, cudaGraphNode_t node,
			      const struct cudaKernelNodeParams *kernel)
{
	CUDA_KERNEL_NODE_PARAMS same;

	if (!kernel || !kernel->func)
		return cudaErrorInvalidValue;
	same = kernel_params(kernel);
	return of_driver(driver.cuGraphExecKernelNodeSetParams_v2(executable, node, &same));
}

static cudaError_t add_copy(cudaGraphNode_t *node, cudaGraph_t graph,
			    const struct cudaMemcpy3DParms *copy)
{
	CUDA_MEMCPY3D same;

	if (!copy)
		return cudaErrorInvalidValue;
	same = (CUDA_MEMCPY3D){
		.WidthInBytes = copy->extent.width,
		.Height = copy->extent.height,
		.Depth = copy->extent.depth,
	};
	return of_driver(driver.cuGraphAddMemcpyNode(node, graph, NULL, 0, &same, NULL));
}

static cudaError_t add_set(cudaGraphNode_t *node, cudaGraph_t graph,
			   const struct cudaMemsetParams *set)
{
	CUDA_MEMSET_NODE_PARAMS same;

	if (!set)
		return cudaErrorInvalidValue;
	same = (CUDA_MEMSET_NODE_PARAMS){
		.dst = (CUdeviceptr)(uintptr_t)set->dst,
		.pitch = set->pitch,
		.value = set->value,
		.elementSize = set->elementSize,
		.width = set->width,
		.height = set->height,
	};
	return of_driver(driver.cuGraphAddMemsetNode(node, graph, NULL, 0, &same, NULL));
}

static cudaError_t add_host(cudaGraphNode_t *node, cudaGraph_t graph,
			    const struct cudaHostNodeParams *host)
{
	CUDA_HOST_NODE_PARAMS same;

	if (!host)
		return cudaErrorInvalidValue;
	same = (CUDA_HOST_NODE_PARAMS){ .fn = host->fn, .userData = host->userData };
	return of_driver(driver.cuGraphAddHostNode(node, graph, NULL, 0, &same));
}

static cudaError_t instantiate_with(cudaGraphExec_t *executable, cudaGraph_t graph,
				    const cudaGraphInstantiateParams *parameters)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS same = { .flags = parameters ? parameters->flags : 0 };

	return of_driver(driver.cuGraphInstantiateWithParams(executable, graph, &same));
}

API(cudaGraphCreate, (cudaGraph_t * pGraph, unsigned int flags),
    of_driver(driver.cuGraphCreate(pGraph, flags)))
API(cudaGraphDestroy, (cudaGraph_t graph), of_driver(driver.cuGraphDestroy(graph)))
API(cudaGraphAddKernelNode,
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
     size_t numDependencies, const struct cudaKernelNodeParams *pNodeParams),
    ((void)pDependencies, (void)numDependencies, add_kernel(pGraphNode, graph, pNodeParams)))
API(cudaGraphAddEmptyNode,
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
     size_t numDependencies),
    of_driver(driver.cuGraphAddEmptyNode(pGraphNode, graph, pDependencies, numDependencies)))
API(cudaGraphAddMemcpyNode,
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
     size_t numDependencies, const struct cudaMemcpy3DParms *pCopyParams),
    ((void)pDependencies, (void)numDependencies, add_copy(pGraphNode, graph, pCopyParams)))
API(cudaGraphAddMemsetNode,
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
     size_t numDependencies, const struct cudaMemsetParams *pMemsetParams),
    ((void)pDependencies, (void)numDependencies, add_set(pGraphNode, graph, pMemsetParams)))
API(cudaGraphAddHostNode,
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
     size_t numDependencies, const struct cudaHostNodeParams *pNodeParams),
    ((void)pDependencies, (void)numDependencies, add_host(pGraphNode, graph, pNodeParams)))
API(cudaGraphAddChildGraphNode,
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
     size_t numDependencies, cudaGraph_t childGraph),
    of_driver(driver.cuGraphAddChildGraphNode(pGraphNode, graph, pDependencies, numDependencies,
					      childGraph)))
API(cudaGraphAddEventRecordNode,
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
     size_t numDependencies, cudaEvent_t event),
    of_driver(driver.cuGraphAddEventRecordNode(pGraphNode, graph, pDependencies, numDependencies,
					       event)))
API(cudaGraphAddEventWaitNode,
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
     size_t numDependencies, cudaEvent_t event),
    of_driver(driver.cuGraphAddEventWaitNode(pGraphNode, graph, pDependencies, numDependencies,
					     event)))
API(cudaGraphClone, (cudaGraph_t * pGraphClone, cudaGraph_t originalGraph),
    of_driver(driver.cuGraphClone(pGraphClone, originalGraph)))
API(cudaGraphExecKernelNodeSetParams,
    (cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
     const struct cudaKernelNodeParams *pNodeParams),
    set_kernel(hGraphExec, node, pNodeParams))
API(cudaGraphInstantiateWithParams_ptsz,
    (cudaGraphExec_t * pGraphExec, cudaGraph_t graph,
     cudaGraphInstantiateParams *instantiateParams),
    instantiate_with(pGraphExec, graph, instantiateParams))
API(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes),
    of_driver(driver.cuGraphGetNodes(graph, nodes, numNodes)))
API(cudaGraphInstantiate,
    (cudaGraphExec_t * pGraphExec, cudaGraph_t graph, unsigned long long flags),
    of_driver(driver.cuGraphInstantiateWithFlags(pGraphExec, graph, flags)))
API(cudaGraphInstantiateWithFlags,
    (cudaGraphExec_t * pGraphExec, cudaGraph_t graph, unsigned long long flags),
    of_driver(driver.cuGraphInstantiateWithFlags(pGraphExec, graph, flags)))
API(cudaGraphInstantiateWithParams,
    (cudaGraphExec_t * pGraphExec, cudaGraph_t graph,
     cudaGraphInstantiateParams *instantiateParams),
    instantiate_with(pGraphExec, graph, instantiateParams))
API(cudaGraphExecUpdate,
    (cudaGraphExec_t hGraphExec, cudaGraph_t hGraph, cudaGraphExecUpdateResultInfo *resultInfo),
    of_driver(driver.cuGraphExecUpdate_v2(hGraphExec, hGraph,
					  (CUgraphExecUpdateResultInfo *)resultInfo)))
API_PTSZ(cudaGraphUpload, (cudaGraphExec_t graphExec, cudaStream_t stream),
	 of_driver(driver.cuGraphUpload(graphExec, stream)))
API_PTSZ(cudaGraphLaunch, (cudaGraphExec_t graphExec, cudaStream_t stream),
	 of_driver(driver.cuGraphLaunch(graphExec, stream)))
API(cudaGraphExecDestroy, (cudaGraphExec_t graphExec),
    of_driver(driver.cuGraphExecDestroy(graphExec)))
