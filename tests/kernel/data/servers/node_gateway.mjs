// node:http, which asks another server for each request: node_gateway.mjs URL; a line with its port.
import { appendFileSync } from "node:fs";
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const agent = new http.Agent({ keepAlive: true });
const ask = (url) => new Promise((resolve, reject) => {
  http.get(url, { agent }, (response) => {
    let body = "";
    response.on("data", (part) => { body += part; });
    response.on("end", () => resolve(body));
  }).on("error", reject);
});

const server = http.createServer(async (request, response) => {
  const number = Number(request.url.split("/").at(-1));
  await sleep(1 + number % 3); // the order in which they ask is not the one in which they came
  const body = await ask(`${process.argv[2]}/job/${number}`);
  appendFileSync(process.env.JOBS_TRUTH, JSON.stringify({ number, calls: 0 }) + "\n");
  response.end(body);
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
