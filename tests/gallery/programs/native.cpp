// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A program of the gallery in C++: prints each step, and reads a part of a cold file in every sixth. Written as those of held_out.py. */
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace
{
class Trainer
{
      public:
	explicit Trainer(std::string folder) : path(std::move(folder) + "/tokens.bin")
	{
		std::ofstream(path, std::ios::binary) << std::string(80 << 20, 'x');
		sync();
	}
	void run()
	{
		for (int step = 0; step < 48; step++) {
			forward();
			std::printf("step %d\n", step);
			std::fflush(stdout);
			if (step % 6 == 5)
				next_shard();
		}
	}

      private:
	std::string path;
	double sum = 0;

	__attribute__((noinline)) void forward()
	{
		for (int i = 0; i < 30000000; i++)
			sum += i * 1e-9;
	}
	__attribute__((noinline)) void next_shard()
	{
		int file = open(path.c_str(), O_RDONLY);
		posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
		close(file);
		std::vector<char> bytes(80 << 20);
		std::ifstream(path, std::ios::binary)
			.read(bytes.data(), (std::streamsize)bytes.size());
		sum += bytes.back();
	}
};
} // namespace

int main(int, char **arguments)
{
	Trainer(arguments[2]).run();
}
