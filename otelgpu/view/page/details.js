// What is known of one span.

const MOST_LISTED = 200;

function details(model, row, onSelect) {
  const attributes = model.attributes(row);
  const kind = kindOf(model, row);
  return [
    el("h3", {}, el("i", { class: `bar ${kind}` }), model.name(row)),
    el("p", { class: "facts" }, ...facts(model, row, kind)),
    ...DIVISIONS.flatMap((division) => section(division.title, parts(attributes, division.parts))),
    ...section("The same step, by rank", KINDS.get(kind).peers ? byRank(model, row, onSelect) : null),
    ...section("Time between tokens", kind === "request" ? gaps(model, row) : null),
    ...section("Not reported", unreported(model, row)),
    ...linkSections(model, row, onSelect),
    ...section("Attributes", attributes.size ? attributeTable([...attributes]) : null),
    ...section("Events", eventList(model, row)),
    el("details", {}, el("summary", { text: "Resource" }), attributeTable(model.resource(row))),
    el("details", {}, el("summary", { text: "Identity" }), attributeTable([
      ["trace id", model.traceId(row)], ["span id", model.ids[row]], ["parent", model.parentIds[row] || NO_VALUE],
      ["scope", model.scope(row)], ["start, Unix ns", String(model.unixNs(model.start(row)))], ["end, Unix ns", String(model.unixNs(model.end(row)))],
    ])),
  ];
}

function section(title, content) {
  return content ? [el("h4", { text: title }), content] : [];
}

function facts(model, row, kind) {
  const words = [KINDS.get(kind).words];
  const { device, call, rank } = KINDS.get(kind);
  words.push(device ? "time on the GPU, as measured there" : call || rank ? "host time: how long the call took, not the GPU" : "host time");
  const calls = callsOf(model, row);
  if (calls > 1) words.push(`${calls} equal calls, ${formatNs(timeInCalls(model, row))} in them`);
  const found = [
    el("b", { text: formatNs(model.duration(row)) }), ` from ${formatClock(model.unixMs(model.start(row)))}`,
    el("span", { class: "kind", text: words.join(" · ") }),
  ];
  if (model.service(row)) found.push(el("span", { class: "kind", text: `by ${model.service(row)}` }));
  if (model.isError(row)) found.push(el("span", { class: "tag bad", text: model.message(row) || "error" }));
  if (model.parentIds[row] && model.parent(row) === NO_ROW) {
    found.push(el("span", { class: "kind", text: `under span ${model.parentIds[row]}, which is not in this data` }));
  }
  return found;
}

function parts(attributes, wanted) {
  if (!attributes.has(wanted[0].attribute)) return null; // an engine's step reports its waits only
  return stacked(partsOf(attributes, wanted));
}

// As charts take them.
function partsOf(attributes, wanted) {
  return wanted.map(({ colour, words, attribute: key }) => [`part ${colour}`, words, (attributes.get(key) ?? 0) * 1e9]);
}

// A line for each rank: when it began, after the first, and how long its step was, with where its time went.
function byRank(model, row, onSelect) {
  const steps = sameStep(model, row);
  if (!steps.length) return null;
  const first = Math.min(...steps.map((step) => model.start(step)));
  const longest = Math.max(...steps.map((step) => model.duration(step)));
  const shown = formatTogether(steps.map((step) => model.duration(step)));
  const division = DIVISIONS.find(({ parts: [part] }) => model.attributes(row).has(part.attribute));
  return el("table", { class: "by-rank" }, el("thead", {}, el("tr", {}, ...["Rank", "Begins", "Duration", "Its time"].map((title) => el("th", { scope: "col", text: title })))),
    el("tbody", {}, ...steps.map((step) => el("tr", { "aria-current": step === row ? "true" : undefined },
      el("th", { scope: "row" }, el("button", { type: "button", class: "link", "data-span": model.ids[step], text: String(placeOf(model, step).rank), on: { click: () => onSelect(step) } })),
      el("td", { text: `+${formatNs(model.start(step) - first)}` }), el("td", { text: shown(model.duration(step)) }),
      el("td", {}, division ? stack(partsOf(model.attributes(step), division.parts), model.duration(step) / longest) : null)))));
}

function gaps(model, row) {
  const attributes = model.attributes(row);
  const reported = [["p50", "median"], ["p95", "95 %"], ["max", "longest"]]
    .filter(([key]) => attributes.has(`otelgpu.gen_ai.chunk_gap.${key}`))
    .map(([key, words]) => `${words} ${formatNs(attributes.get(`otelgpu.gen_ai.chunk_gap.${key}`) * 1e9)}`);
  const steps = stepGaps(model, row);
  const bins = steps.length >= 3 ? binned(steps) : null;
  if (!reported.length && !bins) return null;
  const stalls = attributes.get("otelgpu.gen_ai.stalls");
  return el("div", { class: "gaps" },
    reported.length ? el("p", { text: `As the client was sent them: ${reported.join(", ")}${stalls ? `, ${stalls} ${stalls === 1 ? "stall" : "stalls"}` : ""}.` }) : null,
    bins ? histogram(bins, `${steps.length} gaps between the ends of its steps`, 290, 44) : null,
    el("p", { class: "note", text: bins
      ? `The histogram: ${steps.length} gaps between the ends of the engine's steps that it links to, ${formatNs(bins.low * 1e9)} to ${formatNs(bins.high * 1e9)}.`
      : "A span has these quantiles and not each gap: the histogram over all requests is above the list." }));
}

function unreported(model, row) {
  const attributes = model.attributes(row);
  const found = Object.entries(model.dropped.get(row) ?? {}).map(([what, count]) => `${count} ${what} beyond the bound of a span`);
  if (attributes.has("otelgpu.operations.dropped")) found.push(`${attributes.get("otelgpu.operations.dropped")} calls summed above but without a span: there were too many`);
  if (attributes.get("otelgpu.merged")) found.push("all further equal calls under this parent, beyond its bound of spans");
  for (const { attribute: key, words } of NOTES) {
    const value = attributes.get(key);
    if (value !== undefined && value !== false) found.push(words.replace("{}", formatValue(value)));
  }
  return found.length ? el("ul", {}, ...found.map((words) => el("li", { text: words }))) : null;
}

function linkSections(model, row, onSelect) {
  const links = (model.links.get(row) ?? []).map((link) => ({ ...link, to: model.rowOf.get(`${link.trace}/${link.id}`) ?? NO_ROW }));
  const targets = new Set(links.map((link) => link.to));
  const back = (model.linkedFrom.get(`${model.trace(row)}/${model.ids[row]}`) ?? []).filter((from) => !targets.has(from));
  const parent = model.parent(row);
  const first = (link) => (link.to === NO_ROW ? Infinity : model.start(link.to));
  links.sort((a, b) => first(a) - first(b));
  return [
    ...section("Under", parent === NO_ROW ? null : linkList(model, [{ to: parent }], onSelect)),
    ...section(`Links to ${links.length}`, links.length ? linkList(model, links, onSelect) : null),
    ...section(`Linked from ${back.length}`, back.length ? linkList(model, back.map((to) => ({ to })), onSelect) : null),
  ];
}

function linkList(model, links, onSelect) {
  const list = el("ul", { class: "links" }, ...links.slice(0, MOST_LISTED).map(({ to, trace, id, set }) => {
    const words = set === undefined ? "" : [...model.attributesOf(set)].map(([key, value]) => `${key.replace(/^otelgpu\.(step\.)?/, "")} ${formatValue(value)}`).join(", ");
    if (to === NO_ROW) return el("li", {}, `span ${id} of trace ${model.traces.entries[trace].slice(0, 8)}…, not in this data `, el("small", { text: words }));
    const number = model.attributes(to).get("otelgpu.step.number");
    return el("li", {}, el("button", { type: "button", class: "link", "data-span": model.ids[to], on: { click: () => onSelect(to) } },
      el("i", { class: `bar ${kindOf(model, to)}` }), `${model.name(to)}${number === undefined ? "" : ` ${formatValue(number)}`}`),
    ` ${formatNs(model.duration(to))} `, el("small", { text: words }));
  }));
  if (links.length > MOST_LISTED) list.append(el("li", { text: `and ${links.length - MOST_LISTED} more` }));
  return list;
}

function attributeTable(pairs) {
  return el("table", { class: "attributes" }, el("tbody", {}, ...pairs.map(([key, value]) =>
    el("tr", {}, el("th", { scope: "row" }, ...breakable(key)), el("td", { text: formatAttribute(key, value) })))));
}

// A key that may be parted after its dots.
function breakable(key) {
  return key.split(/(?<=[._])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}

function eventList(model, row) {
  const events = model.events.get(row);
  if (!events) return null;
  return el("ul", {}, ...events.map((event) => el("li", {},
    `${event.name} at +${formatNs(event.time - model.start(row))}`, attributeTable([...model.attributesOf(event.set)]))));
}
