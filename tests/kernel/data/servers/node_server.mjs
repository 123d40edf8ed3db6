// node:http, or with a certificate node:https: node_server.mjs [CERTIFICATE]; a line with its port. It makes no CUDA calls.
import { appendFileSync, readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import { setTimeout as sleep } from "node:timers/promises";

const report = (line) => appendFileSync(process.env.JOBS_TRUTH, JSON.stringify({ calls: 0, ...line }) + "\n");
const event = (number, delta, finish) => `data: ${JSON.stringify({
  id: `chatcmpl-${number}`, object: "chat.completion.chunk", model: "fake",
  choices: [{ index: 0, delta, finish_reason: finish }],
})}\n\n`;

async function answer(request, response) {
  if (request.method === "GET") {
    const number = Number(request.url.split("/").at(-1));
    await sleep(6);
    report({ number });
    response.end(String(number));
    return;
  }
  let body = "";
  for await (const part of request) body += part;
  const { max_tokens: number, stream } = JSON.parse(body);
  if (!stream) {
    report({ number, stream: false });
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify({
      id: `chatcmpl-${number}`, object: "chat.completion", created: 1, model: "fake",
      choices: [{ index: 0, message: { role: "assistant", content: "one two three" }, finish_reason: "stop" }],
      usage: { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10 },
    }));
    return;
  }
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.write(event(number, { role: "assistant" }, null));
  for (const word of ["one", "two", "three"]) {
    response.write(event(number, { content: word }, null));
    await sleep(2);
  }
  report({ number, stream: true });
  response.end(event(number, {}, "stop") + "data: [DONE]\n\n");
}

const pem = process.argv[2] && readFileSync(process.argv[2]);
const server = pem ? https.createServer({ key: pem, cert: pem }, answer) : http.createServer(answer);
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
