/* SPDX-License-Identifier: Apache-2.0 */
/* Between the fake libibverbs and its fake provider: what infiniband/driver.h is to real ones. */
#ifndef FAKE_VERBS_PROVIDER_H
#define FAKE_VERBS_PROVIDER_H

#include <infiniband/verbs.h>

struct driver {
	struct ibv_context *(*open)(struct ibv_device *device);
	void (*close)(struct ibv_context *context);
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries);
	void (*destroy_cq)(struct ibv_cq *queue);
	struct ibv_qp *(*create_qp)(struct ibv_pd *domain, struct ibv_qp_init_attr *attributes);
	int (*modify_qp)(struct ibv_qp *pair, struct ibv_qp_attr *change, int mask);
	int (*destroy_qp)(struct ibv_qp *pair);
	struct ibv_qp_ex *(*extended)(struct ibv_qp *pair);
};

void verbs_register_driver_34(const struct driver *driver);
void announce_driver(const struct driver *driver);

#endif
