// A TLS server and a client of it in one Node process: a request for each line on stdin, a line on stdout after it.
// Usage: node talk_tls.mjs CERTIFICATE_AND_KEY.pem
import { readFileSync } from "node:fs";
import https from "node:https";
import readline from "node:readline";

const pem = readFileSync(process.argv[2]);
const server = https.createServer({ key: pem, cert: pem }, (request, response) => {
  let size = 0;
  request.on("data", (part) => { size += part.length; });
  request.on("end", () => response.end(`${request.url} had ${size} bytes`));
});
const agent = new https.Agent({ keepAlive: true, rejectUnauthorized: false });

server.listen(0, "127.0.0.1", () => {
  console.log(server.address().port);
  readline.createInterface({ input: process.stdin }).on("line", (path) => {
    const options = { port: server.address().port, host: "127.0.0.1", path, method: "POST", agent };
    const request = https.request(options, (response) => {
      let body = "";
      response.on("data", (part) => { body += part; });
      response.on("end", () => console.log(body));
    });
    request.end("x".repeat(1000));
  });
});
