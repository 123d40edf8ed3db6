// The service by net/http: go_server PORT. Its calls are net/http's too, kept alive; those that goroutines make have the
// context of the request. See service.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	pause = 2 * time.Millisecond
	word  = "token "
)

var (
	client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	truth  *os.File
)

type object = map[string]any

type question struct {
	MaxTokens     int  `json:"max_tokens"`
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func call(ctx context.Context, number string, which int) {
	url := fmt.Sprintf("%s/call/%s/%d", os.Getenv("SERVER_UPSTREAM"), number, which)
	request, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
	answer, err := client.Do(request)
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, answer.Body)
}

func calls(ctx context.Context, number string) {
	ctx = context.WithoutCancel(ctx) // the client may hang up
	call(context.Background(), number, 0)
	var both sync.WaitGroup
	for which := 1; which <= 2; which++ {
		both.Add(1)
		go func() {
			defer both.Done()
			call(ctx, number, which)
		}()
	}
	both.Wait()
}

func body(number, kind string) object {
	return object{"id": "chatcmpl-" + number, "object": kind, "created": 1, "model": "tiny"}
}

func usage(tokens int) object {
	return object{"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
}

func chat(writer http.ResponseWriter, request *http.Request) {
	began := time.Now()
	number := request.Header.Get("X-Request-Id")
	var asked question
	if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
		panic(err)
	}
	calls(request.Context(), number)
	if asked.Stream {
		stream(writer, number, asked, began)
		return
	}
	answer := body(number, "chat.completion")
	message := object{"role": "assistant", "content": strings.Repeat(word, asked.MaxTokens)}
	answer["choices"] = []object{{"index": 0, "message": message, "finish_reason": "stop"}}
	answer["usage"] = usage(asked.MaxTokens)
	send(writer, http.StatusOK, answer)
}

func stream(writer http.ResponseWriter, number string, asked question, began time.Time) {
	event := func(delta object, finish any) {
		chunk := body(number, "chat.completion.chunk")
		chunk["choices"] = []object{{"index": 0, "delta": delta, "finish_reason": finish}}
		text, _ := json.Marshal(chunk)
		fmt.Fprintf(writer, "data: %s\n\n", text)
		writer.(http.Flusher).Flush()
	}
	writer.Header().Set("Content-Type", "text/event-stream")
	event(object{"role": "assistant", "content": ""}, nil)
	fmt.Fprintf(truth, "{\"number\": %s, \"ttft_s\": %.9f}\n", number, time.Since(began).Seconds())
	event(object{"content": word}, nil)
	call(context.Background(), number, 3)
	for token := 1; token < asked.MaxTokens; token++ {
		time.Sleep(pause)
		event(object{"content": word}, nil)
	}
	event(object{}, "stop")
	if asked.StreamOptions.IncludeUsage {
		chunk := body(number, "chat.completion.chunk")
		chunk["choices"], chunk["usage"] = []object{}, usage(asked.MaxTokens)
		text, _ := json.Marshal(chunk)
		fmt.Fprintf(writer, "data: %s\n\n", text)
	}
	fmt.Fprint(writer, "data: [DONE]\n\n")
}

func send(writer http.ResponseWriter, status int, value object) {
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(status)
	json.NewEncoder(writer).Encode(value)
}

func main() {
	var err error
	if truth, err = os.OpenFile(os.Getenv("SERVER_TRUTH"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		panic(err)
	}
	if _, err = strconv.Atoi(os.Args[1]); err != nil {
		panic(err)
	}
	http.HandleFunc("POST /v1/chat/completions", chat)
	http.HandleFunc("GET /items/{number}", func(writer http.ResponseWriter, request *http.Request) {
		calls(request.Context(), request.PathValue("number"))
		send(writer, http.StatusOK, object{"number": request.PathValue("number")})
	})
	http.HandleFunc("GET /fail/{number}", func(writer http.ResponseWriter, request *http.Request) {
		call(context.Background(), request.PathValue("number"), 0)
		send(writer, http.StatusInternalServerError, object{"error": "as asked"})
	})
	http.HandleFunc("GET /health", func(writer http.ResponseWriter, _ *http.Request) {
		send(writer, http.StatusOK, object{"status": "ok"})
	})
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
