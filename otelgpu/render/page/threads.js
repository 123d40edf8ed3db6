// Values of a tree by process and thread: which there are, and those of some.

class Threads {
  // `data`: null where there is one thread.
  constructor(data, length) {
    this.length = length;
    this.name = data?.name ?? [];
    this.process = data?.process ?? [];
    if (data) [this.thread, this.node, this.value] = [data.thread, data.node, data.value].map(decoded);
  }

  // Names of processes, where there are several.
  get processes() {
    const names = [...new Set(this.process)];
    return names.length > 1 ? names.sort() : [];
  }

  // [number, name] of a process's threads, or of all; the largest first.
  of(process) {
    const sums = new Float64Array(this.name.length);
    this.thread?.forEach((thread, at) => { sums[thread] += this.value[at]; });
    const found = [...this.name.keys()].filter((thread) => !process || this.process[thread] === process);
    found.sort((one, other) => sums[other] - sums[one] || one - other);
    const isNamed = !process && this.processes.length;
    return found.map((thread) => [thread, isNamed && this.process[thread] ? `${this.name[thread]}, ${this.process[thread]}` : this.name[thread]]);
  }

  // Own values of the tree's nodes in a process, or in one thread of it.
  own(process, thread) {
    const own = new Float64Array(this.length);
    for (let at = 0; at < this.thread.length; at++) {
      const of = this.thread[at];
      if (thread === null ? this.process[of] === process : of === thread) own[this.node[at]] += this.value[at];
    }
    return own;
  }
}
