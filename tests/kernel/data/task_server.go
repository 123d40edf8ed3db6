// A net/http server whose handlers wait in between: /job/N asks its backend for /called/N twice, on connections that the
// handler's goroutine writes to itself, or by net/http's client, which writes in a goroutine of the connection.
//
// In: the port of the backend, "raw" or "client", and "children" where a goroutine of the handler's asks once more. Out: a
// line with its port. It serves until it is killed.
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

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}

func fetch(number int) {
	answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%s/called/%d", os.Args[1], number))
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
}

func main() {
	ask := raw
	if os.Args[2] == "client" {
		ask = fetch
	}
	http.HandleFunc("/job/", func(writer http.ResponseWriter, request *http.Request) {
		number, _ := strconv.Atoi(request.URL.Path[len("/job/"):])
		ask(number)
		time.Sleep(time.Duration(number%7) * time.Millisecond)
		ask(number)
		if len(os.Args) > 3 {
			var done sync.WaitGroup
			done.Add(1)
			go func() { ask(number); done.Done() }()
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
