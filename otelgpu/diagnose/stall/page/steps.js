// Steps of a thread, a bar each, as long as it took: in it, in colours, what it went into, where in the step that was.

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#737373"];
const REST = "#d9dfe5", HIGH = 9, GAP = 2, WIDE = 1100;

const { report, sentences, steps } = given();

function shownStep(at) {
  const own = steps.parts.filter((part) => part[0] === at);
  const texts = own.map(([, , length, cause]) => `${steps.causes[cause]} ${seconds(length)}`);
  return `${steps.noun} ${at}: ${seconds(steps.lengths[at])}${texts.length ? `; ${texts.slice(0, 6).join(", ")}` : ""}`;
}

function draw() {
  const canvas = document.createElement("canvas"), most = Math.max(...steps.lengths);
  canvas.width = WIDE;
  canvas.height = steps.lengths.length * (HIGH + GAP);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "A bar for each step. Arrow keys move.");
  canvas.setAttribute("aria-describedby", "status");
  const context = canvas.getContext("2d"), wide = (value) => value / most * WIDE;
  steps.lengths.forEach((length, at) => {
    context.fillStyle = REST;
    context.fillRect(0, at * (HIGH + GAP), wide(length), HIGH);
  });
  steps.parts.forEach(([at, begin, length, cause]) => {
    context.fillStyle = COLOURS[cause % COLOURS.length];
    context.fillRect(wide(begin), at * (HIGH + GAP), Math.max(wide(length), 1), HIGH);
  });
  let shown = 0;
  const show = (at) => {
    shown = Math.min(Math.max(at, 0), steps.lengths.length - 1);
    byId("status").textContent = shownStep(shown);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    show(Math.floor((event.clientY - box.top) / box.height * steps.lengths.length));
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return;
    show(shown + by);
    event.preventDefault();
  });
  byId("plot").append(canvas);
  steps.causes.forEach((cause, at) => {
    const sample = element("span", cause);
    sample.style.setProperty("--sample", COLOURS[at % COLOURS.length]);
    byId("legend").append(sample);
  });
  show(0);
}

const { thread, seconds: took } = report.input;
showVerdicts(report, sentences,
  thread ? `${thread.program} (PID ${thread.pid}), thread ${thread.name} (TID ${thread.tid}): ${seconds(took)} at work` : "",
  "Nothing was found: no gap that recurs, and no wait that takes a share of the time.");
byId("spent").append(rowOf(["cause", "time", "share", "times", "longest", "what"], "th"));
report.table.forEach((row) => byId("spent").append(rowOf([row.cause, seconds(row.seconds),
  `${(100 * row.share).toFixed(1)} %`, row.times || "", row.times ? seconds(row.most_s) : "", row.what], "td")));
report.remarks.forEach((remark) => byId("remarks").append(element("li", `not a stall: ${remark}`)));
if (steps.lengths.length) draw();
