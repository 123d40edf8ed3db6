// A net/http server whose handlers wait in between: /job/N asks its backend for /called/N twice, on connections that the
// handler's goroutine writes to itself, or by net/http's client, which writes in a goroutine of the connection.
//
// In: the port of the backend, "raw", "client", or "context", where the client's requests have the context of the one
// that is served, and "pool" where a worker asks once more, which the first handler that finds none free starts and
// later ones use. In the environment: TASK_SERVER_PEM, a certificate and its key, to serve with TLS. Out: a line with its
// port. It serves HTTP/1.1, and HTTP/2 by prior knowledge or TLS, until it is killed.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func raw(_ context.Context, number int) {
	connection, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(connection, "GET /called/%d HTTP/1.1\r\nHost: backend\r\nConnection: close\r\n\r\n", number)
	io.Copy(io.Discard, connection)
	connection.Close()
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}

func fetch(ctx context.Context, number int) {
	url := fmt.Sprintf("http://127.0.0.1:%s/called/%d", os.Args[1], number)
	request, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
	answer, err := client.Do(request)
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
}

var jobs = make(chan func())

func share(job func()) {
	select {
	case jobs <- job:
	default:
		go func() {
			for {
				job()
				job = <-jobs
			}
		}()
	}
}

func main() {
	ask := raw
	if os.Args[2] != "raw" {
		ask = fetch
	}
	http.HandleFunc("/job/", func(writer http.ResponseWriter, request *http.Request) {
		number, _ := strconv.Atoi(request.URL.Path[len("/job/"):])
		ctx := context.Background()
		if os.Args[2] == "context" {
			limited, cancel := context.WithTimeout(request.Context(), time.Minute)
			defer cancel()
			ctx = context.WithValue(limited, client, number)
		}
		ask(ctx, number)
		time.Sleep(time.Duration(number%7) * time.Millisecond)
		ask(ctx, number)
		if len(os.Args) > 3 {
			var done sync.WaitGroup
			done.Add(1)
			share(func() { ask(ctx, number); done.Done() })
			done.Wait()
		}
		io.WriteString(writer, "done\n")
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	server := &http.Server{Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	server.Protocols.SetHTTP2(true)
	if pem := os.Getenv("TASK_SERVER_PEM"); pem != "" {
		server.ServeTLS(listener, pem, pem)
	}
	server.Serve(listener)
}
