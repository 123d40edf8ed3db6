/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is only the host of a library which has the runtime linked in. */
int program_main(int argc, char **argv);

int main(int argc, char **argv)
{
	return program_main(argc, argv);
}
