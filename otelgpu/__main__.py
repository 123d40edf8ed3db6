"""``python -m otelgpu``: the command line, where its script is not on PATH."""

from otelgpu.cli.main import main

if __name__ == "__main__":
    main()
