// What the pages of all diagnoses have: verdicts in words, and how elements and times are written.

const byId = (id) => document.getElementById(id);
const given = () => JSON.parse(document.querySelector("script.batch").textContent);

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function seconds(value) {
  return value >= 1 ? `${value.toPrecision(3)} s` : `${(value * 1e3).toPrecision(3)} ms`;
}

function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// A row of a table: cells of one kind, "td" or "th".
function rowOf(texts, kind) {
  const line = document.createElement("tr");
  texts.forEach((text) => line.append(element(kind, text)));
  return line;
}

function showVerdicts(report, sentences, seen, healthy) {
  byId("seen").textContent = seen;
  const place = byId("verdicts");
  if (!report.verdicts.length) {
    const none = element("div", "", "verdict none");
    none.append(element("h3", healthy));
    place.append(none);
  }
  report.verdicts.forEach((verdict, at) => {
    const box = element("div", "", "verdict");
    box.append(element("h3", sentences[at]));
    verdict.evidence.forEach((each) => box.append(element("p", each.text, "evidence")));
    (verdict.links || []).forEach((link) => {
      const named = element("p", `step ${link.step} of rank ${link.rank}: trace `, "evidence");
      named.append(element("code", link.trace_id), ", span ", element("code", link.span_id));
      box.append(named);
    });
    box.append(element("p", `Next: ${verdict.next}`));
    if (verdict.code) box.append(element("pre", verdict.code));
    place.append(box);
  });
  report.limits.forEach((limit) => byId("limits").append(element("li", limit)));
  Object.entries(report.input.rejected).forEach(([reason, count]) =>
    byId("limits").append(element("li", `rejected: ${reason}: ${count}`)));
}
