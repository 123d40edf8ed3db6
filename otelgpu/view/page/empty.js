// What an empty list says: why it is empty, and what to do.

const RUN = "sudo otelgpu run -- python serve.py";
const command = (words) => el("code", { text: words });

function nothingMatches(onClear) {
  return ["No line matches the filter. ", el("button", { type: "button", text: "Clear it", on: { click: onClear } })];
}

// `definition`: of the list; undefined for calls.
function nothingListed(model, definition, about) {
  if (about.live && !model.length) return [`Nothing yet: this page follows ${about.name}. In another terminal, `, command(RUN), " observes a program and writes it."];
  if (!model.length) return ["The file holds no spans. ", command(RUN), " observes a program, ", command("sudo otelgpu attach -p PID"), " one that runs; then show what that wrote. What it could not see is under Not seen."];
  if (definition?.id === "requests") return ["No request was observed. Requests are seen where they are answered: observe the server's process, with all its workers. What was seen is in the other lists."];
  return ["None in this data."];
}
