// What the families of spans say of how they are shown, as otelgpu/view/shown.py says it. No document in here.

let LISTS = []; // {id, title, one, kinds, columns, cards, histograms}
let DIVISIONS = []; // [{title, parts: [{colour, words, attribute}]}]: attributes that add up to a span's time
let NOTES = []; // [{attribute, words}]: what a span says is missing
let KINDS = new Map(); // id → {id, words, device, call, summed, rank, inline, served}
let RULES = new Map(); // scope → rules in the order in which they are tried
let LIST_OF_KIND = new Map();

// Kinds that spans of any program have.
const COMMON_KINDS = [
  { id: "request", words: "request" }, { id: "phase", words: "phase" },
  { id: "unattributed", words: "unattributed gpu work" }, { id: "other", words: "span" },
];

function present(shown) {
  KINDS = new Map([...COMMON_KINDS, ...shown.kinds].map((kind) => [kind.id, kind]));
  RULES = new Map();
  for (const rule of shown.rules) listAt(RULES, rule.scope).push({ ...rule, pattern: rule.name ? new RegExp(rule.name) : null });
  LISTS = [...shown.lists.map(listOf), others(shown)];
  for (const list of LISTS) list.columns = list.columns.map((column) => columnOf(column, shown));
  LIST_OF_KIND = new Map(LISTS.flatMap((list) => list.kinds.map((kind) => [kind, list.id])));
  DIVISIONS = shown.divisions;
  NOTES = shown.notes;
}

function listOf({ id, title, one, kinds, columns, cards = [], histograms = [] }) {
  return { id, title, one, kinds, columns, cards, histograms };
}
