// The cluster: what each machine holds, what pairs exchange in a step, and how even that is.
(function (R) {
  "use strict";

  // The largest share over the mean one: 1 is even.
  R.imbalance = function (values) {
    const total = values.reduce((sum, value) => sum + value, 0);
    return total ? Math.max(...values) * values.length / total : 1;
  };

  R.cluster = function (panel, data) {
    const servers = data.cluster.filter((machine) => machine.kind === "server");
    const trainers = data.cluster.filter((machine) => machine.kind === "trainer");
    const total = servers.reduce((sum, machine) => sum + machine.parameters, 0);
    const most = Math.max(0, ...data.cluster.map((machine) => machine.parameters + machine.state));
    const even = R.imbalance(servers.map((machine) => machine.parameters));
    const facts = [
      ["Mode", data.mode], ["Trainers", trainers.length], ["Servers", servers.length],
      ["Parameters on servers", R.bytes(total)],
      ["Largest server over the mean", servers.length ? `${R.number(even)} ×` : "no servers"],
    ];
    R.put(panel, 
      R.el("dl", { class: "facts" }, facts.map(([name, value]) => R.el("div", null, R.el("dt", null, name), R.el("dd", null, R.number(value))))),
      R.table("Machines and what they keep from step to step", [
        { title: "Machine", value: (m) => m.name },
        { title: "Address", value: (m) => m.endpoint, show: (m) => m.endpoint || "" },
        { title: "Kept", value: (m) => m.parameters + m.state, show: (m) => R.bar(m.parameters + m.state, most, R.bytes(m.parameters + m.state), m.kind === "server" ? 1 : 0) },
        { title: "Parameters", value: (m) => m.parameters, show: (m) => R.bytes(m.parameters), numeric: true },
        { title: "Share", value: (m) => m.kind === "server" ? m.parameters : -1, show: (m) => m.kind === "server" ? R.percent(m.parameters, total) : "", numeric: true },
        { title: "Rows", value: (m) => m.rows, numeric: true },
        { title: "Slices", value: (m) => m.slices, numeric: true },
        { title: "Other state", value: (m) => m.state, show: (m) => R.bytes(m.state), numeric: true },
      ], data.cluster),
      R.el("h3", null, "Exchanged in a step"),
      R.el("p", null, data.pairs.length
        ? "As the programs say it: values in their declared dims, requests and barriers as messages without bytes. Sparse gradients and rows of tables depend on the data."
        : "The programs name no messages between machines: communicators or collective operations exchange values. A run shows them."),
      matrix(data),
    );
    if (data.pairs.length) {
      const largest = Math.max(...data.pairs.map((pair) => pair[3]));
      R.put(panel, R.table("Messages of a step by pair", [
        { title: "From", value: (p) => p[0] }, { title: "To", value: (p) => p[1] },
        { title: "Messages", value: (p) => p[2], numeric: true },
        { title: "Bytes", value: (p) => p[3], show: (p) => R.bar(p[3], largest, R.bytes(p[3]), 2) },
        { title: "Sized by data", value: (p) => p[4], numeric: true },
      ], data.pairs));
    }
    if (data.run) {
      const most = Math.max(1, ...data.run.pairs.map((pair) => pair[3])), steps = data.run.steps;
      R.put(panel, R.el("h3", null, `Exchanged in the run, ${R.plural(steps, "step")}`), R.table("Messages of the run's steps by pair", [
        { title: "From", value: (p) => p[0] }, { title: "To", value: (p) => p[1] },
        { title: "Messages", value: (p) => p[2], numeric: true },
        { title: "Bytes", value: (p) => p[3], show: (p) => R.bar(p[3], most, R.bytes(p[3]), 3) },
        { title: "Bytes in a step", value: (p) => p[3] / steps, show: (p) => R.bytes(Math.round(p[3] / steps)), numeric: true },
      ], data.run.pairs));
    }
  };

  // Who sends whom how much, as a square of shades; left to the table where it would be too large.
  function matrix(data) {
    const names = data.cluster.map((machine) => machine.name);
    if (!data.pairs.length || names.length > 24) return null;
    const sizes = new Map(data.pairs.map((pair) => [`${pair[0]} ${pair[1]}`, pair]));
    const most = Math.max(...data.pairs.map((pair) => pair[3]), 1);
    const cell = (from, to) => {
      const pair = sizes.get(`${from} ${to}`);
      const level = pair ? Math.min(5, 1 + Math.floor(4.99 * pair[3] / most)) : 0;
      return R.el("td", { class: `shade${level}` }, pair ? R.bytes(pair[3]) : "");
    };
    const head = R.el("tr", null, R.el("td"), names.map((name) => R.el("th", { scope: "col" }, name)));
    const rows = names.map((from) => R.el("tr", null, R.el("th", { scope: "row" }, from), names.map((to) => cell(from, to))));
    return R.el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Bytes of a step from machine to machine" },
      R.el("table", { class: "matrix" }, R.el("caption", null, "Bytes of a step, from the machine of the row to that of the column"),
        R.el("thead", null, head), R.el("tbody", null, rows)));
  }
})(globalThis.Report ||= {});
