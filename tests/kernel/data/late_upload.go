// A program that is found in the middle of an upload by net/http's client.
//
// In: the port of a server; then lines: "more" gives the upload 8 KiB, "ask" makes another request. Out: a line "done"
// after each. It runs until its input ends.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	url := "http://127.0.0.1:" + os.Args[1]
	body, upload := io.Pipe()
	go http.Post(url+"/upload", "application/octet-stream", body)
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		switch orders.Text() {
		case "more":
			upload.Write(make([]byte, 8192))
		case "ask":
			answer, err := http.Get(url + "/asked")
			if err != nil {
				panic(err)
			}
			io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		fmt.Println("done")
	}
}
