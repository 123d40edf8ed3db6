// HTTPS as Go's net/http serves it, and a client of it that checks each answer.
// Usage: serve_https serve CERTIFICATE_AND_KEY.pem [tunnelled]: prints its port, ends when stdin does.
//        serve_https ask PORT COUNT AT_ONCE HTTP_VERSION [tunnelled]: prints how many answers were wrong.
// tunnelled: TLS within TLS.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const cutBytes = 64 << 20

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// deep makes the goroutine's stack larger, and so moves it.
func deep(depth int) int {
	var room [256]byte
	if depth == 0 {
		return int(room[0])
	}
	return deep(depth-1) + int(room[depth%256])
}

func serve(pem string, tunnelled bool) {
	certificate, err := tls.LoadX509KeyPair(pem, pem)
	check(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	handler := http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if request.URL.Path == "/cut" {
			cut(response)
			return
		}
		body, err := io.ReadAll(request.Body)
		check(err)
		number, _ := strconv.Atoi(request.URL.Path[1:])
		deep(number % 3000)
		if number%50 == 0 {
			runtime.GC()
		}
		response.WriteHeader(status(number))
		fmt.Fprintf(response, "%d had %d bytes", number, len(body))
	})
	settings := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if tunnelled {
		listener = tls.NewListener(listener, settings)
	}
	server := &http.Server{Handler: handler, TLSConfig: settings.Clone()}
	check(server.ServeTLS(listener, "", ""))
}

// cut writes more than a connection holds, closes it meanwhile, once the client has sent a byte, and says whether that cut it off.
func cut(response http.ResponseWriter) {
	connection, _, err := response.(http.Hijacker).Hijack()
	check(err)
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", cutBytes)
	cutOff := make(chan error)
	go func() {
		_, err := connection.Write(append([]byte(head), make([]byte, cutBytes)...))
		cutOff <- err
	}()
	_, err = connection.Read(make([]byte, 1))
	check(err)
	check(connection.Close())
	fmt.Println(<-cutOff != nil)
}

func status(number int) int {
	if number%5 == 0 {
		return http.StatusNotFound
	}
	return http.StatusOK
}

func ask(port string, count int, atOnce int, version string, tunnelled bool) {
	settings := &tls.Config{InsecureSkipVerify: true}
	transport := &http.Transport{
		TLSClientConfig:     settings.Clone(),
		ForceAttemptHTTP2:   version == "2",
		MaxIdleConnsPerHost: atOnce,
	}
	if version == "1.1" {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	if tunnelled {
		transport.DialContext = (&tls.Dialer{Config: settings}).DialContext
	}
	client := &http.Client{Transport: transport}
	var last, wrong atomic.Int64
	var asking sync.WaitGroup
	for range make([]struct{}, atOnce) {
		asking.Add(1)
		go func() {
			defer asking.Done()
			for number := int(last.Add(1)); number <= count; number = int(last.Add(1)) {
				url := fmt.Sprintf("https://127.0.0.1:%s/%d", port, number)
				response, err := client.Post(url, "text/plain", strings.NewReader(strings.Repeat("q", number)))
				check(err)
				body, err := io.ReadAll(response.Body)
				check(err)
				response.Body.Close()
				if response.StatusCode != status(number) || string(body) != fmt.Sprintf("%d had %d bytes", number, number) {
					wrong.Add(1)
				}
			}
		}()
	}
	asking.Wait()
	fmt.Println(wrong.Load())
}

func main() {
	tunnelled := os.Args[len(os.Args)-1] == "tunnelled"
	if os.Args[1] == "serve" {
		serve(os.Args[2], tunnelled)
		return
	}
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	atOnce, err := strconv.Atoi(os.Args[4])
	check(err)
	ask(os.Args[2], count, atOnce, os.Args[5], tunnelled)
}
