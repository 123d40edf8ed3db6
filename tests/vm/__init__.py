"""Guests with other kernels, and with RDMA devices, under QEMU: no KVM and no hardware needed."""
