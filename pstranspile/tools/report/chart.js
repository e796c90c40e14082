// The messages of a run as arrows between machines, played or gone through one by one.
(function (R) {
  "use strict";

  const LINE = 22;

  // Rows by step: [{title, rows}], of rows as the page holds them: [title] or [label, what, from, to, posted, taken, bytes].
  R.stepsOf = function (rows) {
    const steps = [];
    for (const row of rows) {
      if (row.length === 1) steps.push({ title: row[0], rows: [] });
      else {
        if (!steps.length) steps.push({ title: "start", rows: [] });
        steps.at(-1).rows.push(row);
      }
    }
    return steps.filter((step) => step.rows.length);
  };

  R.chart = function (run) {
    const steps = R.stepsOf(run.rows);
    if (!steps.length) return R.el("p", null, "No messages went.");
    const state = { step: Math.min(1, steps.length - 1), at: -1, timer: null };
    const holder = R.el("div", { class: "chart scroll", tabindex: "0", role: "region", "aria-label": "Message chart" });
    const told = R.el("p", { role: "status" });
    const which = R.el("select", { "aria-label": "Step", onchange: () => { stop(); state.step = Number(which.value); state.at = -1; draw(); } },
      steps.map((step, index) => R.el("option", { value: index, selected: index === state.step }, `${step.title}: ${R.plural(step.rows.length, "arrow")}`)));
    const play = R.el("button", { type: "button", onclick: () => state.timer ? stop() : start() }, "Play");

    function draw() {
      const step = steps[state.step], names = run.machines.filter((name) => step.rows.some((row) => row[2] === name || row[3] === name));
      const across = Math.max(150, ...names.map((name) => 8.5 * name.length)), x = (name) => across / 2 + names.indexOf(name) * across;
      const shown = state.at < 0 ? step.rows.slice(0, 400) : step.rows.slice(Math.max(0, state.at - 200), state.at + 1);
      const height = 50 + shown.length * LINE, width = names.length * across + 320;
      const picture = R.svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${step.title}: ${R.plural(shown.length, "arrow")} between ${R.plural(names.length, "machine")}` },
        names.map((name) => [R.svg("text", { x: x(name), y: 18, "text-anchor": "middle", class: "title" }, name), R.svg("line", { x1: x(name), x2: x(name), y1: 26, y2: height, class: "life" })]).flat(),
        shown.map((row, index) => arrow(row, x, 44 + index * LINE, index === shown.length - 1 && state.at >= 0, names.length * across)));
      R.clear(holder, picture);
      if (state.at >= 0) {
        const [label, what, from, to, posted, taken] = step.rows[state.at];
        R.clear(told, `${state.at + 1} of ${step.rows.length}: ${from} to ${to}: ${label}, posted at tick ${posted}, ${what === "deliver" ? "taken" : what} at ${taken}.`);
        holder.scrollTop = holder.scrollHeight;
      } else R.clear(told, `${step.title}: ${R.plural(step.rows.length, "arrow")}${step.rows.length > 400 ? ", the first 400 drawn" : ""}.`);
    }

    function go(by) {
      const count = steps[state.step].rows.length;
      if (state.at + by >= count) {
        if (state.step + 1 >= steps.length) { stop(); return; }
        state.step += 1;
        which.value = String(state.step);
        state.at = 0;
      } else state.at = Math.max(state.at + by, -1);
      draw();
    }

    function start() {
      state.timer = setInterval(() => go(1), 350);
      play.textContent = "Pause";
      go(1);
    }

    function stop() {
      clearInterval(state.timer);
      state.timer = null;
      play.textContent = "Play";
    }

    draw();
    return R.el("div", null, R.el("div", { class: "tools" }, which, play,
      R.el("button", { type: "button", onclick: () => { stop(); go(-1); } }, "Back"),
      R.el("button", { type: "button", onclick: () => { stop(); go(1); } }, "Step"),
      R.el("button", { type: "button", onclick: () => { stop(); state.at = -1; draw(); } }, "Whole step")), told, holder);
  };

  function arrow(row, x, y, last, right) {
    const [label, what, from, to] = row, x1 = x(from), x2 = x(to), way = x2 > x1 ? -1 : 1;
    const head = `M${x2 + 7 * way} ${y - 4}L${x2} ${y}L${x2 + 7 * way} ${y + 4}`;
    const lost = what === "lost" ? R.svg("text", { x: (x1 + x2) / 2, y: y + 4, "text-anchor": "middle", class: "lost" }, "×") : null;
    return R.svg("g", { class: `arrow${last ? " now" : ""}` }, R.svg("path", { d: `M${x1} ${y}L${x2} ${y}` }), R.svg("path", { d: head }), lost,
      R.svg("text", { x: right, y: y + 4 }, label), R.svg("title", null, `${from} to ${to}: ${label}`));
  }
})(globalThis.Report ||= {});
