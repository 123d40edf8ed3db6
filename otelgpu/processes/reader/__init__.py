"""Reads and parses what observed processes wrote, in a process that may die of it.

A file of a tenant may shrink while it is mapped, block for ever in ``open()`` or ``read()``, or hold a name that a
demangler does not come back from. So whoever wants to know something of it *asks* (:class:`~.client.Reader`): a
:func:`~.messages.question`, which is a function at module level with plain arguments and a plain answer, runs in a
worker that has no way to write, few capabilities and system calls, and limited memory and time. What ends the worker
ends that question, with an error that is counted; the next one has a new worker.

- ``messages``: questions, and how they and their answers go over a socket;
- ``server``: the process that forks workers, and a worker;
- ``forker``: that process as the agent sees it, which readers may share;
- ``client``: asks, waits no longer than it says, charges the time to whom the question is about;
- ``door``: opens files that others name, in the worker.
"""
