// Finding spans in the trace that is shown: what is typed, which spans it finds, and going from one to the next.

const FIND_COLUMNS = [BUILTIN.name, BUILTIN.service, BUILTIN.duration, BUILTIN.status];

// Rows of a trace that a query finds, in the order of its lines; what is closed is searched as well.
function foundInTrace(model, trace, query) {
  if (trace === null || !query.trim()) return [];
  const holds = filterOf(query, FIND_COLUMNS, model, (row) => model.attributes(row));
  const own = linesOf(model, trace, new Set()).filter((line) => !line.lane);
  return own.flatMap((line) => line.bars).filter(holds);
}

class Find {
  // `onFound(rows)`: what is found changed. `onSelect(row)`: go there.
  constructor(input, said, { onFound, onSelect }) {
    Object.assign(this, { input, said, onFound, onSelect, model: null, trace: null, rows: [], selected: NO_ROW });
    input.addEventListener("input", () => this.search());
  }

  // The trace that is searched, and the span that is chosen in it.
  show(model, trace, selected) {
    const isNew = model !== this.model || trace !== this.trace || model.length !== this.length;
    Object.assign(this, { model, trace, selected, length: model.length });
    if (isNew) this.search();
    else this.say();
  }

  search() {
    this.rows = foundInTrace(this.model, this.trace, this.input.value);
    this.onFound(this.rows);
    this.say();
  }

  say() {
    const at = this.rows.indexOf(this.selected);
    const all = this.rows.length.toLocaleString("en-US");
    this.said.textContent = !this.input.value.trim() ? "" : !this.rows.length ? "none" : at < 0 ? all : `${(at + 1).toLocaleString("en-US")} of ${all}`;
  }

  // The next one, or with `step` -1 the one before, round and round; from the chosen span on.
  go(step = 1) {
    const { rows } = this;
    if (!rows.length) return;
    const at = rows.indexOf(this.selected);
    this.onSelect(rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : (at + step + rows.length) % rows.length]);
  }

  // Look for a name.
  look(name) {
    this.input.value = name;
    this.search();
    this.go();
  }
}
