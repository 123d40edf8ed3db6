// Verdicts in words, and a map: a row for each rank, a column for each step, in it the rank's own time of a kind.

// From nothing to the median, and from there to what is long.
const BELOW = [[255, 255, 255], [222, 229, 236]];
const ABOVE = [[222, 229, 236], [254, 224, 144], [244, 109, 67], [165, 0, 38]];
const LONG = 1.5;  // times the median, at least: the jitter of a healthy job stays pale
const WIDEST = 1100, TALLEST = 640, LARGEST = 18;
const TICK_PX = { x: 60, y: 16 };  // between labels, at least

const { report, sentences, map } = given();

function decoded(text) {
  const binary = atob(text.slice(1));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

function between(colours, share) {
  const at = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
  const low = Math.min(Math.floor(at), colours.length - 2);
  return colours[low].map((from, each) => Math.round(from + (colours[low + 1][each] - from) * (at - low)));
}

function colour(value, kind) {
  const { median_s, most_s } = kind, long = Math.max(most_s, LONG * median_s);
  return value <= median_s ? between(BELOW, value / median_s) : between(ABOVE, (value - median_s) / (long - median_s));
}

// Labels of an axis, as many as have room: of every so many cells, the first.
function ticks(place, axis, texts, size) {
  const every = Math.ceil(TICK_PX[axis] / size);
  place.style[axis === "x" ? "width" : "height"] = `${texts.length * size}px`;
  place.replaceChildren(...texts.flatMap((text, at) => {
    if (at % every) return [];
    const label = element("span", text);
    label.style[axis === "x" ? "left" : "top"] = `${at * size}px`;
    return [label];
  }));
}

function showLegend(kind) {
  const long = Math.max(kind.most_s, LONG * kind.median_s);
  const samples = [0, kind.median_s, (kind.median_s + long) / 2, long];
  byId("legend").replaceChildren(...samples.map((value) => {
    const sample = element("span", seconds(value));
    sample.style.setProperty("--sample", `rgb(${colour(value, kind).join()})`);
    return sample;
  }));
}

function showKnown() {
  report.known.forEach((problem) => {
    const box = element("div", "", "verdict");
    box.append(element("h3", `Known problem ${problem.rule}: ${problem.problem}`));
    const where = [...problem.hosts, ...problem.ranks.map((rank) => `rank ${rank}`)].join(", ");
    box.append(element("p", where, "evidence"), element("p", problem.why, "evidence"));
    problem.change.forEach((change) => box.append(element("p", `Next: ${change}`)));
    byId("verdicts").append(box);
  });
}

class RankMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.at = [0, 0];
    const choice = byId("kind");
    map.kinds.forEach((each) => choice.append(element("option", each.name)));
    choice.addEventListener("change", () => this.show(choice.selectedIndex));
    canvas.addEventListener("pointermove", (event) => this.move(this.cell(event)));
    canvas.addEventListener("click", (event) => this.choose(this.cell(event)));
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.show(0);
  }

  show(kind) {
    this.kind = map.kinds[kind];
    this.values = decoded(this.kind.cells);
    const { canvas } = this;
    this.wide = Math.max(1, Math.min(LARGEST, Math.floor(WIDEST / map.columns)));
    this.high = Math.max(1, Math.min(LARGEST, Math.floor(TALLEST / map.rows.length)));
    [canvas.width, canvas.height] = [map.columns, map.rows.length];
    [canvas.style.width, canvas.style.height] = [`${map.columns * this.wide}px`, `${map.rows.length * this.high}px`];
    const context = canvas.getContext("2d");
    const image = context.createImageData(map.columns, map.rows.length);
    const { most_s } = this.kind;
    this.values.forEach((value, at) => image.data.set([...colour(value / 255 * most_s, this.kind), 255], 4 * at));
    context.putImageData(image, 0, 0);
    ticks(byId("ranks"), "y", map.rows.map((row) => row.label), this.high);
    ticks(byId("steps"), "x", map.steps.map((step) => step.replace(/^\w+ /, "")), this.wide);
    showLegend(this.kind);
    this.move(this.at);
  }

  cell(event) {
    const box = this.canvas.getBoundingClientRect();
    return [Math.floor((event.clientY - box.top) / this.high), Math.floor((event.clientX - box.left) / this.wide)];
  }

  move([row, column]) {
    this.at = [Math.min(Math.max(row, 0), map.rows.length - 1), Math.min(Math.max(column, 0), map.columns - 1)];
    [row, column] = this.at;
    const value = this.values[row * map.columns + column] / 255 * this.kind.most_s;
    byId("status").textContent = `${map.rows[row].name}, ${map.steps[column]}: ${this.kind.name} ${seconds(value)}` +
      ` (median of all ${seconds(this.kind.median_s)}); click for all kinds`;
  }

  choose(place) {
    this.move(place);
    const row = map.rows[this.at[0]];
    const table = byId("breakdown");
    table.replaceChildren(rowOf([row.name, "a step", "of all ranks"], "th"));
    map.kinds.forEach((kind, at) =>
      table.append(rowOf([kind.name, seconds(row.median_s[at]), seconds(kind.median_s)], "td")));
  }

  key(event) {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (by) this.move([this.at[0] + by[0], this.at[1] + by[1]]);
    else if (event.key === "Enter") this.choose(this.at);
    else return;
    event.preventDefault();
  }
}

const { ranks, hosts, steps } = report.input;
showVerdicts(report, sentences, [counted(ranks, "rank"), counted(hosts, "host"), counted(steps, "step")].join(", "),
  "Nothing is wrong: all ranks do their own work as fast as their peers.");
showKnown();
if (map.kinds.length) new RankMap(byId("map"));
