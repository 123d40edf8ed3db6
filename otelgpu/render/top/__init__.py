"""What ``otelgpu top`` shows, apart from drawing it: rates, their order, what fits on a screen. Pure."""
