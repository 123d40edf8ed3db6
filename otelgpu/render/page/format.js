// Numbers as they are read.

const STEPS = {
  nanoseconds: [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]],
  bytes: [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
};

function quantity(value, unit) {
  const steps = STEPS[unit];
  if (!steps) return `${Math.round(value).toLocaleString("en")} ${unit}`;
  const [size, name] = steps.find(([size]) => Math.abs(value) >= size) ?? steps[steps.length - 1];
  const scaled = value / size;
  const digits = size === 1 ? 0 : scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2;
  return `${scaled.toFixed(digits)} ${name}`;
}

function percent(part, whole) {
  if (!(whole > 0) || !part) return "0 %";
  const share = (100 * part) / whole;
  return share > 0 && share < 0.01 ? "<0.01 %" : `${share.toFixed(share < 10 ? 2 : 1)} %`;
}

function signed(share) {
  return `${share > 0 ? "+" : share < 0 ? "−" : "±"}${Math.abs(100 * share).toFixed(1)} %`;
}

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}
