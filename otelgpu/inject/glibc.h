/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before everything else: the library is loaded into programs of other
 * systems, and a symbol version that theirs does not have would keep them from
 * starting. So that glibc 2.18 is enough, functions that got a new version when
 * they moved into libc are asked for by their old one, and weakly: before 2.34
 * they are in libpthread and libdl, which a program without CUDA may not have.
 */
#ifndef OTELGPU_GLIBC_H
#define OTELGPU_GLIBC_H

#define OLDEST(function)                \
	__asm__(".weak " #function "\n" \
		".symver " #function ", " #function "@GLIBC_2.2.5\n")

OLDEST(dlopen);
OLDEST(pthread_attr_setstacksize);
OLDEST(pthread_create);
OLDEST(pthread_key_create);
OLDEST(pthread_setspecific);
OLDEST(pthread_sigmask);

#undef OLDEST

#endif
