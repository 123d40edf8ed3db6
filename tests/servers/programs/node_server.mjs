// The service by node:http: node_server.mjs PORT. Its calls are node:http's too, kept alive.
import http from "node:http";
import { calls, completion, firstCall, stream } from "./service.mjs";

function send(response, status, value) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(value));
}

async function answer(request, response) {
  const began = performance.now();
  const [, kind, number] = request.url.split("/");
  if (request.method === "POST" && request.url === "/v1/chat/completions") {
    let text = "";
    for await (const part of request) text += part;
    const asked = JSON.parse(text);
    const id = request.headers["x-request-id"];
    await calls(id);
    if (asked.stream) await stream(id, asked, began, response);
    else send(response, 200, completion(id, asked));
  } else if (kind === "items") {
    await calls(number);
    send(response, 200, { number });
  } else if (kind === "fail") {
    await firstCall(number);
    send(response, 500, { error: "as asked" });
  } else if (kind === "health") send(response, 200, { status: "ok" });
  else send(response, 404, { error: "not found" });
}

http.createServer(answer).listen(Number(process.argv[2]), "127.0.0.1");
