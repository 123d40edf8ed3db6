// net/http: a line with its port. A request /job/N makes its CUDA calls through cgo.
package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

static int (*allocate)(void **, size_t);
static int (*release)(void *);

static int find(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

	if (!library)
		return -1;
	allocate = (int (*)(void **, size_t))dlsym(library, "cudaMalloc");
	release = (int (*)(void *))dlsym(library, "cudaFree");
	return allocate && release ? 0 : -1;
}

static int call(size_t number)
{
	void *pointer = NULL;

	return allocate(&pointer, number) || release(pointer);
}
*/
import "C"

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const calls = 3

func main() {
	if C.find(C.CString(os.Getenv("JOBS_CUDART"))) != 0 {
		panic("no library")
	}
	truth, err := os.OpenFile(os.Getenv("JOBS_TRUTH"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		panic(err)
	}
	http.HandleFunc("/job/", func(writer http.ResponseWriter, request *http.Request) {
		number, _ := strconv.Atoi(strings.TrimPrefix(request.URL.Path, "/job/"))
		for i := 0; i < calls; i++ {
			if C.call(C.size_t(number)) != 0 {
				panic("a call failed")
			}
			time.Sleep(2 * time.Millisecond)
		}
		fmt.Fprintf(truth, "{\"number\": %d, \"calls\": %d}\n", number, calls)
		fmt.Fprint(writer, number)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}
