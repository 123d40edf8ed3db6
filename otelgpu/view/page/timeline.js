// A stretch of time, the part of it that is looked at, and the strip that shows and sets that part.

class Timeline {
  constructor(onChange) {
    this.onChange = onChange;
    this.canvas = el("canvas", { class: "strip", role: "img", "aria-label": "The whole trace; drag over a part to look at it, double-click for all" });
    this.canvas.addEventListener("pointerdown", (event) => this.drag(event));
    this.canvas.addEventListener("dblclick", () => this.look(this.from, this.to));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.bars = [];
    this.set(0, 1);
  }

  set(from, to) {
    [this.from, this.to] = [from, to > from ? to : from + 1];
    [this.first, this.last] = [this.from, this.to];
  }

  // From the left edge, as a share of the width.
  place(time) {
    return (time - this.first) / (this.last - this.first);
  }

  get isWhole() {
    return this.first === this.from && this.last === this.to;
  }

  look(first, last) {
    const least = Math.max((this.to - this.from) * 1e-6, 10);
    if (last - first < least) last = first + least;
    this.first = Math.max(this.from, Math.min(first, this.to - least));
    this.last = Math.min(this.to, Math.max(last, this.first + least));
    this.onChange();
    this.draw();
  }

  zoom(factor, around = (this.first + this.last) / 2) {
    this.look(around - (around - this.first) * factor, around + (this.last - around) * factor);
  }

  shift(share) {
    const width = this.last - this.first;
    const first = Math.max(this.from, Math.min(this.first + share * width, this.to - width));
    this.look(first, first + width);
  }

  drag(event) {
    const box = this.canvas.getBoundingClientRect();
    const timeAt = (x) => this.from + (Math.min(Math.max(x - box.left, 0), box.width) / box.width) * (this.to - this.from);
    const begin = event.clientX;
    this.canvas.setPointerCapture(event.pointerId);
    const move = (moved) => {
      if (Math.abs(moved.clientX - begin) > 3) this.look(timeAt(Math.min(begin, moved.clientX)), timeAt(Math.max(begin, moved.clientX)));
    };
    const up = () => {
      this.canvas.removeEventListener("pointermove", move);
      this.canvas.removeEventListener("pointerup", up);
      this.canvas.removeEventListener("pointercancel", up);
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", up);
    this.canvas.addEventListener("pointercancel", up);
  }

  // `bars`: [from, to, line, class] of the whole trace; lines share the height.
  fill(bars, lines) {
    Object.assign(this, { bars, lines });
    this.draw();
  }

  draw() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width) return;
    const scale = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(this.canvas);
    const all = this.to - this.from;
    const tall = Math.max(1, Math.min(4, height / Math.max(1, this.lines)));
    for (const [from, to, line, kind] of this.bars) {
      context.fillStyle = style.getPropertyValue(`--${kind}`) || style.color;
      const x = ((from - this.from) / all) * width;
      const y = (line / Math.max(1, this.lines)) * (height - tall);
      context.fillRect(x, y, Math.max(1, ((to - from) / all) * width), tall);
    }
    if (this.isWhole) return;
    const [left, right] = [this.first, this.last].map((time) => ((time - this.from) / all) * width);
    context.fillStyle = style.getPropertyValue("--veil");
    context.fillRect(0, 0, left, height);
    context.fillRect(right, 0, width - right, height);
    context.strokeStyle = style.getPropertyValue("--accent");
    context.strokeRect(left + 0.5, 0.5, Math.max(1, right - left - 1), height - 1);
  }
}
