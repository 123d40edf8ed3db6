"""What ``otelgpu check`` finds out: facts of ``/proc`` and of mapped files, and what they mean for what can be seen."""
