"""``otelgpu profile-pods``: profiles of pods whose annotation asks for one, for a while, one at a time on a node.

A program of its own beside the agent (docs/explanation/switch.md): the agent gave up what it takes to load programs
before it looks at anybody's file, and what a profile needs of memory and CPU is bounded by a container of its own. It
sleeps until somebody asks; whatever imports or reads much is done by a child that ends.
"""
