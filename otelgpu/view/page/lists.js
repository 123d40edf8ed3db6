// The lists that there are, and their columns. No document in here.
//
// A column: {key, title, unit, value(model, row)}; null where nobody told. Filters name columns by `key`.

const text = (key, title, value, width) => ({ key, title, unit: "text", value, width });
const number = (key, title, unit, value, width) => ({ key, title, unit, value, width });
const attribute = (...keys) => (model, row) => {
  const attributes = model.attributes(row);
  for (const key of keys) if (attributes.has(key)) return attributes.get(key);
  return null;
};
const time = number("time", "Time", "time", (model, row) => model.start(row), "98px");
const duration = number("duration", "Duration", "ns", (model, row) => model.duration(row), "84px");
const service = text("service", "Service", (model, row) => model.service(row), "minmax(70px, 1fr)");
const named = (title) => text("name", title, (model, row) => model.name(row), "minmax(140px, 2.4fr)");

const status = text("status", "Status", (model, row) => {
  const attributes = model.attributes(row);
  const found = attributes.get("error.type") ?? attributes.get("http.response.status_code")
    ?? attributes.get("rpc.status_code") ?? (model.isError(row) ? "error" : null);
  return found === null ? null : String(found);
}, "minmax(60px, .7fr)");

function membersOf(attributes, key) {
  const value = attributes.get(key);
  return Array.isArray(value) ? value.join(", ") : value ?? null;
}

const LISTS = [
  {
    id: "requests", title: "Requests", one: "request",
    columns: [
      time, named("Request"),
      text("model", "Model", attribute("gen_ai.response.model", "gen_ai.request.model"), "minmax(80px, 1fr)"),
      service,
      status,
      number("ttft", "TTFT", "s", attribute("gen_ai.latency.time_to_first_token"), "78px"),
      number("tpot", "TPOT", "s", attribute("otelgpu.gen_ai.time_per_output_token"), "78px"),
      number("gap", "Longest gap", "s", attribute("otelgpu.gen_ai.chunk_gap.max"), "90px"),
      number("input", "In", "count", attribute("gen_ai.usage.input_tokens"), "56px"),
      number("tokens", "Out", "count", attribute("gen_ai.usage.output_tokens"), "56px"),
      number("steps", "Steps", "count", attribute("otelgpu.steps.count"), "56px"),
      number("launches", "Launches", "count", attribute("cuda.launch.calls"), "72px"),
      duration,
    ],
  },
  {
    id: "steps", title: "Engine steps", one: "step",
    columns: [
      time, number("number", "Step", "count", attribute("otelgpu.step.number"), "60px"), service,
      number("batch", "Requests", "count", attribute("otelgpu.step.batch_size"), "74px"),
      number("tokens", "Tokens", "count", attribute("otelgpu.step.tokens"), "64px"),
      number("prefills", "Prefills", "count", attribute("otelgpu.step.prefills"), "66px"),
      number("decodes", "Decodes", "count", attribute("otelgpu.step.decodes"), "72px"),
      text("membership", "Members", attribute("otelgpu.step.membership"), "84px"),
      number("launches", "Launches", "count", attribute("cuda.launch.calls"), "74px"),
      number("wait", "Waiting", "ns", attribute("otelgpu.step.wait_ns"), "80px"),
      number("gap", "Gap before", "ns", attribute("otelgpu.step.gap_ns"), "86px"),
      text("hints", "Hints", (model, row) => membersOf(model.attributes(row), "otelgpu.hints"), "minmax(90px, 1.4fr)"),
      duration,
    ],
  },
  {
    id: "collectives", title: "Collectives", one: "collective",
    columns: [
      time, text("name", "Operation", attribute("nccl.operation"), "minmax(90px, 1.2fr)"),
      text("communicator", "Communicator", attribute("nccl.communicator.hash"), "minmax(130px, 1.2fr)"),
      number("sequence", "Number", "count", attribute("nccl.sequence"), "66px"),
      number("seen", "Ranks seen", "count", attribute("nccl.ranks.seen"), "84px"),
      number("ranks", "of", "count", attribute("nccl.communicator.ranks"), "44px"),
      number("bytes", "Message", "By", attribute("nccl.message.size"), "80px"),
      number("skew", "Arrival skew", "s", attribute("nccl.arrival.skew"), "94px"),
      number("last", "Last rank", "count", attribute("nccl.arrival.last_rank"), "76px"),
      text("source", "Numbered by", attribute("nccl.sequence.source"), "minmax(80px, 1fr)"),
      duration,
    ],
  },
  {
    id: "training", title: "Training steps", one: "training step",
    columns: [
      time, number("number", "Step", "count", attribute("otelgpu.step.number"), "56px"), service,
      number("pid", "Process", "id", (model, row) => model.resource(row).find(([key]) => key === "process.pid")?.[1] ?? null, "72px"),
      number("call", "In calls", "ns", attribute("otelgpu.step.call_ns"), "80px"),
      number("upload", "Uploads", "ns", attribute("otelgpu.step.upload_ns"), "80px"),
      number("wait", "Waits", "ns", attribute("otelgpu.step.wait_ns"), "80px"),
      number("input", "Input gap", "ns", attribute("otelgpu.step.input_gap_ns"), "80px"),
      number("host", "Host gap", "ns", attribute("otelgpu.step.host_gap_ns"), "80px"),
      number("collectives", "Collectives", "count", attribute("otelgpu.step.collectives"), "84px"),
      number("bytes", "Their bytes", "By", attribute("otelgpu.step.collective_bytes"), "84px"),
      text("hints", "Hints", (model, row) => membersOf(model.attributes(row), "otelgpu.hints"), "minmax(80px, 1fr)"),
      duration,
    ],
  },
  {
    id: "rdma", title: "RDMA", one: "span",
    columns: [
      time, named("Span"), service,
      text("device", "Device", attribute("rdma.device"), "84px"),
      number("qp", "Queue pair", "id", attribute("rdma.qp.number"), "82px"),
      number("peer", "Peer's", "id", attribute("rdma.peer.qp.number"), "66px"),
      text("gid", "Peer", attribute("rdma.peer.gid"), "minmax(90px, 1fr)"),
      text("state", "State", attribute("rdma.qp.state", "rdma.status", "rdma.event"), "minmax(80px, 1fr)"),
      number("requests", "Work requests", "count", attribute("rdma.total.work_requests"), "100px"),
      number("bytes", "Bytes", "By", attribute("rdma.total.bytes", "rdma.transfer.size"), "80px"),
      number("failures", "Failures", "count", attribute("rdma.total.failures"), "72px"),
      duration,
    ],
  },
  {
    id: "others", title: "Other traces", one: "trace",
    columns: [
      time, named("Root"), service,
      text("reason", "Reason", (model, row) => attribute("otelgpu.unlinked.reason", "otelgpu.hw.error.name", "nccl.sequence.source")(model, row), "minmax(90px, 1fr)"),
      status,
      number("spans", "Spans", "count", (model, row) => model.rowsOfTrace[model.trace(row)].length, "64px"),
      number("launches", "Launches", "count", attribute("cuda.launch.calls"), "74px"),
      duration,
    ],
  },
];

// Rows of each list. A request that both ends tell is listed once, as its server has it.
function rowsOfLists(model) {
  const found = Object.fromEntries(LISTS.map((list) => [list.id, []]));
  const answered = new Set();
  for (let row = 0; row < model.length; row++) if (model.kind(row) === SERVER) answered.add(model.parent(row));
  const listed = new Set(); // traces of which a list has a span
  const lists = { step: "steps", training: "training", collective: "collectives", rdma: "rdma" };
  for (let row = 0; row < model.length; row++) {
    const kind = kindOf(model, row);
    const list = kind === "request" ? (model.kind(row) === CLIENT && answered.has(row) ? null : "requests") : lists[kind];
    if (!list) continue;
    found[list].push(row);
    listed.add(model.trace(row));
  }
  for (let row = 0; row < model.length; row++) {
    if (model.parent(row) === NO_ROW && !listed.has(model.trace(row))) found.others.push(row);
  }
  return found;
}

// Calls by name over all traces: {name, kind, spans, calls, total, longest, errors}; total in nanoseconds.
function callsByName(model) {
  const found = new Map();
  for (let row = 0; row < model.length; row++) {
    const kind = kindOf(model, row);
    if (!HOST_CALLS.has(kind) && kind !== "device" && kind !== "rank") continue;
    const key = `${kind} ${model.name(row)}`;
    let sum = found.get(key);
    if (!sum) found.set(key, (sum = { name: model.name(row), kind, spans: 0, calls: 0, total: 0, longest: 0, errors: 0 }));
    sum.spans += 1;
    sum.calls += callsOf(model, row);
    sum.total += timeInCalls(model, row);
    if (callsOf(model, row) === 1) sum.longest = Math.max(sum.longest, model.duration(row));
    if (model.isError(row)) sum.errors += callsOf(model, row);
  }
  return [...found.values()];
}

const CALL_COLUMNS = [
  text("name", "Call", (_, sum) => sum.name, "minmax(180px, 3fr)"),
  text("kind", "What it is", (_, sum) => KIND_WORDS[sum.kind], "130px"),
  text("where", "Time is of", (_, sum) => (sum.kind === "device" ? "the GPU" : "the host"), "80px"),
  number("calls", "Calls", "count", (_, sum) => sum.calls, "80px"),
  number("spans", "Spans", "count", (_, sum) => sum.spans, "70px"),
  number("total", "Time in all", "ns", (_, sum) => sum.total, "90px"),
  number("mean", "A call", "ns", (_, sum) => sum.total / sum.calls, "90px"),
  number("longest", "Longest told", "ns", (_, sum) => sum.longest || null, "96px"),
  number("errors", "Errors", "count", (_, sum) => sum.errors || null, "70px"),
];
