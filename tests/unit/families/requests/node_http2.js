// A server and a client of Node's http2 (nghttp2): prints the server's port, reads the port to connect to, makes
// 20 requests at once with padded frames and one that it cancels, and ends.
const http2 = require("node:http2");
const paddingStrategy = http2.constants.PADDING_STRATEGY_MAX;
const server = http2.createServer({ paddingStrategy });
server.on("stream", (stream, headers) => {
  let size = 0;
  stream.on("error", () => {});
  stream.on("data", (data) => (size += data.length));
  stream.on("end", () => {
    stream.respond({ ":status": headers[":path"] === "/missing" ? 404 : 200 }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "x-sum": String(size) }));
    stream.write("a".repeat(1000));
    setTimeout(() => stream.end("b".repeat(40000)), 5);
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
require("node:readline").createInterface({ input: process.stdin }).on("line", async (port) => {
  const client = http2.connect(`http://127.0.0.1:${port}`, { paddingStrategy });
  const ask = (path, body) => new Promise((resolve) => {
    const request = client.request({ ":path": path, ":method": "POST", "user-agent": "node" });
    request.on("data", () => {}).on("end", resolve).end(body);
  });
  await Promise.all([...Array(20).keys()].map((n) => ask(n % 5 ? `/p${n % 3}` : "/missing", "x".repeat(n * 1500))));
  const cancelled = client.request({ ":path": "/cancelled", ":method": "POST" });
  cancelled.on("error", () => {}).write("x");
  setTimeout(() => {
    cancelled.close(http2.constants.NGHTTP2_CANCEL);
    setTimeout(() => client.close(() => process.exit(0)), 20);
  }, 20);
});
