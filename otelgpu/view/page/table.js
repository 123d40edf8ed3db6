// A table of any length: only the rows that are seen are in the document.

const ROW_HEIGHT = 23;
const isText = (column) => column.unit === "text" || column.unit === "time";
const isDuration = (column) => column.unit === "ns" || column.unit === "s";

// In nanoseconds.
function* durationsOf(column, model, items) {
  const scale = column.unit === "s" ? 1e9 : 1;
  for (const item of items) {
    const value = column.value(model, item);
    if (typeof value === "number") yield scale * value;
  }
}

class VirtualTable {
  // `onOpen(item)`: a row was chosen. Items are whatever the columns' `value(model, item)` takes.
  constructor(host, { label, onOpen, isError = () => false }) {
    Object.assign(this, { onOpen, isError, items: [], columns: [], model: null, selected: null, sort: null });
    this.chosenId = `${host.id}-chosen`;
    this.head = el("div", { role: "row", class: "head" });
    this.body = el("div", { class: "rows", role: "rowgroup" });
    this.empty = el("p", { class: "empty" });
    this.grid = el("div", { role: "grid", tabindex: "0", class: "grid", "aria-label": label },
      el("div", { role: "rowgroup", class: "headgroup" }, this.head), this.body, this.empty);
    host.replaceChildren(this.grid);
    this.grid.addEventListener("scroll", () => this.draw());
    this.grid.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.grid);
  }

  // Columns without any value are left out: most sessions have no use for half of them.
  show(model, columns, items, { sort, words }) {
    const kept = columns.filter((column) => column.unit === "time" || items.some((item) => {
      const value = column.value(model, item);
      return value !== null && value !== "";
    }));
    Object.assign(this, { model, columns: kept.length && items.length ? kept : columns, items, sort });
    this.formats = new Map(this.columns.filter(isDuration).map((column) => [column, formatTogether(durationsOf(column, model, items))]));
    this.empty.replaceChildren(...[words].flat());
    this.empty.hidden = items.length > 0;
    this.order();
    this.drawHead();
    this.draw(true);
  }

  order() {
    const column = this.columns.find((each) => each.key === this.sort?.key);
    if (!column) return;
    const values = new Map(this.items.map((item) => [item, column.value(this.model, item)]));
    const sign = this.sort.down ? -1 : 1;
    const missing = (value) => value === null || value === undefined || value === "";
    this.items = [...this.items].sort((a, b) => {
      const [x, y] = [values.get(a), values.get(b)];
      if (missing(x) || missing(y)) return Number(missing(x)) - Number(missing(y));
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    });
  }

  drawHead() {
    const widths = this.columns.map((column) => column.width).join(" ");
    this.grid.style.setProperty("--columns", widths);
    this.head.replaceChildren(...this.columns.map((column) => {
      const sorted = this.sort?.key === column.key;
      const button = el("button", {
        type: "button", tabindex: "-1", text: column.title, title: `Sort by ${column.title}; in filters: ${column.key}`,
        on: { click: () => this.sortBy(column.key) },
      });
      return el("div", {
        role: "columnheader", class: isText(column) ? "cell" : "cell number",
        "aria-sort": sorted ? (this.sort.down ? "descending" : "ascending") : "none",
      }, button);
    }));
    this.grid.setAttribute("aria-rowcount", this.items.length + 1);
    this.grid.setAttribute("aria-colcount", this.columns.length);
  }

  sortBy(key) {
    this.sort = { key, down: this.sort?.key === key ? !this.sort.down : key !== "name" };
    this.order();
    this.drawHead();
    this.grid.scrollTop = 0;
    this.draw(true);
    this.onSort?.(this.sort);
  }

  draw() {
    this.body.style.height = `${this.items.length * ROW_HEIGHT}px`;
    const first = Math.max(0, Math.floor(this.grid.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(this.items.length, first + Math.ceil(this.grid.clientHeight / ROW_HEIGHT) + 8);
    const rows = [];
    for (let i = first; i < last; i++) rows.push(this.row(i));
    this.body.replaceChildren(...rows);
    if (this.body.querySelector("#" + this.chosenId)) this.grid.setAttribute("aria-activedescendant", this.chosenId);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  row(index) {
    const item = this.items[index];
    const isSelected = item === this.selected;
    return el("div", {
      role: "row", class: `row${isSelected ? " selected" : ""}${this.isError(item) ? " error" : ""}`,
      id: isSelected ? this.chosenId : undefined, "aria-rowindex": index + 2, "aria-selected": isSelected,
      style: { top: `${index * ROW_HEIGHT}px` }, on: { click: () => this.open(index) },
    }, ...this.columns.map((column) => {
      const shown = formatCell(this.model, column.unit, column.value(this.model, item), this.formats.get(column));
      return el("span", { role: "gridcell", class: isText(column) ? "cell" : "cell number", text: shown, title: column.unit === "text" ? shown : undefined });
    }));
  }

  select(item, { reveal = false } = {}) {
    this.selected = item;
    const index = this.items.indexOf(item);
    if (reveal && index >= 0) {
      const [top, view] = [index * ROW_HEIGHT, this.grid.clientHeight - this.head.offsetHeight];
      if (top < this.grid.scrollTop) this.grid.scrollTop = top;
      else if (top + ROW_HEIGHT > this.grid.scrollTop + view) this.grid.scrollTop = top + ROW_HEIGHT - view;
    }
    this.draw();
  }

  open(index) {
    const item = this.items[index];
    if (item === undefined) return;
    this.select(item, { reveal: true });
    this.onOpen?.(item);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this.items.indexOf(this.selected);
    const page = Math.max(1, Math.floor(this.grid.clientHeight / ROW_HEIGHT) - 2);
    const moves = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.items.length - 1 };
    if (event.key in moves) {
      event.preventDefault();
      this.open(Math.min(Math.max(moves[event.key], 0), this.items.length - 1));
    }
  }
}
