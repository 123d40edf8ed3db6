// Puts the parts together: what is chosen → what is shown, and the address of it.

const of = (id) => document.getElementById(id);
const data = [...document.querySelectorAll("script.batch")].map((each) => JSON.parse(each.textContent));
of("source").textContent = JSON.parse(of("about").textContent).name;

let state = readState();
let base = null; // the tree as the page has it
let threads = null;
let timed = null; // observations in order of time, where the page has them
let tree = null; // what is drawn: the base, or another shape of it
let area = null; // {own, text}: of the heat map; null: everything
const list = new FrameList(of("side-table"), (frame) => {
  chosen = frame;
  of("search").value = tree.frames.label[frame];
  search();
});
let chosen = -1; // the frame of which a sandwich would be

function numbers(node) {
  const [unit, whole] = [tree.unit, tree.total[0]];
  const parts = [`${quantity(tree.total[node], unit)}, ${percent(tree.total[node], whole)} of all`];
  if (flame.top) parts.push(`${percent(tree.total[node], tree.total[flame.top])} of what is shown`);
  parts.push(`self ${quantity(tree.own[node], unit)}`);
  if (tree.labels) {
    const [before, after] = tree.totals.map((totals) => totals[node]);
    const both = tree.labels.map((label, side) =>
      `${label} ${quantity(side ? after : before, unit)} (${percent(side ? after : before, tree.totals[side][0])})`);
    const [scaled, now] = tree.pair(tree.totals, node);
    const change = scaled > 0 ? signed(now / scaled - 1) : now > 0 ? "new" : "±0 %";
    return [both.join(" → "), `${change}${tree.equal ? " at equal totals" : ""}`];
  }
  return parts;
}

// What a graph says; `linesOf` gives a node's own lines.
const showing = (linesOf, more = {}) => ({
  hovered(node, event) {
    const tip = of("tip");
    tip.hidden = node < 0;
    if (node < 0) return;
    tip.replaceChildren(...linesOf(node).filter(Boolean).map((line) => element("p", line)));
    const [x, y] = [event.clientX, event.clientY];
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(Math.min(x + 14, innerWidth - box.width - 6), 4)}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(y - box.height - 10, 0) : y + 18}px`;
  },
  focused(node) {
    of("status").textContent = linesOf(node).filter(Boolean).join(" · ");
  },
  zoomed() {
    of("tip").hidden = true;
  },
  drawn() {},
  ...more,
});
const show = showing((node) => [tree.label(node), tree.place(node), ...numbers(node)], {
  focused(node) {
    if (node && tree.kind(node) !== "folded") chosen = tree.frame[node];
    of("status").textContent = [tree.label(node), ...numbers(node), tree.place(node)].filter(Boolean).join(" · ");
  },
  zoomed(node) {
    of("tip").hidden = true;
    show.focused(node);
    list.show(tree, node);
    matched();
    remember({ node });
  },
  drawn(narrower) {
    if (inTime()) return;
    const notes = [];
    if (narrower) notes.push(`${narrower.toLocaleString("en")} frames too narrow to draw`);
    if (tree.negative) notes.push(`${tree.negative.toLocaleString("en")} stacks below zero left out`);
    of("note").textContent = notes.join(" · ");
  },
});
const flame = new Flame(of("flame"), of("scroll"), of("spacer"), show);
const callers = new Flame(of("callers"), of("callers-scroll"), of("callers-spacer"), showing((node) => [
  callers.tree.label(node), callers.tree.place(node), `${quantity(callers.tree.total[node], tree.unit)}, ${percent(callers.tree.total[node], callers.tree.total[0])} of what the frame has`,
]));
const chart = new FlameChart(of("chart"), of("chart-scroll"), of("chart-spacer"), showing((place) => chart.words(place), {
  zoomed() {
    of("tip").hidden = true;
    remember({ span: chart.span });
  },
  drawn() {
    const { left_out: leftOut } = timed;
    of("note").textContent = leftOut ? `${leftOut.toLocaleString("en")} observations of no known time or thread, or too many, left out` : "";
  },
}));
const heat = new HeatMap(of("heat-map"), of("heat-scroll"), { below: of("heat-x"), beside: of("heat-y"), legend: of("heat-legend") }, (own, count, cells) => {
  const seconds = cells ? `seconds ${cells.left} to ${cells.right + 1}, ${cells.first * heat.cellMs} to ${(cells.last + 1) * heat.cellMs} ms of each` : "everything";
  of("heat-status").textContent = `${seconds}: ${count.toLocaleString("en")} observations`;
  area = cells ? own : null;
  Object.assign(state, { process: "", thread: "", node: 0 }); // the map is of all threads
  draw();
});

function remember(changes) {
  Object.assign(state, changes);
  writeState(state);
}

function matched() {
  const said = of("matched");
  if (!flame.matches) return void (said.textContent = "");
  const { sum, count } = tree.matched(flame.matches, flame.top);
  said.textContent = count ? `${percent(sum, tree.total[flame.top])} under ${count.toLocaleString("en")} frames` : "no frame matches";
}

function search() {
  const text = of("search").value.trim();
  flame.search(text);
  for (const other of [callers, chart]) {
    other.matches = flame.matches;
    other.redraw();
  }
  matched();
  remember({ search: text });
}

function reset() {
  of("search").value = "";
  search();
  chosen = -1;
  const { type, order, icicle } = state;
  state = { ...DEFAULTS, type, order, icicle };
  if (area && !inTime()) {
    heat.clear();
    heat.report();
  } else draw();
}

function legend() {
  const kinds = tree.labels
    ? [[changeColour(1), "more"], [changeColour(0), "equal"], [changeColour(-1), "less"]]
    : Object.entries(KINDS).filter(([kind]) => isDrawn(kind)).map(([, { name, shades }]) => [shades[0], name]);
  of("legend").replaceChildren(
    ...kinds.map(([colour, name]) => {
      const sample = element("i");
      sample.style.background = colour;
      return element("li", "", sample, element("span", name));
    }),
  );
}

const isDrawn = (kind) => tree.frames.kind.includes(kind) && !(state.hide && HIDDEN.has(kind));

// All that is chosen but the type → the graphs.
function draw() {
  const { order, hide, process } = state;
  const isChart = inTime();
  const hadFocus = document.activeElement?.classList.contains("graph");
  const thread = state.thread === "" ? null : Number(state.thread);
  const own = area ?? (process || thread !== null ? threads.own(process, thread) : null);
  const isSandwich = state.frame !== "";
  const from = isSandwich ? Number(state.frame) : -1;
  const sides = own ? [own] : base.sides;
  if (isSandwich || hide || order !== DEFAULTS.order) tree = reshaped(base, sides, { order, hides: hide, from });
  else {
    tree = base;
    tree.weigh(own ?? tree.sides[tree.side]);
  }
  compared(tree);
  for (const id of ["callers-scroll", "callers-title", "callees-title"]) of(id).hidden = !isSandwich;
  of("chart-scroll").hidden = !isChart;
  of("scroll").hidden = isChart;
  of("heat").hidden = isChart || !data[state.type].heat;
  flame.icicle = isSandwich || state.icicle;
  flame.open(tree, state.node);
  if (isSandwich) callers.open(compared(reshaped(base, sides, { order, hides: hide, from, way: "callers" })));
  if (isChart) chart.open(boxes(thread), state.span);
  if (hadFocus && isHidden(document.activeElement)) shown().focus({ preventScroll: true });
  controls(isSandwich);
  legend();
  search();
}

const isHidden = (graph) => !graph?.offsetParent;
const shown = () => of(inTime() ? "chart" : "flame");
const inTime = () => state.order === "time" && timed !== null && state.frame === "";

// What the flame chart draws: of the threads that are chosen, in the order in which they are listed.
function boxes(thread) {
  const listed = threads.name.length ? threads.of(state.process) : [[0, ""]];
  const shown = listed.filter(([number]) => thread === null || number === thread);
  return new Boxes(base, timed, shown, base.frames.kind.map((kind) => state.hide && HIDDEN.has(kind)));
}

// Of a comparison, by the side that is chosen.
function compared(tree) {
  if (tree.labels) tree.compare(of("side").selectedIndex, of("equal").checked);
  return tree;
}

// The controls say what is shown.
function controls(isSandwich) {
  of("hide").checked = state.hide;
  of("invert").setAttribute("aria-pressed", String(state.icicle));
  of("invert").disabled = isSandwich || inTime();
  of("sandwich").setAttribute("aria-pressed", String(isSandwich));
  options(of("order"), Object.entries(ORDERS).filter(([order]) => (order !== "first" || base.first) && (order !== "time" || timed)), state.order);
  const { processes } = threads;
  of("process").hidden = !processes.length;
  options(of("process"), [["", "all processes"], ...processes.map((name) => [name, name])], state.process);
  of("thread").hidden = !threads.name.length;
  options(of("thread"), [["", "all threads"], ...threads.of(state.process).map(([number, name]) => [String(number), name])], state.thread);
}

function options(select, pairs, value) {
  select.replaceChildren(...pairs.map(([each, name]) => {
    const option = element("option", name);
    option.value = each;
    return option;
  }));
  select.value = value;
}

// Another sample type, as the state says.
function choose() {
  const found = data[state.type] ?? data[(state.type = 0)];
  base = new Tree(unpacked(found));
  threads = new Threads(found.threads ?? null, base.length);
  timed = found.chart ?? null;
  if (state.order === "time" && !timed) state.order = DEFAULTS.order;
  area = null;
  if (state.thread !== "" && !(Number(state.thread) in threads.name)) state.thread = "";
  if (state.frame !== "" && !(Number(state.frame) in base.frames.label)) state.frame = "";
  if (!threads.processes.includes(state.process)) state.process = "";
  of("type").selectedIndex = state.type;
  of("difference").hidden = !base.labels;
  if (base.labels) {
    const names = [...base.labels.map((label) => `width: ${label}`), "width: both"];
    of("side").replaceChildren(...names.map((name) => element("option", name)));
    of("side").selectedIndex = base.side;
    of("equal").checked = base.equal;
  }
  if (found.heat) {
    of("heat-status").textContent = found.heat.note;
    heat.open(base, found.heat);
  }
  of("search").value = state.search;
  draw();
}

function change(changes) {
  Object.assign(state, { node: 0, span: "", ...changes });
  draw();
}

function filter(changes) {
  area = null;
  heat.clear();
  change(changes);
}

// Callers and callees of the chosen frame, and back.
function sandwich() {
  if (state.frame !== "") return change({ frame: "" });
  if (chosen < 0) return void (of("status").textContent = "Choose a frame first: in the graph by Enter or a click, or in the table.");
  of("search").value = "";
  change({ frame: String(chosen) });
}

function help() {
  const keys = [
    ["/", "search frames"], ["↑ ↓ ← →", "from frame to frame"], ["Enter", "zoom to a frame"], ["s", "callers and callees of the chosen frame, and back"],
    ["n", "hide native and kernel frames, and show them"], ["o", "another order of what a frame calls"], ["i", "root above or below"], ["+ −, Shift ← →", "over time: zoom and move; drag over a part of it"], ["Esc", "show everything"], ["?", "these keys"],
  ];
  const close = element("button", "Close");
  close.addEventListener("click", () => of("help").close());
  of("help").replaceChildren(element("h2", "Keys"), element("dl", "", ...keys.flatMap(([key, words]) => [element("dt", "", element("kbd", key)), element("dd", words)])),
    element("p", "The address has what is shown: copy it to show the same to somebody who has the page."), close);
  of("help").showModal();
}

// The chart is of all the time.
function reorder(order) {
  if (order === "time") filter({ order });
  else change({ order });
}

function nextOrder() {
  const order = of("order");
  if (order.options.length) reorder(order.options[(order.selectedIndex + 1) % order.options.length].value);
}

for (const each of data) of("type").append(element("option", `${each.type} (${each.unit})`));
of("type").hidden = !data.length;
const compare = () => change({});
const listeners = {
  type: ["change", () => { state = { ...DEFAULTS, type: of("type").selectedIndex, search: state.search, icicle: state.icicle }; choose(); }],
  process: ["change", () => filter({ process: of("process").value, thread: "" })],
  thread: ["change", () => filter({ thread: of("thread").value })],
  order: ["change", () => reorder(of("order").value)],
  hide: ["change", () => change({ hide: of("hide").checked })],
  side: ["change", compare],
  equal: ["change", compare],
  search: ["input", search],
  invert: ["click", () => change({ icicle: !state.icicle, node: flame.top })],
  sandwich: ["click", sandwich],
  reset: ["click", reset],
  "help-button": ["click", help],
};
const keys = { "?": help, s: sandwich, n: () => of("hide").click(), o: nextOrder, i: () => of("invert").click() };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || of("help").open) return;
  if (event.key === "Escape") reset();
  else if (["search", "select-one"].includes(document.activeElement?.type)) return;
  else if (event.key === "/") {
    event.preventDefault();
    of("search").focus();
  } else if (event.key in keys) keys[event.key]();
});

if (data.length) {
  for (const [id, [event, action]] of Object.entries(listeners)) of(id).addEventListener(event, action);
  window.addEventListener("hashchange", () => { state = readState(); choose(); });
  choose();
  document.body.classList.toggle("framed", window !== window.top);
  if (window === window.top) shown().focus({ preventScroll: true });
  else window.addEventListener("focus", () => shown().focus({ preventScroll: true }));
} else of("status").textContent = "Nothing was observed: the process was idle, or waited. Kinds of profile other than the one taken may show it: otelgpu profile -t all.";
