// SPDX-License-Identifier: Apache-2.0
/*
 * What bench_socket.py observes. Each line on standard input, WHAT WRITES BYTES RATE, is answered with the processor
 * time, in nanoseconds, that the thread spent in so many write() of so many bytes, RATE a second (0: as fast as it goes):
 *
 *   http    a token each of a streamed completion, to a connection that was accepted
 *   other   to one whose protocol nobody knows
 *   null    to /dev/null
 *   pipe    to a pipe that is emptied now and then
 *
 * The peer of the connections is a process of its own, made before anybody observes this one; it lets bytes wait, so
 * that waking it is no part of a write's cost.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NS	   1000000000LL
#define MOST_BYTES 261
#define BURSTS	   1000	     /* a second */
#define WAITING	   (1 << 18) /* bytes that the peer lets wait */
#define PIPE_BYTES 32768     /* less than a pipe holds */

static const char http[] =
	"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: 2\r\n\r\n{}";
static const char other[] = "\1\2\3\4 no protocol that anybody knows";
static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
			   "transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
static const char begins[] =
	"data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"";
static const char ends[] = "\"}}]}\n\n\r\n";
static const char last[] = "0\r\n\r\n";
static char chunk[MOST_BYTES];

static void check(int holds, const char *what)
{
	if (holds)
		return;
	perror(what);
	exit(2);
}

static long long clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NS + now.tv_nsec;
}

/* One token of a stream, in a chunk of HTTP/1.1, of so many bytes in all. */
static void make_chunk(size_t bytes)
{
	size_t length = (size_t)sprintf(chunk, "%zx\r\n", bytes - 6);

	check(length == 4 && bytes >= 112, "a chunk of 112 to 261 bytes");
	length += (size_t)sprintf(chunk + length, "%s", begins);
	memset(chunk + length, 'x', bytes - length);
	memcpy(chunk + bytes - strlen(ends), ends, strlen(ends));
}

static void sleep_until(long long time_ns)
{
	struct timespec until = { time_ns / NS, time_ns % NS };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static long long write_all(int fd, long writes, size_t bytes, long rate)
{
	long at_once = rate ? (rate + BURSTS - 1) / BURSTS : writes;
	long long spent = 0, next = clock_ns(CLOCK_MONOTONIC);

	for (long done = 0; done < writes; done += at_once) {
		long long began = clock_ns(CLOCK_THREAD_CPUTIME_ID);

		for (long i = done; i < done + at_once && i < writes; i++)
			check(write(fd, chunk, bytes) == (ssize_t)bytes, "write");
		spent += clock_ns(CLOCK_THREAD_CPUTIME_ID) - began;
		if (rate)
			sleep_until(next += NS * at_once / rate);
	}
	return spent;
}

/* Connects for each byte of standard input: 'h' asks by HTTP. Reads to the end. */
static void be_peer(int commands, struct sockaddr_in address)
{
	static char into[WAITING];
	int waiting = WAITING, room = 4 * WAITING;
	char command;

	while (read(commands, &command, 1) == 1) {
		const char *request = command == 'h' ? http : other;
		int connection = socket(AF_INET, SOCK_STREAM, 0);

		setsockopt(connection, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
		setsockopt(connection, SOL_SOCKET, SO_RCVLOWAT, &waiting, sizeof(waiting));
		check(connect(connection, (struct sockaddr *)&address, sizeof(address)) == 0,
		      "connect");
		check(write(connection, request, strlen(request)) > 0, "write");
		while (read(connection, into, sizeof(into)) > 0)
			;
		close(connection);
	}
	exit(0);
}

static long long write_to_peer(int listening, int peer, char command, long writes, size_t bytes,
			       long rate)
{
	int connection, one = 1;
	char request[4096];
	long long spent;

	check(write(peer, &command, 1) == 1, "write");
	connection = accept(listening, NULL, NULL);
	check(connection >= 0, "accept");
	setsockopt(connection, IPPROTO_TCP, TCP_CORK, &one, sizeof(one));
	check(read(connection, request, sizeof(request)) > 0, "read");
	check(write(connection, head, strlen(head)) > 0, "write");
	spent = write_all(connection, writes, bytes, rate);
	check(write(connection, last, strlen(last)) > 0, "write");
	close(connection);
	return spent;
}

static long long write_to_pipe(long writes, size_t bytes)
{
	static char into[PIPE_BYTES];
	long long spent = 0, at_once = (long)(PIPE_BYTES / bytes);
	int pipes[2];

	check(pipe(pipes) == 0, "pipe");
	for (long done = 0; done < writes; done += at_once) {
		if (at_once > writes - done)
			at_once = writes - done;
		spent += write_all(pipes[1], at_once, bytes, 0);
		for (ssize_t left = at_once * (ssize_t)bytes; left > 0;)
			left -= read(pipes[0], into, sizeof(into));
	}
	close(pipes[0]);
	close(pipes[1]);
	return spent;
}

int main(void)
{
	int listening = socket(AF_INET, SOCK_STREAM, 0), null = open("/dev/null", O_WRONLY),
	    peer[2];
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	char what[16];
	long writes, rate;
	size_t bytes;

	check(bind(listening, (struct sockaddr *)&address, length) == 0, "bind");
	check(listen(listening, 1) == 0, "listen");
	check(getsockname(listening, (struct sockaddr *)&address, &length) == 0, "getsockname");
	check(pipe(peer) == 0, "pipe");
	if (fork() == 0) {
		close(peer[1]);
		be_peer(peer[0], address);
	}
	close(peer[0]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d\n", getpid());
	while (scanf("%15s %ld %zu %ld", what, &writes, &bytes, &rate) == 4 &&
	       bytes <= MOST_BYTES) {
		make_chunk(bytes);
		if (strcmp(what, "null") == 0)
			printf("%lld\n", write_all(null, writes, bytes, rate));
		else if (strcmp(what, "pipe") == 0)
			printf("%lld\n", write_to_pipe(writes, bytes));
		else
			printf("%lld\n",
			       write_to_peer(listening, peer[1], *what, writes, bytes, rate));
	}
	return 0;
}
