// A run: losses, traffic, waits, and the verdicts of a check.
(function (R) {
  "use strict";

  R.run = function (panel, data) {
    const { run, check } = data;
    if (!run) {
      R.put(panel, R.el("p", null, "No run was made for this report. "), R.el("p", { class: "code" }, "pstranspile report INPUT ... --run --check -o report.html"));
      return;
    }
    R.put(panel, R.el("p", null, `${run.fed ? `${run.steps} of ${run.fed} fed steps` : R.plural(run.steps, "step")} on a cluster in one process${run.made ? ", of made data" : ""}. Time is counted in ticks of a virtual clock.`));
    if (run.faults.length) R.put(panel, R.el("h3", null, "What went wrong"), R.el("ul", null, run.faults.map((text) => R.el("li", null, text))));
    if (run.unreached.length) R.put(panel, R.el("h3", null, "Not reached"), R.el("p", null, "Nothing came of these lines of the faults, so nothing is shown of them:"), R.el("ul", null, run.unreached.map((text) => R.el("li", { class: "code" }, text))));
    if (run.losses.length) R.put(panel, R.el("h3", null, "Losses"), curves(run.losses), values(run));
    R.put(panel, R.el("h3", null, "Messages"), R.chart(run));
    if (run.left_out) R.put(panel, R.el("p", { class: "note" }, `${R.plural(run.left_out, "later row")} ${run.left_out === 1 ? "is" : "are"} left out.`));
    R.put(panel, R.table("Traffic and staleness by server and variable", [
      { title: "Server", value: (t) => t[0] },
      { title: "Variable", value: (t) => t[1], show: (t) => t[1] ? R.el("span", { class: "code" }, `%${t[1]}`) : "barriers and the like" },
      { title: "Sent", value: (t) => t[2], numeric: true }, { title: "Bytes sent", value: (t) => t[3], show: (t) => R.bytes(t[3]), numeric: true },
      { title: "Answered", value: (t) => t[4], numeric: true }, { title: "Bytes answered", value: (t) => t[5], show: (t) => R.bytes(t[5]), numeric: true },
      { title: "Lost", value: (t) => t[6], numeric: true },
      { title: "Staleness", value: (t) => t[7], show: (t) => t[7] < 0 ? "" : R.number(t[7]), numeric: true },
    ], run.traffic));
    if (run.traffic.some((t) => t[7] >= 0)) R.put(panel, R.el("p", { class: "note" }, "Staleness is the largest number of updates of a parameter between the moment a trainer fetched it and the moment its gradient was taken. It is 0 where servers wait for all trainers before an update."));
    const most = Math.max(1, ...run.waits.map((wait) => wait[3]));
    if (run.waits.length) {
      R.put(panel, R.table("Who waits for whom", [
        { title: "Machine", value: (w) => w[0] }, { title: "Waits for", value: (w) => w[1] }, { title: "Requests", value: (w) => w[2], numeric: true },
        { title: "Ticks", value: (w) => w[3], show: (w) => R.bar(w[3], most, R.number(w[3]), 3) }, { title: "Longest", value: (w) => w[4], numeric: true },
      ], run.waits));
    }
    if (check) verdicts(panel, check);
  };

  function verdicts(panel, check) {
    R.put(panel, R.el("h3", null, "Check against the single machine"),
      R.el("p", { class: check.holds ? "good" : "bad" }, check.holds ? "What the mode promises holds." : "What the mode promises does not hold."),
      orders(check),
      R.table("Verdict by variable", [
        { title: "Variable", value: (v) => v[0], show: (v) => R.el("span", { class: "code" }, `%${v[0]}`) }, { title: "Kind", value: (v) => v[1] },
        { title: "Verdict", value: (v) => v[2] }, { title: "Largest difference", value: (v) => v[3], numeric: true },
        { title: "After step", value: (v) => v[4], numeric: true },
        { title: "First different", value: (v) => v[5], show: (v) => v[5] < 0 ? "never" : `step ${v[5]}`, numeric: true },
        { title: "Settled by", value: (v) => v[6] }, { title: "Deviation there", value: (v) => v[7], numeric: true },
        { title: "Tolerance there", value: (v) => v[8], numeric: true },
      ], check.verdicts));
    if (check.causes.length) {
      R.put(panel, R.table("Ops that see the batch as a whole", [
        { title: "Op", value: (c) => c[0] }, { title: "Variable", value: (c) => c[1] }, { title: "Where", value: (c) => c[2] }, { title: "Why", value: (c) => c[3] },
      ], check.causes));
    }
    R.put(panel, R.el("details", null, R.el("summary", null, "The report as text"), R.el("pre", { tabindex: "0" }, check.text)));
  }

  // What else the check has tried: other orders of events, and what was to go wrong.
  function orders(check) {
    const [tried, different] = check.orders, told = [];
    if (tried && check.replayed) told.push(`Each step was also held to the source in ${R.plural(tried, "other order")} of events; what is wrong there is in the report as text.`);
    else if (tried) told.push(different.length ? `${different.length} of ${tried} other orders of events end otherwise, the first with %${different[0][1]}.` : `${R.plural(tried, "other order")} of events ${tried === 1 ? "ends" : "end"} alike.`);
    if (check.faults) told.push("It was also made with what goes wrong in this run; the report as text says what came of it.");
    return told.length ? R.el("p", null, told.join(" ")) : null;
  }

  // Points of curves in a picture of a width and height: the y axis has the smallest value at the bottom.
  R.points = function (curves, width, height) {
    const steps = curves.flatMap((curve) => curve.steps), all = curves.flatMap((curve) => curve.values);
    const [low, high] = [Math.min(...all), Math.max(...all)], [first, last] = [Math.min(...steps), Math.max(...steps)];
    const x = (step) => last > first ? width * (step - first) / (last - first) : width / 2;
    const y = (value) => high > low ? height * (high - value) / (high - low) : height / 2;
    return { low, high, first, last, lines: curves.map((curve) => curve.steps.map((step, at) => [x(step), y(curve.values[at])])) };
  };

  function curves(losses) {
    const shown = losses.filter((curve) => curve.values.length).slice(0, 16), width = 560, height = 180;
    if (!shown.length) return null;
    const { low, high, first, last, lines } = R.points(shown, width, height);
    const text = (x, y, content, anchor) => R.svg("text", { x, y, "text-anchor": anchor }, content);
    const drawn = lines.map((points, index) => R.svg("g", { class: `curve line${index % 8}` },
      R.svg("polyline", { points: points.map((point) => point.map((v) => v.toFixed(1)).join(",")).join(" ") }),
      points.map(([x, y]) => R.svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 2.5 })), R.svg("title", null, shown[index].name)));
    const label = `Losses from step ${first} to ${last}, between ${R.number(low)} and ${R.number(high)}; the table has the numbers`;
    return R.el("figure", null, R.svg("svg", { class: "curves", viewBox: `-70 -12 ${width + 90} ${height + 40}`, role: "img", "aria-label": label },
      R.svg("rect", { width, height, class: "frame" }), text(-8, 10, R.number(high), "end"), text(-8, height, R.number(low), "end"),
      text(0, height + 18, `step ${first}`, "start"), text(width, height + 18, `step ${last}`, "end"), drawn),
    R.el("figcaption", null, R.el("ul", { class: "legend" }, shown.map((curve, index) => R.el("li", null, R.el("span", { class: `key line${index % 8}`, "aria-hidden": "true" }), curve.name)))));
  }

  function values(run) {
    const steps = [...new Set(run.losses.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
    const tables = run.losses.map((curve) => new Map(curve.steps.map((step, at) => [step, curve.values[at]])));
    return R.el("details", null, R.el("summary", null, "The numbers"), R.table("Losses by step", [
      { title: "Step", value: (step) => step, numeric: true },
      ...run.losses.slice(0, 16).map((curve, at) => ({ title: curve.name, value: (step) => tables[at].get(step) ?? "", numeric: true })),
    ], steps));
  }
})(globalThis.Report ||= {});
