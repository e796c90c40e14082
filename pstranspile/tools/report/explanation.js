// Why an op is there: its rule, its source, its partners on other machines, its attributes and variables.
(function (R) {
  "use strict";

  // Fills `node` with the explanation of an op. `go(machine, number)` is called for another op, `find(text)` for a name.
  R.explain = function (node, model, machine, number, go, find) {
    const rule = model.rule(machine, number), source = model.source(machine, number);
    const { list, more } = model.peers(machine, number), notes = model.notes(machine, number);
    const parts = [
      R.el("h3", null, model.placeText(machine, number)),
      R.el("p", { class: "code whole" }, model.text(machine, number)),
    ];
    if (machine > 0) {
      parts.push(R.el("p", null, R.el("strong", null, rule ? `Rule ${rule[0]}. ` : "Of the source. "), model.reason(machine, number)));
      if (source >= 0) parts.push(R.el("h4", null, "Made of"), other(model, 0, source, "", go), file(model, source));
    } else parts.push(file(model, number), ...homes(model, number, go));
    if (list.length) {
      parts.push(R.el("h4", null, "Works together with"), R.el("ul", { class: "peers" },
        list.map((peer) => R.el("li", null, other(model, peer.machine, peer.number, peer.relation, go)))));
      if (more) parts.push(R.el("p", { class: "note" }, "There are more; pstranspile explain lists them all."));
    }
    if (notes.length) {
      parts.push(R.el("h4", null, "Attributes"), R.el("dl", { class: "notes" }, notes.map(([name, value, meaning]) =>
        R.el("div", null, R.el("dt", { class: "code" }, `${name} = ${value}`), R.el("dd", null, meaning)))));
    }
    for (const [title, names] of [["Reads", model.inputs(machine, number)], ["Writes", model.outputs(machine, number)]]) {
      if (!names.length) continue;
      parts.push(R.el("h4", null, title), R.el("p", { class: "names" }, names.slice(0, 60).map((name) => R.el("button", {
        type: "button", class: "code", onclick: () => find(`%${model.texts[name]}`), title: "Search for it",
      }, `%${model.texts[name]}`))));
    }
    R.clear(node, parts);
  };

  function other(model, machine, number, relation, go) {
    return R.el("button", { type: "button", class: "peer", onclick: () => go(machine, number) },
      R.el("span", null, relation ? `${relation} ` : "", R.el("strong", null, model.placeText(machine, number))),
      R.el("span", { class: "code" }, model.text(machine, number)));
  }

  // Where a source op stands: its line in the text of the program, or the line of Python that it was traced from.
  function file(model, number) {
    const code = model.machines[0].code?.[model.machines[0].code_of[number]];
    if (code) return [R.el("p", { class: "note" }, `${code[0]}:${code[1]}`), R.el("pre", { class: "code" }, code[2])];
    const line = model.machines[0].lines[number];
    return R.el("p", { class: "note" }, model.data.file ? `${model.data.file}${line ? `:${line}` : ""}` : "");
  }

  // The ops of all machines that come from a source op; of many alike the first ones.
  function homes(model, number, go) {
    const found = [];
    for (let machine = 1; machine < model.machines.length; machine += 1) {
      for (const op of model.bySource(machine).get(number) ?? []) found.push([machine, op]);
    }
    if (!found.length) return [R.el("p", null, "No machine has an op that comes of it.")];
    const rest = found.length > 30 ? [R.el("p", { class: "note" }, `And ${found.length - 30} more.`)] : [];
    return [R.el("h4", null, `What became of it: ${R.plural(found.length, "op")}`), R.el("ul", { class: "peers" },
      found.slice(0, 30).map(([machine, op]) => R.el("li", null, other(model, machine, op, model.rule(machine, op)?.[0] ?? "kept", go)))), ...rest];
  }
})(globalThis.Report ||= {});
