// The flame graph itself: draws what is wide enough to be seen, finds what is pointed at.

const ROW = 18;
const NARROWEST = 0.5; // pixels
const FONT = "11px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace";

// A canvas of so many CSS pixels, sharp on any screen.
function contextOf(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = FONT;
  return context;
}

function outline(context, left, y, wide) {
  context.strokeStyle = FRAME_INK;
  context.lineWidth = 2;
  context.strokeRect(left + 1, y + 1, Math.max(wide - 3, 1), ROW - 3);
}

// As much of a frame's label as has room.
function write(context, letters, label, left, y) {
  if (letters < 3) return;
  const text = label();
  context.fillStyle = FRAME_INK;
  context.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, left + 3, y + ROW / 2);
}

class Flame {
  constructor(canvas, scroll, spacer, show) {
    [this.canvas, this.scroll, this.spacer, this.show] = [canvas, scroll, spacer, show];
    this.icicle = false;
    this.matches = null;
    this.pending = false;
    new ResizeObserver(() => this.resize()).observe(scroll);
    scroll.addEventListener("scroll", () => this.redraw());
    canvas.addEventListener("mousemove", (event) => this.hover(this.at(event), event));
    canvas.addEventListener("mouseleave", () => this.hover(-1));
    canvas.addEventListener("click", (event) => {
      const node = this.at(event);
      if (node >= 0) this.zoom(node);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.focus(this.focused < 0 ? this.top : this.focused));
    canvas.addEventListener("blur", () => this.redraw());
  }

  open(tree, node = 0) {
    this.tree = tree;
    this.colours = frameColours(tree);
    this.zoom(node < tree.length ? node : 0);
  }

  zoom(node) {
    [this.top, this.focused, this.hovered] = [node, node, -1];
    this.deepest = this.tree.deepest(node);
    this.resize();
    this.scroll.scrollTop = this.icicle ? 0 : this.scroll.scrollHeight;
    this.show.zoomed(node);
  }

  invert() {
    this.icicle = !this.icicle;
    this.zoom(this.top);
  }

  search(text) {
    this.matches = text ? this.tree.matching(text) : null;
    this.redraw();
  }

  resize() {
    if (!this.tree) return;
    const [width, height] = [this.scroll.clientWidth, this.scroll.clientHeight];
    this.width = width;
    this.viewport = height;
    this.height = Math.max((this.deepest + 1) * ROW + 1, height);
    this.spacer.style.height = `${this.height}px`;
    this.context = contextOf(this.canvas, width, height);
    this.letter = this.context.measureText("M").width || 7;
    this.draw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (this.tree) this.draw();
    });
  }

  row(depth) {
    return (this.icicle ? depth * ROW : this.height - (depth + 1) * ROW) - this.scroll.scrollTop;
  }

  draw() {
    const { tree, context, top, width } = this;
    const scale = width / (tree.total[top] || 1);
    const origin = tree.start[top];
    this.narrower = 0;
    context.clearRect(0, 0, width, this.viewport);
    context.textBaseline = "middle";
    for (let node = tree.parent[top]; node >= 0; node = tree.parent[node]) this.box(node, 0, width, true);
    const end = tree.end[top];
    for (let node = top; node < end; ) {
      const wide = tree.total[node] * scale;
      if (wide < NARROWEST) {
        if (wide > 0) this.narrower += tree.end[node] - node;
        node = tree.end[node];
        continue;
      }
      this.box(node, (tree.start[node] - origin) * scale, wide, false);
      node++;
    }
    this.show.drawn(this.narrower);
  }

  box(node, left, wide, faded) {
    const { tree, context } = this;
    const y = this.row(tree.depth[node]);
    if (y <= -ROW || y >= this.viewport) return;
    const isMatch = this.matches && node && this.matches[tree.frame[node]];
    const fill = tree.labels ? changeColour(tree.change(node)) : node ? this.colours[tree.frame[node]] : KINDS.process.shades[0];
    context.globalAlpha = faded ? 0.55 : this.matches && !isMatch ? 0.45 : 1;
    context.fillStyle = isMatch ? MATCH : fill;
    context.fillRect(left, y, Math.max(wide - (wide > 3 ? 1 : 0), NARROWEST), ROW - 1);
    context.globalAlpha = 1;
    const chosen = (node === this.focused && document.activeElement === this.canvas) || node === this.hovered;
    if (chosen) outline(context, left, y, wide);
    write(context, Math.floor((wide - 6) / this.letter), () => tree.label(node), left, y);
  }

  // The node under the mouse, or -1.
  at(event) {
    const { tree, top } = this;
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top + this.scroll.scrollTop;
    const depth = Math.floor((this.icicle ? y : this.height - y) / ROW);
    if (depth < 0) return -1;
    let node = top;
    if (depth <= tree.depth[top]) {
      while (tree.depth[node] > depth) node = tree.parent[node];
      return node;
    }
    const scale = tree.total[top] / this.width;
    const value = tree.start[top] + (event.clientX - box.left) * scale;
    while (tree.depth[node] < depth) {
      const inside = tree.children(node).find(
        (child) => value >= tree.start[child] && value < tree.start[child] + tree.total[child],
      );
      if (inside === undefined || tree.total[inside] / scale < NARROWEST) return -1;
      node = inside;
    }
    return node;
  }

  hover(node, event) {
    if (node !== this.hovered) {
      this.hovered = node;
      this.redraw();
    }
    this.show.hovered(node, event);
  }

  focus(node) {
    this.focused = node;
    const y = this.row(this.tree.depth[node]);
    if (y < 0) this.scroll.scrollTop += y;
    if (y + ROW > this.viewport) this.scroll.scrollTop += y + ROW - this.viewport;
    this.show.focused(node);
    this.redraw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tree } = this;
    const node = this.focused;
    const away = this.icicle ? "ArrowDown" : "ArrowUp";
    const towards = this.icicle ? "ArrowUp" : "ArrowDown";
    let next = -1;
    if (event.key === away) {
      const children = tree.children(node);
      if (children.length) next = children.reduce((one, other) => (tree.total[other] > tree.total[one] ? other : one));
    } else if (event.key === towards) next = tree.parent[node];
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (tree.depth[node] <= tree.depth[this.top]) return;
      const siblings = tree.children(tree.parent[node]);
      next = siblings[siblings.indexOf(node) + (event.key === "ArrowLeft" ? -1 : 1)] ?? -1;
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return this.zoom(node);
    } else return;
    event.preventDefault();
    if (next >= 0) this.focus(next);
  }
}
