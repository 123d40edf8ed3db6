// The service by grpc-go: grpc_go_server PORT. Its calls are net/http's, kept alive; those that goroutines make have the
// context of the request. See kserve.py.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	pause  = 2 * time.Millisecond
	word   = "token "
	tokens = 6
)

var (
	client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	truth  *os.File
)

// A message as it is on the wire.
type message []byte

type codec struct{}

func (codec) Marshal(value any) ([]byte, error) { return *value.(*message), nil }

func (codec) Unmarshal(data []byte, value any) error {
	*value.(*message) = append(message(nil), data...)
	return nil
}

func (codec) Name() string { return "proto" }

func with(to message, number protowire.Number, value string) message {
	return protowire.AppendString(protowire.AppendTag(to, number, protowire.BytesType), value)
}

func (asked message) field(wanted protowire.Number) string {
	for len(asked) > 0 {
		number, _, key := protowire.ConsumeTag(asked)
		value, size := protowire.ConsumeBytes(asked[key:])
		if number == wanted {
			return string(value)
		}
		asked = asked[key+size:]
	}
	return ""
}

func response(model, id, text string) message {
	tensor := with(with(nil, 1, "text_output"), 2, "BYTES")
	tensor = with(tensor, 5, string(with(nil, 8, text)))
	return with(with(with(nil, 1, model), 3, id), 5, string(tensor))
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

func begin(ctx context.Context, asked message) (model, id, number string, err error) {
	ctx = context.WithoutCancel(ctx) // the client may hang up
	model, id = asked.field(1), asked.field(3)
	number = strings.TrimPrefix(id, "chatcmpl-")
	switch model {
	case "failing":
		call(context.Background(), number, 0)
		return model, id, number, status.Error(codes.Internal, "as asked")
	case "tiny", "patient":
		call(context.Background(), number, 0)
	default:
		return model, id, number, status.Error(codes.NotFound, model)
	}
	var both sync.WaitGroup
	for which := 1; which <= 2; which++ {
		both.Go(func() { call(ctx, number, which) })
	}
	both.Wait()
	return model, id, number, nil
}

func infer(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var asked message
	if err := decode(&asked); err != nil {
		return nil, err
	}
	model, id, _, err := begin(ctx, asked)
	if err != nil {
		return nil, err
	}
	if model == "patient" {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	answer := response(model, id, strings.Repeat(word, tokens))
	return &answer, nil
}

func stream(_ any, stream grpc.ServerStream) error {
	began := time.Now()
	var asked message
	if err := stream.RecvMsg(&asked); err != nil {
		return err
	}
	model, id, number, err := begin(stream.Context(), asked)
	if err != nil {
		return err
	}
	token := with(nil, 2, string(response(model, id, word)))
	fmt.Fprintf(truth, "{\"number\": %s, \"ttft_s\": %.9f}\n", number, time.Since(began).Seconds())
	stream.SendMsg(&token)
	if model == "patient" {
		stream.SendMsg(&token)
		<-stream.Context().Done()
		return status.FromContextError(stream.Context().Err()).Err()
	}
	call(context.Background(), number, 3)
	for sent := 1; sent < tokens; sent++ {
		time.Sleep(pause)
		stream.SendMsg(&token)
	}
	return nil
}

func live(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var asked message
	return new(message), decode(&asked)
}

func main() {
	var err error
	if truth, err = os.OpenFile(os.Getenv("SERVER_TRUTH"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		panic(err)
	}
	encoding.RegisterCodec(codec{})
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "inference.GRPCInferenceService",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "ModelInfer", Handler: infer},
			{MethodName: "ServerLive", Handler: live},
		},
		Streams: []grpc.StreamDesc{
			{StreamName: "ModelStreamInfer", Handler: stream, ServerStreams: true, ClientStreams: true},
		},
	}, nil)
	panic(server.Serve(listener))
}
