/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many_processes LIBRARY PROCESSES CALLERS CALLS
 *
 * Opens a CUDA runtime, forks, says "ready" on standard output, and obeys lines on standard input: at the first
 * the first CALLERS children make CALLS calls each, at the end of input all end. They die with their parent,
 * and it with its own, so that nothing stays behind.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int (*device_synchronize)(void);

/* Wait for a byte, which says to begin. Gives false when there will be none. */
static bool reported(int from)
{
	char byte;

	return read(from, &byte, 1) == 1;
}

static _Noreturn void child(int go, int done, int calls)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == 1)
		_exit(1);
	if (calls && reported(go)) {
		for (int i = 0; i < calls; i++)
			device_synchronize();
		if (write(done, "", 1) != 1)
			_exit(1);
	}
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	int processes = argc > 4 ? atoi(argv[2]) : 0, callers = argc > 4 ? atoi(argv[3]) : 0;
	void *library = argc > 4 ? dlopen(argv[1], RTLD_NOW) : NULL;
	int go[2], done[2];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!library || pipe(go) || pipe(done))
		return 2;
	*(void **)&device_synchronize = dlsym(library, "cudaDeviceSynchronize");
	if (!device_synchronize)
		return 2;
	for (int i = 0; i < processes; i++) {
		pid_t pid = fork();

		if (!pid)
			child(go[0], done[1], i < callers ? atoi(argv[4]) : 0);
		if (pid < 0) {
			perror("fork");
			return 3;
		}
	}
	puts("ready");
	fflush(stdout);
	if (getchar() == '\n') {
		for (int i = 0; i < callers; i++)
			if (write(go[1], "", 1) != 1)
				return 4;
		for (int i = 0; i < callers; i++)
			if (!reported(done[0]))
				return 5;
		puts("done");
		fflush(stdout);
		while (getchar() != EOF)
			;
	}
	signal(SIGTERM, SIG_IGN);
	kill(0, SIGTERM); /* of its own process group: see test_many_processes.py */
	while (wait(NULL) > 0)
		;
	puts("ended");
	return 0;
}
