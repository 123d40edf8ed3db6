// Batches of columns, as otelgpu/view/batch.py packs them → Model: every span seen so far is a row.
// No document and no clock in here: tests run it under Node.

const KINDS_OF_COLUMN = { I: Uint32Array, B: Uint8Array, d: Float64Array };
const NO_ROW = -1;

function unpack(text) {
  const bytes = atob(text.slice(1));
  const raw = new Uint8Array(bytes.length);
  for (let i = 0; i < bytes.length; i++) raw[i] = bytes.charCodeAt(i);
  return new KINDS_OF_COLUMN[text[0]](raw.buffer);
}

// A typed array that grows by doubling.
class Column {
  constructor(kind) {
    this.values = new kind(1024);
    this.length = 0;
  }

  push(value) {
    if (this.length === this.values.length) {
      const larger = new this.values.constructor(2 * this.length);
      larger.set(this.values);
      this.values = larger;
    }
    this.values[this.length++] = value;
  }
}

// Numbers entries by their first use; `keyOf` makes text of an entry that is none.
class Table {
  constructor(keyOf = (entry) => entry) {
    this.entries = [];
    this.codes = new Map();
    this.keyOf = keyOf;
  }

  code(entry) {
    const key = this.keyOf(entry);
    let code = this.codes.get(key);
    if (code === undefined) {
      code = this.entries.length;
      this.codes.set(key, code);
      this.entries.push(entry);
    }
    return code;
  }
}

function listAt(map, key) {
  let list = map.get(key);
  if (!list) map.set(key, (list = []));
  return list;
}

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

function hexOf(bytes, at) {
  let text = "";
  for (let i = at; i < at + 8; i++) text += HEX[bytes[i]];
  return text;
}

const SPAN_COLUMNS = {
  start: Float64Array, duration: Float64Array, trace: Uint32Array, name: Uint32Array, message: Uint32Array,
  scope: Uint32Array, resource: Uint32Array, set: Uint32Array, kind: Uint8Array, status: Uint8Array,
};

class Model {
  constructor() {
    this.base = null; // Unix nanoseconds, a BigInt; times of rows are after it
    this.strings = new Table();
    this.traces = new Table();
    this.resources = new Table(JSON.stringify);
    this.pairs = new Table(JSON.stringify); // [key, value]
    this.sets = new Table((members) => members.join());
    this.columns = Object.fromEntries(Object.entries(SPAN_COLUMNS).map(([name, kind]) => [name, new Column(kind)]));
    this.ids = []; // hex, of rows
    this.parents = new Column(Int32Array); // rows; NO_ROW: there is none, or it is not here
    this.parentIds = []; // hex; "": a root
    this.rowsOfTrace = []; // trace → rows
    this.links = new Map(); // row → [{trace, id, set}], id in hex
    this.linkedFrom = new Map(); // "trace/id" → rows that link there
    this.events = new Map(); // row → [{time, name, set}]
    this.dropped = new Map(); // row → {what: count}
    this.series = new Map();
    this.counters = new Map();
    this.rowOf = new Map(); // "trace/id" → row
    this.waiting = new Map(); // the same of parents that have not come → rows
    this.maps = []; // set → Map of its attributes, made when asked for
  }

  get length() {
    return this.ids.length;
  }

  // Take a batch. What was there keeps its row.
  append(batch) {
    const base = BigInt(batch.base);
    if (this.base === null && batch.spans.start.length > 1) this.base = base;
    const later = this.base === null ? 0 : Number(base - this.base);
    const string = batch.strings.map((text) => this.strings.code(text));
    const trace = batch.traces.map((id) => this.traces.code(id));
    const resource = batch.resources.map((attributes) => this.resources.code(attributes));
    const keys = unpack(batch.keys);
    const pair = batch.values.map((value, i) => this.pairs.code([batch.strings[keys[i]], value]));
    const [ends, members] = [unpack(batch.set_end), unpack(batch.set_pair)];
    const set = Array.from(ends, (end, i) =>
      this.sets.code(Array.from(members.subarray(i ? ends[i - 1] : 0, end), (code) => pair[code])));
    while (this.rowsOfTrace.length < this.traces.entries.length) this.rowsOfTrace.push([]);

    const spans = Object.fromEntries(Object.entries(batch.spans).map(([name, text]) => [name, unpack(text)]));
    const rows = new Int32Array(spans.start.length).fill(NO_ROW); // of the batch → here
    for (let i = 0; i < rows.length; i++) {
      const [of, id] = [trace[spans.trace[i]], hexOf(spans.id, 8 * i)];
      const key = `${of}/${id}`;
      if (this.rowOf.has(key)) {
        this.count("spans_repeated", 1); // a sender that tried again
        continue;
      }
      const row = (rows[i] = this.length);
      this.rowOf.set(key, row);
      this.ids.push(id);
      this.rowsOfTrace[of].push(row);
      const { columns } = this;
      columns.start.push(spans.start[i] + later);
      columns.duration.push(spans.duration[i]);
      columns.trace.push(of);
      columns.name.push(string[spans.name[i]]);
      columns.message.push(string[spans.message[i]]);
      columns.scope.push(string[spans.scope[i]]);
      columns.resource.push(resource[spans.resource[i]]);
      columns.set.push(set[spans.set[i]]);
      columns.kind.push(spans.kind[i]);
      columns.status.push(spans.status[i]);
      this.adopt(row, of, hexOf(spans.parent, 8 * i), key);
    }
    this.appendLinks(batch.links, rows, trace, set);
    this.appendEvents(batch.events, rows, string, set, later);
    for (const [i, what, count] of batch.dropped) {
      if (rows[i] !== NO_ROW) this.dropped.set(rows[i], { ...this.dropped.get(rows[i]), [what]: count });
    }
    for (const one of batch.series) {
      const of = resource[one.resource];
      const key = JSON.stringify([of, one.name, one.attributes, one.start, one.delta ? one.time : ""]);
      this.series.set(key, { ...one, resource: of });
    }
    for (const [name, amount] of Object.entries(batch.counters)) this.count(name, amount);
  }

  adopt(row, trace, parentId, key) {
    const isRoot = parentId === "0000000000000000";
    this.parentIds.push(isRoot ? "" : parentId);
    const parentKey = `${trace}/${parentId}`;
    const parent = isRoot ? NO_ROW : this.rowOf.get(parentKey) ?? NO_ROW;
    this.parents.push(parent === row ? NO_ROW : parent);
    if (!isRoot && parent === NO_ROW) {
      listAt(this.waiting, parentKey).push(row);
    }
    for (const child of this.waiting.get(key) ?? []) if (child !== row) this.parents.values[child] = row;
    this.waiting.delete(key);
  }

  appendLinks(columns, rows, trace, set) {
    const [span, of, sets, ids] = [columns.span, columns.trace, columns.set, columns.id].map(unpack);
    for (let i = 0; i < span.length; i++) {
      const row = rows[span[i]];
      if (row === NO_ROW) continue;
      const link = { trace: trace[of[i]], id: hexOf(ids, 8 * i), set: set[sets[i]] };
      const key = `${link.trace}/${link.id}`;
      listAt(this.links, row).push(link);
      listAt(this.linkedFrom, key).push(row);
    }
  }

  appendEvents(columns, rows, string, set, later) {
    const [span, time, name, sets] = [columns.span, columns.time, columns.name, columns.set].map(unpack);
    for (let i = 0; i < span.length; i++) {
      const row = rows[span[i]];
      if (row === NO_ROW) continue;
      const event = { time: time[i] + later, name: this.strings.entries[string[name[i]]], set: set[sets[i]] };
      listAt(this.events, row).push(event);
    }
  }

  count(name, amount) {
    this.counters.set(name, (this.counters.get(name) ?? 0) + amount);
  }

  start(row) {
    return this.columns.start.values[row];
  }

  duration(row) {
    return this.columns.duration.values[row];
  }

  end(row) {
    return this.start(row) + this.duration(row);
  }

  trace(row) {
    return this.columns.trace.values[row];
  }

  parent(row) {
    return this.parents.values[row];
  }

  kind(row) {
    return this.columns.kind.values[row];
  }

  isError(row) {
    return this.columns.status.values[row] === 2;
  }

  name(row) {
    return this.strings.entries[this.columns.name.values[row]];
  }

  message(row) {
    return this.strings.entries[this.columns.message.values[row]];
  }

  scope(row) {
    return this.strings.entries[this.columns.scope.values[row]];
  }

  traceId(row) {
    return this.traces.entries[this.trace(row)];
  }

  resource(row) {
    return this.resources.entries[this.columns.resource.values[row]];
  }

  service(row) {
    return this.resource(row).find(([key]) => key === "service.name")?.[1] ?? "";
  }

  // The row of a span named as in the page's address; NO_ROW: it is not here.
  find(traceId, id) {
    const trace = this.traces.codes.get(traceId);
    return trace === undefined ? NO_ROW : this.rowOf.get(`${trace}/${id}`) ?? NO_ROW;
  }

  attributes(row) {
    return this.attributesOf(this.columns.set.values[row]);
  }

  attributesOf(set) {
    return (this.maps[set] ??= new Map(this.sets.entries[set].map((pair) => this.pairs.entries[pair])));
  }

  // Unix milliseconds, for Date; nanoseconds are in `unixNs`.
  unixMs(time) {
    return Number((this.base ?? 0n) / 1000000n) + time / 1e6;
  }

  unixNs(time) {
    return (this.base ?? 0n) + BigInt(Math.round(time));
  }
}
