// Devices' memory: a bar for the peak and one for the last look, in them the categories; and the places that held most.

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#737373"];

const { report, sentences, categories } = given();
const NAMES = Object.keys(categories);

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; bytes >= 1024 && at < units.length - 1; at++) bytes /= 1024;
  return `${at ? bytes.toFixed(1) : bytes} ${units[at]}`;
}

const colour = (category) => COLOURS[NAMES.indexOf(category) % COLOURS.length];

function bar(held, most) {
  const made = element("div", "", "held");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", held.categories.map((each) => `${each.category} ${size(each.bytes)}`).join(", "));
  held.categories.forEach((each) => {
    const part = element("span", "");
    part.style.setProperty("--sample", colour(each.category));
    part.style.width = `${each.bytes / Math.max(most, 1) * 100}%`;
    part.title = `${each.category}: ${size(each.bytes)} ${each.evidence.join("; ")}`;
    made.append(part);
  });
  return made;
}

function shown(device) {
  const box = element("section", "");
  box.append(element("h2", `${device.program} (PID ${device.pid}), ${device.device >= 0 ? `device ${device.device}` : "a device"}`));
  [device.peak, device.now].forEach((held) => {
    const driver = held.charged === null ? "" : `; the driver charges ${size(held.charged)}`;
    box.append(element("p", `${held.when}: ${size(held.bytes)}${driver}`), bar(held, device.peak.bytes));
  });
  const table = document.createElement("table");
  table.append(rowOf(["category", "at the peak", "share", "by"], "th"));
  device.peak.categories.forEach((each) => table.append(rowOf([each.category, size(each.bytes),
    `${(each.share * 100).toFixed(1)} %`, each.evidence.join("; ")], "td")));
  const places = document.createElement("table");
  places.append(rowOf(["place", "bytes", "number", "lifetime", "category", "stack"], "th"));
  device.places.forEach((each) => places.append(rowOf([each.python.join(" ← "),
    size(each.bytes), each.allocations === null ? "" : String(each.allocations),
    each.lifetime_s === null ? "kept" : seconds(each.lifetime_s), each.category, each.stack.slice(0, 6).join(" ← ")], "td")));
  box.append(table, element("h3", "Places that held most at the peak"), places);
  return box;
}

showVerdicts(report, sentences,
  `${counted(report.input.snapshots, "look")} in ${seconds(report.input.seconds)}, ${counted(report.input.failures, "failed allocation")}, ${report.input.recovered} recovered`,
  "Nothing was found: nothing grows, and no allocation failed that mattered.");
NAMES.forEach((name) => {
  const sample = element("span", name);
  sample.style.setProperty("--sample", colour(name));
  sample.title = categories[name];
  byId("legend").append(sample);
});
report.devices.forEach((device) => byId("devices").append(shown(device)));
report.remarks.forEach((remark) => byId("remarks").append(element("li", remark)));
