// The messages of a run as arrows between machines, played or gone through one by one; a step as a time line.
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

  const ROW = 34, LEFT = 170, WIDE = 1000, KINDS = ["ops", "lookups", "updates", "sending", "receiving", "link", "latency", "queues", "waking"];

  // Marks of an axis: about `count` times from 0 to a number of seconds, 1, 2 or 5 of a power of ten apart.
  R.marks = function (seconds, count) {
    if (!(seconds > 0)) return [0];
    const raw = seconds / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
    return Array.from({ length: Math.floor(seconds / step + 1e-9) + 1 }, (_, at) => at * step);
  };

  R.seconds = (value) => value === 0 ? "0" : value >= 1 ? `${R.number(Number(value.toPrecision(3)))} s`
    : value >= 1e-3 ? `${R.number(Number((value * 1e3).toPrecision(3)))} ms` : `${R.number(Number((value * 1e6).toPrecision(3)))} us`;

  // A step as machines by time: what each does, the frames between them as arrows, and the critical path below the bars.
  R.timeline = function (panel, data) {
    const step = data.step, top = 30, height = top + step.machines.length * ROW + 10, width = LEFT + WIDE + 20;
    const x = (time) => LEFT + WIDE * time / (step.seconds || 1), y = (machine) => top + machine * ROW;
    const bar = (kind, [machine, what, about, start, , told], tall, from, seconds) => R.svg("rect", {
      x: x(start).toFixed(2), y: y(machine) + from, width: Math.max(0.5, x(seconds) - LEFT).toFixed(2), height: tall, class: `${kind} span${KINDS.indexOf(what)}` },
    R.svg("title", null, `${step.machines[machine]}: ${what}${about ? `, ${about}` : ""}: ${told} from ${R.seconds(start)}`));
    const marks = R.marks(step.seconds, 8).map((time) => [
      R.svg("line", { x1: x(time).toFixed(2), x2: x(time).toFixed(2), y1: top - 6, y2: height, class: "life" }),
      R.svg("text", { x: x(time).toFixed(2), y: 16, "text-anchor": "middle" }, R.seconds(time))]).flat();
    const arrows = step.arrows.map(([from, to, what, left, there]) => R.svg("g", { class: "flight" },
      R.svg("line", { x1: x(left).toFixed(2), y1: y(from) + 10, x2: x(Math.min(there, step.seconds)).toFixed(2), y2: y(to) + 10 }),
      R.svg("circle", { cx: x(Math.min(there, step.seconds)).toFixed(2), cy: y(to) + 10, r: 2 }),
      R.svg("title", null, `${what} from ${step.machines[from]} to ${step.machines[to]}: ${R.seconds(left)} to ${R.seconds(there)}`)));
    const picture = R.svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "timeline", "aria-label": step.verdict[0] },
      marks, step.machines.map((name, at) => [R.svg("text", { x: LEFT - 8, y: y(at) + 14, "text-anchor": "end", class: "title" }, name),
        R.svg("line", { x1: LEFT, x2: LEFT + WIDE, y1: y(at) + 10, y2: y(at) + 10, class: "life" })]).flat(),
      step.spans.map((span) => bar("doing", span, 14, 3, span[4])), step.path.map((span) => bar("critical", span, 5, 19, span[4])), arrows);
    const used = KINDS.filter((kind) => [...step.spans, ...step.path].some((span) => span[1] === kind));
    R.put(panel, step.verdict.map((line) => R.el("p", null, line)),
      R.el("ul", { class: "legend" }, used.map((kind) => R.el("li", null, R.el("span", { class: `key time${KINDS.indexOf(kind)}`, "aria-hidden": "true" }), kind))),
      R.el("div", { class: "chart scroll", tabindex: "0", role: "region", "aria-label": "Time line" }, picture),
      R.el("p", { class: "note" }, `Bars are what machines do; thin bars below them are the critical path; arrows are messages, from when they leave to when they are there.${
        step.left_out ? ` ${R.plural(step.left_out, "later message")} not drawn.` : ""}`),
      R.table("The critical path", [
        { title: "From", value: (s) => s[3], show: (s) => R.seconds(s[3]), numeric: true }, { title: "Takes", value: (s) => s[4], show: (s) => s[5], numeric: true },
        { title: "Machine", value: (s) => step.machines[s[0]] }, { title: "What", value: (s) => s[1] }, { title: "Of what", value: (s) => s[2] },
      ], step.path));
    if (step.waits.length) {
      R.put(panel, R.table("Who waits, and for what", [
        { title: "Machine", value: (w) => w[0] }, { title: "Waits for", value: (w) => w[1] }, { title: "In a step", value: (w) => w[2], show: (w) => w[3], numeric: true },
      ], step.waits));
    }
    if (step.measured.length) R.put(panel, R.beside(step.measured));
    if (step.memory.length) R.put(panel, R.memory(step.memory, step.memory_left_out));
    if (step.sweep.length) R.put(panel, R.sweep(step.sweep));
  };

  // What was measured in a run beside what is predicted.
  R.beside = function (rows) {
    return R.el("div", null, R.el("p", null, `A run took ${R.seconds(rows[0][3])} a step; ${R.seconds(rows[0][2])} are predicted (${R.difference(rows[0][2], rows[0][3])}).`),
      R.table("Predicted and measured", [
        { title: "Machine", value: (r) => r[0] || "all" }, { title: "What", value: (r) => r[1] },
        { title: "Predicted", value: (r) => r[2], show: (r) => R.seconds(r[2]), numeric: true },
        { title: "Measured", value: (r) => r[3], show: (r) => R.seconds(r[3]), numeric: true },
        { title: "Difference", value: (r) => r[3] ? r[2] / r[3] : 0, show: (r) => R.difference(r[2], r[3]), numeric: true },
      ], rows));
  };

  R.difference = (predicted, measured) => measured ? `${predicted >= measured ? "+" : "-"}${Math.abs((predicted / measured - 1) * 100).toFixed(0)} %` : "";

  // The bytes of a machine during each op of a step, from those that it holds between steps upwards.
  R.memory = function (machines, leftOut) {
    const most = Math.max(1, ...machines.map((m) => m.held + m.moving + Math.max(0, ...m.levels))), tall = 70, width = LEFT + WIDE + 20;
    const y = (at, bytes) => at * (tall + 14) + 10 + tall * (1 - bytes / most);
    const parts = machines.map((machine, at) => {
      const count = machine.levels.length, x = (place) => (LEFT + WIDE * place / (count || 1)).toFixed(2), below = machine.held + machine.moving;
      const steps = machine.levels.map((level, place) => `L${x(place)} ${y(at, below + level).toFixed(2)}L${x(place + 1)} ${y(at, below + level).toFixed(2)}`).join("");
      const box = (from, bytes, kind, told) => R.svg("rect", { x: LEFT, y: y(at, from + bytes).toFixed(2), width: WIDE, height: (tall * bytes / most).toFixed(2), class: kind }, R.svg("title", null, told));
      const peak = below + Math.max(0, ...machine.levels);
      return [R.svg("text", { x: LEFT - 8, y: y(at, 0) - 4, "text-anchor": "end", class: "title" }, machine.machine),
        R.svg("text", { x: LEFT - 8, y: y(at, most) + 12, "text-anchor": "end" }, R.bytes(peak)),
        box(0, machine.held, "span0", `${machine.machine} holds ${R.bytes(machine.held)} between steps`),
        box(machine.held, machine.moving, "span3", `${R.bytes(machine.moving)} of messages on their way`),
        count ? R.svg("path", { d: `M${LEFT} ${y(at, below).toFixed(2)}${steps}L${LEFT + WIDE} ${y(at, below).toFixed(2)}Z`, class: "span2" },
          R.svg("title", null, `${machine.machine}: ${R.plural(machine.ops, "op")}, at most ${R.bytes(peak)}`)) : null].flat();
    });
    const height = machines.length * (tall + 14) + 10;
    const legend = [[0, "held between steps"], [3, "messages on their way"], [2, "values of the step, op after op"]];
    return R.el("div", null, R.el("h2", null, "Memory over a step"),
      R.el("ul", { class: "legend" }, legend.map(([kind, text]) => R.el("li", null, R.el("span", { class: `key time${kind}`, "aria-hidden": "true" }), text))),
      R.el("div", { class: "chart scroll", tabindex: "0", role: "region", "aria-label": "Memory over a step" },
        R.svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "timeline", "aria-label": `Memory over a step, at most ${R.bytes(most)}` }, parts.flat().filter(Boolean))),
      leftOut ? R.el("p", { class: "note" }, `${R.plural(leftOut, "more machine")} of this job ${leftOut === 1 ? "is" : "are"} not drawn.`) : null);
  };

  // Rows a second with other numbers of machines: a line for each number of servers, or of trainers if these do not vary.
  R.sweep = function (rows) {
    const varied = (name) => new Set(rows.map((row) => row[name])).size > 1;
    const along = varied("trainers") || !varied("servers") ? "trainers" : "servers", by = along === "trainers" ? "servers" : "trainers";
    const tall = 240, wide = 700, left = 100, most = Math.max(...rows.map((row) => row.rows)), last = Math.max(...rows.map((row) => row[along]));
    const x = (count) => left + wide * count / (last || 1), y = (value) => 14 + tall * (1 - value / (most || 1));
    const lines = [...new Set(rows.map((row) => row[by]))].sort((a, b) => a - b);
    const marks = R.marks(most, 5).map((value) => [R.svg("line", { x1: left, x2: left + wide, y1: y(value).toFixed(2), y2: y(value).toFixed(2), class: "life" }),
      R.svg("text", { x: left - 8, y: (y(value) + 4).toFixed(2), "text-anchor": "end" }, R.number(Number(value.toPrecision(3))))]).flat();
    const counts = [...new Set(rows.map((row) => row[along]))].map((count) => R.svg("text", { x: x(count).toFixed(2), y: tall + 34, "text-anchor": "middle" }, R.number(count)));
    const drawn = lines.map((number, kind) => {
      const points = rows.filter((row) => row[by] === number).sort((a, b) => a[along] - b[along]);
      const told = (row) => `${R.plural(row.trainers, "trainer")}, ${R.plural(row.servers, "server")}: ${R.number(row.rows)} rows a second, a step of ${R.seconds(row.step)}; ${row.bottleneck}${row.knee ? "; more servers help little" : ""}`;
      return [R.svg("polyline", { points: points.map((row) => `${x(row[along]).toFixed(2)},${y(row.rows).toFixed(2)}`).join(" "), class: `curve curve${kind % 8}` }),
        points.map((row) => R.svg("circle", { cx: x(row[along]).toFixed(2), cy: y(row.rows).toFixed(2), r: row.knee ? 6 : 3, class: `span${kind % 8}` }, R.svg("title", null, told(row))))].flat();
    }).flat();
    const width = left + wide + 20, height = tall + 44, title = `Rows a second by the number of ${along}`;
    return R.el("div", null, R.el("h2", null, title),
      R.el("ul", { class: "legend" }, lines.map((number, kind) => R.el("li", null, R.el("span", { class: `key time${kind % 8}`, "aria-hidden": "true" }), R.plural(number, by.slice(0, -1))))),
      R.el("div", { class: "chart scroll", tabindex: "0", role: "region", "aria-label": title },
        R.svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "timeline", "aria-label": title }, marks, counts, drawn)),
      R.el("p", { class: "note" }, "A large point is the number of servers beyond which more of them help little."),
      R.table("Other numbers of machines", [
        { title: "Trainers", value: (r) => r.trainers, numeric: true }, { title: "Servers", value: (r) => r.servers, numeric: true },
        { title: "A step", value: (r) => r.step, show: (r) => R.seconds(r.step), numeric: true }, { title: "Rows a second", value: (r) => r.rows, numeric: true },
        { title: "Machine-seconds for 1,000,000 rows", value: (r) => r.price, numeric: true }, { title: "Most memory", value: (r) => r.peak, show: (r) => R.bytes(r.peak), numeric: true },
        { title: "Bottleneck", value: (r) => r.bottleneck }, { title: "Knee", value: (r) => r.knee ? "*" : "" },
      ], rows));
  };
})(globalThis.Report ||= {});
