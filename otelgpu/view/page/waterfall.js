// A trace as lines under an axis. Only the lines that are seen are in the document.

const LINE_HEIGHT = 22;

class Waterfall {
  // `onSelect(row)`: a span was chosen, of this trace or of another. `onLook()`: another part of the time is looked at.
  constructor(host, { onSelect, onLook }) {
    this.onSelect = onSelect;
    this.timeline = new Timeline(() => { this.draw(); onLook(); });
    this.axis = el("div", { class: "axis", "aria-hidden": "true" });
    this.body = el("div", { class: "lines", role: "none" });
    this.tree = el("div", { class: "tree", role: "tree", tabindex: "0", "aria-label": "Spans" }, this.body);
    this.legend = el("div", { class: "legend", role: "list", "aria-label": "Colours" });
    // Above the lines in the same scrolling box: so they are as wide as the lines.
    this.head = el("div", { class: "above" },
      el("div", { class: "strip-line" }, el("div", { class: "label note", text: "Whole trace" }), this.timeline.canvas),
      el("div", { class: "axis-line" }, el("div", { class: "label", text: "Span" }), this.axis));
    this.view = el("div", { class: "view" }, this.head, this.tree);
    host.replaceChildren(this.view, this.legend);
    this.view.addEventListener("scroll", () => this.draw());
    this.tree.addEventListener("keydown", (event) => this.key(event));
    this.tree.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    new ResizeObserver(() => this.draw()).observe(this.view);
    Object.assign(this, { model: null, trace: null, lines: [], closed: new Set(), found: new Set(), selected: NO_ROW });
  }

  // Show a span in its trace. The part that is looked at stays while the trace does.
  show(model, row) {
    const trace = row === NO_ROW ? null : model.trace(row);
    const isNew = model !== this.model || trace !== this.trace;
    const spans = trace === null ? 0 : model.rowsOfTrace[trace].length;
    if (isNew) this.closed = new Set();
    if (isNew || spans !== this.spans) {
      Object.assign(this, { model, trace, spans });
      this.lay(isNew);
    }
    this.selected = row;
    this.open(row);
    if (isNew) this.view.scrollTop = 0;
    this.reveal();
    this.draw();
  }

  lay(isNew) {
    this.lines = this.trace === null ? [] : linesOf(this.model, this.trace, this.closed);
    let [from, to] = [Infinity, -Infinity];
    const [bars, looks] = [[], new Map()];
    this.lines.forEach((line, i) => line.bars.forEach((bar) => {
      if (!line.lane) [from, to] = [Math.min(from, this.model.start(bar)), Math.max(to, this.model.end(bar))];
      const look = lookOf(this.model, bar);
      looks.set(look.names, look.words);
      bars.push([this.model.start(bar), this.model.end(bar), i, look.colour]);
    }));
    const { timeline } = this;
    if (isNew || timeline.isWhole) timeline.set(from, to);
    timeline.fill(bars, this.lines.length);
    this.arrivals = this.trace === null ? null : arrivals(this.model, this.trace);
    this.explain(looks);
  }

  // All that is drawn, for whoever has not seen it before.
  explain(looks) {
    const samples = [...looks].map(([names, words]) => [`bar ${names}`, words]);
    if (this.lines.some((line) => line.bars.some((bar) => this.model.isError(bar)))) samples.push(["bar bad", "failed"]);
    if (this.arrivals) samples.push(["mark first", "first rank called"], ["mark last", "last rank called"]);
    this.legend.replaceChildren(...samples.map(([names, words]) => el("span", { role: "listitem" }, el("i", { class: names }), words)));
  }

  // Open what a span is under.
  open(row) {
    let opened = false;
    for (let up = row === NO_ROW ? NO_ROW : this.model.parent(row); up !== NO_ROW; up = this.model.parent(up)) {
      opened = this.closed.delete(up) || opened;
      if (up === row) break;
    }
    if (opened) this.lay(false);
  }

  lineOf(row) {
    const own = this.lines.findIndex((line) => line.row === row && !line.lane);
    return own >= 0 ? own : this.lines.findIndex((line) => !line.lane && line.bars.includes(row));
  }

  reveal() {
    const top = this.lineOf(this.selected) * LINE_HEIGHT;
    const { view } = this;
    const seen = view.clientHeight - this.head.offsetHeight;
    if (top < 0) return;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + LINE_HEIGHT > view.scrollTop + seen) view.scrollTop = top + LINE_HEIGHT - seen;
  }

  draw() {
    this.body.style.height = `${this.lines.length * LINE_HEIGHT}px`;
    const first = Math.max(0, Math.floor(this.view.scrollTop / LINE_HEIGHT) - 3);
    const last = Math.min(this.lines.length, first + Math.ceil(this.view.clientHeight / LINE_HEIGHT) + 6);
    const drawn = [];
    for (let i = first; i < last; i++) drawn.push(this.line(i));
    this.body.replaceChildren(...drawn);
    if (this.lineOf(this.selected) >= 0) this.tree.setAttribute("aria-activedescendant", "selected-line");
    else this.tree.removeAttribute("aria-activedescendant");
    this.drawAxis();
  }

  // Ticks are offsets from the left edge, whose own time is said there: so they stay short however far one zooms.
  drawAxis() {
    const { timeline } = this;
    const { first, last, from } = timeline;
    const width = this.axis.clientWidth;
    const step = niceStep(last - first, Math.max(2, width / 110));
    const shown = formatTicks(last - first, step);
    const isBegin = first === from;
    const ticks = [el("span", { class: "edge", text: isBegin ? "0" : formatTicks(first - from, step / 100)(first - from), title: "after the trace's begin" })];
    for (let n = 1; n < 40 && ((n * step) / (last - first)) * width < width - 56; n++) {
      ticks.push(el("span", { text: `${isBegin ? "" : "+"}${shown(n * step)}`, style: { left: `${(100 * n * step) / (last - first)}%` } }));
    }
    for (const [time, names, words] of this.arrivals ? [[this.arrivals.first, "mark first", "first"], [this.arrivals.last, "mark last", "last"]] : []) {
      const place = timeline.place(time);
      if (place >= 0 && place <= 1) ticks.push(el("b", { class: names, title: `${words} rank called`, style: { left: `${100 * place}%` } }));
    }
    this.axis.replaceChildren(...ticks);
  }

  line(index) {
    const { model } = this;
    const { row, depth, bars, more, lane, peer } = this.lines[index];
    const isSelected = !lane && bars.includes(this.selected);
    const label = el("div", { class: "label", style: { paddingLeft: `${6 + 12 * Math.min(depth, 12)}px` } },
      el("button", {
        type: "button", class: "twist", tabindex: "-1", "aria-hidden": "true", text: more && !lane ? (this.closed.has(row) ? "▸" : "▾") : "",
        on: { click: (event) => { event.stopPropagation(); this.turn(row); } },
      }), ...this.words(row, bars, lane, peer));
    const track = el("div", { class: "track" }, ...bars.map((bar) => this.bar(bar, lane)));
    if (this.arrivals && traits(model, row).rank) this.mark(track);
    return el("div", {
      role: "treeitem", class: `line${isSelected ? " selected" : ""}${lane ? " lane" : ""}${!lane && bars.some((bar) => this.found.has(bar)) ? " found" : ""}`, id: isSelected ? "selected-line" : undefined,
      "aria-level": depth + 1, "aria-selected": isSelected, "aria-expanded": more && !lane ? String(!this.closed.has(row)) : undefined,
      "aria-posinset": index + 1, "aria-setsize": this.lines.length, style: { top: `${index * LINE_HEIGHT}px` },
      on: { click: () => (lane ? undefined : this.onSelect(row)) },
    }, label, track);
  }

  words(row, bars, lane, peer) {
    const { model } = this;
    if (peer) return [el("span", { class: "name", text: `rank ${placeOf(model, row).rank}, the same step` })];
    if (lane) return [el("span", { class: "name", text: `${bars.length} ${traits(model, bars[0]).words}${bars.length === 1 ? "" : "s"} that served it` })];
    const attributes = model.attributes(row);
    const { device, rank, peers } = traits(model, row);
    const of = rank ? formatValue(attributes.get(rank) ?? "?") : peers ? placeOf(model, row)?.rank : undefined;
    const name = of === undefined ? model.name(row) : `rank ${of}  ${model.name(row)}`;
    const calls = callsOf(model, row);
    const words = [el("span", { class: "name", text: name, title: name })];
    if (calls > 1) words.push(el("span", { class: "times", text: `×${calls}`, title: "equal calls, reported as one" }));
    if (device) words.push(el("span", { class: "tag gpu", text: "GPU", title: "time on the device, as it measured it" }));
    if (model.isError(row)) words.push(el("span", { class: "tag bad", text: formatValue(attributes.get("error.type") ?? "error") }));
    if (this.arrivals?.lastRow === row) {
      words.push(el("span", { class: "tag late", text: `last, +${formatNs(this.arrivals.last - this.arrivals.first)}` }));
    }
    return words;
  }

  bar(row, lane) {
    const { model, timeline } = this;
    const [from, to] = [timeline.place(model.start(row)), timeline.place(model.end(row))];
    const words = `${model.name(row)}, ${traits(model, row).words}, ${formatNs(model.duration(row))}`;
    const bar = el("span", {
      class: `bar ${lookOf(model, row).names}${model.isError(row) ? " bad" : ""}${row === this.selected ? " chosen" : ""}`,
      title: words, "data-span": model.ids[row], style: { left: `${100 * from}%`, width: `${100 * (to - from)}%` },
      on: { click: (event) => { event.stopPropagation(); this.onSelect(row); } },
    });
    if (to < 0 || from > 1) bar.hidden = true;
    if (lane && kindOf(model, row) !== "training") return bar;
    const isBefore = to > 0.86;
    const figure = el("span", {
      class: "figure", text: formatNs(model.duration(row)),
      style: isBefore ? { right: `${100 * Math.max(0, 1 - Math.max(from, 0))}%` } : { left: `${100 * Math.max(0, to)}%` },
    });
    figure.hidden = bar.hidden;
    if (isBefore && from < 0.1) Object.assign(figure.style, { right: "0", left: "auto" });
    if (isBefore && from < 0.1) figure.classList.add("inside");
    return traits(model, row).inline ? bar : el("span", { class: "with-figure" }, bar, figure);
  }

  // Where the first and the last rank called, on the lines of all ranks.
  mark(track) {
    for (const [time, names] of [[this.arrivals.first, "mark first"], [this.arrivals.last, "mark last"]]) {
      const place = this.timeline.place(time);
      if (place >= 0 && place <= 1) track.append(el("b", { class: names, style: { left: `${100 * place}%` } }));
    }
  }

  turn(row, open = this.closed.has(row)) {
    if (open) this.closed.delete(row);
    else this.closed.add(row);
    this.lay(false);
    this.draw();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = this.axis.getBoundingClientRect();
    const { timeline } = this;
    const at = timeline.first + ((event.clientX - box.left) / box.width) * (timeline.last - timeline.first);
    timeline.zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { timeline } = this;
    const at = this.lineOf(this.selected);
    const line = this.lines[at];
    const to = (index) => {
      const step = index < at ? -1 : 1;
      let found = Math.min(Math.max(index, 0), this.lines.length - 1);
      while (this.lines[found]?.lane) found += step;
      if (this.lines[found]) this.onSelect(this.lines[found].row);
    };
    const actions = {
      ArrowDown: () => to(at + 1), j: () => to(at + 1), ArrowUp: () => to(at - 1), k: () => to(at - 1),
      Home: () => to(0), End: () => to(this.lines.length - 1),
      ArrowRight: () => (line?.more && this.closed.has(line.row) ? this.turn(line.row, true) : to(at + 1)),
      ArrowLeft: () => (line?.more && !this.closed.has(line.row) ? this.turn(line.row, false) : line && this.model.parent(line.row) !== NO_ROW && this.onSelect(this.model.parent(line.row))),
      "+": () => timeline.zoom(0.5), "=": () => timeline.zoom(0.5), "-": () => timeline.zoom(2),
      0: () => timeline.look(timeline.from, timeline.to), "<": () => timeline.shift(-0.25), ">": () => timeline.shift(0.25),
      z: () => line && timeline.look(this.model.start(line.row), this.model.end(line.row)),
    };
    if (event.key in actions) {
      event.preventDefault();
      actions[event.key]();
    }
  }
}
