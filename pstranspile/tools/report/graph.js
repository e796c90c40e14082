// The graph of main programs, to pan and zoom. What is out of sight is not drawn.
(function (R) {
  "use strict";

  const MOST_BOXES = 900, MOST_EDGES = 1200, SMALLEST = 0.2;

  // The nodes in a window, of nodes sorted by y; at most so many.
  R.nodesInSight = function (nodes, left, top, right, bottom, most = MOST_BOXES) {
    let low = 0, high = nodes.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (nodes[middle].y < top) low = middle + 1; else high = middle;
    }
    const shown = [];
    for (let at = low; at < nodes.length && nodes[at].y <= bottom && shown.length < most; at += 1) {
      if (nodes[at].x >= left && nodes[at].x <= right) shown.push(nodes[at]);
    }
    return shown;
  };

  // The edges of some nodes, each once; at most so many.
  R.edgesOf = function (nodes, most = MOST_EDGES) {
    const edges = new Set();
    for (const node of nodes) {
      for (const edge of node.edges) {
        if (edges.size >= most) return [...edges];
        edges.add(edge);
      }
    }
    return [...edges];
  };

  // The scale, at most 1, at which a drawing fits a window.
  R.fitting = (drawn, width, height) => Math.min(1, width / drawn.width, height / drawn.height);

  R.graph = function (panel, data, model, explain) {
    data.cluster.forEach((machine, index) => { model.machines[index + 1].server = machine.kind === "server"; });
    const state = { machines: [0], open: new Set(), scale: 1, x: 0, y: 0, chosen: null, drawn: null, told: "" };
    const scene = R.svg("g"), edges = R.svg("g", { class: "edges" }), boxes = R.svg("g");
    const picture = R.svg("svg", { class: "graph", role: "application", tabindex: "0", "aria-label": "Graph of the program: arrows pan, plus and minus zoom" }, scene);
    const status = R.el("p", { role: "status", class: "note" });
    scene.append(edges, boxes);
    const fates = fatesOf(data, model);

    function layOut() {
      state.drawn = R.graphNodes(model, state.machines, state.open);
      state.drawn.nodes.sort((a, b) => a.y - b.y || a.x - b.x);
      for (const edge of R.graphEdges(model, state.machines, state.drawn.nodeOf)) {
        edge.from.edges.push(edge);
        edge.to.edges.push(edge);
      }
      const folded = state.drawn.nodes.reduce((sum, node) => sum + node.ops.length, 0);
      state.told = `${R.plural(folded, "op")} in ${R.plural(state.drawn.nodes.length, "box").replace(/boxs$/, "boxes")}. Choose a box to unfold its layer; an op to have it explained.`;
      draw();
    }

    function draw() {
      const { nodes, columns } = state.drawn;
      const width = picture.clientWidth || 800, height = picture.clientHeight || 500;
      scene.setAttribute("transform", `translate(${state.x} ${state.y}) scale(${state.scale})`);
      const left = -state.x / state.scale - 260, top = -state.y / state.scale - 60;
      const right = left + width / state.scale + 520, bottom = top + height / state.scale + 120;
      const shown = R.nodesInSight(nodes, left, top, right, bottom);
      R.clear(status, state.told + (shown.length < MOST_BOXES ? "" : ` The first ${MOST_BOXES} boxes in sight are drawn; zoom in to see all of a part.`));
      R.clear(edges, R.edgesOf(shown).map(line));
      R.clear(boxes, columns.filter((column) => column.x > left && column.x < right).map((column) => R.svg("text", { x: column.x, y: Math.max(30, top + 90), class: "title" }, column.title)), shown.map(box));
    }

    function line(edge) {
      const { width, height } = R.NODE, back = edge.to.x <= edge.from.x;
      const x1 = edge.from.x + (back && edge.to.x < edge.from.x ? 0 : width), y1 = edge.from.y + height / 2;
      const x2 = edge.to.x + (edge.to.x < edge.from.x ? width : back ? width : 0), y2 = edge.to.y + height / 2;
      const bend = edge.to.x === edge.from.x ? 50 : (x2 - x1) / 2;
      const chosen = state.chosen && (edge.from === state.chosen || edge.to === state.chosen);
      const path = `M${x1} ${y1}C${x1 + bend} ${y1} ${edge.to.x === edge.from.x ? x2 + bend : x2 - bend} ${y2} ${x2} ${y2}`;
      return R.svg("path", { d: path, class: `${edge.kind}${chosen ? " chosen" : ""}` });
    }

    function box(node) {
      const number = node.ops[0], alone = node.ops.length === 1;
      const label = alone ? model.type(node.machine, number) : `${model.data.layers[node.layer] ?? R.WHOLE_STEP}: ${node.ops.length} ops`;
      const fate = node.machine === 0 ? fates[number] : model.machines[node.machine].server ? "moved" : model.rule(node.machine, number) ? "made" : "kept";
      const group = R.svg("g", {
        class: `box ${fate}${alone ? "" : " folded"}${node === state.chosen ? " chosen" : ""}`, transform: `translate(${node.x} ${node.y})`,
        role: "button", tabindex: "0", "aria-label": `${model.placeText(node.machine, number)} ${label}`,
        onclick: () => choose(node), onkeydown: (event) => { if (event.key === "Enter") { event.stopPropagation(); choose(node); } },
      }, R.svg("rect", { width: R.NODE.width, height: R.NODE.height, rx: 4 }), R.svg("text", { x: 8, y: 16 }, label.length > 27 ? `${label.slice(0, 26)}…` : label),
      R.svg("title", null, alone ? model.text(node.machine, number) : node.ops.slice(0, 12).map((op) => model.type(node.machine, op)).join(", ")));
      return group;
    }

    function choose(node) {
      if (node.ops.length > 1) {
        state.open.add(node.layer);
        layOut();
      } else {
        state.chosen = node;
        draw();
        R.explain(why, model, node.machine, node.ops[0], (machine, number) => explain(machine, number), () => {});
      }
    }

    function zoom(by, x = picture.clientWidth / 2, y = picture.clientHeight / 2) {
      const scale = Math.min(3, Math.max(Math.min(SMALLEST, fitting()), state.scale * by)), ratio = scale / state.scale;
      state.x = x - (x - state.x) * ratio;
      state.y = y - (y - state.y) * ratio;
      state.scale = scale;
      draw();
    }

    // The scale at which all of the graph is in sight.
    function fitting() { return R.fitting(state.drawn, picture.clientWidth || 800, picture.clientHeight || 500); }

    // All of the graph, in the middle.
    function fit() {
      state.scale = fitting();
      state.x = ((picture.clientWidth || 800) - state.scale * state.drawn.width) / 2;
      state.y = 0;
      draw();
    }

    // All columns, from the first row on, large enough to read.
    function begin() {
      state.scale = Math.min(1, Math.max(SMALLEST, (picture.clientWidth || 800) / state.drawn.width));
      state.x = 0;
      state.y = 0;
      draw();
    }

    drag(picture, (x, y) => { state.x += x; state.y += y; draw(); });
    picture.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
      else { state.x -= event.deltaX; state.y -= event.deltaY; draw(); }
    }, { passive: false });
    picture.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60], PageUp: [0, 400], PageDown: [0, -400] };
      if (event.key in moves) { state.x += moves[event.key][0]; state.y += moves[event.key][1]; draw(); }
      else if (event.key === "+" || event.key === "=") zoom(1.25);
      else if (event.key === "-") zoom(0.8);
      else if (event.key === "0" || event.key === "Home") fit();
      else return;
      event.preventDefault();
    });

    const trainers = data.cluster.map((machine, index) => machine.kind === "trainer" ? index + 1 : 0).filter(Boolean);
    const servers = data.cluster.map((machine, index) => machine.kind === "server" ? index + 1 : 0).filter(Boolean);
    const views = [["source", "the source, and what became of its ops", [0]], ["all", "a trainer and all servers, with messages", [trainers[0], ...servers]],
      ...model.names.slice(1).map((name, index) => [name, name, [index + 1]])];
    const view = R.el("select", { onchange: () => { state.machines = views.find(([name]) => name === view.value)[2]; state.open.clear(); state.chosen = null; layOut(); begin(); } },
      views.map(([name, title]) => R.el("option", { value: name }, title)));
    const why = R.el("aside", { class: "why", "aria-live": "polite", "aria-label": "Explanation", tabindex: "0" }, R.el("p", { class: "note" }, "Choose an op."));
    const tool = (text, onclick, label) => R.el("button", { type: "button", onclick, "aria-label": label }, text);
    const layers = [...model.data.layers.map((_, index) => index), model.data.layers.length];
    R.put(panel, R.el("div", { class: "tools" }, R.el("label", null, "Show ", view), tool("+", () => zoom(1.25), "Zoom in"), tool("−", () => zoom(0.8), "Zoom out"),
      tool("Fit", fit), tool("Unfold layers", () => { state.open = new Set(layers); layOut(); }), tool("Fold layers", () => { state.open.clear(); layOut(); })),
    legend(), status, R.el("div", { class: "split" }, picture, why));
    layOut();
    panel.addEventListener("shown", () => requestAnimationFrame(() => { if (state.x === 0 && state.y === 0) begin(); else draw(); }));
  };

  // What became of each op of the source: it is on trainers only, moved to servers, is on both, or gone.
  function fatesOf(data, model) {
    const on = model.machines[0].op.map(() => 0);
    for (let machine = 1; machine < model.machines.length; machine += 1) {
      const bit = data.cluster[machine - 1].kind === "server" ? 2 : 1;
      model.machines[machine].source.forEach((source) => { if (source >= 0) on[source] |= bit; });
    }
    return on.map((bits) => ["gone", "kept", "moved", "both"][bits]);
  }

  function legend() {
    const kinds = { kept: "stays on trainers", moved: "on servers", both: "on both", made: "made by a rule", gone: "gone" };
    return R.el("ul", { class: "legend" }, Object.entries(kinds).map(([kind, text]) => R.el("li", null, R.el("span", { class: `key ${kind}`, "aria-hidden": "true" }), text)));
  }

  function drag(node, move) {
    let from = null;
    node.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; });
    window.addEventListener("pointermove", (event) => {
      if (!from) return;
      move(event.clientX - from[0], event.clientY - from[1]);
      from = [event.clientX, event.clientY];
    });
    window.addEventListener("pointerup", () => { from = null; });
  }
})(globalThis.Report ||= {});
