// A net/http server whose handlers wait in between: /job/N asks its backend for /called/N twice, on connections that the
// handler's goroutine writes to itself (net/http's client writes in a goroutine of the connection).
//
// In: the port of the backend, and "children" where a goroutine of the handler's asks once more. Out: a line with its
// port. It serves until it is killed.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func raw(number int) {
	connection, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(connection, "GET /called/%d HTTP/1.1\r\nHost: backend\r\nConnection: close\r\n\r\n", number)
	io.Copy(io.Discard, connection)
	connection.Close()
}

func main() {
	http.HandleFunc("/job/", func(writer http.ResponseWriter, request *http.Request) {
		number, _ := strconv.Atoi(request.URL.Path[len("/job/"):])
		raw(number)
		time.Sleep(time.Duration(number%7) * time.Millisecond)
		raw(number)
		if len(os.Args) > 2 {
			var done sync.WaitGroup
			done.Add(1)
			go func() { raw(number); done.Done() }()
			done.Wait()
		}
		io.WriteString(writer, "done\n")
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	http.Serve(listener, nil)
}
