"""``otelgpu watch-pods``: annotations of a node's pods, from the API server into a file that the agent reads.

A program of its own, so that who holds a credential of the cluster has no capability, and the agent, which has some,
holds no credential (docs/explanation/switch.md).
"""
