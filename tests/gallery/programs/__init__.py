"""Programs that stall, each for one reason, and healthy ones. ``python -m tests.gallery.programs NAME FOLDER
[SECONDS]``.

Each is a loop of some fifty steps: it computes for some 40 ms (``work``), and does what its name says every fifth
time. None knows of otelgpu. What they do is Python of the standard library, so that they start at once.
"""
