// Frames by their own or their total share of what is zoomed to.

const MOST_ROWS = 200;

class FrameList {
  constructor(place, chosen) {
    [this.place, this.chosen, this.by] = [place, chosen, "own"];
  }

  show(tree, top) {
    [this.tree, this.top] = [tree, top];
    const { own, total } = tree.byFrame(top);
    const values = this.by === "own" ? own : total;
    const whole = tree.total[top];
    const frames = [...values.keys()].filter((frame) => total[frame] > 0 && tree.frames.kind[frame] !== "folded");
    frames.sort((one, other) => values[other] - values[one] || total[other] - total[one] || one - other);
    const head = element("tr", "", element("th", "Frame"));
    for (const [key, name] of [["own", "Self"], ["total", "Total"]]) {
      const button = element("button", this.by === key ? `${name} ▾` : name);
      button.type = "button";
      button.addEventListener("click", () => {
        this.by = key;
        this.show(this.tree, this.top);
      });
      const cell = element("th", "", button);
      cell.setAttribute("aria-sort", this.by === key ? "descending" : "none");
      head.append(cell);
    }
    const rows = frames.slice(0, MOST_ROWS).map((frame) => {
      const label = tree.frames.label[frame];
      const button = element("button", label);
      button.type = "button";
      button.title = label;
      button.addEventListener("click", () => this.chosen(frame));
      return element(
        "tr",
        "",
        element("td", "", button),
        element("td", percent(own[frame], whole)),
        element("td", percent(total[frame], whole)),
      );
    });
    this.place.replaceChildren(element("table", "", element("thead", "", head), element("tbody", "", ...rows)));
  }
}
