// Numbers as people read them. No document in here.

const NO_VALUE = "–";

function significant(value) {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
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

function formatCell(model, unit, value) {
  if (value === null || value === undefined || value === "") return NO_VALUE;
  if (typeof value !== "number") return formatValue(value);
  switch (unit) {
    case "time": return formatClock(model.unixMs(value));
    case "ns": return formatNs(value);
    case "s": return formatNs(value * 1e9);
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
