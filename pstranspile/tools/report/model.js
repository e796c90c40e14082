// The programs as the page holds them: ops by machine and number, rows in nested order, and side by side.
(function (R) {
  "use strict";

  R.Model = class {
    constructor(programs) {
      this.data = programs;
      this.texts = programs.texts;
      this.machines = programs.machines;
      this.names = this.machines.map((machine) => machine.name);
      this.blocks = this.machines.map((machine) => machine.programs.flatMap(([name, blocks]) =>
        blocks.map(([first, count, owner], index) => ({ program: name, index, first, count, owner }))));
      this.derived = this.machines.map(() => null);
    }

    op(machine, number) { return this.data.ops[this.machines[machine].op[number]]; }
    text(machine, number) { return this.texts[this.op(machine, number)[0]]; }
    type(machine, number) { return /^("([^"\\]|\\.)*"|[^\s({]+)/.exec(this.text(machine, number))?.[0] ?? ""; }
    inputs(machine, number) { return this.op(machine, number)[1]; }
    outputs(machine, number) { return this.op(machine, number)[2]; }
    role(machine, number) { return this.op(machine, number)[3]; }
    count(machine) { return this.machines[machine].op.length; }

    // The attributes of an op that a rule made: [name, value, what it says].
    notes(machine, number) {
      return (this.op(machine, number)[4] ?? []).map((note) => note.map((text) => this.texts[text]));
    }

    // The rule that made an op: [name, reason], or null for an op of the source.
    rule(machine, number) {
      const rule = this.machines[machine].rule?.[number] ?? -1;
      return rule < 0 ? null : this.data.rules[rule];
    }

    reason(machine, number) {
      return this.rule(machine, number)?.[1] ?? this.machines[machine].kept?.[this.place(machine, number).program] ?? "";
    }

    // The number of the source op that an op comes from, -1 for none.
    source(machine, number) { return machine === 0 ? number : this.machines[machine].source[number]; }

    // The ops on other machines, and its own, that an op works together with; `more` if there are more of them.
    peers(machine, number) {
      const flat = this.machines[machine].peers?.[number] ?? [], list = [];
      for (let at = 0; at + 2 < flat.length; at += 3) {
        list.push({ relation: this.texts[flat[at]], machine: flat[at + 1], number: flat[at + 2] });
      }
      return { list, more: flat.length % 3 === 1 };
    }

    // Where an op stands: its program, block, and number in the block.
    place(machine, number) {
      const blocks = this.blocks[machine];
      let low = 0, high = blocks.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (blocks[middle].first <= number) low = middle; else high = middle - 1;
      }
      while (low > 0 && !blocks[low].count) low -= 1;
      return { program: blocks[low].program, block: blocks[low].index, number: number - blocks[low].first };
    }

    placeText(machine, number) {
      const { program, block, number: own } = this.place(machine, number);
      return `${this.names[machine]} @${program}^${block}#${own}`;
    }

    // The ops of a machine by the source op that they come from.
    bySource(machine) {
      if (!this.derived[machine]) {
        const result = new Map();
        for (let number = 0; number < this.count(machine); number += 1) {
          const source = this.source(machine, number);
          if (!result.has(source)) result.set(source, []);
          result.get(source).push(number);
        }
        this.derived[machine] = result;
      }
      return this.derived[machine];
    }

    // The ops of a program in nested order: {number, depth, folds}. Blocks of ops in `folded` are left out.
    nested(machine, program, folded = new Set()) {
      const owned = new Map(), free = [];
      for (const block of this.blocks[machine]) {
        if (block.program !== program) continue;
        if (block.owner < 0) free.push(block);
        else owned.set(block.owner, [...(owned.get(block.owner) ?? []), block]);
      }
      const rows = [];
      const walk = (block, depth) => {
        for (let number = block.first; number < block.first + block.count; number += 1) {
          const blocks = depth < 60 ? owned.get(number) ?? [] : [];
          rows.push({ number, depth, folds: blocks.length > 0 });
          if (!folded.has(`${machine}:${number}`)) blocks.forEach((inner) => walk(inner, depth + 1));
        }
      };
      free.forEach((block) => walk(block, 0));
      return rows;
    }

    // Rows of machines side by side, aligned by the source op: {cells: [number or -1], depth, folds}.
    // Ops that come from no single op of the source, such as barriers, stand behind all that their machine does before.
    aligned(columns, program, folded = new Set()) {
      const rows = [], order = new Map(this.nested(0, program).map(({ number }, at) => [number, at]));
      const made = columns.map((machine) => this.unsourced(machine, program, order));
      const next = columns.map(() => 0);
      const upTo = (end) => {  // the ops of no source whose place is before place `end` of the source
        for (;;) {
          const cells = made.map((placed, column) => placed[next[column]]?.after < end ? placed[next[column]++].number : -1);
          if (cells.every((number) => number < 0)) return;
          rows.push({ cells, depth: 0, folds: false });
        }
      };
      for (const { number, depth, folds } of this.nested(0, program, folded)) {
        upTo(order.get(number));
        const lists = columns.map((machine) => machine === 0 ? [number] : this.bySource(machine).get(number) ?? []);
        const height = Math.max(1, ...lists.map((list) => list.length));
        for (let at = 0; at < height; at += 1) {
          rows.push({ cells: lists.map((list) => list[at] ?? -1), depth, folds: folds && at === 0, source: number });
        }
      }
      upTo(Infinity);
      return rows;
    }

    // The ops of a machine's program that come from no single op of the source: {number, after}, where `after` is the
    // last place in the source, -1 for none, of the ops that the machine does before.
    unsourced(machine, program, order) {
      if (machine === 0) return [];
      const result = [];
      let after = -1;
      for (const { number } of this.nested(machine, program)) {
        const source = this.source(machine, number);
        if (source < 0) result.push({ number, after });
        else after = Math.max(after, order.get(source) ?? -1);
      }
      return result;
    }

    // Rows of machines side by side, each in its own order.
    inOrder(columns, program, folded = new Set()) {
      const lists = columns.map((machine) => this.nested(machine, program, folded));
      const rows = [];
      for (let at = 0; at < Math.max(0, ...lists.map((list) => list.length)); at += 1) {
        const entries = lists.map((list) => list[at]);
        rows.push({
          cells: entries.map((entry) => entry?.number ?? -1), depths: entries.map((entry) => entry?.depth ?? 0),
          folding: entries.map((entry) => entry?.folds ?? false), depth: 0,
        });
      }
      return rows;
    }

    // Numbers of the ops of a machine whose text has all words.
    search(machine, wanted) {
      const words = wanted.toLowerCase().split(/\s+/).filter(Boolean), known = new Map(), result = [];
      for (let number = 0; number < this.count(machine); number += 1) {
        const op = this.machines[machine].op[number];
        if (!known.has(op)) {
          const text = this.texts[this.data.ops[op][0]].toLowerCase();
          known.set(op, words.every((word) => text.includes(word)));
        }
        if (known.get(op)) result.push(number);
      }
      return result;
    }

    programs() { return [...new Set(this.machines.flatMap((machine) => machine.programs.map(([name]) => name)))]; }
  };
})(globalThis.Report ||= {});
