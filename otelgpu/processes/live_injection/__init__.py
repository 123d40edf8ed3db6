"""Our library into a process that runs already: found suitable, a thread held for a moment, everything put back.

A thread of the process is stopped where it holds no lock that loading a library needs (:mod:`.safe_point`), and made to
call ``mmap`` and ``pthread_create`` as a signal handler would (:mod:`.amd64`): the way back is a signal frame, which
the kernel takes everything from, whether or not we are still there. The new thread, and not the one that was held,
loads the library, whose descriptor it is sent: the process may be in a container, and see neither the file nor us.

* :mod:`.refusals` — who is not touched, and why
* :mod:`.needed_calls`, :mod:`.seccomp` — whether its filters of system calls let it
* :mod:`.target` — memory, modules and functions of the process
* :mod:`.safe_point` — where a thread may be interrupted
* :mod:`.amd64` — frames and code for x86-64; another architecture is another file of this kind
* :mod:`.loading` — the sequence

Where the program is Python of 3.14 or later, ``sys.remote_exec`` would run code at a safe point of the interpreter's
own; it is not used: it needs a file that the process can read and its main thread to reach that point, and no process
without Python can be had that way.
"""
