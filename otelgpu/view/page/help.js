// Keys and filters, as the page's own help.

const KEYS = [
  ["/", "filter the list; find in the trace from within it; Esc clears it"], ["n N", "the next and the previous span that was found"],
  ["↑ ↓ or j k", "the line before or after, in the list and in the trace"], ["Enter", "from the list to the trace; Esc back to the list"],
  ["← →", "close and open what is under a span"], ["g", "what is under the chosen span, by name, and back"],
  ["+ − 0", "zoom in, out, all; also Ctrl and the wheel, or drag over the strip"], ["< >", "earlier, later"], ["z", "zoom to the span"],
  ["Backspace", "back to where a link was followed"], ["1 … 9", "lists"],
];
const FILTERS = [
  ["llama error", "both words: in a cell, an id, or “error” for what failed"],
  ["ttft>100ms tokens<20", "columns, by the names that a heading's tip reports; ns us ms s, kib mib"],
  ["cuda.stream=0", "an attribute of the span, or a part of it"],
];

function showHelp(dialog) {
  const list = (pairs) => el("dl", {}, ...pairs.flatMap(([term, words]) => [el("dt", {}, el("kbd", { text: term })), el("dd", { text: words })]));
  dialog.replaceChildren(el("h2", { text: "Keys" }), list(KEYS), el("h2", { text: "Filters" }), list(FILTERS),
    el("button", { type: "button", text: "Close", autofocus: true, on: { click: () => dialog.close() } }));
  dialog.showModal();
}
