"""Small programs with a fault each, and healthy ones, for ``otelgpu diagnose``: what it says of them is compared with
the label."""
