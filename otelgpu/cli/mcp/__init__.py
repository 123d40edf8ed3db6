"""``otelgpu mcp``: what was recorded, as tools for assistants (Model Context Protocol), read-only.

``command`` starts; ``server`` speaks the protocol, over ``stdio`` or ``loopback``; ``tools`` is the table of what there
is to be called, each from a module of its subject. What a tool gives goes through ``answers``, where it is cleaned,
bounded and marked as data.
"""
