// Colours of frames: by type, three shades of each so that neighbours are distinguished; in comparisons by change.

const KINDS = {
  cpython: { name: "Python", shades: ["#8fc7f2", "#7dbbec", "#a3d2f6"] },
  native: { name: "native", shades: ["#f4b981", "#efac6d", "#f8c796"] },
  kernel: { name: "kernel", shades: ["#f0dc82", "#e9d26c", "#f5e59a"] },
  gpu: { name: "GPU", shades: ["#84d9b3", "#70cfa5", "#9ae2c2"] },
  process: { name: "process", shades: ["#cdd3da", "#c4cbd3", "#d6dbe1"] },
  missing: { name: "no stack", shades: ["#d9b8c4", "#d9b8c4", "#d9b8c4"] },
  folded: { name: "narrower", shades: ["#e3e6ea", "#e3e6ea", "#e3e6ea"] },
};
const MATCH = "#e58be0";
const FRAME_INK = "#16202a";
const [GREW, SHRANK, SAME] = [[255, 118, 100], [104, 164, 255], [243, 243, 243]];

function shade(label) {
  let hash = 0;
  for (let at = 0; at < Math.min(label.length, 64); at++) hash = (hash * 31 + label.charCodeAt(at)) | 0;
  return (hash >>> 3) % 3;
}

function frameColours(tree) {
  return tree.frames.label.map((label, frame) => (KINDS[tree.frames.kind[frame]] ?? KINDS.missing).shades[shade(label)]);
}

function changeColour(change) {
  const towards = change > 0 ? GREW : SHRANK;
  const share = Math.min(Math.abs(change), 1);
  return `rgb(${SAME.map((from, at) => Math.round(from + (towards[at] - from) * share)).join(",")})`;
}
