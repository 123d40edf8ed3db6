"""What ``kubectl`` executes as ``kubectl otelgpu``, and ``python -m kubectl_otelgpu``."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # says so, where a newer one would only be a syntax error
    sys.exit("kubectl otelgpu needs Python 3.11 or later; this is " + sys.version.split()[0])

from kubectl_otelgpu.commands import main

if __name__ == "__main__":
    sys.exit(main())
