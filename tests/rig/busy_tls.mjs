// A TLS server in Node that is busy for a while after each answer. Prints its port.
// Usage: node busy_tls.mjs CERTIFICATE_AND_KEY.pem BUSY_MS
import { readFileSync } from "node:fs";
import https from "node:https";

const pem = readFileSync(process.argv[2]);
const busyMs = Number(process.argv[3]);

function spin() {
  const until = performance.now() + busyMs;
  while (performance.now() < until);
}

const server = https.createServer({ key: pem, cert: pem }, (request, response) => {
  request.resume();
  request.on("end", () => {
    response.end("done");
    setTimeout(spin, 20);
  });
});

server.listen(0, "127.0.0.1", () => console.log(server.address().port));
