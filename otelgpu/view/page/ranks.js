// Which rank of which job a process is, and which steps of the job's ranks belong together. No document in here.
//
// A process's rank is the one it has in its largest communicator: that of the whole job, where it was seen. A process
// that has several in communicators of that size has none, rather than a wrong one.

// Resource → {job, rank}, of the ranks' calls that the data have; `job` is the name of that communicator.
function ranksOf(model) {
  const found = new Map();
  for (let row = 0; row < model.length; row++) {
    const { rank, job, size } = traits(model, row);
    if (!job) continue;
    const attributes = model.attributes(row);
    const one = { job: attributes.get(job), rank: attributes.get(rank), size: attributes.get(size) };
    if (typeof one.job !== "string" || typeof one.rank !== "number" || typeof one.size !== "number") continue;
    const resource = model.columns.resource.values[row];
    const known = found.get(resource);
    if (!known || one.size > known.size) found.set(resource, one);
    else if (one.size === known.size) {
      if (one.rank !== known.rank) known.rank = null;
      if (one.job < known.job) known.job = one.job; // of several of the same ranks, for all processes the same
    }
  }
  return found;
}

// Kept with the model until it has more rows: every list and every span asks.
function placeOf(model, row) {
  if (model.ranksUpTo !== model.length) [model.ranks, model.ranksUpTo] = [ranksOf(model), model.length];
  const place = model.ranks.get(model.columns.resource.values[row]);
  return place && place.rank !== null ? place : null;
}

// In place of a PID, which says nothing: the rank, or the PID where no rank is known.
function rankOrPid(model, row) {
  const pid = model.resource(row).find(([key]) => key === "process.pid")?.[1];
  return placeOf(model, row)?.rank ?? (pid === undefined ? null : `PID ${formatValue(pid)}`);
}

// A training step and those of the job's other ranks with its number, by rank; empty where there are no others. Steps
// that ran at another time have their number of another begin: they are left out.
function sameStep(model, row) {
  const number = model.attributes(row).get("otelgpu.step.number");
  const place = placeOf(model, row);
  if (!place || number === undefined) return [];
  const kind = kindOf(model, row);
  const found = [];
  for (let other = 0; other < model.length; other++) {
    if (model.attributes(other).get("otelgpu.step.number") !== number || kindOf(model, other) !== kind) continue;
    if (model.start(other) > model.end(row) || model.end(other) < model.start(row)) continue;
    if (placeOf(model, other)?.job === place.job) found.push(other);
  }
  return found.length > 1 ? found.sort((a, b) => placeOf(model, a).rank - placeOf(model, b).rank || a - b) : [];
}
