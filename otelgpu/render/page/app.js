// Puts the parts together.

const of = (id) => document.getElementById(id);
const data = [...document.querySelectorAll("script.batch")].map((each) => JSON.parse(each.textContent));
of("source").textContent = JSON.parse(of("about").textContent).name;

let tree = null;
let area = null; // of the heat map; null: everything
const list = new FrameList(of("side-table"), (label) => {
  of("search").value = label;
  search();
});

function numbers(node) {
  const [unit, whole] = [tree.unit, tree.total[0]];
  const parts = [`${quantity(tree.total[node], unit)}, ${percent(tree.total[node], whole)} of all`];
  if (flame.top) parts.push(`${percent(tree.total[node], tree.total[flame.top])} of what is shown`);
  parts.push(`self ${quantity(tree.own[node], unit)}`);
  if (tree.labels) {
    const [before, after] = tree.totals.map((totals) => totals[node]);
    const both = tree.labels.map((label, side) =>
      `${label} ${quantity(side ? after : before, unit)} (${percent(side ? after : before, tree.totals[side][0])})`);
    const [scaled, now] = tree.pair(tree.totals, node);
    const change = scaled > 0 ? signed(now / scaled - 1) : now > 0 ? "new" : "±0 %";
    return [both.join(" → "), `${change}${tree.equal ? " at equal totals" : ""}`];
  }
  return parts;
}

const show = {
  hovered(node, event) {
    const tip = of("tip");
    tip.hidden = node < 0;
    if (node < 0) return;
    const lines = [tree.label(node), tree.place(node), ...numbers(node)].filter(Boolean);
    tip.replaceChildren(...lines.map((line) => element("p", line)));
    const [x, y] = [event.clientX, event.clientY];
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(Math.min(x + 14, innerWidth - box.width - 6), 4)}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(y - box.height - 10, 0) : y + 18}px`;
  },
  focused(node) {
    of("status").textContent = [tree.label(node), ...numbers(node), tree.place(node)].filter(Boolean).join(" · ");
  },
  zoomed(node) {
    of("tip").hidden = true;
    show.focused(node);
    list.show(tree, node);
    matched();
  },
  drawn(narrower) {
    const notes = [];
    if (narrower) notes.push(`${narrower.toLocaleString("en")} frames too narrow to draw`);
    if (tree.negative) notes.push(`${tree.negative.toLocaleString("en")} stacks below zero left out`);
    of("note").textContent = notes.join(" · ");
  },
};
const flame = new Flame(of("flame"), of("scroll"), of("spacer"), show);
const heat = new HeatMap(of("heat-map"), of("heat-scroll"), (own, count, chosen) => {
  area = chosen;
  const seconds = chosen ? `seconds ${chosen.left} to ${chosen.right + 1}, ${chosen.first * heat.cellMs} to ${(chosen.last + 1) * heat.cellMs} ms of each` : "everything";
  of("heat-status").textContent = `${seconds}: ${count.toLocaleString("en")} observations`;
  tree.weigh(chosen ? own : tree.sides[tree.side]);
  flame.zoom(0);
});

function matched() {
  const said = of("matched");
  if (!flame.matches) return void (said.textContent = "");
  const { sum, count } = tree.matched(flame.matches, flame.top);
  said.textContent = count ? `${percent(sum, tree.total[flame.top])} under ${count.toLocaleString("en")} frames` : "no frame matches";
}

function search() {
  flame.search(of("search").value.trim());
  matched();
}

function reset() {
  of("search").value = "";
  flame.search("");
  if (area) {
    heat.clear();
    heat.report();
  } else flame.zoom(0);
}

function legend() {
  const kinds = tree.labels
    ? [[changeColour(1), "more"], [changeColour(0), "equal"], [changeColour(-1), "less"]]
    : Object.entries(KINDS).filter(([kind]) => tree.frames.kind.includes(kind)).map(([, { name, shades }]) => [shades[0], name]);
  of("legend").replaceChildren(
    ...kinds.map(([colour, name]) => {
      const sample = element("i");
      sample.style.background = colour;
      return element("li", "", sample, element("span", name));
    }),
  );
}

function choose(at) {
  const chosen = data[at];
  tree = new Tree(chosen);
  area = null;
  of("difference").hidden = !tree.labels;
  if (tree.labels) {
    const names = [...tree.labels.map((label) => `width: ${label}`), "width: both"];
    of("side").replaceChildren(...names.map((name) => element("option", name)));
    of("side").selectedIndex = tree.side;
    of("equal").checked = tree.equal;
  }
  of("heat").hidden = !chosen.heat;
  if (chosen.heat) {
    of("heat-status").textContent = chosen.heat.note;
    heat.open(tree, chosen.heat);
  }
  flame.open(tree);
  if (of("search").value.trim()) search();
  legend();
}

for (const each of data) of("type").append(element("option", `${each.type} (${each.unit})`));
of("type").hidden = !data.length;
of("type").addEventListener("change", () => choose(of("type").selectedIndex));
of("search").addEventListener("input", search);
of("reset").addEventListener("click", reset);
of("invert").addEventListener("click", () => {
  flame.invert();
  of("invert").setAttribute("aria-pressed", String(flame.icicle));
});
const compare = () => {
  tree.compare(of("side").selectedIndex, of("equal").checked);
  flame.zoom(flame.top);
};
of("side").addEventListener("change", compare);
of("equal").addEventListener("change", compare);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") reset();
  else if (["INPUT", "SELECT"].includes(document.activeElement?.tagName)) return;
  else if (event.key === "/") {
    event.preventDefault();
    of("search").focus();
  } else if (event.key === "i") of("invert").click();
});

if (data.length) choose(0);
else of("status").textContent = "Nothing was observed.";
