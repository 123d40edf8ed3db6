/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS calls inside TLS calls: on the same session, as LibreSSL's SSL_read_ex calls its SSL_read, and on another one, as
 * when a proxy's TLS carries a server's. No cipher: what a session carries is the text itself.
 */
#include <stdio.h>
#include <string.h>

#define CALLED \
	__attribute__((noipa, visibility("default"))) /* whatever the compiler could know of it */

struct session {
	struct session *below; /* that carries its bytes */
	const char *text;
};

static const char request[] = "GET /nested HTTP/1.1\r\nHost: here\r\n\r\n";
static const char carried[] = "GET /carried HTTP/1.1\r\nHost: here\r\n\r\n";
static const char response[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

CALLED int SSL_read(struct session *ssl, void *into, int bytes)
{
	char below[512];
	int length = (int)strlen(ssl->text);

	if (ssl->below)
		SSL_read(ssl->below, below, (int)sizeof(below));
	if (length > bytes)
		return -1;
	memcpy(into, ssl->text, (size_t)length);
	return length;
}

CALLED int SSL_read_ex(struct session *ssl, void *into, size_t bytes, size_t *moved)
{
	int got = SSL_read(ssl, into, (int)bytes);

	*moved = got > 0 ? (size_t)got : 0;
	return got > 0;
}

CALLED int SSL_write(struct session *ssl, const void *from, int bytes)
{
	if (ssl->below)
		SSL_write(ssl->below, response, (int)strlen(response));
	return from ? bytes : -1;
}

CALLED void SSL_free(struct session *ssl)
{
	ssl->text = NULL;
}

int main(void)
{
	int wrong = 0;

	fprintf(stderr, "ready\n");
	getchar();
	for (int i = 0; i < 7; i++) {
		struct session below = { .text = carried };
		struct session above = { .below = &below, .text = request };
		struct session alone = { .text = request };
		char text[512];
		size_t moved = 0;

		wrong += !SSL_read_ex(&alone, text, sizeof(text), &moved) ||
			 moved != strlen(request);
		wrong += SSL_write(&alone, response, (int)strlen(response)) < 0;
		wrong += SSL_read(&above, text, (int)sizeof(text)) < 0;
		wrong += SSL_write(&above, response, (int)strlen(response)) < 0;
		SSL_free(&alone);
		SSL_free(&above);
		SSL_free(&below);
	}
	return wrong;
}
