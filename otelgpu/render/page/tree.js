// A tree of frames in preorder: what is under each node, where it begins, and what was found in it.

// As the page has it, in columns → what a Tree is made of.
function unpacked(data) {
  const { frames } = data;
  return {
    type: data.type, unit: data.unit, observations: data.observations, negative: data.negative,
    labels: data.labels ?? null, normalise: data.normalise ?? true,
    frame: decoded(data.frame), depth: decoded(data.depth), folded: data.folded ? decoded(data.folded) : null,
    first: data.first ? decoded(data.first) : null, sides: data.own.map(decoded),
    frames: {
      label: frames.label,
      kind: Array.from(decoded(frames.kind), (kind) => frames.kinds[kind]),
      file: Array.from(decoded(frames.file), (file) => frames.files[file]),
      line: decoded(frames.line),
    },
  };
}

class Tree {
  // `labels`: of the two sides of a comparison, or null. `first`: when nodes were first seen themselves, or null.
  constructor({ frame, depth, folded, first, sides, frames, ...described }) {
    Object.assign(this, { described, frame, depth, folded, first, sides, frames }, described);
    this.length = this.depth.length;
    this.parent = new Int32Array(this.length).fill(-1);
    this.end = new Uint32Array(this.length).fill(this.length); // behind the last node of the subtree
    const open = [0];
    for (let node = 1; node < this.length; node++) {
      while (open.length > this.depth[node]) this.end[open.pop()] = node;
      this.parent[node] = open[open.length - 1];
      open.push(node);
    }
    this.side = this.sides.length - 1;
    this.equal = this.normalise;
    this.totals = this.sides.map((own) => this.sum(own));
    this.weigh(this.sides[this.side]);
  }

  // Totals of values that nodes have themselves.
  sum(own) {
    const total = own.slice();
    for (let node = this.length - 1; node > 0; node--) total[this.parent[node]] += total[node];
    return total;
  }

  // Lay the tree out by other values: those of a side, or of a part of the time.
  weigh(own) {
    this.own = own;
    this.total = this.sum(own);
    this.start = new Float64Array(this.length);
    const filled = new Float64Array(this.length);
    for (let node = 1; node < this.length; node++) {
      const parent = this.parent[node];
      this.start[node] = filled[node] = filled[parent];
      filled[parent] += this.total[node];
    }
  }

  // Values of both sides at a node: [before, after], the first as if both had the same total if that is asked for.
  pair(totals, node) {
    const [before, after] = totals;
    const scale = this.equal && this.totals[0][0] > 0 && this.totals[1][0] > 0 ? this.totals[1][0] / this.totals[0][0] : 1;
    return [before[node] * scale, after[node]];
  }

  // From -1 (gone) to 1 (new): what became of a node.
  change(node) {
    const [before, after] = this.pair(this.totals, node);
    const most = Math.max(before, after);
    return most > 0 ? (after - before) / most : 0;
  }

  // Choose which side, or 2 for both together, gives the widths.
  compare(side, equal) {
    this.side = side;
    this.equal = equal;
    if (side < 2) return this.weigh(this.sides[side]);
    const own = new Float64Array(this.length);
    for (let node = 0; node < this.length; node++) {
      const [before, after] = this.pair(this.sides, node);
      own[node] = before + after;
    }
    this.weigh(own);
  }

  firstUnder(node) {
    let first = Infinity;
    if (this.first) for (let under = node; under < this.end[node]; under++) first = Math.min(first, this.first[under]);
    return first;
  }

  label(node) {
    if (node === 0) return "all";
    if (this.folded?.[node]) return `(${this.folded[node].toLocaleString("en")} narrower frames)`;
    return this.frames.label[this.frame[node]];
  }

  kind(node) {
    return node === 0 ? "process" : this.frames.kind[this.frame[node]];
  }

  place(node) {
    if (node === 0) return "";
    const [file, line] = [this.frames.file[this.frame[node]], this.frames.line[this.frame[node]]];
    return line ? `${file}:${line}` : file;
  }

  deepest(top) {
    let deepest = this.depth[top];
    for (let node = top; node < this.end[top]; node++) {
      if (this.total[node] > 0 && this.depth[node] > deepest) deepest = this.depth[node];
    }
    return deepest;
  }

  children(node) {
    const found = [];
    for (let child = node + 1; child < this.end[node]; child = this.end[child]) {
      if (this.total[child] > 0) found.push(child);
    }
    return found;
  }

  // By frame, 1 where its label or file has the text.
  matching(text) {
    const wanted = text.toLowerCase();
    const place = this.frames.file;
    return Uint8Array.from(
      this.frames.label,
      (label, frame) => label.toLowerCase().includes(wanted) || place[frame].toLowerCase().includes(wanted),
    );
  }

  // What is under a frame that matches, each thing once; and how many frames match.
  matched(matches, top) {
    let [sum, count] = [0, 0];
    for (let node = Math.max(top, 1); node < this.end[top]; ) {
      if (this.total[node] > 0 && matches[this.frame[node]]) {
        sum += this.total[node];
        count++;
        node = this.end[node];
      } else node++;
    }
    return { sum, count };
  }

  // Frames with their own and their total values under a node; a frame that calls itself counts once.
  byFrame(top) {
    const size = this.frames.label.length;
    const [own, total, open] = [new Float64Array(size), new Float64Array(size), new Uint32Array(size)];
    const path = [];
    for (let node = Math.max(top, 1); node < this.end[top]; node++) {
      while (path.length && this.end[path[path.length - 1]] <= node) open[this.frame[path.pop()]]--;
      const frame = this.frame[node];
      own[frame] += this.own[node];
      if (!open[frame]) total[frame] += this.total[node];
      open[frame]++;
      path.push(node);
    }
    return { own, total };
  }
}
