// The heat map: a column for each second, a cell for each 20 ms, time going up within a column. A rectangle selects.

const EMPTY = matchMedia("(prefers-color-scheme: dark)").matches ? [32, 41, 50] : [236, 240, 244];
const COLD = [EMPTY, [254, 224, 144], [244, 109, 67], [165, 0, 38]];

function heatColour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (COLD.length - 1);
  const low = Math.min(Math.floor(at), COLD.length - 2);
  return `rgb(${COLD[low].map((from, each) => Math.round(from + (COLD[low + 1][each] - from) * (at - low))).join(",")})`;
}

class HeatMap {
  // `axes`: elements {below, beside, legend}. `selected(own, count, area)`: what is in the rectangle.
  constructor(canvas, scroll, axes, selected) {
    Object.assign(this, { canvas, scroll, selected, ...axes });
    this.anchor = this.corner = null;
    this.dragging = false;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.dragging = true;
      this.anchor = this.corner = this.cellAt(event);
      this.draw();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.dragging) return;
      this.corner = this.cellAt(event);
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (!this.dragging) return;
      this.dragging = false;
      this.corner = this.cellAt(event); // of quick movements not all are told
      this.draw();
      this.report();
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(scroll);
  }

  open(tree, heat) {
    this.tree = tree;
    this.columns = heat.columns;
    this.rows = heat.rows;
    this.cellMs = heat.cell_ms;
    this.begin = heat.begin_unix_s;
    this.cell = decoded(heat.cell);
    this.node = decoded(heat.node);
    this.count = decoded(heat.count);
    this.value = heat.value ? decoded(heat.value) : null; // else each of the count is worth ``each``
    this.each = heat.each;
    this.sums = new Float64Array(this.columns * this.rows);
    for (let row = 0; row < this.cell.length; row++) this.sums[this.cell[row]] += this.count[row];
    this.most = this.sums.reduce((one, other) => Math.max(one, other), 0);
    this.anchor = this.corner = null;
    this.resize();
  }

  resize() {
    if (!this.columns) return;
    const room = this.scroll.clientWidth;
    this.wide = Math.min(Math.max(Math.floor(room / this.columns), 4), 40);
    this.high = 4;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.columns * this.wide, this.rows * this.high];
    this.canvas.width = Math.min(Math.round(width * ratio), 32000);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(this.canvas.width / width, 0, 0, ratio, 0, 0);
    this.explain();
    this.draw();
  }

  // Seconds below, milliseconds beside, and what colours stand for.
  explain() {
    const at = (text, style) => Object.assign(element("span", text), { style });
    const width = this.columns * this.wide;
    const every = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600].find((seconds) => seconds * this.wide >= 56) ?? 1200;
    const seconds = Array.from({ length: Math.ceil(this.columns / every) }, (_, tick) => tick * every);
    this.below.style.width = `${width}px`;
    this.below.title = `seconds after ${new Date(1000 * this.begin).toISOString()}`;
    this.below.replaceChildren(...seconds.map((second) => at(`${second} s`, `left:${second * this.wide}px`)));
    const height = this.rows * this.high;
    this.beside.style.height = `${height}px`;
    this.beside.replaceChildren(...[0, 200, 400, 600, 800].map((ms) => at(`${ms} ms`, `top:${height - (ms / this.cellMs) * this.high}px`)));
    const scale = element("i");
    scale.style.background = `linear-gradient(90deg, ${[0, 1 / 3, 2 / 3, 1].map(heatColour).join(",")})`;
    this.legend.replaceChildren("0", scale, `${this.most.toLocaleString("en")} observations in ${this.cellMs} ms`);
  }

  draw() {
    const { context, wide, high, rows } = this;
    context.clearRect(0, 0, this.columns * wide, rows * high);
    for (let cell = 0; cell < this.sums.length; cell++) {
      context.fillStyle = heatColour(this.most ? this.sums[cell] / this.most : 0);
      const [column, row] = [Math.floor(cell / rows), cell % rows];
      context.fillRect(column * wide, (rows - 1 - row) * high, wide - 0.5, high - 0.5);
    }
    const area = this.area();
    if (!area) return;
    context.strokeStyle = "#0b62a8";
    context.lineWidth = 2;
    context.strokeRect(
      area.left * wide + 1,
      (rows - 1 - area.last) * high + 1,
      (area.right - area.left + 1) * wide - 2,
      (area.last - area.first + 1) * high - 2,
    );
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const within = (value, size) => Math.min(Math.max(Math.floor(value), 0), size - 1);
    return {
      column: within((event.clientX - box.left) / this.wide, this.columns),
      row: this.rows - 1 - within((event.clientY - box.top) / this.high, this.rows),
    };
  }

  // Columns left..right and rows first..last, or null for all.
  area() {
    if (!this.anchor) return null;
    const [one, other] = [this.anchor, this.corner];
    return {
      left: Math.min(one.column, other.column),
      right: Math.max(one.column, other.column),
      first: Math.min(one.row, other.row),
      last: Math.max(one.row, other.row),
    };
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (event.key === "Escape") this.anchor = this.corner = null;
    else if (moves[event.key]) {
      const [columns, rows] = moves[event.key];
      const from = this.corner ?? { column: 0, row: 0 };
      const clamp = (value, size) => Math.min(Math.max(value, 0), size - 1);
      const to = this.anchor
        ? { column: clamp(from.column + columns, this.columns), row: clamp(from.row + rows, this.rows) }
        : from;
      this.corner = to;
      if (!event.shiftKey || !this.anchor) this.anchor = to;
    } else return;
    event.preventDefault();
    event.stopPropagation();
    this.draw();
    this.report();
  }

  clear() {
    this.anchor = this.corner = null;
    if (this.columns) this.draw();
  }

  // Own values of the tree's nodes in what is selected, and how many observations.
  report() {
    const area = this.area();
    const own = new Float64Array(this.tree.length);
    let count = 0;
    for (let at = 0; at < this.cell.length; at++) {
      const cell = this.cell[at];
      if (area) {
        const [column, row] = [Math.floor(cell / this.rows), cell % this.rows];
        if (column < area.left || column > area.right || row < area.first || row > area.last) continue;
      }
      own[this.node[at]] += this.value ? this.value[at] : this.count[at] * this.each;
      count += this.count[at];
    }
    this.selected(own, count, area);
  }
}
