// What is typed into the filter → a test of rows. No document in here.
//
// Words must all be found, in a cell or an id; `column>100ms` compares a column, `key=text` asks of an attribute.

const SCALES = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9, min: 60e9, k: 1e3, kib: 1024, mib: 1 << 20, gib: 1 << 30 };
const COMPARISON = /^([\w.]+)(>=|<=|>|<)(-?[\d.]+)(\D*)$/;

// A test of items by their columns: `(item) => boolean`. `attributesOf` is null where items are no spans.
function filterOf(query, columns, model, attributesOf) {
  const tests = query.trim().toLowerCase().split(/\s+/).filter(Boolean).map((word) => testOf(word, columns, model, attributesOf));
  return (item) => tests.every((test) => test(item));
}

function testOf(word, columns, model, attributesOf) {
  const comparison = COMPARISON.exec(word);
  const column = comparison && columns.find((each) => each.key === comparison[1]);
  if (column) return comparing(column, comparison, model);
  const equals = /^([^=]+)=(.*)$/.exec(word);
  if (equals && attributesOf) {
    return (item) => [...attributesOf(item)].some(([key, value]) =>
      key.toLowerCase() === equals[1] && formatValue(value).toLowerCase().includes(equals[2]));
  }
  return (item) => columns.some((each) => {
    const value = each.value(model, item);
    return each.unit === "text" && value !== null && formatValue(value).toLowerCase().includes(word);
  }) || (attributesOf !== null && (
    (word === "error" && model.isError(item)) ||
    (word.length >= 6 && (model.traceId(item).startsWith(word) || model.ids[item].startsWith(word)))));
}

function comparing(column, [, , operator, digits, unit], model) {
  const scale = column.unit === "s" ? (unit ? SCALES[unit] / 1e9 : 1) : unit ? SCALES[unit] : column.unit === "ns" ? 1e9 : 1;
  const bound = Number(digits) * (scale ?? NaN);
  const holds = { ">": (v) => v > bound, "<": (v) => v < bound, ">=": (v) => v >= bound, "<=": (v) => v <= bound }[operator];
  return (item) => {
    const value = column.value(model, item);
    return typeof value === "number" && holds(value);
  };
}
