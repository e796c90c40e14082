// The plan: every parameter as a bar of slices over the servers, why it is cut so, and why each slice is where it is.
(function (R) {
  "use strict";

  const ORDERS = {
    "order of the program": () => 0,
    "largest first": (a, b) => b.bytes - a.bytes,
    "most slices first": (a, b) => b.slices.length - a.slices.length,
    name: (a, b) => R.compare(a.name, b.name),
  };

  // The parameters that a filter leaves, in an order: of `server` (-1: any), with `wanted` in their name.
  R.chosenParameters = function (parameters, wanted, server, order) {
    const chosen = parameters.filter((parameter) => parameter.name.toLowerCase().includes(wanted.toLowerCase())
      && (server < 0 || parameter.slices.some((slice) => slice[0] === server)));
    return chosen.sort(ORDERS[order]);
  };

  R.plan = function (panel, data) {
    if (!data.parameters.length) {
      R.put(panel, R.el("p", null, `Mode ${data.mode} puts no parameters on servers: every trainer has all of them.`));
      return;
    }
    const list = R.el("ul", { class: "plan" }), state = { wanted: "", server: -1, order: "order of the program", most: 100 };
    const count = R.el("p", { role: "status" });

    function draw() {
      const chosen = R.chosenParameters(data.parameters, state.wanted, state.server, state.order);
      const bytes = chosen.reduce((sum, parameter) => sum + parameter.bytes, 0);
      const slices = chosen.reduce((sum, parameter) => sum + parameter.slices.length, 0);
      R.clear(count, `${R.plural(chosen.length, "parameter")} in ${R.plural(slices, "slice")}, ${R.bytes(bytes)}.`);
      R.clear(list, chosen.slice(0, state.most).map((parameter) => item(parameter, data)));
      if (chosen.length > state.most) {
        list.append(R.el("li", { class: "more" }, R.el("button", { type: "button", onclick: () => { state.most *= 4; draw(); } },
          `Show more of ${R.number(chosen.length - state.most)}`)));
      }
    }

    const choice = (label, options, change) => R.el("label", null, `${label} `, R.el("select", { onchange: change },
      options.map(([value, text]) => R.el("option", { value }, text))));
    R.put(panel, 
      R.el("div", { class: "tools" },
        R.el("label", null, "Filter ", R.el("input", { type: "search", oninput: (e) => { state.wanted = e.target.value.trim(); draw(); } })),
        choice("Server", [[-1, "all"], ...data.servers.map((name, index) => [index, name])], (e) => { state.server = Number(e.target.value); draw(); }),
        choice("Order", Object.keys(ORDERS).map((name) => [name, name]), (e) => { state.order = e.target.value; draw(); })),
      count, list);
    draw();
  };

  function item(parameter, data) {
    const total = Math.max(parameter.slices.reduce((sum, slice) => sum + slice[3], 0), 1);
    const bars = parameter.slices.map(([server, start, stop, bytes]) => R.el("span", {
      class: `slice kind${server % 8}`, style: { flexGrow: String(Math.max(bytes, total / 1000)) },
      title: `${data.servers[server]}: rows ${R.number(start)} to ${R.number(stop)}, ${R.bytes(bytes)}`,
    }, String(server)));
    const head = `%${parameter.name} ${parameter.dtype}[${parameter.shape.join(", ")}], ${R.bytes(parameter.bytes)}`;
    const summary = R.el("summary", null, R.el("span", { class: "code" }, head),
      R.el("span", { class: "note" }, parameter.table ? " looked up on the servers" : ""),
      R.el("span", { class: "slices", "aria-hidden": "true" }, bars),
      R.el("span", { class: "note" }, `${R.plural(parameter.slices.length, "slice")} on ${
        R.plural(new Set(parameter.slices.map((slice) => slice[0])).size, "server")}`));
    const details = R.el("details", { ontoggle: () => fillIn() }, summary);

    function fillIn() {
      if (details.childElementCount > 1) return;
      details.append(R.el("p", null, R.el("strong", null, "Why cut so: "), parameter.why),
        R.table(`Slices of %${parameter.name}`, [
          { title: "Slice", value: (s) => s[4], show: (s) => R.el("span", { class: "code" }, `%${s[4]}`) },
          { title: "Server", value: (s) => s[0], show: (s) => `${s[0]}: ${data.servers[s[0]]}` },
          { title: "Rows", value: (s) => s[1], show: (s) => `${R.number(s[1])} to ${R.number(s[2])}` },
          { title: "Bytes", value: (s) => s[3], show: (s) => R.bytes(s[3]), numeric: true },
          { title: "Why there", value: (s) => s[5] },
        ], parameter.slices));
    }
    return R.el("li", null, details);
  }
})(globalThis.Report ||= {});
