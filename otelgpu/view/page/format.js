// Numbers as people read them. No document in here.

const NO_VALUE = "–";

function significant(value) {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 1 || !size ? value.toFixed(2) : value.toPrecision(3);
}

function formatNs(ns) {
  const size = Math.abs(ns);
  if (size === 0) return "0";
  if (size < 1e3) return `${significant(ns)} ns`;
  if (size < 1e6) return `${significant(ns / 1e3)} µs`;
  if (size < 1e9) return `${significant(ns / 1e6)} ms`;
  if (size < 120e9) return `${significant(ns / 1e9)} s`;
  if (size < 7200e9) return `${significant(ns / 60e9)} min`;
  return `${significant(ns / 3600e9)} h`;
}

const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const MOST_RATIO = 1e4; // of durations in one unit: beyond it the short ones would be rows of zeros

const unitOf = (ns) => TIME_UNITS.find(([size]) => Math.abs(ns) >= size) ?? TIME_UNITS[TIME_UNITS.length - 1];

// Durations that are read side by side → one way to write them all, in the unit of the longest if they allow it.
function formatTogether(durations) {
  let [shortest, longest] = [Infinity, 0];
  for (const ns of durations) {
    if (!(ns > 0)) continue;
    [shortest, longest] = [Math.min(shortest, ns), Math.max(longest, ns)];
  }
  if (longest > MOST_RATIO * shortest || longest >= 120e9) return formatNs;
  const [size, name] = unitOf(longest);
  return (ns) => (ns === 0 ? "0" : `${significant(ns / size)} ${name}`);
}

// Labels of an axis: all in one unit, with the digits that tell times `step` apart.
function formatTicks(longest, step) {
  const [size, name] = unitOf(longest);
  const digits = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9));
  return (ns) => `${(ns / size).toFixed(digits)} ${name}`;
}

function formatBytes(bytes) {
  let [value, unit] = [bytes, "B"];
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(value) < 1024) break;
    [value, unit] = [value / 1024, larger];
  }
  return unit === "B" ? `${value} B` : `${significant(value)} ${unit}`;
}

function formatClock(unixMs) {
  const date = new Date(unixMs);
  if (Number.isNaN(date.getTime())) return NO_VALUE;
  return `${date.toTimeString().slice(0, 8)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

// `formatDuration`: how its column writes nanoseconds.
function formatCell(model, unit, value, formatDuration = formatNs) {
  if (value === null || value === undefined || value === "") return NO_VALUE;
  if (typeof value !== "number") return formatValue(value);
  switch (unit) {
    case "time": return formatClock(model.unixMs(value));
    case "ns": return formatDuration(value);
    case "s": return formatDuration(value * 1e9);
    case "By": return formatBytes(value);
    case "count": return value.toLocaleString("en-US");
  }
  return String(value);
}

// An attribute's value; {"$": text} is what JSON's numbers cannot hold.
function formatValue(value) {
  if (Array.isArray(value)) return value.map(formatValue).join(", ");
  if (value !== null && typeof value === "object") return String(value.$);
  return String(value);
}

// With the unit that the attribute's name implies, if any: seconds and bytes are hard to read bare.
function formatAttribute(key, value) {
  const shown = formatValue(value);
  if (typeof value !== "number") return shown;
  if (/^gen_ai\.latency\.|\.time_to_|time_per_output_token|chunk_gap\.|\.skew$|\.lateness$|gpu\.time$|attributed_time$|\.duration$|\.delay$|ack_timeout$/.test(key)) {
    return `${shown} s (${formatNs(value * 1e9)})`;
  }
  if (/\.size$|_bytes$|\.bytes$|shared_memory/.test(key)) return value < 1024 ? `${shown} B` : `${shown} (${formatBytes(value)})`;
  if (/\.bandwidth$/.test(key)) return `${shown} (${significant(value / 1e9)} GB/s)`;
  return shown;
}

function quantile(sorted, share) {
  if (!sorted.length) return null;
  const at = (sorted.length - 1) * share;
  const [low, high] = [sorted[Math.floor(at)], sorted[Math.ceil(at)]];
  return low + (high - low) * (at - Math.floor(at));
}

// Round steps for an axis: about `count` of them in `span`.
function niceStep(span, count) {
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
}
