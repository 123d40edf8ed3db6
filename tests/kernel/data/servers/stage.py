"""Starts programs so that whoever observes this one observes them: a JSON line of (command, environment) each.

Out, each time: a line with the program's id and the first line that it prints, empty once it has ended with 0.
"""

import json
import os
import subprocess
import sys

for line in sys.stdin:
    command, environment = json.loads(line)
    program = subprocess.Popen(
        command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    said = program.stdout.readline().strip()
    if not said and program.wait():
        said = f"failed with {program.returncode}"
    print(json.dumps([program.pid, said]), flush=True)
