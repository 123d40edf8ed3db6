"""The running kernel: libbpf, BPF objects, rings, counters, features, clocks. Needs privileges; does I/O."""
