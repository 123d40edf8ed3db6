// What holds of all rows: distributions above the list, and what was not seen.

// What the file itself could not give, by the name of its counter.
const FILE_WORDS = {
  lines_unreadable: "lines that are no OTLP/JSON were passed over",
  spans_unreadable: "spans that could not be read were left out",
  metrics_unreadable: "metrics that could not be read were left out",
  resources_unreadable: "resources could not be read: their spans have none",
  spans_end_before_start: "spans end before they start: shown as a moment",
  spans_repeated: "spans were reported twice: shown once",
  bytes_before: "bytes at the file's begin are not shown: only its newest part is read",
  lines_cut: "lines were longer than what is read at once, and passed over",
  line_unfinished: "line at the end is not finished: something writes to the file, or was stopped while it did",
  restarts: "times the file was cut short or replaced: what it held before is not shown",
};

const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);

// Buckets of one histogram over all its series with equal bounds; null where nobody reported it.
function histogramOf(model, name) {
  const found = [...model.series.values()].filter((one) => one.name === name && sumOf(one.counts));
  if (!found.length) return null;
  const bounds = found[0].bounds;
  const equal = found.filter((one) => one.bounds.join() === bounds.join());
  return { bounds, counts: found[0].counts.map((_, i) => sumOf(equal.map((one) => one.counts[i]))) };
}

function card(id, title, quantiles, chart, hint) {
  return el("div", { class: "card", id: `card-${id}`, title: hint },
    el("div", { class: "card-text" }, el("b", { text: title }),
      el("span", { class: "quantiles" }, ...quantiles.map(([name, value]) => el("span", {}, el("small", { text: name }), ` ${value}`)))), chart);
}

// Cards of what is listed: of requests and steps, from their spans; the gaps between tokens, from the metric.
function cards(model, list, rows) {
  const found = [];
  for (const key of list.cards) {
    const column = list.columns.find((each) => each.key === key);
    const scale = column.unit === "ns" ? 1e9 : 1;
    const values = rows.map((row) => column.value(model, row)).filter((value) => typeof value === "number").map((value) => value / scale);
    const bins = binned(values);
    if (!values.length) continue;
    values.sort((a, b) => a - b);
    const quantiles = [["p50", 0.5], ["p95", 0.95], ["p99", 0.99]].map(([name, share]) => [name, quantile(values, share) * 1e9]);
    const shown = formatTogether(quantiles.map(([, ns]) => ns));
    found.push(card(key, column.title, quantiles.map(([name, ns]) => [name, shown(ns)]),
      bins && histogram(bins, `${column.title} of ${values.length}`),
      `Of the ${values.length.toLocaleString("en-US")} listed that report it`));
  }
  for (const one of list.histograms) {
    const given = histogramOf(model, one.metric);
    if (!given) continue;
    const last = given.bounds[given.bounds.length - 1];
    const shown = (share) => { const value = bucketQuantile(given, share); return value === null ? `> ${formatNs(last * 1e9)}` : formatNs(value * 1e9); };
    found.push(card(one.metric.split(".").pop(), one.title, [["p50", shown(0.5)], ["p95", shown(0.95)]], histogram(trimmed(given), one.words),
      `Estimated from the buckets of ${one.metric}: ${sumOf(given.counts).toLocaleString("en-US")} ${one.hint}`));
  }
  return found;
}

// [{family, reason, service, count}], the most first: sums over the starts of a series.
function lossesOf(model) {
  const found = new Map();
  for (const one of model.series.values()) {
    if (one.name !== "otelgpu.losses" || typeof one.value !== "number") continue;
    const [family, reason] = ["otelgpu.family", "otelgpu.reason"].map((key) => formatValue(one.attributes[key] ?? "?"));
    const instance = model.resources.entries[one.resource];
    const of = formatValue(instance.find(([key]) => key === "host.name")?.[1] ?? "");
    const key = JSON.stringify([family, reason, of]);
    const sum = found.get(key) ?? { family, reason, host: of, count: 0 };
    sum.count += one.value;
    found.set(key, sum);
  }
  return [...found.values()].filter((each) => each.count).sort((a, b) => b.count - a.count);
}

function notSeen(model) {
  const losses = lossesOf(model);
  const own = [...model.counters].filter(([name, count]) => FILE_WORDS[name] && count);
  let [cut, merged, dropped] = [0, 0, 0];
  for (let row = 0; row < model.length; row++) {
    cut += model.attributes(row).get("otelgpu.operations.dropped") ?? 0;
    if (model.attributes(row).get("otelgpu.merged")) merged += 1;
  }
  for (const counts of model.dropped.values()) dropped += sumOf(Object.values(counts));
  const orphans = sumOf([...model.waiting.values()].map((rows) => rows.length));
  const rows = [
    [cut, "calls are in the totals of their requests and have no span: there were too many"],
    [merged, "spans stand for all further equal calls under their parent, beyond its bound"],
    [dropped, "links, attributes or events were left out by a span's bounds"],
    [orphans, "spans have a parent that is not in this data: another program's, or reported later"],
    ...own.map(([name, count]) => [count, FILE_WORDS[name]]),
  ].filter(([count]) => count);
  return el("div", { class: "page" },
    el("h2", { text: "What the session counted as not seen" }),
    losses.length
      ? el("table", { class: "losses" }, el("thead", {}, el("tr", {}, ...["Family", "Reason", "Host", "Events"].map((title) => el("th", { scope: "col", text: title })))),
        el("tbody", {}, ...losses.map((each) => el("tr", {}, ...[each.family, each.reason, each.host || NO_VALUE, each.count.toLocaleString("en-US")].map((shown) => el("td", { text: shown }))))))
      : el("p", { text: [...model.series.values()].length ? "Nothing: the session counted no loss." : "Not known: the data hold no metric otelgpu.losses. It is exported every metric_interval_ms and at a session's end." }),
    el("p", { class: "note", text: "The metric otelgpu.losses: events that were dropped, skipped or could not be read. What one count of each means: docs/reference/signals.md, Losses." }),
    el("h2", { text: "What is not in this page" }),
    rows.length ? el("ul", {}, ...rows.map(([count, words]) => el("li", {}, el("b", { text: count.toLocaleString("en-US") }), ` ${words}`)))
      : el("p", { text: "Nothing: every line and span of the data was read." }),
    el("p", { class: "note", text: "Durations are host time unless a span is marked GPU: a launch returns before its kernel has run." }));
}
