// The page: what is listed, what is chosen, where one can go back to, and new data as it comes.
//
// The address after # is the state: #/LIST/TRACE/SPAN. So links can be copied and the browser's Back works.

const CALLS = "calls";
const PROFILE = "profile";
const UNSEEN = "unseen";
const ALONE = [CALLS, PROFILE, UNSEEN]; // they take the whole page
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
    this.pane = new TracePane({ onSelect: (row) => this.go(row), backButton: () => this.backButton() });
    this.state = { list: "requests", trace: "", span: "" };
    $("source").textContent = about.name;
    $("filter").addEventListener("input", () => { this.filters[this.state.list] = $("filter").value; this.list(); });
    $("help-button").addEventListener("click", () => showHelp($("help")));
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("popstate", () => this.read()); // back, forward, or another address after #
    this.splitter = new Splitter($("splitter"));
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
    const firstWithRows = LISTS.find((each) => this.rows[each.id].length)?.id ?? ($(PROFILE) ? PROFILE : "requests");
    const known = [...LISTS.map((each) => each.id), ...ALONE.filter((each) => each !== PROFILE || $(PROFILE))];
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
    const isAlone = ALONE.includes(list);
    document.body.classList.toggle("alone", isAlone);
    document.body.classList.toggle("prose", list === UNSEEN);
    document.body.classList.toggle("profile", list === PROFILE);
    if ($(PROFILE)) $(PROFILE).hidden = list !== PROFILE;
    if (list === PROFILE) return;
    $("filter").value = this.filters[list] ?? "";
    this.list();
    if (isAlone) return;
    const [first] = this.table.items;
    if (!span && first !== undefined) { // the first line is chosen, which is no step for Back
      history.replaceState(history.state, "", this.address(list, first));
      this.read();
    } else {
      this.pane.show(this.model, span ? this.model.find(trace, span) : NO_ROW, span
        ? "That span is not in this data: it may be in a part of the file that was not read (see Not seen), or in another file."
        : "A line of the list, chosen by a click or by the arrow keys, is shown here with its trace.");
    }
  }

  address(list, row) {
    return `#/${list}/${this.model.traceId(row)}/${this.model.ids[row]}`;
  }

  tabs() {
    const losses = sumOf(lossesOf(this.model).map((each) => each.count)) + sumOf([...this.model.counters].map(([name, count]) => (FILE_WORDS[name] ? count : 0)));
    const calls = (this.calls = callsByName(this.model));
    const wanted = [
      ...LISTS.filter((each) => each.id === "requests" || this.rows[each.id].length).map((each) => [each.id, each.title, this.rows[each.id].length]),
      ...(calls.length ? [[CALLS, "GPU calls", sumOf(calls.filter((each) => !KINDS.get(each.kind).device).map((each) => each.calls))]] : []),
      ...($(PROFILE) ? [[PROFILE, "Profiles", ""]] : []),
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
    if (list === PROFILE) $(PROFILE).focus();
  }

  // To a span: in the list that is open if it is there.
  go(row) {
    this.navigate(this.address(this.listOf(row), row));
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
    const columns = definition?.columns ?? SUM_COLUMNS;
    const all = definition ? this.rows[list] : this.calls;
    const holds = filterOf(this.filters[list] ?? "", columns, model, definition ? (row) => model.attributes(row) : null);
    const items = all.filter(holds);
    const chosen = definition ? this.chosenOf(items) : this.table.selected;
    this.table.selected = chosen;
    this.splitter.fit(all.length);
    this.table.show(model, columns, items, {
      sort: this.sorts[list] ?? (definition ? { key: "time", down: Boolean(this.about.live) } : { key: "total", down: true }),
      words: all.length ? nothingMatches(() => this.clearFilter()) : nothingListed(model, definition, this.about),
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

  backButton() {
    return el("button", { type: "button", id: "back", title: "Back (Backspace)", disabled: this.depth <= 0, text: "← Back", on: { click: () => this.back() } });
  }

  clearFilter() {
    this.filters[this.state.list] = $("filter").value = "";
    this.list();
    this.table.grid.focus();
  }

  // Keys work from the begin: in the list, until somebody goes elsewhere.
  begin() {
    const frame = $(PROFILE);
    if (frame) frame.addEventListener("load", () => this.listen(frame.contentDocument));
    if (frame) this.listen(frame.contentDocument);
    if (this.state.list !== PROFILE) this.table.grid.focus({ preventScroll: true });
  }

  // Numbers change the list from within the flame graphs too.
  listen(inner) {
    inner?.addEventListener("keydown", (event) => {
      if (/^[1-9]$/.test(event.key) && !["INPUT", "SELECT"].includes(event.target.tagName)) this.key(event);
    });
  }

  key(event) {
    const { target, key } = event;
    const { grid } = this.table;
    if (target instanceof HTMLInputElement) return this.typingKey(event);
    if (event.altKey || event.ctrlKey || event.metaKey || $("help").open) return;
    const isInTrace = $("trace").contains(target);
    if (key === "/") {
      const field = $(isInTrace ? "find" : "filter");
      event.preventDefault();
      field.focus();
      field.select();
    } else if (key === "?") showHelp($("help"));
    else if (key === "Backspace") this.back();
    else if (key === "Enter" && target === grid) this.pane.waterfall.tree.focus();
    else if (key === "Escape") grid.focus();
    else if (/^[1-9]$/.test(key)) $("tabs").children[Number(key) - 1]?.click();
    else if (target === document.body) this.table.key(event); // nothing has the focus: the list has
    if (!event.defaultPrevented && !document.body.classList.contains("alone")) this.pane.key(event);
  }

  // Escape clears a field, then leaves it; Enter and down leave it for what it found.
  typingKey(event) {
    const { target, key } = event;
    const place = target === $("find") ? this.pane.waterfall.tree : this.table.grid;
    if (key === "Escape") {
      if (target.value) { target.value = ""; target.dispatchEvent(new Event("input")); }
      else place.focus();
    } else if (key === "ArrowDown" || key === "Enter") {
      event.preventDefault();
      place.focus();
      if (target === $("filter")) this.table.open(0);
      else this.pane.find.go(event.shiftKey ? -1 : 1);
    }
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
app.begin();
if (app.about.live) app.follow();
