// The service by Express: express_server.mjs PORT. Its calls are node:http's, kept alive.
import { createRequire } from "node:module";
import { calls, completion, firstCall, stream } from "./service.mjs";

// Where it is installed: tools/servers.sh does that outside the checkout.
const express = createRequire(`${process.env.SERVER_MODULES}/`)("express");
const app = express();

app.post("/v1/chat/completions", express.json(), async (request, response) => {
  const began = performance.now();
  const id = request.get("x-request-id");
  await calls(id);
  if (request.body.stream) await stream(id, request.body, began, response);
  else response.json(completion(id, request.body));
});
app.get("/items/:number", async (request, response) => {
  await calls(request.params.number);
  response.json({ number: request.params.number });
});
app.get("/fail/:number", async (request, response) => {
  await firstCall(request.params.number);
  response.status(500).json({ error: "as asked" });
});
app.get("/health", (request, response) => response.json({ status: "ok" }));
app.listen(Number(process.argv[2]), "127.0.0.1");
