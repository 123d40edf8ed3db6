/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: their nodes in order, and how long a launch of all of them takes. */
#include <stdlib.h>

#include "driver.h"

#define GRAPHS_MAX 4096

struct CUgraphNode_st {
	CUgraphNode next; /* in order of addition */
	int64_t duration_ns;
	CUgraphNodeType type;
	CUfunction function;
};

struct CUgraph_st {
	CUgraphNode first, last;
	size_t nodes;
	int64_t duration_ns;
	bool in_use;
};

struct CUgraphExec_st {
	size_t nodes;
	int64_t duration_ns;
	bool in_use;
};

static struct CUgraph_st graphs[GRAPHS_MAX];
static struct CUgraphExec_st executables[GRAPHS_MAX];

CUgraph graph_new(void)
{
	return TAKE_SLOT(graphs);
}

CUresult graph_append(CUgraph graph, int64_t duration_ns, CUgraphNodeType type, CUfunction function,
		      CUgraphNode *node)
{
	CUgraphNode added;

	if (!IS_SLOT(graphs, graph))
		return CUDA_ERROR_INVALID_VALUE;
	added = malloc(sizeof(*added));
	if (!added)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*added = (struct CUgraphNode_st){ NULL, duration_ns, type, function };
	if (graph->last)
		graph->last->next = added;
	else
		graph->first = added;
	graph->last = added;
	graph->nodes++;
	graph->duration_ns += duration_ns;
	if (node)
		*node = added;
	return CUDA_SUCCESS;
}

void graph_discard(CUgraph graph)
{
	for (CUgraphNode node = graph->first, next; node; node = next) {
		next = node->next;
		free(node);
	}
	graph->in_use = false;
}

static CUresult create(CUgraph *graph)
{
	LOCKED();

	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = graph_new();
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult destroy(CUgraph graph)
{
	LOCKED();

	if (!IS_SLOT(graphs, graph))
		return CUDA_ERROR_INVALID_VALUE;
	graph_discard(graph);
	return CUDA_SUCCESS;
}

static CUresult add(CUgraph graph, int64_t duration_ns, CUgraphNodeType type, CUfunction function,
		    CUgraphNode *node)
{
	LOCKED();

	return graph_append(graph, duration_ns, type, function, node);
}

static CUresult add_kernel(CUgraph graph, const CUDA_KERNEL_NODE_PARAMS *kernel, CUgraphNode *node)
{
	if (!kernel || !function_is_valid(kernel->func))
		return CUDA_ERROR_INVALID_VALUE;
	return add(graph,
		   kernel_duration_ns((uint64_t)kernel->gridDimX * kernel->gridDimY *
				      kernel->gridDimZ),
		   CU_GRAPH_NODE_TYPE_KERNEL, kernel->func, node);
}

static CUresult add_copy(CUgraph graph, const CUDA_MEMCPY3D *copy, CUgraphNode *node)
{
	if (!copy)
		return CUDA_ERROR_INVALID_VALUE;
	return add(graph, copy_duration_ns(copy->WidthInBytes * copy->Height * copy->Depth),
		   CU_GRAPH_NODE_TYPE_MEMCPY, NULL, node);
}

static CUresult add_set(CUgraph graph, const CUDA_MEMSET_NODE_PARAMS *set, CUgraphNode *node)
{
	if (!set)
		return CUDA_ERROR_INVALID_VALUE;
	return add(graph, copy_duration_ns(set->elementSize * set->width * set->height),
		   CU_GRAPH_NODE_TYPE_MEMSET, NULL, node);
}

static CUresult add_graph(CUgraph graph, CUgraph child, CUgraphNode *node)
{
	LOCKED();

	if (!IS_SLOT(graphs, child) || child == graph)
		return CUDA_ERROR_INVALID_VALUE;
	return graph_append(graph, child->duration_ns, CU_GRAPH_NODE_TYPE_GRAPH, NULL, node);
}

static CUresult clone(CUgraph *copy, CUgraph graph)
{
	CUresult status = CUDA_SUCCESS;
	LOCKED();

	if (!copy || !IS_SLOT(graphs, graph))
		return CUDA_ERROR_INVALID_VALUE;
	*copy = graph_new();
	if (!*copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (CUgraphNode node = graph->first; node && status == CUDA_SUCCESS; node = node->next)
		status = graph_append(*copy, node->duration_ns, node->type, node->function, NULL);
	return status;
}

/* The nodes of an executable are not distinguished here: what a kernel's change would do to time is left out. */
static CUresult set_kernel(CUgraphExec executable, const CUDA_KERNEL_NODE_PARAMS *kernel)
{
	LOCKED();

	return IS_SLOT(executables, executable) && kernel && function_is_valid(kernel->func)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	size_t given = 0;
	LOCKED();

	if (!IS_SLOT(graphs, graph) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	if (!nodes) {
		*count = graph->nodes;
		return CUDA_SUCCESS;
	}
	for (CUgraphNode node = graph->first; node && given < *count; node = node->next)
		nodes[given++] = node;
	*count = given;
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *executable, CUgraph graph)
{
	LOCKED();

	if (!executable)
		return CUDA_ERROR_INVALID_VALUE;
	*executable = NULL;
	if (!IS_SLOT(graphs, graph))
		return CUDA_ERROR_INVALID_VALUE;
	*executable = TAKE_SLOT(executables);
	if (!*executable)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*executable)->nodes = graph->nodes;
	(*executable)->duration_ns = graph->duration_ns;
	return CUDA_SUCCESS;
}

/* As the real one it refuses another topology; here that is another number of nodes. */
static CUresult update(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo *result)
{
	bool same;
	LOCKED();

	if (!IS_SLOT(executables, executable) || !IS_SLOT(graphs, graph) || !result)
		return CUDA_ERROR_INVALID_VALUE;
	same = executable->nodes == graph->nodes;
	*result = (CUgraphExecUpdateResultInfo){
		.result = same ? CU_GRAPH_EXEC_UPDATE_SUCCESS
			       : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
	};
	if (same)
		executable->duration_ns = graph->duration_ns;
	return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static CUresult check(CUgraphExec executable, int64_t *duration_ns)
{
	LOCKED();

	if (!IS_SLOT(executables, executable))
		return CUDA_ERROR_INVALID_VALUE;
	*duration_ns = executable->duration_ns;
	return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec executable, CUstream stream)
{
	int64_t duration_ns = 0;
	CUresult status = check(executable, &duration_ns);

	return status ? status
		      : stream_enqueue(stream, duration_ns, CU_GRAPH_NODE_TYPE_GRAPH, NULL);
}

static CUresult upload(CUgraphExec executable, CUstream stream)
{
	int64_t duration_ns = 0;
	CUresult status = check(executable, &duration_ns);

	return status ? status : stream_enqueue(stream, 0, CU_GRAPH_NODE_TYPE_EMPTY, NULL);
}

static CUresult destroy_executable(CUgraphExec executable)
{
	LOCKED();

	if (!IS_SLOT(executables, executable))
		return CUDA_ERROR_INVALID_VALUE;
	executable->in_use = false;
	return CUDA_SUCCESS;
}

API(cuGraphCreate, (CUgraph * phGraph, unsigned int flags),
    flags ? CUDA_ERROR_INVALID_VALUE : create(phGraph))
API(cuGraphDestroy, (CUgraph hGraph), destroy(hGraph))
API(cuGraphAddKernelNode_v2,
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
     size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams),
    ((void)dependencies, (void)numDependencies, add_kernel(hGraph, nodeParams, phGraphNode)))
API(cuGraphAddEmptyNode,
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
     size_t numDependencies),
    ((void)dependencies, (void)numDependencies,
     add(hGraph, 0, CU_GRAPH_NODE_TYPE_EMPTY, NULL, phGraphNode)))
API(cuGraphAddMemcpyNode,
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
     size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx),
    ((void)dependencies, (void)numDependencies, (void)ctx,
     add_copy(hGraph, copyParams, phGraphNode)))
API(cuGraphAddMemsetNode,
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
     size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx),
    ((void)dependencies, (void)numDependencies, (void)ctx,
     add_set(hGraph, memsetParams, phGraphNode)))
API(cuGraphAddHostNode,
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
     size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams),
    ((void)dependencies, (void)numDependencies,
     nodeParams ? add(hGraph, 0, CU_GRAPH_NODE_TYPE_HOST, NULL, phGraphNode)
		: CUDA_ERROR_INVALID_VALUE))
API(cuGraphAddChildGraphNode,
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
     size_t numDependencies, CUgraph childGraph),
    ((void)dependencies, (void)numDependencies, add_graph(hGraph, childGraph, phGraphNode)))
API(cuGraphAddEventRecordNode,
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
     size_t numDependencies, CUevent event),
    ((void)dependencies, (void)numDependencies,
     event ? add(hGraph, 0, CU_GRAPH_NODE_TYPE_EVENT_RECORD, NULL, phGraphNode)
	   : CUDA_ERROR_INVALID_VALUE))
API(cuGraphAddEventWaitNode,
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
     size_t numDependencies, CUevent event),
    ((void)dependencies, (void)numDependencies,
     event ? add(hGraph, 0, CU_GRAPH_NODE_TYPE_WAIT_EVENT, NULL, phGraphNode)
	   : CUDA_ERROR_INVALID_VALUE))
API(cuGraphClone, (CUgraph * phGraphClone, CUgraph originalGraph),
    clone(phGraphClone, originalGraph))
API(cuGraphExecKernelNodeSetParams_v2,
    (CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams),
    ((void)hNode, set_kernel(hGraphExec, nodeParams)))
API(cuGraphInstantiateWithParams_ptsz,
    (CUgraphExec * phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams),
    instantiateParams ? instantiate(phGraphExec, hGraph) : CUDA_ERROR_INVALID_VALUE)
API(cuGraphGetNodes, (CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes),
    get_nodes(hGraph, nodes, numNodes))
API(cuGraphInstantiateWithFlags,
    (CUgraphExec * phGraphExec, CUgraph hGraph, unsigned long long flags),
    ((void)flags, instantiate(phGraphExec, hGraph)))
API(cuGraphInstantiate_v2,
    (CUgraphExec * phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
     size_t bufferSize),
    ((void)phErrorNode, (void)logBuffer, (void)bufferSize, instantiate(phGraphExec, hGraph)))
API(cuGraphInstantiateWithParams,
    (CUgraphExec * phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams),
    instantiateParams ? instantiate(phGraphExec, hGraph) : CUDA_ERROR_INVALID_VALUE)
API(cuGraphExecUpdate_v2,
    (CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo),
    update(hGraphExec, hGraph, resultInfo))
API_PTSZ(cuGraphUpload, (CUgraphExec hGraphExec, CUstream hStream), upload(hGraphExec, hStream))
API_PTSZ(cuGraphLaunch, (CUgraphExec hGraphExec, CUstream hStream), launch(hGraphExec, hStream))
API(cuGraphExecDestroy, (CUgraphExec hGraphExec), destroy_executable(hGraphExec))
