// A server of streamed chat completions that stops, as Go's handlers do, when its client has gone.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	os.Stdout.Sync()
	panic(http.Serve(listener, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		answer.Header().Set("Content-Type", "text/event-stream")
		for number := 0; number < 20; number++ {
			fmt.Fprintf(answer, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"w%d\"}}],\"model\":\"m\"}\n\n", number)
			answer.(http.Flusher).Flush()
			select {
			case <-request.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
		fmt.Fprint(answer, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})))
}
