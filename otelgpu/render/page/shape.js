// A tree's stacks in another shape: other frames hidden, seen from one frame (its callers, its callees), siblings in
// another order. The tree that comes out is one as any other.

const ORDERS = { name: "by name", widest: "widest first", first: "first seen first", time: "over time" };
const HIDDEN = new Set(["native", "kernel"]); // kinds, where only Python and the GPU are to be seen

// A tree that grows by children, for which its parents come first.
class Growth {
  constructor(base, sides) {
    this.base = base;
    this.own = sides.map(() => [0]);
    Object.assign(this, { frame: [-1], parent: [-1], folded: [0], first: [Infinity], known: [new Map()] });
  }

  child(parent, frame, folded = 0) {
    const known = this.known[parent];
    let node = known.get(frame);
    if (node === undefined) {
      node = this.frame.length;
      known.set(frame, node);
      this.frame.push(frame);
      this.parent.push(parent);
      this.folded.push(0);
      this.first.push(Infinity);
      this.known.push(new Map());
      for (const own of this.own) own.push(0);
    }
    this.folded[node] += folded;
    return node;
  }

  add(node, values, first) {
    values.forEach((value, side) => { this.own[side][node] += value; });
    this.first[node] = Math.min(this.first[node], first);
  }

  // In preorder, siblings in an order; frames are numbered by name.
  tree(order) {
    const { base, frame, parent } = this;
    const total = this.own[this.own.length - 1].slice();
    const first = this.first.slice();
    for (let node = frame.length - 1; node > 0; node--) {
      total[parent[node]] += total[node];
      first[parent[node]] = Math.min(first[parent[node]], first[node]);
    }
    const byName = (one, other) => frame[one] - frame[other];
    const compare = {
      name: byName,
      widest: (one, other) => total[other] - total[one] || byName(one, other),
      first: (one, other) => (first[one] === first[other] ? byName(one, other) : first[one] - first[other]),
      time: byName, // the chart has its own
    }[order];
    const places = [];
    const depth = [];
    const pending = [[0, 0]];
    while (pending.length) {
      const [node, level] = pending.pop();
      places.push(node);
      depth.push(level);
      for (const child of [...this.known[node].values()].sort(compare).reverse()) pending.push([child, level + 1]);
    }
    const taken = (column) => Float64Array.from(places, (node) => column[node]);
    return new Tree({
      ...base.described, frames: base.frames, depth: Uint32Array.from(depth), frame: Int32Array.from(places, (node) => frame[node]),
      folded: Uint32Array.from(places, (node) => this.folded[node]), sides: this.own.map(taken), first: taken(this.first),
    });
  }
}

// `sides`: own values by node of the base, for each side. `from`: a frame, of which `way` is "callers" or "callees".
function reshaped(base, sides, { order = "name", hides = false, from = -1, way = "callees" }) {
  const growth = new Growth(base, sides);
  const isHidden = base.frames.kind.map((kind) => hides && HIDDEN.has(kind));
  const values = (node) => sides.map((own) => own[node]);
  const place = new Int32Array(base.length); // node of the base → here; -1: not under the frame
  place[0] = from < 0 ? 0 : -1;
  const totals = from >= 0 && way === "callers" ? sides.map((own) => base.sum(own)) : null;
  for (let node = 0; node < base.length; node++) {
    const [above, frame] = [node ? place[base.parent[node]] : -1, base.frame[node]];
    const isEntry = from >= 0 && node > 0 && above < 0 && frame === from;
    if (isEntry && totals) {
      growth.add(callersOf(growth, base, node, isHidden), totals.map((total) => total[node]), base.firstUnder(node));
      place[node] = 0; // what is below is part of this one
    } else if (node > 0) {
      if (isEntry) place[node] = growth.child(0, frame);
      else if (above < 0) place[node] = -1;
      else place[node] = totals ? 0 : isHidden[frame] && frame !== from ? above : growth.child(above, frame, base.folded?.[node] ?? 0);
    }
    if (!totals && place[node] >= 0) growth.add(place[node], values(node), base.first?.[node] ?? Infinity);
  }
  return growth.tree(order);
}

// The node of a frame's callers, its own frame first.
function callersOf(growth, base, node, isHidden) {
  let at = growth.child(0, base.frame[node]);
  for (let up = base.parent[node]; up > 0; up = base.parent[up]) if (!isHidden[base.frame[up]]) at = growth.child(at, base.frame[up]);
  return at;
}
