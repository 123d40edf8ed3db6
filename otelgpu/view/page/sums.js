// Spans by kind and name: how many, how long in all, how long each. No document in here.

// [{name, kind, spans, calls, total, longest, errors, each}] of rows; times in nanoseconds. `each`: the durations of
// all calls; null where some are folded, of which a span has the sum. `longest`: NaN where a folded one does not say.
function sumsByName(model, rows) {
  const found = new Map();
  for (const row of rows) {
    const kind = kindOf(model, row);
    const key = `${kind} ${model.name(row)}`;
    let sum = found.get(key);
    if (!sum) found.set(key, (sum = { name: model.name(row), kind, spans: 0, calls: 0, total: 0, longest: 0, errors: 0, each: [] }));
    const calls = callsOf(model, row);
    sum.spans += 1;
    sum.calls += calls;
    sum.total += timeInCalls(model, row);
    if (calls === 1) sum.each?.push(model.duration(row));
    else sum.each = null;
    sum.longest = Math.max(sum.longest, longestOf(model, row, calls));
    if (model.isError(row)) sum.errors += calls;
  }
  return [...found.values()];
}

// NaN, and so is every maximum with it: a folded span that does not say.
function longestOf(model, row, calls) {
  return calls === 1 ? model.duration(row) : model.attributes(row).get("otelgpu.host.duration.max") * 1e9;
}

// The same of all calls of all traces.
function callsByName(model) {
  const rows = [];
  for (let row = 0; row < model.length; row++) if (traits(model, row).summed) rows.push(row);
  return sumsByName(model, rows);
}

// A span and all that is under it, those that begin between two times.
function rowsUnder(model, row, first = -Infinity, last = Infinity) {
  const { children } = childrenOf(model, model.trace(row));
  const [found, seen, pending] = [[], new Set(), [row]];
  while (pending.length) {
    const next = pending.pop();
    if (seen.has(next)) continue;
    seen.add(next);
    if (model.start(next) >= first && model.start(next) <= last) found.push(next);
    for (const child of children.get(next) ?? []) pending.push(child); // there may be more than a call takes arguments
  }
  return found;
}

function quantileOf(sum, share) {
  if (!sum.each) return null;
  sum.sorted ??= sum.each.sort((a, b) => a - b);
  return quantile(sum.sorted, share);
}

const SUM_COLUMNS = [
  text("name", "Name", (_, sum) => sum.name, "minmax(170px, 3fr)"),
  text("kind", "What it is", (_, sum) => KINDS.get(sum.kind).words, "minmax(90px, 1fr)"),
  text("where", "Time is of", (_, sum) => (KINDS.get(sum.kind).device ? "the GPU" : "the host"), "74px"),
  number("calls", "Count", "count", (_, sum) => sum.calls, "60px"),
  number("spans", "Spans", "count", (_, sum) => sum.spans, "52px"),
  number("total", "Sum", "ns", (_, sum) => sum.total, "74px"),
  number("mean", "Mean", "ns", (_, sum) => sum.total / sum.calls, "74px"),
  ...[["p50", 0.5], ["p95", 0.95], ["p99", 0.99]].map(([key, share]) => number(key, key, "ns", (_, sum) => quantileOf(sum, share), "72px")),
  number("longest", "Longest", "ns", (_, sum) => (Number.isNaN(sum.longest) ? null : sum.longest), "74px"),
  number("errors", "Errors", "count", (_, sum) => sum.errors || null, "48px"),
];
