// A tile for each node, grouped by rack, job or pod; of the chosen one its devices, what they are connected with, and why
// a place is marked. Names come from the input: they become text, never HTML.

const { nodes, connections, queue_pairs: queuePairs, communicators, calls, marks, kinds, paths, limits, rejected } = given();
const ALL_OPEN = 2000, MANY = 64, MANY_GROUPS = 12, SVG = "http://www.w3.org/2000/svg", WIDE = 1160, HIGH = 36;
const ranked = Object.keys(kinds);

const byPlace = new Map(), byNode = new Map();
marks.forEach((mark) => {
  for (const [map, key] of [[byPlace, mark.place], [byNode, mark.node]]) {
    if (!map.has(key)) map.set(key, []);
    map.get(key).push(mark);
  }
});
const marked = (place) => byPlace.get(place) || [];
const worst = (some) => ranked.find((kind) => some.some((mark) => mark.kind === kind)) || "";
const several = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// -- what a node is called ------------------------------------------------------------------------------

const gpusOf = (node) => node.gpus || [];
const nicsOf = (node) => node.nics || [];
const processesOf = (node) => node.processes || [];
const rankOf = (process) => process.rank === undefined ? -1 : process.rank;

function called(process) {
  const rank = rankOf(process) < 0 ? "" : `rank ${process.rank}`;
  return [rank, process.pod || process.service, process.pid ? `PID ${process.pid}` : ""].filter(Boolean).join(", ");
}

const GROUPS = {
  rack: (node) => node.rack || "no rack named",
  job: (node) => [...new Set(processesOf(node).map((each) => each.job).filter(Boolean))].sort().join(", ") || "no job",
  namespace: (node) => [...new Set(processesOf(node).map((each) => each.namespace).filter(Boolean))].sort().join(", ") || "no namespace",
  pod: (node) => (processesOf(node).map((each) => each.pod).filter(Boolean)[0] || "no pod").replace(/(-\d+)+$/, "-…"),
  cluster: (node) => node.cluster || "no cluster named",
};

function sumOf(some, isShort = false) {
  const count = (of) => some.reduce((sum, node) => sum + of(node).length, 0);
  const ranks = some.reduce((sum, node) => sum + processesOf(node).filter((each) => rankOf(each) >= 0).length, 0);
  const all = [[some.length, "node"], [count(gpusOf), "GPU"], [count(nicsOf), "NIC"], [ranks, "rank"]];
  return (isShort ? all.slice(0, 2) : all)
    .filter(([number]) => number).map(([number, noun]) => several(number, noun)).join(", ");
}

// -- the map --------------------------------------------------------------------------------------------

let chosen = -1, tiles = [];

// A cell for each GPU; where none is known, for each rank.
function cellsOf(node) {
  if (gpusOf(node).length) return gpusOf(node).map((gpu) => worst(marked(`gpu:${node.name}/${gpu.id}`)));
  const ranks = processesOf(node).filter((each) => rankOf(each) >= 0);
  return (ranks.length ? ranks : [0]).slice(0, 16).map(() => "");
}

function tileOf(place) {
  const node = nodes[place], kind = worst(byNode.get(node.name) || []);
  const tile = element("button", "", `tile ${kind ? `marked ${kind}` : ""}`);
  tile.type = "button";
  tile.tabIndex = -1;
  tile.dataset.name = node.name;
  tile.dataset.place = place;
  tile.setAttribute("aria-label", `${node.name}: ${sumOf([node]).replace("1 node, ", "")}${kind ? `, ${kind}` : ""}`);
  tile.setAttribute("aria-pressed", String(place === chosen));
  cellsOf(node).forEach((of) => tile.append(element("i", "", of || "fine")));
  return tile;
}

function drawMap() {
  const by = GROUPS[byId("by").value], groups = new Map(), map = byId("map");
  nodes.forEach((node, place) => {
    const name = by(node);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(place);
  });
  map.replaceChildren();
  map.classList.toggle("big", nodes.length <= MANY);
  map.classList.toggle("columns", groups.size > MANY_GROUPS);
  [...groups].sort(([one], [other]) => one < other ? -1 : 1).forEach(([name, places]) => {
    const found = places.flatMap((place) => byNode.get(nodes[place].name) || []);
    const box = document.createElement("details"), head = document.createElement("summary"), inside = element("div", "", "tiles");
    box.open = nodes.length <= ALL_OPEN || found.length > 0;
    head.append(element("span", `${name}: ${sumOf(places.map((place) => nodes[place]), groups.size > MANY_GROUPS)} `));
    if (found.length) head.append(element("b", several(found.length, "mark"), worst(found)));
    places.forEach((place) => inside.append(tileOf(place)));
    box.append(head, inside);
    map.append(box);
  });
  tiles = [...map.querySelectorAll(".tile")];
  const first = tiles.find((tile) => Number(tile.dataset.place) === chosen) || tiles[0];
  if (first) first.tabIndex = 0;
  narrow();
}

function say(tile) {
  const node = nodes[tile.dataset.place], found = byNode.get(node.name) || [];
  byId("status").textContent = `${tile.getAttribute("aria-label")}${found.length ? `: ${found[0].text}` : ""}`;
}

// The tile next to one in a direction, by where they are on the screen.
function neighbour(tile, key) {
  const there = tiles.filter((each) => each.offsetParent && !each.classList.contains("hidden")), at = there.indexOf(tile);
  if (key === "ArrowRight") return there[at + 1];
  if (key === "ArrowLeft") return there[at - 1];
  if (key === "Home") return there[0];
  if (key === "End") return there[there.length - 1];
  const down = key === "ArrowDown", own = tile.getBoundingClientRect(), near = down ? there.slice(at) : there.slice(0, at + 1).reverse();
  const rows = near.map((each) => [each, each.getBoundingClientRect()]).filter(([, box]) => down ? box.top > own.top + 2 : box.top < own.top - 2);
  if (!rows.length) return undefined;
  const row = rows.filter(([, box]) => Math.abs(box.top - rows[0][1].top) < 3);
  return row.reduce((best, each) => Math.abs(each[1].left - own.left) < Math.abs(best[1].left - own.left) ? each : best)[0];
}

byId("map").addEventListener("keydown", (event) => {
  if (!event.target.classList.contains("tile") || !/^(Arrow|Home$|End$)/.test(event.key)) return;
  const next = neighbour(event.target, event.key);
  if (next) {
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
  event.preventDefault();
});
byId("map").addEventListener("focusin", (event) => event.target.classList.contains("tile") && say(event.target));
byId("map").addEventListener("pointerover", (event) => {
  const tile = event.target.closest(".tile");
  if (tile) say(tile);
});
byId("map").addEventListener("click", (event) => {
  const tile = event.target.closest(".tile");
  if (tile) choose(Number(tile.dataset.place));
});

function matches(node, text) {
  return [node.name, node.rack || "", ...gpusOf(node).map((gpu) => gpu.id),
    ...processesOf(node).flatMap((each) => [each.pod || "", each.job || "", each.service || ""])]
    .some((each) => each.toLowerCase().includes(text));
}

function narrow() {
  const text = byId("find").value.trim().toLowerCase();
  tiles.forEach((tile) => tile.classList.toggle("hidden", text !== "" && !matches(nodes[tile.dataset.place], text)));
}

function choose(place) {
  chosen = place;
  tiles.forEach((tile) => {
    const isChosen = Number(tile.dataset.place) === place;
    tile.setAttribute("aria-pressed", String(isChosen));
    tile.tabIndex = isChosen ? 0 : -1;
  });
  drawNode(nodes[place], connections.filter(([own]) => own === place));
}

// -- one node -------------------------------------------------------------------------------------------

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  if (text !== undefined) made.textContent = text;
  return made;
}

const short = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

function boxed(picture, x, y, wide, kind, title, below) {
  picture.append(drawn("rect", { x, y, width: wide, height: HIGH - 8, rx: 4, class: `box ${kind}` }));
  picture.append(drawn("text", { x: x + 8, y: y + 12 }, short(title, wide / 6.6)));
  if (below) picture.append(drawn("text", { x: x + 8, y: y + 24, class: "soft" }, short(below, wide / 6)));
}

function endOf([, , , other, device, pod, communicator, count, failed]) {
  const where = other >= 0 ? `${nodes[other].name} ${device}`.trim() : "other end not seen";
  return [where, `${pod ? `${pod}, ` : ""}${several(count, "queue pair")}${communicator ? `, ${communicator}` : ""}${failed ? `, ${failed} failed` : ""}`];
}

function pictureOf(node, mine) {
  const numas = new Map();
  const numaOf = (each) => each.numa_node === undefined ? -1 : each.numa_node;
  const group = (each, which) => {
    if (!numas.has(numaOf(each))) numas.set(numaOf(each), { gpus: [], nics: [] });
    numas.get(numaOf(each))[which].push(each);
  };
  gpusOf(node).forEach((gpu) => group(gpu, "gpus"));
  nicsOf(node).forEach((nic) => group(nic, "nics"));
  const picture = drawn("svg", { role: "img", "aria-label": `Devices of ${node.name}` }), gpuAt = new Map(), nicAt = new Map();
  let y = 24;
  [...numas].sort(([one], [other]) => one - other).forEach(([numa, { gpus, nics }]) => {
    const begin = y;
    gpus.forEach((gpu, at) => gpuAt.set(gpu.id, y + at * HIGH));
    nics.forEach((nic, at) => nicAt.set(nic.id, y + at * HIGH));
    y += Math.max(gpus.length, nics.length) * HIGH;
    picture.append(drawn("rect", { x: 44, y: begin - 6, width: 670, height: y - begin + 4, rx: 6, class: "numa" }));
    if (numa >= 0) picture.append(drawn("text", { x: 640, y: begin + 8, class: "soft" }, `NUMA ${numa}`));
    y += 14;
  });
  const lines = drawn("g", {});
  picture.append(lines);
  (node.affinity || []).forEach((row, at) => {
    const nearest = Math.min(...row.filter((path) => path >= 0)), near = nicsOf(node).filter((nic, column) => row[column] === nearest);
    if (near.length > 2) return;
    near.forEach((nic) => {
      const from = gpuAt.get(gpusOf(node)[at].id) + HIGH / 2 - 4, to = nicAt.get(nic.id) + HIGH / 2 - 4;
      lines.append(drawn("path", { d: `M330 ${from} C 380 ${from}, 380 ${to}, 430 ${to}` }));
      picture.append(drawn("text", { x: 366, y: (from + to) / 2 - 4, class: "soft" }, Object.keys(paths)[nearest]));
    });
  });
  const linked = gpusOf(node).filter((gpu) => gpu.nvlinks && gpu.nvlinks.switch);
  if (linked.length) {
    const ys = linked.map((gpu) => gpuAt.get(gpu.id) + HIGH / 2 - 4);
    lines.append(drawn("path", { d: `M24 ${Math.min(...ys)} V ${Math.max(...ys)}`, class: "nvlink" }));
    ys.forEach((at) => lines.append(drawn("path", { d: `M24 ${at} H 56`, class: "nvlink" })));
    picture.append(drawn("text", { x: 4, y: 12, class: "soft" }, `NVSwitch, ${linked[0].nvlinks.switch} links a GPU`));
  }
  gpusOf(node).forEach((gpu) => Object.entries(gpu.nvlinks || {}).forEach(([peer, count]) => {
    if (!gpuAt.has(peer) || !(gpuAt.get(peer) > gpuAt.get(gpu.id)) || !count) return;
    const from = gpuAt.get(gpu.id) + HIGH / 2 - 4, to = gpuAt.get(peer) + HIGH / 2 - 4, out = 52 - Math.min(46, (to - from) / 6);
    lines.append(drawn("path", { d: `M56 ${from} C ${out} ${from}, ${out} ${to}, 56 ${to}`, class: "nvlink" }));
  }));
  const users = new Map();
  processesOf(node).forEach((process) => (process.gpus || []).forEach((id) => users.set(id, [...(users.get(id) || []), called(process)])));
  gpusOf(node).forEach((gpu) => boxed(picture, 56, gpuAt.get(gpu.id), 274, worst(marked(`gpu:${node.name}/${gpu.id}`)),
    [gpu.name || gpu.id, gpu.model || ""].filter(Boolean).join("  "), (users.get(gpu.id) || ["no process known"]).join("; ")));
  const shown = mine.slice(0, Math.max(12, nicsOf(node).length * 2)), room = Math.max(y - 24, 1) / Math.max(shown.length, 1);
  const step = Math.max(Math.min(room, HIGH), HIGH * 0.9);
  shown.forEach((each, at) => {
    const to = 24 + at * step, from = nicAt.get(each[1]);
    if (from !== undefined) {
      const middle = from + HIGH / 2 - 4, end = to + HIGH / 2 - 4;
      lines.append(drawn("path", { d: `M710 ${middle} C 750 ${middle}, 750 ${end}, 790 ${end}`, class: each[8] ? "failed" : "" }));
    }
    boxed(picture, 790, to, 366, each[8] ? "faulty" : "", ...endOf(each));
  });
  nicsOf(node).forEach((nic) => boxed(picture, 430, nicAt.get(nic.id), 280, worst(marked(`nic:${node.name}/${nic.id}`)), nic.id,
    (nic.ports || []).map((port) => `port ${port.number} ${port.up === undefined ? "" : port.up ? "up" : "down"} ${port.bytes_per_s ? `${Math.round(port.bytes_per_s * 8e-9)} Gbit/s` : ""} ${port.interface || ""}`).join("; ")));
  const tall = Math.max(y, 24 + shown.length * step) + 6;
  picture.setAttribute("viewBox", `0 0 ${WIDE} ${tall}`);
  picture.setAttribute("width", WIDE);
  picture.setAttribute("height", tall);
  return picture;
}

function markOf(mark) {
  const box = element("div", "", `mark ${mark.kind}`);
  box.append(element("div", `${mark.kind}: ${mark.place.slice(mark.place.indexOf(":") + 1)}: ${mark.text}`), element("small", `by ${mark.source}${mark.next ? `. Next: ${mark.next}` : ""}`));
  return box;
}

function drawNode(node, mine) {
  const place = byId("node");
  place.replaceChildren(element("h2", `${node.name}${node.rack ? `, ${node.rack}` : ""}${node.cluster ? `, cluster ${node.cluster}` : ""}`));
  (byNode.get(node.name) || []).forEach((mark) => place.append(markOf(mark)));
  if (gpusOf(node).length + nicsOf(node).length) {
    const scroll = element("div", "", "scroll-x");
    scroll.append(pictureOf(node, mine));
    place.append(scroll);
  }
  if (node.affinity) {
    const table = element("table", ""), words = Object.keys(paths);
    table.append(rowOf(["GPU and NIC", ...nicsOf(node).map((nic) => nic.id)], "th"));
    gpusOf(node).forEach((gpu, at) => table.append(rowOf([gpu.name || gpu.id, ...node.affinity[at].map((path) => words[path] || "")], "td")));
    place.append(table, element("p", Object.entries(paths).map(([path, text]) => `${path}: ${text}`).join("; "), "evidence"));
  }
  if (processesOf(node).length) {
    const table = element("table", ""), names = new Map(gpusOf(node).map((gpu) => [gpu.id, gpu.name || gpu.id]));
    table.append(rowOf(["process", "rank", "job", "namespace", "service", "GPUs"], "th"));
    processesOf(node).forEach((each) => table.append(rowOf([each.pod || `PID ${each.pid || "not known"}`, rankOf(each) < 0 ? "" : each.rank,
      each.job || "", each.namespace || "", each.service || "", (each.gpus || []).map((id) => names.get(id) || id).join(", ")], "td")));
    place.append(element("h2", "Processes"), scrolled(table));
  }
  if (mine.length) {
    const table = element("table", "");
    table.append(rowOf(["from", "device", "to", "device", "pod or GID", "communicator", "queue pairs", "failed"], "th"));
    mine.forEach(([, device, process, other, otherDevice, pod, communicator, count, failed]) => {
      const line = rowOf([called(processesOf(node)[process]), device, other < 0 ? "not seen" : nodes[other].name, otherDevice, pod, communicator, count, failed], "td");
      table.append(line);
    });
    place.append(element("h2", "Queue pairs"), scrolled(table));
  }
}

function scrolled(table) {
  const box = element("div", "", "scroll");
  box.tabIndex = 0;
  box.append(table);
  return box;
}

// -- the rest -------------------------------------------------------------------------------------------

function drawMarks() {
  const counts = ranked.map((kind) => [kind, marks.filter((mark) => mark.kind === kind).length]).filter(([, count]) => count);
  byId("found").textContent = counts.length ? `Marked: ${counts.map(([kind, count]) => `${count} ${kind}`).join(", ")}` : "Nothing is marked";
  marks.slice(0, 500).forEach((mark) => {
    const item = document.createElement("li"), button = element("button", `${mark.kind}: ${mark.place.slice(mark.place.indexOf(":") + 1)}: ${mark.text} `, mark.kind);
    button.type = "button";
    button.append(element("small", `by ${mark.source}`));
    button.addEventListener("click", () => {
      const place = nodes.findIndex((node) => node.name === mark.node);
      if (place < 0) return;
      choose(place);
      byId("node").scrollIntoView({ block: "start" });
    });
    item.append(button);
    byId("marks").append(item);
  });
  if (marks.length > 500) byId("marks").append(element("li", `${marks.length - 500} more: see --json`));
  [...ranked.map((kind) => [kind, kinds[kind]]), ["fine", "nothing said against it"]].forEach(([kind, text]) => {
    const sample = element("span", kind, kind);
    sample.title = text;
    byId("legend").append(sample);
  });
}

function runsOf(runs) {
  const some = runs.slice(0, 6).map(([node, first, last]) => `${first === last ? first : `${first}–${last}`} on ${nodes[node].name}`);
  return some.join("; ") + (runs.length > 6 ? `; and on ${runs.length - 6} more` : "");
}

byId("seen").textContent = [nodes.length ? sumOf(nodes) : "services of a Collector, which names no nodes", queuePairs ? several(queuePairs, "queue pair") : "", communicators.length ? several(communicators.length, "communicator") : ""].filter(Boolean).join(", ");
Object.keys(GROUPS).filter((name) => name === "rack" || new Set(nodes.map(GROUPS[name])).size > 1 || nodes.some((node) => !GROUPS[name](node).startsWith("no "))).forEach((name) => byId("by").append(element("option", name)));
if (nodes.every((node) => !node.rack) && [...byId("by").options].some((each) => each.value === "job")) byId("by").value = "job";
byId("by").addEventListener("change", drawMap);
byId("find").addEventListener("input", narrow);
byId("find").addEventListener("keydown", (event) => {
  const first = event.key === "Enter" && tiles.find((tile) => !tile.classList.contains("hidden"));
  if (first) choose(Number(first.dataset.place));
});
drawMarks();
drawMap();
byId("calls").append(rowOf(["client", "server", "requests", "failed", "mean", "by"], "th"));
calls.forEach((call) => byId("calls").append(rowOf([call.client, call.server, call.calls, call.errors, call.mean_s ? seconds(call.mean_s) : "", call.source], "td")));
byId("calls").parentElement.hidden = !calls.length;
byId("communicators").append(rowOf(["communicator", "job", "ranks", "seen", "where"], "th"));
communicators.slice(0, 200).forEach((each) => byId("communicators").append(rowOf([each.id, each.job, each.ranks || "", each.seen, runsOf(each.runs)], "td")));
if (communicators.length > 200) byId("communicators").append(rowOf([`${communicators.length - 200} more: see --json`, "", "", "", ""], "td"));
byId("communicators").parentElement.hidden = !communicators.length;
limits.forEach((limit) => byId("limits").append(element("li", limit)));
Object.entries(rejected).forEach(([reason, count]) => byId("limits").append(element("li", `rejected: ${reason}: ${count}`)));
const first = marks.find((mark) => mark.node && mark.kind !== "notice");
byId("map").parentElement.hidden = !nodes.length;
if (nodes.length) choose(Math.max(first ? nodes.findIndex((node) => node.name === first.node) : 0, 0));
