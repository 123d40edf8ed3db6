// What is shown, as the address has it after #, so that links can be copied: #type=1&order=widest&search=load&node=17.
// `span`: microseconds from and to which the flame chart shows.

const DEFAULTS = { type: 0, order: "name", hide: false, frame: "", process: "", thread: "", search: "", icicle: false, node: 0, span: "" };

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const state = { ...DEFAULTS };
  for (const [key, usual] of Object.entries(DEFAULTS)) {
    const text = given.get(key);
    if (text === null) continue;
    state[key] = typeof usual === "boolean" ? text === "1" : typeof usual === "number" ? Math.max(0, Number.parseInt(text, 10) || 0) : text;
  }
  if (!(state.order in ORDERS)) state.order = DEFAULTS.order;
  return state;
}

// What is as usual is left out. Within another page there is no address of one's own.
function writeState(state) {
  if (location.protocol === "about:") return;
  const given = new URLSearchParams();
  for (const [key, usual] of Object.entries(DEFAULTS)) {
    if (state[key] !== usual) given.set(key, state[key] === true ? "1" : String(state[key]));
  }
  const text = String(given);
  if (text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : "#");
}
