// A list of any number of rows of one height, of which those in sight are elements. One row is current: arrows move it.
(function (R) {
  "use strict";

  R.ROW = 26;

  // The first and the last row of a window, with some around them.
  R.inSight = function (top, height, count, row = R.ROW, around = 12) {
    const first = Math.max(0, Math.floor(top / row) - around);
    return [first, Math.min(count, Math.ceil((top + height) / row) + around)];
  };

  R.List = class {
    // make(index) gives the cells of a row; choose(index, column) is told of clicks and Enter.
    constructor(label, make, choose) {
      this.make = make;
      this.choose = choose;
      this.count = 0;
      this.current = 0;
      this.column = 0;
      this.columns = 1;
      this.drawn = new Map();
      this.canvas = R.el("div", { class: "rows", role: "presentation" });
      this.head = R.el("div", { class: "heads", role: "row" });
      this.node = R.el("div", {
        class: "list", role: "grid", tabindex: "0", "aria-label": label, onkeydown: (event) => this.key(event),
        onscroll: () => this.later(), onclick: (event) => this.click(event),
      }, this.head, this.canvas);
      this.id = `list${R.List.made = (R.List.made ?? 0) + 1}`;
      if (typeof ResizeObserver !== "undefined") new ResizeObserver(() => this.later()).observe(this.node);
    }

    later() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.draw(); });
    }

    // Takes other rows; all are drawn anew.
    set(count, heads) {
      this.count = count;
      this.columns = heads.length;
      this.current = Math.min(this.current, Math.max(count - 1, 0));
      this.column = Math.min(this.column, heads.length - 1);
      this.node.setAttribute("aria-rowcount", String(count + 1));
      this.node.setAttribute("aria-colcount", String(heads.length));
      this.node.style.setProperty("--columns", heads.length);
      R.clear(this.head, heads.map((head) => R.el("div", { role: "columnheader" }, head)));
      this.canvas.style.height = `${count * R.ROW}px`;
      this.again();
    }

    again() {
      this.drawn.clear();
      this.canvas.replaceChildren();
      this.draw();
    }

    draw(all = false) {
      const [first, last] = all ? [0, Math.min(this.count, 3000)]
        : R.inSight(this.node.scrollTop, this.node.clientHeight || 600, this.count);
      for (const [index, row] of this.drawn) {
        if (index < first || index >= last) { row.remove(); this.drawn.delete(index); }
      }
      const added = [];
      for (let index = first; index < last; index += 1) {
        if (!this.drawn.has(index)) {
          const row = this.row(index);
          this.drawn.set(index, row);
          added.push(row);
        }
      }
      this.canvas.append(...added);
      this.mark();
    }

    row(index) {
      const cells = this.make(index);
      cells.forEach((cell, column) => {
        cell.setAttribute("role", "gridcell");
        cell.id = `${this.id}-${index}-${column}`;
        cell.dataset.row = index;
        cell.dataset.column = column;
      });
      return R.el("div", { class: "row", role: "row", "aria-rowindex": index + 2, style: { top: `${index * R.ROW}px` } }, cells);
    }

    mark() {
      this.canvas.querySelector(".current")?.classList.remove("current");
      const cell = this.drawn.get(this.current)?.children[this.column];
      cell?.classList.add("current");
      if (cell) this.node.setAttribute("aria-activedescendant", cell.id);
      else this.node.removeAttribute("aria-activedescendant");
    }

    // Makes a row the current one and brings it into sight.
    go(index, column = this.column) {
      this.current = Math.max(0, Math.min(index, this.count - 1));
      this.column = Math.max(0, Math.min(column, this.columns - 1));
      const top = this.current * R.ROW, height = this.node.clientHeight - 40;
      if (top < this.node.scrollTop) this.node.scrollTop = Math.max(top - R.ROW, 0);
      else if (top + 2 * R.ROW > this.node.scrollTop + height) this.node.scrollTop = top - height / 2;
      this.draw();
    }

    key(event) {
      const page = Math.max(1, Math.floor(this.node.clientHeight / R.ROW) - 2);
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count };
      if (event.key in steps) this.go(this.current + steps[event.key]);
      else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        this.go(this.current, this.column + (event.key === "ArrowRight" ? 1 : -1));
      } else if (event.key === "Enter" || event.key === " ") this.choose(this.current, this.column, event);
      else return;
      event.preventDefault();
    }

    click(event) {
      const cell = event.target.closest("[data-row]");
      if (!cell) return;
      this.go(Number(cell.dataset.row), Number(cell.dataset.column));
      this.choose(this.current, this.column, event);
    }
  };
})(globalThis.Report ||= {});
