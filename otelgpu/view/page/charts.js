// Histograms and stacked bars.

const BINS = 21;

// {bounds, counts} of seconds, in bins of equal ratio: times spread over decades.
function binned(values) {
  const positive = values.filter((value) => value > 0);
  if (!positive.length) return null;
  let low = Infinity;
  let high = 0;
  for (const value of positive) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (high / low < 1.2) [low, high] = [low / 1.1, high * 1.1];
  const ratio = Math.log(high / low) / BINS;
  const counts = new Array(BINS).fill(0);
  for (const value of positive) counts[Math.min(BINS - 1, Math.floor(Math.log(value / low) / ratio))] += 1;
  return { bounds: counts.map((_, i) => low * Math.exp(ratio * (i + 1))).slice(0, -1), counts, low, high };
}

// Bars of counts, the first of which ends at bounds[0]. Each says what it is when it is pointed at.
function histogram({ bounds, counts, low = 0, high = null }, label, width = 44, height = 30) {
  const most = Math.max(1, ...counts);
  const wide = width / counts.length;
  const bars = counts.map((count, i) => {
    const tall = count ? Math.max(2, (height - 1) * (count / most)) : 0;
    const from = i ? bounds[i - 1] : low;
    const to = i < bounds.length ? bounds[i] : high;
    const range = to === null ? `over ${formatNs(from * 1e9)}` : `${formatNs(from * 1e9)} to ${formatNs(to * 1e9)}`;
    const bar = svg("rect", { x: i * wide + 0.5, y: height - tall, width: Math.max(1, wide - 1), height: tall, class: "bin" });
    bar.append(svg("title"));
    bar.firstChild.textContent = `${range}: ${count.toLocaleString("en-US")}`;
    return bar;
  });
  const base = svg("line", { x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5, class: "axis" });
  return svg("svg", { class: "histogram", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...bars, base);
}

// Without the empty ends, so that what there is fills the width.
function trimmed({ bounds, counts }) {
  let first = counts.findIndex((count) => count);
  if (first < 0) return null;
  let last = counts.length - 1;
  while (!counts[last]) last -= 1;
  first = Math.max(0, Math.min(first, last - 5));
  return {
    bounds: bounds.slice(first, last),
    counts: counts.slice(first, last + 1),
    low: first ? bounds[first - 1] : 0,
    high: last < bounds.length ? bounds[last] : null,
  };
}

// A quantile of bucket counts, by interpolation; null past the last bound.
function bucketQuantile({ bounds, counts }, share) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  let left = all * share;
  for (let i = 0; i < counts.length; i++) {
    if (left <= counts[i] && counts[i]) {
      if (i === bounds.length) return null;
      const from = i ? bounds[i - 1] : 0;
      return from + (bounds[i] - from) * (left / counts[i]);
    }
    left -= counts[i];
  }
  return null;
}

// Parts of a whole as one bar; `parts` are [class, words, nanoseconds]. `width`: a share of the room there is.
function stack(parts, width = 1) {
  const all = parts.reduce((sum, [, , ns]) => sum + ns, 0) || 1;
  const shown = formatTogether(parts.map(([, , ns]) => ns));
  const reported = parts.filter(([, , ns]) => ns > 0);
  return el("div", { class: "stack", role: "img", "aria-label": reported.map(([, words, ns]) => `${words} ${shown(ns)}`).join(", "), style: { width: `${100 * width}%` } },
    ...reported.map(([names, words, ns]) => el("span", { class: names, title: `${words}: ${shown(ns)}`, style: { width: `${(100 * ns) / all}%` } })));
}

// The same with its legend.
function stacked(parts) {
  const all = parts.reduce((sum, [, , ns]) => sum + ns, 0) || 1;
  const shown = formatTogether(parts.map(([, , ns]) => ns));
  return el("div", { class: "stacked" }, stack(parts), el("ul", {}, ...parts.filter(([, , ns]) => ns > 0).map(([names, words, ns]) =>
    el("li", {}, el("i", { class: names }), `${words} ${shown(ns)} (${((100 * ns) / all).toFixed(0)} %)`))));
}
