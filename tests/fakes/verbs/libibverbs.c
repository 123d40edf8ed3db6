/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake libibverbs.so.1: the names, versions and structures of the real one (rdma-core 44), of which each name
 * has two addresses; one device, fake0, of the provider beside it. Nothing is ever called at the old versions.
 */
#define _GNU_SOURCE
#include "provider.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr

static const struct driver *driver;
static struct ibv_device device = { .node_type = IBV_NODE_CA,
				    .name = "fake0",
				    .dev_name = "uverbs0" };

#define OLD(name)                                               \
	__attribute__((noipa, used)) void name##_1_0(void)      \
	{                                                       \
		abort();                                        \
	}                                                       \
	__asm__(".symver " #name "_1_0," #name "@IBVERBS_1.0"); \
	__asm__(".symver " #name "_1_1," #name "@@IBVERBS_1.1")
#define DEFAULT(version, name) __asm__(".symver " #name "_new," #name "@@IBVERBS_" version)

OLD(ibv_get_device_list);
OLD(ibv_free_device_list);
OLD(ibv_open_device);
OLD(ibv_close_device);
OLD(ibv_alloc_pd);
OLD(ibv_dealloc_pd);
OLD(ibv_reg_mr);
OLD(ibv_dereg_mr);
OLD(ibv_create_cq);
OLD(ibv_destroy_cq);
OLD(ibv_create_qp);
OLD(ibv_modify_qp);
OLD(ibv_destroy_qp);
OLD(ibv_get_async_event);

__attribute__((noipa)) void fake_register(const struct driver *registered)
{
	driver = registered;
}
__asm__(".symver fake_register,verbs_register_driver_34@@IBVERBS_PRIVATE_34");

/* By a name that no provider calls. */
__attribute__((noipa)) void announce_driver(const struct driver *registered)
{
	driver = registered;
}

__attribute__((noipa)) struct ibv_device **ibv_get_device_list_1_1(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));
	char path[4096];
	Dl_info own;

	if (!driver && dladdr(&device, &own)) {
		snprintf(path, sizeof(path), "%.*s/libfakeprov-rdmav34.so",
			 (int)(strrchr(own.dli_fname, '/') - own.dli_fname), own.dli_fname);
		if (!dlopen(path, RTLD_NOW))
			fprintf(stderr, "%s\n", dlerror());
	}
	if (driver)
		list[0] = &device;
	if (count)
		*count = driver != NULL;
	return list;
}

__attribute__((noipa)) void ibv_free_device_list_1_1(struct ibv_device **list)
{
	free(list);
}

__attribute__((noipa)) struct ibv_context *ibv_open_device_1_1(struct ibv_device *which)
{
	return driver->open(which);
}

__attribute__((noipa)) int ibv_close_device_1_1(struct ibv_context *context)
{
	driver->close(context);
	return 0;
}

__attribute__((noipa)) struct ibv_pd *ibv_alloc_pd_1_1(struct ibv_context *context)
{
	struct ibv_pd *domain = calloc(1, sizeof(*domain));

	domain->context = context;
	return domain;
}

__attribute__((noipa)) int ibv_dealloc_pd_1_1(struct ibv_pd *domain)
{
	free(domain);
	return 0;
}

__attribute__((noipa)) struct ibv_mr *fake_reg_mr_iova2(struct ibv_pd *domain, void *address,
							size_t bytes, uint64_t there,
							unsigned int access)
{
	static uint32_t keys = 1;
	struct ibv_mr *region;

	(void)there;
	(void)access;
	if (!bytes)
		return NULL;
	region = calloc(1, sizeof(*region));
	region->context = domain->context;
	region->pd = domain;
	region->addr = address;
	region->length = bytes;
	region->lkey = region->rkey = __atomic_fetch_add(&keys, 1, __ATOMIC_RELAXED);
	return region;
}
__asm__(".symver fake_reg_mr_iova2,ibv_reg_mr_iova2@@IBVERBS_1.8");

/* As the real one, it jumps there: both are entered, and both return. */
__attribute__((noipa)) struct ibv_mr *ibv_reg_mr_1_1(struct ibv_pd *domain, void *address,
						     size_t bytes, int access)
{
	return fake_reg_mr_iova2(domain, address, bytes, (uintptr_t)address, (unsigned int)access);
}

__attribute__((noipa)) int ibv_dereg_mr_1_1(struct ibv_mr *region)
{
	free(region);
	return 0;
}

__attribute__((noipa)) struct ibv_cq *ibv_create_cq_1_1(struct ibv_context *context, int entries,
							void *opaque,
							struct ibv_comp_channel *channel,
							int vector)
{
	(void)opaque;
	(void)channel;
	(void)vector;
	return driver->create_cq(context, entries);
}

__attribute__((noipa)) int ibv_destroy_cq_1_1(struct ibv_cq *queue)
{
	driver->destroy_cq(queue);
	return 0;
}

__attribute__((noipa)) struct ibv_qp *ibv_create_qp_1_1(struct ibv_pd *domain,
							struct ibv_qp_init_attr *attributes)
{
	return driver->create_qp(domain, attributes);
}

__attribute__((noipa)) int ibv_modify_qp_1_1(struct ibv_qp *pair, struct ibv_qp_attr *change,
					     int mask)
{
	int status = driver->modify_qp(pair, change, mask);

	if (!status && mask & IBV_QP_STATE)
		pair->state = change->qp_state;
	return status;
}

__attribute__((noipa)) int ibv_destroy_qp_1_1(struct ibv_qp *pair)
{
	return driver->destroy_qp(pair);
}

/* One at once: port 1 is down. */
__attribute__((noipa)) int ibv_get_async_event_1_1(struct ibv_context *context,
						   struct ibv_async_event *event)
{
	(void)context;
	event->element.port_num = 1;
	event->event_type = IBV_EVENT_PORT_ERR;
	return 0;
}

__attribute__((noipa)) struct ibv_qp_ex *fake_to_qp_ex(struct ibv_qp *pair)
{
	return driver->extended(pair);
}
__asm__(".symver fake_to_qp_ex,ibv_qp_to_qp_ex@@IBVERBS_1.6");
