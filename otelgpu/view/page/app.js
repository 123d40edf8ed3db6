// The page: what is listed, what is chosen, where one can go back to, and new data as it comes.
//
// The address after # is the state: #/LIST/TRACE/SPAN. So links can be copied and the browser's Back works.

const CALLS = "calls";
const UNSEEN = "unseen";
const POLL_MS = 1000;
const MOST_SPANS = 400000; // of a page that follows a file: beyond it only the newest are kept

class App {
  constructor(about) {
    this.about = about;
    this.model = new Model();
    this.filters = {};
    this.sorts = {};
    this.table = new VirtualTable($("table"), {
      label: "List", onOpen: (item) => typeof item === "number" && this.go(item),
      isError: (item) => (typeof item === "number" ? this.model.isError(item) : item.errors > 0),
    });
    this.table.onSort = (sort) => { this.sorts[this.state.list] = sort; };
    this.waterfall = new Waterfall($("waterfall"), { onSelect: (row) => this.go(row) });
    this.state = { list: "requests", trace: "", span: "" };
    $("source").textContent = about.name;
    $("filter").addEventListener("input", () => { this.filters[this.state.list] = $("filter").value; this.list(); });
    $("help-button").addEventListener("click", () => this.help());
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("popstate", () => this.read()); // back, forward, or another address after #
    this.splitter();
  }

  // Data were added: show what there is now, without moving what is looked at.
  refresh() {
    this.rows = rowsOfLists(this.model);
    this.tabs();
    this.read();
  }

  // How many links were followed from where the page was opened.
  get depth() {
    return history.state?.depth ?? 0;
  }

  read() {
    const [, list, trace, span] = location.hash.slice(1).split("/");
    const firstWithRows = LISTS.find((each) => this.rows[each.id].length)?.id ?? "requests";
    const known = [...LISTS.map((each) => each.id), CALLS, UNSEEN];
    this.state = { list: known.includes(list) ? list : firstWithRows, trace: trace ?? "", span: span ?? "" };
    this.draw();
  }

  draw() {
    const { list, trace, span } = this.state;
    for (const tab of $("tabs").children) {
      const isOn = tab.dataset.list === list;
      tab.setAttribute("aria-selected", isOn);
      tab.tabIndex = isOn ? 0 : -1;
    }
    const isAlone = list === CALLS || list === UNSEEN;
    document.body.classList.toggle("alone", isAlone);
    document.body.classList.toggle("prose", list === UNSEEN);
    $("filter").value = this.filters[list] ?? "";
    this.list();
    if (!isAlone) this.show(trace && span ? this.model.find(trace, span) : NO_ROW);
  }

  tabs() {
    const losses = sumOf(lossesOf(this.model).map((each) => each.count)) + sumOf([...this.model.counters].map(([name, count]) => (FILE_WORDS[name] ? count : 0)));
    const calls = (this.calls = callsByName(this.model));
    const wanted = [
      ...LISTS.filter((each) => each.id === "requests" || this.rows[each.id].length).map((each) => [each.id, each.title, this.rows[each.id].length]),
      ...(calls.length ? [[CALLS, "GPU calls", sumOf(calls.filter((each) => !KINDS.get(each.kind).device).map((each) => each.calls))]] : []),
      [UNSEEN, "Not seen", losses],
    ];
    const hadFocus = $("tabs").contains(document.activeElement);
    $("tabs").replaceChildren(...wanted.map(([id, title, count], i) => el("button", {
      type: "button", role: "tab", id: `tab-${id}`, "data-list": id, "aria-keyshortcuts": i < 9 ? String(i + 1) : undefined,
      class: id === UNSEEN && count ? "warned" : undefined,
      on: { click: () => this.turnTo(id), keydown: (event) => this.tabKey(event) },
    }, title, " ", el("small", { text: count.toLocaleString("en-US") }))));
    if (hadFocus) $(`tab-${this.state.list}`)?.focus();
  }

  tabKey(event) {
    const tabs = [...$("tabs").children];
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    const next = tabs[(tabs.indexOf(event.currentTarget) + move + tabs.length) % tabs.length];
    next.click();
    $(next.id).focus();
  }

  turnTo(list) {
    this.navigate(`#/${list}`);
  }

  // To a span: in the list that is open if it is there.
  go(row) {
    const list = this.listOf(row);
    this.navigate(`#/${list}/${this.model.traceId(row)}/${this.model.ids[row]}`);
  }

  listOf(row) {
    const own = LIST_OF_KIND.get(kindOf(this.model, row));
    const { list, trace } = this.state;
    if (this.model.traceId(row) === trace) return list;
    return own && this.rows[own].includes(row) ? own : this.rows[list]?.includes(row) ? list : own ?? (this.rows[list] ? list : "others");
  }

  navigate(hash) {
    if (location.hash === hash) return;
    history.pushState({ depth: this.depth + 1 }, "", hash);
    this.read();
  }

  back() {
    if (this.depth > 0) history.back();
  }

  list() {
    const { list } = this.state;
    const { model } = this;
    const definition = LISTS.find((each) => each.id === list);
    if (list === UNSEEN) {
      $("count").textContent = "";
      $("cards").replaceChildren();
      const page = notSeen(model);
      $("unseen")?.remove();
      page.id = "unseen";
      $("listing").append(page);
      return;
    }
    $("unseen")?.remove();
    const columns = definition?.columns ?? CALL_COLUMNS;
    const all = definition ? this.rows[list] : this.calls;
    const holds = filterOf(this.filters[list] ?? "", columns, model, definition ? (row) => model.attributes(row) : null);
    const items = all.filter(holds);
    const chosen = definition ? this.chosenOf(items) : this.table.selected;
    this.table.selected = chosen;
    this.fit(all.length);
    this.table.show(model, columns, items, {
      sort: this.sorts[list] ?? (definition ? { key: "time", down: Boolean(this.about.live) } : { key: "total", down: true }),
      words: all.length ? "Nothing listed matches the filter." : this.about.live ? "Nothing yet: the page follows the file." : "The data hold none.",
    });
    const errors = definition ? items.filter((row) => model.isError(row)).length : 0;
    $("count").textContent = `${items.length === all.length ? "" : `${items.length.toLocaleString("en-US")} of `}${all.length.toLocaleString("en-US")}${errors ? `, ${errors.toLocaleString("en-US")} failed` : ""}`;
    $("cards").replaceChildren(...(definition ? cards(model, definition, items) : []));
  }

  // The listed span that is chosen, or whose trace has the chosen one.
  chosenOf(items) {
    const { trace, span } = this.state;
    if (!trace) return null;
    const row = this.model.find(trace, span);
    const listed = new Set(items);
    for (let up = row, steps = 0; up !== NO_ROW && steps < 100; up = this.model.parent(up), steps++) if (listed.has(up)) return up;
    const code = this.model.traces.codes.get(trace);
    return code === undefined ? null : this.model.rowsOfTrace[code].find((each) => listed.has(each)) ?? null;
  }

  show(row) {
    const { model } = this;
    const isChosen = row !== NO_ROW;
    document.body.classList.toggle("chosen", isChosen);
    if (!isChosen) {
      const words = this.state.span ? "That span is not in the data." : "Choose a line above: its trace is shown here.";
      $("trace-head").replaceChildren(el("span", { class: "note", text: words }), this.backButton());
      $("details").replaceChildren();
      this.waterfall.show(model, NO_ROW);
      return;
    }
    const rows = model.rowsOfTrace[model.trace(row)];
    const services = [...new Set(rows.map((each) => model.service(each)).filter(Boolean))];
    const zoom = (title, words, action) => el("button", { type: "button", title, "aria-label": title, text: words, on: { click: action } });
    const { timeline } = this.waterfall;
    $("trace-head").replaceChildren(
      this.backButton(), el("h2", { text: model.name(rows.find((each) => model.parent(each) === NO_ROW) ?? row) }),
      el("code", { text: model.traceId(row) }),
      el("span", { class: "note", text: `${rows.length.toLocaleString("en-US")} ${rows.length === 1 ? "span" : "spans"}${services.length ? `, ${services.slice(0, 3).join(", ")}` : ""}` }),
      el("span", { class: "zoom" }, zoom("Zoom out (-)", "−", () => timeline.zoom(2)), zoom("Zoom in (+)", "+", () => timeline.zoom(0.5)), zoom("Whole trace (0)", "Fit", () => timeline.look(timeline.from, timeline.to))));
    this.waterfall.show(model, row);
    const key = `${this.state.trace}/${this.state.span}/${rows.length}`;
    if (key !== this.detailed || this.model !== this.detailedModel) $("details").replaceChildren(...details(model, row, (to) => this.go(to)));
    [this.detailed, this.detailedModel] = [key, this.model];
  }

  backButton() {
    return el("button", { type: "button", id: "back", title: "Back (Backspace)", disabled: this.depth <= 0, text: "← Back", on: { click: () => this.back() } });
  }

  key(event) {
    const isTyping = event.target instanceof HTMLInputElement;
    if (event.key === "Escape" && isTyping) {
      if (event.target.value) { event.target.value = ""; event.target.dispatchEvent(new Event("input")); }
      else this.table.grid.focus();
      return;
    }
    if (isTyping && (event.key === "ArrowDown" || event.key === "Enter")) {
      event.preventDefault();
      this.table.grid.focus();
      this.table.open(0);
      return;
    }
    if (isTyping || event.altKey || event.ctrlKey || event.metaKey || $("help").open) return;
    if (event.key === "/") { event.preventDefault(); $("filter").focus(); $("filter").select(); }
    else if (event.key === "?") this.help();
    else if (event.key === "Backspace") this.back();
    else if (event.key === "Enter" && event.target === this.table.grid) this.waterfall.tree.focus();
    else if (event.key === "Escape") this.table.grid.focus();
    else if (/^[1-9]$/.test(event.key)) $("tabs").children[Number(event.key) - 1]?.click();
  }

  help() {
    const keys = [
      ["/", "filter; Esc clears it"], ["↑ ↓ or j k", "the line before or after, in the list and in the trace"], ["Enter", "from the list to the trace; Esc back to the list"],
      ["← →", "close and open what is under a span"], ["+ − 0", "zoom in, out, all; also Ctrl and the wheel, or drag over the strip"], ["< >", "earlier, later"], ["z", "zoom to the span"],
      ["Backspace", "back to where a link was followed"], ["1 … 9", "lists"],
    ];
    const filters = [
      ["llama error", "both words: in a cell, an id, or “error” for what failed"], ["ttft>100ms tokens<20", "columns, by the names that a heading's tip reports; ns us ms s, kib mib"], ["cuda.stream=0", "an attribute of the span, or a part of it"],
    ];
    const list = (pairs) => el("dl", {}, ...pairs.flatMap(([term, words]) => [el("dt", {}, el("kbd", { text: term })), el("dd", { text: words })]));
    $("help").replaceChildren(el("h2", { text: "Keys" }), list(keys), el("h2", { text: "Filters" }), list(filters),
      el("button", { type: "button", text: "Close", autofocus: true, on: { click: () => $("help").close() } }));
    $("help").showModal();
  }

  // The list takes what its lines need, up to two fifths, until somebody moves the splitter.
  fit(lines) {
    if (this.moved) return;
    const needed = $("bar").offsetHeight + (Math.max(lines, 4) + 2) * ROW_HEIGHT;
    this.setShare(Math.min(0.4, needed / $("main").clientHeight));
  }

  setShare(share) {
    this.share = Math.min(0.8, Math.max(0.12, share));
    document.body.style.setProperty("--list", `${100 * this.share}%`);
    $("splitter").setAttribute("aria-valuenow", Math.round(100 * this.share));
  }

  splitter() {
    const bar = $("splitter");
    const set = (share) => {
      this.moved = true;
      this.setShare(share);
    };
    bar.addEventListener("pointerdown", (event) => {
      bar.setPointerCapture(event.pointerId);
      const box = $("main").getBoundingClientRect();
      const move = (moved) => set((moved.clientY - box.top) / box.height);
      bar.addEventListener("pointermove", move);
      bar.addEventListener("lostpointercapture", () => bar.removeEventListener("pointermove", move), { once: true });
    });
    bar.addEventListener("keydown", (event) => {
      const move = { ArrowUp: -0.04, ArrowDown: 0.04 }[event.key];
      if (move) { event.preventDefault(); set(this.share + move); }
    });
  }

  // Ask the server for what the file got, again and again; it answers at once, with at most a piece.
  async follow() {
    let at = "";
    for (;;) {
      let answer = null;
      try {
        const response = await fetch(`data?at=${encodeURIComponent(at)}`, { cache: "no-store" });
        if (response.ok) answer = await response.json();
      } catch { /* the server ended, or is restarting */ }
      if (answer) {
        at = answer.at;
        if (answer.restart && this.model.length) {
          this.model = new Model();
          this.model.count("restarts", 1);
        }
        if (answer.batch) {
          if (this.model.length > MOST_SPANS) { this.model = new Model(); at = ""; }
          else { this.model.append(answer.batch); this.refresh(); }
        }
      }
      this.report(answer);
      if (!answer?.more) await new Promise((resolve) => setTimeout(resolve, document.hidden ? 5 * POLL_MS : POLL_MS));
    }
  }

  report(answer) {
    const words = !answer ? "no answer: did otelgpu view end?" : answer.waiting ? "waiting for the file" : "live";
    $("live").hidden = false;
    $("live").className = answer ? "" : "lost";
    if ($("live").textContent !== words) $("live").textContent = words;
  }
}

const about = JSON.parse($("about").textContent);
present(about.shown);
const app = new App(about);
for (const element of document.querySelectorAll("script.batch")) {
  app.model.append(JSON.parse(element.textContent));
  element.remove(); // its text is as large as what was made of it
}
app.refresh();
if (app.about.live) app.follow();
