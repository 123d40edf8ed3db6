// The rows of lists, and what their columns are made of. No document in here.
//
// A column: {key, title, unit, value(model, row)}; null where nobody reported. Filters name columns by `key`.

const text = (key, title, value, width) => ({ key, title, unit: "text", value, width });
const number = (key, title, unit, value, width) => ({ key, title, unit, value, width });
const attribute = (...keys) => (model, row) => {
  const attributes = model.attributes(row);
  for (const key of keys) if (attributes.has(key)) return attributes.get(key);
  return null;
};
// Columns that a list may have of any span.
const BUILTIN = {
  time: number("time", "Time", "time", (model, row) => model.start(row), "98px"),
  duration: number("duration", "Duration", "ns", (model, row) => model.duration(row), "84px"),
  rank: number("rank", "Rank", "id", rankOrPid, "72px"),
  role: text("role", "Role", (model, row) => ({ [SERVER]: "server", [CLIENT]: "client" })[model.kind(row)] ?? null, "58px"),
  service: text("service", "Service", (model, row) => model.service(row), "minmax(70px, 1fr)"),
  name: text("name", "Span", (model, row) => model.name(row), "minmax(140px, 2.4fr)"),
  spans: number("spans", "Spans", "count", (model, row) => model.rowsOfTrace[model.trace(row)].length, "64px"),
  status: text("status", "Status", (model, row) => {
    const attributes = model.attributes(row);
    const found = attributes.get("error.type") ?? attributes.get("http.response.status_code")
      ?? attributes.get("rpc.status_code") ?? (model.isError(row) ? "error" : null);
    return found === null ? null : String(found);
  }, "minmax(60px, .7fr)"),
};

// A column as a family describes it (otelgpu/engine/viewer.py) → one with a value.
function columnOf({ key, title, unit = "text", attributes = [], resource, width, builtin }, shown) {
  if (builtin === "launches") return number("launches", "Launches", "count", attribute(...shown.launches), "74px");
  if (builtin) return title ? { ...BUILTIN[builtin], title } : BUILTIN[builtin];
  const value = resource ? (model, row) => model.resource(row).find(([name]) => name === resource)?.[1] ?? null : attribute(...attributes);
  if (unit === "text") return text(key, title, (model, row) => joined(value(model, row)), width);
  return number(key, title, unit, value, width);
}

function joined(value) {
  return Array.isArray(value) ? value.join(", ") : value;
}

// Traces of which no other list has a span.
function others(shown) {
  const reason = { key: "reason", title: "Reason", attributes: ["otelgpu.unattributed.reason", ...shown.reasons], width: "minmax(90px, 1fr)" };
  const columns = [{ builtin: "time" }, { builtin: "name", title: "Root" }, { builtin: "service" }, reason, ...["status", "spans", "launches", "duration"].map((builtin) => ({ builtin }))];
  return listOf({ id: "others", title: "Other traces", one: "trace", kinds: [], columns });
}

// Rows of each list. A request that both ends report is listed once, as its server has it.
function rowsOfLists(model) {
  const found = Object.fromEntries(LISTS.map((list) => [list.id, []]));
  const answered = new Set();
  for (let row = 0; row < model.length; row++) if (model.kind(row) === SERVER) answered.add(model.parent(row));
  const listed = new Set(); // traces of which a list has a span
  for (let row = 0; row < model.length; row++) {
    const kind = kindOf(model, row);
    const list = LIST_OF_KIND.get(kind);
    if (!list || (kind === "request" && model.kind(row) === CLIENT && answered.has(row))) continue;
    found[list].push(row);
    listed.add(model.trace(row));
  }
  for (let row = 0; row < model.length; row++) {
    if (model.parent(row) === NO_ROW && !listed.has(model.trace(row))) found.others.push(row);
  }
  return found;
}
