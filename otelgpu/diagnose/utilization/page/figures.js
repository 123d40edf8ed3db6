// Figures of a job, and what its thread did while the GPU was idle.

const { report, sentences, figures } = given();

const { thread, seconds: watched, devices } = report.input;
showVerdicts(report, sentences,
  `${thread ? `${thread.program} (PID ${thread.pid}), ` : ""}${seconds(watched)} watched${devices.length ? `, ${devices.join(", ")}` : ""}`,
  "Nothing was found: no cause takes a share of the GPU's time.");
figures.forEach((each) => byId("figures").append(element("li", each)));
byId("spent").append(rowOf(["cause", "time", "share", "times", "longest", "what"], "th"));
report.table.forEach((row) => byId("spent").append(rowOf([row.cause, seconds(row.seconds),
  `${(100 * row.share).toFixed(1)} %`, row.times || "", row.times ? seconds(row.most_s) : "", row.what], "td")));
report.remarks.forEach((remark) => byId("remarks").append(element("li", remark)));
