"""Programs that are easily harmed, and a library loaded into them while they run: ``python -m tests.rig.injection``."""
