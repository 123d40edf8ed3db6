// The border between the list and the trace: dragged, or moved by keys.

class Splitter {
  constructor(bar) {
    this.bar = bar;
    bar.addEventListener("pointerdown", (event) => this.drag(event));
    bar.addEventListener("keydown", (event) => {
      const move = { ArrowUp: -0.04, ArrowDown: 0.04 }[event.key];
      if (!move) return;
      event.preventDefault();
      this.move(this.share + move);
    });
  }

  // The list takes what its lines need, up to two fifths, until somebody moves the border.
  fit(lines) {
    if (this.moved) return;
    const needed = $("bar").offsetHeight + (Math.max(lines, 4) + 2) * ROW_HEIGHT;
    this.set(Math.min(0.4, needed / $("main").clientHeight));
  }

  set(share) {
    this.share = Math.min(0.8, Math.max(0.12, share));
    document.body.style.setProperty("--list", `${100 * this.share}%`);
    this.bar.setAttribute("aria-valuenow", Math.round(100 * this.share));
  }

  move(share) {
    this.moved = true;
    this.set(share);
  }

  drag(event) {
    const { bar } = this;
    bar.setPointerCapture(event.pointerId);
    const box = $("main").getBoundingClientRect();
    const move = (moved) => this.move((moved.clientY - box.top) / box.height);
    bar.addEventListener("pointermove", move);
    bar.addEventListener("lostpointercapture", () => bar.removeEventListener("pointermove", move), { once: true });
  }
}
