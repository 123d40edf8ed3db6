// The flame chart: where each thread was seen, from left to right as time went by, a thread below the other.

const AXIS = 18;
const SHORTEST = 10; // microseconds that are as wide as the screen at most
const ZOOM = 1.5;
const DRAGGED = 4; // pixels; less is a click

// A frame in one place of one thread's stacks, as long as one observation after the other has it.
// {thread, row, node, start, end, count}: `node` of the tree, times in microseconds.
class Boxes {
  // `data`: as the page has it. `threads`: [number, name] of those to show, in order. `isHidden`: by frame.
  constructor(tree, data, threads, isHidden) {
    Object.assign(this, { tree, isHidden, all: [], rows: [] }); // rows: {title} or {boxes: positions}
    const [at, length, node, thread] = [data.at, data.length, data.node, data.thread].map(decoded);
    const byThread = new Map(threads.map(([number]) => [number, []]));
    thread.forEach((number, each) => byThread.get(number)?.push(each));
    for (const [number, name] of threads) {
      if (!byThread.get(number).length) continue;
      if (name) this.rows.push({ title: name });
      this.fill(name, byThread.get(number).map((each) => [at[each], length[each], node[each]]), data.sampled);
    }
    this.end = this.all.reduce((last, box) => Math.max(last, box.end), SHORTEST);
  }

  // One thread. Samples that are less than half of their length apart are of one stretch of time.
  fill(thread, observations, isSampled) {
    const { all, rows, tree } = this;
    const first = rows.length;
    const open = []; // boxes of the stack before, the root's first
    let last = 0;
    for (const [at, length, node] of observations) {
      const [start, end] = [isSampled ? Math.max(at, last) : at, at + length];
      const path = this.path(node);
      let same = 0;
      if (at - last <= (isSampled ? length / 2 : 0)) {
        while (same < path.length && same < open.length && tree.frame[open[same].node] === tree.frame[path[same]]) same++;
      }
      open.length = same;
      for (const box of open) {
        box.end = end;
        box.count++;
      }
      for (let depth = same; depth < path.length; depth++) {
        const row = first + depth;
        if (row === rows.length) rows.push({ boxes: [] });
        rows[row].boxes.push(all.length);
        open.push({ thread, row, node: path[depth], start, end, count: 1 });
        all.push(open[depth]);
      }
      last = end;
    }
  }

  // What is to be seen of a stack, the outermost first.
  path(node) {
    const found = [];
    for (let at = node; at > 0; at = this.tree.parent[at]) if (!this.isHidden[this.tree.frame[at]]) found.push(at);
    return found.reverse();
  }

  // Where in a row the first box is that ends after a time.
  after(row, time) {
    const boxes = this.rows[row].boxes ?? [];
    let [low, high] = [0, boxes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.all[boxes[middle]].end > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

class FlameChart {
  constructor(canvas, scroll, spacer, show) {
    Object.assign(this, { canvas, scroll, spacer, show, boxes: null, matches: null, pressed: null, focused: -1, hovered: -1 });
    new ResizeObserver(() => this.resize()).observe(scroll);
    scroll.addEventListener("scroll", () => this.redraw());
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pressed = this.dragged = event.offsetX;
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointerleave", () => this.hover(-1));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.focus(this.focused));
    canvas.addEventListener("blur", () => this.redraw());
  }

  // `span`: as :attr:`span` has it.
  open(boxes, span) {
    Object.assign(this, { boxes, focused: -1, hovered: -1, colours: frameColours(boxes.tree) });
    const [left, right] = span.split("-").map(Number);
    [this.left, this.right] = left < right && right <= boxes.end ? [left, right] : [0, boxes.end];
    this.resize();
  }

  // "from-to", in microseconds; "": everything.
  get span() {
    const whole = this.left <= 0 && this.right >= this.boxes.end;
    return whole ? "" : `${Math.round(this.left)}-${Math.round(this.right)}`;
  }

  // What is said of a box.
  words(place) {
    const { tree, all } = this.boxes;
    const { node, thread, start, end, count } = all[place];
    const written = (time) => quantity(1000 * time, "nanoseconds");
    return [tree.label(node), tree.place(node), `${written(start)} to ${written(end)}: ${written(end - start)}`, `${count.toLocaleString("en")} observations`, thread];
  }

  zoom(left, right) {
    const { end } = this.boxes;
    const wide = Math.min(Math.max(right - left, SHORTEST), end);
    this.left = Math.min(Math.max(left, 0), end - wide);
    this.right = this.left + wide;
    this.redraw();
    this.show.zoomed();
  }

  // Round a time, which stays where it is.
  scale(times, about = (this.left + this.right) / 2) {
    this.zoom(about - (about - this.left) * times, about + (this.right - about) * times);
  }

  resize() {
    if (!this.boxes || !this.scroll.clientWidth) return;
    const [width, height] = [this.scroll.clientWidth, this.scroll.clientHeight];
    Object.assign(this, { width, viewport: height });
    this.spacer.style.height = `${Math.max(AXIS + this.boxes.rows.length * ROW + 1, height)}px`;
    this.context = contextOf(this.canvas, width, height);
    this.letter = this.context.measureText("M").width || 7;
    this.draw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (this.context) this.draw();
    });
  }

  x(time) {
    return ((time - this.left) / (this.right - this.left)) * this.width;
  }

  time(x) {
    return this.left + (x / this.width) * (this.right - this.left);
  }

  row(number) {
    return AXIS + number * ROW - this.scroll.scrollTop;
  }

  draw() {
    const { context, boxes, width, viewport } = this;
    const ink = getComputedStyle(this.canvas).color;
    context.clearRect(0, 0, width, viewport);
    context.textBaseline = "middle";
    const from = Math.max(Math.floor((this.scroll.scrollTop - AXIS) / ROW), 0);
    for (let row = from; row < boxes.rows.length && this.row(row) < viewport; row++) {
      const { title } = boxes.rows[row];
      if (title !== undefined) {
        context.fillStyle = ink;
        context.fillText(title, 4, this.row(row) + ROW / 2);
      } else this.drawRow(row);
    }
    context.clearRect(0, 0, width, AXIS);
    this.drawAxis(ink);
    this.show.drawn();
    if (this.pressed === null || Math.abs(this.dragged - this.pressed) < DRAGGED) return;
    context.fillStyle = "rgba(11, 98, 168, 0.2)";
    context.fillRect(Math.min(this.pressed, this.dragged), 0, Math.abs(this.dragged - this.pressed), viewport);
  }

  drawRow(row) {
    const { boxes } = this;
    const places = boxes.rows[row].boxes;
    let filled = -1; // up to this pixel: of boxes that are narrower, the first is drawn
    for (let at = boxes.after(row, this.left); at < places.length; at++) {
      const box = boxes.all[places[at]];
      if (box.start > this.right) return;
      const [left, right] = [Math.max(this.x(box.start), 0), Math.min(this.x(box.end), this.width)];
      if (right <= filled) continue;
      filled = Math.max(right, left + NARROWEST);
      this.drawBox(places[at], left, filled - left);
    }
  }

  drawBox(place, left, wide) {
    const { context } = this;
    const box = this.boxes.all[place];
    const frame = this.boxes.tree.frame[box.node];
    const y = this.row(box.row);
    const isMatch = this.matches?.[frame];
    context.globalAlpha = this.matches && !isMatch ? 0.45 : 1;
    context.fillStyle = isMatch ? MATCH : this.colours[frame];
    context.fillRect(left, y, Math.max(wide - (wide > 3 ? 1 : 0), NARROWEST), ROW - 1);
    context.globalAlpha = 1;
    const chosen = (place === this.focused && document.activeElement === this.canvas) || place === this.hovered;
    if (chosen) outline(context, left, y, wide);
    write(context, Math.floor((wide - 6) / this.letter), () => this.boxes.tree.label(box.node), left, y);
  }

  drawAxis(ink) {
    const { context, left, right, width } = this;
    const least = ((right - left) * 90) / width;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least);
    context.fillStyle = ink;
    for (let time = Math.ceil(left / step) * step; time <= right; time += step) {
      context.fillRect(this.x(time), 0, 1, 5);
      context.fillText(time ? quantity(1000 * time, "nanoseconds") : "0", this.x(time) + 3, AXIS / 2);
    }
  }

  // The box under the mouse, or -1.
  at(event) {
    const row = Math.floor((event.offsetY - AXIS + this.scroll.scrollTop) / ROW);
    const places = this.boxes.rows[row]?.boxes;
    if (!places || event.offsetY < AXIS) return -1;
    const time = this.time(event.offsetX);
    const place = places[this.boxes.after(row, time)];
    return place !== undefined && this.boxes.all[place].start <= time ? place : -1;
  }

  move(event) {
    if (this.pressed === null) return this.hover(this.at(event), event);
    this.dragged = event.offsetX;
    this.redraw();
  }

  release(event) {
    if (this.pressed === null) return;
    const [one, other] = [this.pressed, event.offsetX].sort((a, b) => a - b).map((x) => this.time(x));
    const isClick = Math.abs(event.offsetX - this.pressed) < DRAGGED;
    this.pressed = null;
    const place = isClick ? this.at(event) : -1;
    if (place >= 0) {
      this.focus(place);
      this.zoomTo(place);
    } else if (!isClick) this.zoom(one, other);
  }

  zoomTo(place) {
    const { start, end } = this.boxes.all[place];
    this.zoom(start, end);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return; // the page's own scrolling
    event.preventDefault();
    const moved = event.deltaY || event.deltaX;
    if (event.ctrlKey) this.scale(moved > 0 ? ZOOM : 1 / ZOOM, this.time(event.offsetX));
    else this.pan(moved > 0 ? 0.1 : -0.1);
  }

  pan(share) {
    const by = (this.right - this.left) * share;
    this.zoom(this.left + by, this.right + by);
  }

  hover(place, event) {
    if (place !== this.hovered) {
      this.hovered = place;
      this.redraw();
    }
    this.show.hovered(place, event);
  }

  // The first box that is to be seen, or -1.
  firstShown() {
    const { rows, all } = this.boxes;
    for (let row = 0; row < rows.length; row++) {
      const place = rows[row].boxes?.[this.boxes.after(row, this.left)];
      if (place !== undefined && all[place].start < this.right) return place;
    }
    return -1;
  }

  focus(place) {
    this.focused = place >= 0 ? place : this.firstShown();
    if (this.focused < 0) return;
    const box = this.boxes.all[this.focused];
    const y = this.row(box.row);
    if (y < AXIS) this.scroll.scrollTop += y - AXIS;
    if (y + ROW > this.viewport) this.scroll.scrollTop += y + ROW - this.viewport;
    if (box.end <= this.left || box.start >= this.right) {
      const half = (this.right - this.left) / 2;
      this.zoom(box.start - half, box.start + half);
    }
    this.show.focused(this.focused);
    this.redraw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.focused < 0) return;
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const vertical = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (sideways && event.shiftKey) this.pan(0.2 * sideways);
    else if (sideways) this.step(sideways);
    else if (vertical) this.climb(vertical);
    else if (event.key === "Enter" || event.key === " ") this.zoomTo(this.focused);
    else if (event.key === "+" || event.key === "=") this.scale(1 / ZOOM);
    else if (event.key === "-") this.scale(ZOOM);
    else return;
    event.preventDefault();
  }

  // The box before or behind, in the same row.
  step(by) {
    const { boxes } = this.boxes.rows[this.boxes.all[this.focused].row];
    const next = boxes[boxes.indexOf(this.focused) + by];
    if (next !== undefined) this.focus(next);
  }

  // The box above or below, or what comes next after it there.
  climb(by) {
    const { row, start } = this.boxes.all[this.focused];
    for (let next = row + by; next >= 0 && next < this.boxes.rows.length; next += by) {
      const { boxes } = this.boxes.rows[next];
      if (boxes) return this.focus(boxes[Math.min(this.boxes.after(next, start), boxes.length - 1)]);
    }
  }
}
