// The lower half: one trace, as a waterfall or by name, with what is known of the chosen span.

class TracePane {
  // `onSelect(row)`: a span was chosen, of this trace or of another. `backButton()`: made anew for each span.
  constructor({ onSelect, backButton }) {
    Object.assign(this, { onSelect, backButton, model: null, row: NO_ROW });
    this.waterfall = new Waterfall($("waterfall"), { onSelect, onLook: () => this.group() });
    this.find = new Find($("find"), $("found"), {
      onSelect, onFound: (rows) => { this.waterfall.found = new Set(rows); this.waterfall.draw(); },
    });
    this.groups = new VirtualTable($("groups"), { label: "Spans by name", onOpen: (sum) => this.find.look(sum.name), isError: (sum) => sum.errors > 0 });
    const { timeline } = this.waterfall;
    const actions = {
      "zoom-out": () => timeline.zoom(2), "zoom-in": () => timeline.zoom(0.5), "zoom-all": () => timeline.look(timeline.from, timeline.to),
      "by-name": () => this.turn(),
    };
    for (const [id, action] of Object.entries(actions)) $(id).addEventListener("click", action);
  }

  // `words`: what to say where no span is chosen.
  show(model, row, words) {
    const isChosen = row !== NO_ROW;
    document.body.classList.toggle("chosen", isChosen);
    Object.assign(this, { model, row });
    if (!isChosen) {
      $("trace-title").replaceChildren(this.backButton(), el("span", { class: "note", text: words }));
      $("details").replaceChildren();
      this.detailed = null;
      this.waterfall.show(model, NO_ROW);
      return;
    }
    const rows = model.rowsOfTrace[model.trace(row)];
    const services = [...new Set(rows.map((each) => model.service(each)).filter(Boolean))];
    $("trace-title").replaceChildren(
      this.backButton(), el("h2", { text: model.name(rows.find((each) => model.parent(each) === NO_ROW) ?? row) }),
      el("code", { text: model.traceId(row) }),
      el("span", { class: "note", text: `${rows.length.toLocaleString("en-US")} ${rows.length === 1 ? "span" : "spans"}${services.length ? `, ${services.slice(0, 3).join(", ")}` : ""}` }));
    this.waterfall.show(model, row);
    this.find.show(model, model.trace(row), row);
    this.group();
    const key = `${row} ${rows.length}`;
    if (key !== this.detailed || model !== this.detailedModel) $("details").replaceChildren(...details(model, row, this.onSelect));
    [this.detailed, this.detailedModel] = [key, model];
  }

  // Between the waterfall and the sums by name.
  turn() {
    const isByName = $("groups").hidden;
    $("groups").hidden = !isByName;
    $("waterfall").hidden = isByName;
    $("by-name").setAttribute("aria-pressed", isByName);
    this.group();
    (isByName ? this.groups.grid : this.waterfall.tree).focus();
  }

  // Sums of what is under the chosen span, in the part of the time that is looked at.
  group() {
    if ($("groups").hidden || this.row === NO_ROW) return;
    const { timeline } = this.waterfall;
    const rows = timeline.isWhole ? rowsUnder(this.model, this.row) : rowsUnder(this.model, this.row, timeline.first, timeline.last);
    this.groups.show(this.model, SUM_COLUMNS, sumsByName(this.model, rows), {
      sort: this.groups.sort ?? { key: "total", down: true }, words: "No span begins in the part of the time that is looked at: 0 shows all of it.",
    });
  }

  // Whether a key was for the trace.
  key(event) {
    const actions = { n: () => this.find.go(1), N: () => this.find.go(-1), g: () => this.turn() };
    if (this.row === NO_ROW || !(event.key in actions)) return false;
    event.preventDefault();
    actions[event.key]();
    return true;
  }
}
