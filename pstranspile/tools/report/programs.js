// Programs of the source and of machines side by side, with an explanation of the op that is chosen.
(function (R) {
  "use strict";

  R.LINE = 300;  // characters of an op that a row shows at most: to lay out long ones takes time, and they are cut off

  R.programs = function (panel, data, model) {
    const servers = data.cluster.map((machine, index) => machine.kind === "server" ? index + 1 : 0).filter(Boolean);
    const state = {
      program: model.programs()[0], columns: [0, 1, servers[0]].filter((column) => column !== undefined), aligned: true,
      folded: new Set(), rows: [], chosen: null, partners: new Set(), found: [], at: -1, hits: new Set(),
    };
    const list = new R.List("Ops by machine", cells, choose);
    const why = R.el("aside", { class: "why", "aria-live": "polite", "aria-label": "Explanation", tabindex: "0" },
      R.el("p", { class: "note" }, "Choose an op: why it is there, what it was made of, and what it works together with."));
    const status = R.el("span", { role: "status", class: "note" });

    function layOut() {
      const make = state.aligned ? "aligned" : "inOrder";
      state.rows = model[make](state.columns, state.program, state.folded);
      const heads = state.columns.map((machine) => machine === 0 ? "source" : model.names[machine]);
      list.set(state.rows.length, heads);
    }

    function cells(index) {
      const row = state.rows[index];
      return row.cells.map((number, column) => {
        if (number < 0) return R.el("div", { class: "empty" });
        const machine = state.columns[column], rule = model.rule(machine, number);
        const depth = state.aligned ? (machine === 0 ? row.depth : 0) : row.depths[column];
        const folds = state.aligned ? row.folds && machine === 0 : row.folding[column];
        const key = `${machine}:${number}`;
        const folded = state.folded.has(key);
        const kinds = [rule ? "made" : "", state.partners.has(key) ? "partner" : "", state.hits.has(key) ? "hit" : "",
          state.chosen === key ? "chosen" : ""];
        const toggle = folds ? R.el("span", { class: "fold", title: folded ? "Unfold" : "Fold" }, folded ? "▸" : "▾") : null;
        return R.el("div", { class: kinds.filter(Boolean).join(" "), style: { paddingLeft: `${6 + 14 * depth}px` }, "aria-expanded": folds ? String(!folded) : null },
          toggle, rule ? R.el("span", { class: "rule" }, rule[0]) : null, R.el("span", { class: "code" }, model.text(machine, number).slice(0, R.LINE)));
      });
    }

    function choose(index, column, event) {
      const number = state.rows[index]?.cells[column] ?? -1;
      if (number < 0) return;
      const key = `${state.columns[column]}:${number}`;
      if (event?.target?.classList?.contains("fold") || event?.key === " ") {
        const folds = state.aligned ? state.rows[index].folds : state.rows[index].folding[column];
        if (folds) {
          state.folded.has(key) ? state.folded.delete(key) : state.folded.add(key);
          layOut();
          return;
        }
      }
      show(state.columns[column], number);
    }

    // Explains an op, and marks its partners.
    function show(machine, number) {
      state.chosen = `${machine}:${number}`;
      state.partners = new Set(model.peers(machine, number).list.map((peer) => `${peer.machine}:${peer.number}`));
      list.again();
      R.explain(why, model, machine, number, go, find);
    }

    // Goes to an op, of whatever machine and program.
    function go(machine, number) {
      const program = model.place(machine, number).program;
      if (!state.columns.includes(machine)) {
        state.columns.push(machine);
        boxes.update();
      }
      if (program !== state.program && !(state.aligned && rowOf(machine, number) >= 0)) {
        state.program = program;
        programs.value = program;
      }
      layOut();
      if (rowOf(machine, number) < 0) { state.folded.clear(); layOut(); }
      if (rowOf(machine, number) < 0) { state.program = program; programs.value = program; layOut(); }
      list.go(rowOf(machine, number), state.columns.indexOf(machine));
      show(machine, number);
    }

    function rowOf(machine, number) {
      const column = state.columns.indexOf(machine);
      return state.rows.findIndex((row) => row.cells[column] === number);
    }

    function find(text) {
      search.value = text;
      lookFor();
    }

    function lookFor() {
      const wanted = search.value.trim();
      state.found = wanted ? state.columns.flatMap((machine) => model.search(machine, wanted).map((number) => [machine, number])) : [];
      state.hits = new Set(state.found.map(([machine, number]) => `${machine}:${number}`));
      state.at = -1;
      R.clear(status, wanted ? `${R.plural(state.found.length, "op")} found` : "");
      list.again();
    }

    function step(by) {
      if (!state.found.length) return;
      state.at = (state.at + by + state.found.length) % state.found.length;
      const [machine, number] = state.found[state.at];
      go(machine, number);
      R.clear(status, `${state.at + 1} of ${R.plural(state.found.length, "op")}`);
    }

    const search = R.el("input", {
      type: "search", id: "search", "aria-label": "Search in ops", placeholder: "Search: send %fc_0",
      oninput: lookFor, onkeydown: (event) => { if (event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); } },
    });
    const programs = R.el("select", { onchange: () => { state.program = programs.value; layOut(); } },
      model.programs().map((name) => R.el("option", { value: name }, `@${name}`)));
    const order = R.el("select", { onchange: () => { state.aligned = order.value === "source"; layOut(); } },
      R.el("option", { value: "source" }, "aligned by the source"), R.el("option", { value: "own" }, "each in its own order"));
    const boxes = machineBoxes(model, state, () => { layOut(); lookFor(); });
    const foldAll = (fold) => {
      state.folded.clear();
      if (fold) model.blocks.forEach((blocks, machine) => blocks.forEach((block) => block.owner >= 0 && state.folded.add(`${machine}:${block.owner}`)));
      layOut();
    };
    R.put(panel, 
      R.el("div", { class: "tools" }, R.el("label", null, "Program ", programs), R.el("label", null, "Rows ", order), search,
        button("Previous", () => step(-1)), button("Next", () => step(1)), status,
        button("Fold blocks", () => foldAll(true)), button("Unfold blocks", () => foldAll(false))),
      boxes.node,
      R.el("div", { class: "split" }, list.node, why));
    layOut();
    panel.addEventListener("shown", () => list.later());
    window.addEventListener("beforeprint", () => list.draw(true));
    window.addEventListener("afterprint", () => list.again());
    return { go };
  };

  function button(text, onclick) {
    return R.el("button", { type: "button", onclick }, text);
  }

  // Which machines stand side by side: a box for each, with a filter where there are many.
  function machineBoxes(model, state, changed) {
    const holder = R.el("div", { class: "boxes" });
    let wanted = "";

    function update() {
      const listed = model.names.map((name, index) => [name, index]).filter(([name, index]) => name.includes(wanted) || state.columns.includes(index));
      R.clear(holder, listed.slice(0, 40).map(([name, index]) => R.el("label", null, R.el("input", {
        type: "checkbox", checked: state.columns.includes(index),
        onchange: (event) => {
          state.columns = event.target.checked ? [...state.columns, index].sort((a, b) => a - b) : state.columns.filter((other) => other !== index);
          if (!state.columns.length) state.columns = [0];
          changed();
        },
      }), ` ${name}`)));
      if (listed.length > 40) holder.append(R.el("span", { class: "note" }, ` and ${listed.length - 40} more`));
    }

    update();
    const filter = model.names.length > 12 ? R.el("input", {
      type: "search", "aria-label": "Filter machines", placeholder: "Filter machines", oninput: (event) => { wanted = event.target.value.trim(); update(); },
    }) : null;
    return { node: R.el("fieldset", null, R.el("legend", null, "Side by side"), filter, holder), update };
  }
})(globalThis.Report ||= {});
