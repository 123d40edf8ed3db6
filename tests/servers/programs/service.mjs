// What service.py has, for servers of Node: see there.
import { appendFileSync } from "node:fs";
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const PAUSE_MS = 2;
const WORD = "token ";
const agent = new http.Agent({ keepAlive: true });

function call(number, which) {
  return new Promise((resolve, reject) => {
    http.get(`${process.env.SERVER_UPSTREAM}/call/${number}/${which}`, { agent }, (answer) => {
      answer.resume().on("end", () => (answer.statusCode === 200 ? resolve() : reject(new Error("upstream"))));
    }).on("error", reject);
  });
}

export const firstCall = (number) => call(number, 0);

export async function calls(number) {
  await call(number, 0);
  await Promise.all([call(number, 1), call(number, 2)]);
}

const body = (number, object) => ({ id: `chatcmpl-${number}`, object, created: 1, model: "tiny" });
const usage = (tokens) => ({ prompt_tokens: 7, completion_tokens: tokens, total_tokens: 7 + tokens });
const sse = (event) => `data: ${JSON.stringify(event)}\n\n`;
const event = (number, delta, finish = null) =>
  sse({ ...body(number, "chat.completion.chunk"), choices: [{ index: 0, delta, finish_reason: finish }] });

export function completion(number, asked) {
  const message = { role: "assistant", content: WORD.repeat(asked.max_tokens) };
  return {
    ...body(number, "chat.completion"),
    choices: [{ index: 0, message, finish_reason: "stop" }],
    usage: usage(asked.max_tokens),
  };
}

// Writes the events of a stream to a response, whose handler was called at beganMs of performance.now().
export async function stream(number, asked, beganMs, response) {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.write(event(number, { role: "assistant", content: "" }));
  const line = { number: Number(number), ttft_s: (performance.now() - beganMs) / 1000 };
  appendFileSync(process.env.SERVER_TRUTH, JSON.stringify(line) + "\n");
  response.write(event(number, { content: WORD }));
  await call(number, 3);
  for (let i = 1; i < asked.max_tokens; i += 1) {
    await sleep(PAUSE_MS);
    response.write(event(number, { content: WORD }));
  }
  let end = event(number, {}, "stop");
  if (asked.stream_options?.include_usage) {
    end += sse({ ...body(number, "chat.completion.chunk"), choices: [], usage: usage(asked.max_tokens) });
  }
  response.end(`${end}data: [DONE]\n\n`);
}
