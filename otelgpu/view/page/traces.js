// What spans are, and how those of a trace hang together. No document in here.

const SERVER = 2;
const CLIENT = 3;

// Kinds decide colour and place: the families' rules know their own spans.
function kindOf(model, row) {
  const attributes = model.attributes(row);
  for (const rule of RULES.get(model.scope(row)) ?? []) {
    if (rule.has && !attributes.has(rule.has)) continue;
    if (rule.value && attributes.get(rule.has) !== rule.value) continue;
    if (rule.pattern && !rule.pattern.test(model.name(row))) continue;
    return rule.kind;
  }
  if (attributes.has("otelgpu.unattributed.reason")) return "unattributed";
  if (attributes.has("otelgpu.phase")) return "phase";
  const kind = model.kind(row);
  return kind === SERVER || kind === CLIENT ? "request" : "other";
}

const PHASES = ["queue", "prefill", "decode"]; // that have colours of their own

// The classes of a span's bar and what the legend calls them. `colour`: of the style sheet, for the strip.
function lookOf(model, row) {
  const kind = kindOf(model, row);
  const phase = kind === "phase" && PHASES.find((each) => each === model.attributes(row).get("otelgpu.phase"));
  return phase ? { names: `phase ${phase}`, colour: phase, words: phase } : { names: kind, colour: kind, words: KINDS.get(kind).words };
}

const traits = (model, row) => KINDS.get(kindOf(model, row));

// How many calls a span stands for, and the time in them (a folded run has gaps, which are in its duration).
function callsOf(model, row) {
  return model.attributes(row).get("otelgpu.count") ?? 1;
}

function timeInCalls(model, row) {
  const seconds = model.attributes(row).get("otelgpu.host.duration");
  return seconds === undefined ? model.duration(row) : seconds * 1e9;
}

function childrenOf(model, trace) {
  const children = new Map();
  const roots = [];
  for (const row of model.rowsOfTrace[trace]) {
    const parent = model.parent(row);
    if (parent === NO_ROW) roots.push(row);
    else listAt(children, parent).push(row);
  }
  return { roots, children };
}

// The lines of a trace's waterfall: {row, depth, bars, more, lane}. `bars` are rows drawn on the line; a rank's waits
// are on the line of its call, and the steps that served a request on one line below it, from their own traces; so are
// the same step's of the other ranks, a line each (`peer`).
// `closed`: rows whose children are not shown.
function linesOf(model, trace, closed) {
  const { roots, children } = childrenOf(model, trace);
  const lines = [];
  const seen = new Set();
  const order = (a, b) => rankOf(model, a) - rankOf(model, b) || model.start(a) - model.start(b) || a - b;
  const pending = roots.sort(order).reverse().map((row) => [row, 0]);
  if (!pending.length && model.rowsOfTrace[trace].length) pending.push([model.rowsOfTrace[trace][0], 0]); // a ring
  while (pending.length) {
    const [row, depth] = pending.pop();
    if (seen.has(row)) continue;
    seen.add(row);
    const below = (children.get(row) ?? []).sort(order);
    const waits = below.filter((child) => traits(model, child).inline && !children.has(child));
    const rest = waits.length ? below.filter((child) => !waits.includes(child)) : below;
    lines.push({ row, depth, bars: [row, ...waits], more: rest.length, lane: false });
    const steps = kindOf(model, row) === "request" ? linkedRows(model, row).filter((to) => traits(model, to).served) : [];
    if (steps.length) lines.push({ row, depth: depth + 1, bars: steps, more: 0, lane: true });
    if (depth === 0 && traits(model, row).peers) {
      for (const peer of sameStep(model, row)) if (peer !== row) lines.push({ row: peer, depth: 1, bars: [peer], more: 0, lane: true, peer: true });
    }
    if (!closed.has(row)) for (const child of rest.reverse()) pending.push([child, depth + 1]);
  }
  return lines;
}

function rankOf(model, row) {
  const { rank } = traits(model, row);
  return rank ? model.attributes(row).get(rank) ?? 0 : -1;
}

// Rows that a span links to or that link to it, those that are here, in the order of time.
function linkedRows(model, row) {
  const found = new Set(model.linkedFrom.get(`${model.trace(row)}/${model.ids[row]}`) ?? []);
  for (const link of model.links.get(row) ?? []) {
    const to = model.rowOf.get(`${link.trace}/${link.id}`);
    if (to !== undefined) found.add(to);
  }
  found.delete(row);
  return [...found].sort((a, b) => model.start(a) - model.start(b));
}

// Ranks' calls of a collective's trace: {first, last, lastRank, calls}; null where there are none.
function arrivals(model, trace) {
  const calls = model.rowsOfTrace[trace].filter((row) => traits(model, row).rank);
  if (calls.length < 2) return null;
  calls.sort((a, b) => model.start(a) - model.start(b));
  const last = calls[calls.length - 1];
  return { first: model.start(calls[0]), last: model.start(last), lastRow: last, calls };
}

// Seconds between the ends of the steps that gave a request tokens: its gaps as its engine made them.
function stepGaps(model, row) {
  const ends = linkedRows(model, row).filter((to) => traits(model, to).served).map((to) => model.end(to));
  ends.sort((a, b) => a - b);
  return ends.slice(1).map((end, i) => (end - ends[i]) / 1e9);
}
