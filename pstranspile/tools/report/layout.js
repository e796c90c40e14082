// Where the nodes of the graph stand. Rows are layers of the source, columns parts of a step; a layer folds into one row.
(function (R) {
  "use strict";

  const BACKWARD = 1, OPTIMIZE = 2, RPC = 4, DIST = 8, LR = 16;
  R.COLUMNS = ["forward", "backward", "exchange", "update"];
  R.WHOLE_STEP = "whole step";  // the layer, below all others, of what belongs to no layer, such as barriers
  R.NODE = { width: 190, height: 24, across: 260, down: 34 };

  // The part of a step that an op of the source or a trainer belongs to, by its role and whether a rule made it.
  R.partOf = function (role, made) {
    if (role & (RPC | DIST)) return 2;
    if (role & (OPTIMIZE | LR)) return 3;
    if (made) return 2;
    return role & BACKWARD ? 1 : 0;
  };

  // Nodes {key, machine, column, layer, row, ops} and columns {title, machine} of the main programs of machines.
  // Ops of layers in `open` are nodes of their own; those of the others share one for each column.
  R.graphNodes = function (model, machines, open) {
    const columns = [], nodes = new Map(), heights = new Map(), inLayer = new Map();
    const layers = model.machines[0].layer, server = (machine) => model.machines[machine].server;
    machines.forEach((machine) => {
      const parts = server(machine) ? [-1] : [0, 1, 2, 3];
      parts.forEach((part) => columns.push({ machine, part, title: part < 0 ? model.names[machine] : `${machine === 0 ? "source" : model.names[machine]}: ${R.COLUMNS[part]}` }));
    });
    const columnOf = new Map(columns.map((column, index) => [`${column.machine}:${column.part}`, index]));
    const nodeOf = new Map();
    for (const machine of machines) {
      const first = model.machines[machine].programs[0][0];
      let layer = 0, begun = false;
      for (const block of model.blocks[machine]) {
        if (block.program !== first) continue;
        for (let number = block.first; number < block.first + block.count; number += 1) {
          const source = model.source(machine, number);
          if (source >= 0) { layer = layers[source]; begun = true; }
          else if (begun && model.place(machine, number).block === 0) layer = model.data.layers.length;
          const part = server(machine) ? -1 : R.partOf(model.role(machine, number), model.rule(machine, number) !== null);
          const column = columnOf.get(`${machine}:${part}`), place = `${layer}:${column}`;
          const list = inLayer.get(place) ?? [];
          inLayer.set(place, list);
          let node;
          if (open.has(layer) || !list.length) {
            node = { key: `${machine}:${number}`, machine, column, layer, at: list.length, ops: [], edges: [] };
            list.push(node);
            nodes.set(node.key, node);
            heights.set(layer, Math.max(heights.get(layer) ?? 1, open.has(layer) ? list.length : 1));
          } else node = list[0];
          node.ops.push(number);
          nodeOf.set(`${machine}:${number}`, node);
        }
      }
    }
    const used = columns.map((_, index) => [...nodes.values()].some((node) => node.column === index));
    const shown = columns.map((_, index) => used.slice(0, index).filter(Boolean).length);
    const tops = new Map();
    let row = 0;
    for (const layer of [...heights.keys()].sort((a, b) => a - b)) { tops.set(layer, row); row += heights.get(layer); }
    for (const node of nodes.values()) {
      node.x = 60 + shown[node.column] * R.NODE.across;
      node.y = 50 + (tops.get(node.layer) + node.at) * R.NODE.down;
    }
    const titles = columns.map((column, index) => ({ ...column, x: 60 + shown[index] * R.NODE.across })).filter((_, index) => used[index]);
    return { nodes: [...nodes.values()], nodeOf, columns: titles, height: 60 + row * R.NODE.down, width: 120 + titles.length * R.NODE.across };
  };

  // Edges between different nodes, each once with the number of variables: from the op that wrote one to those that
  // read it (of one machine), and messages from machine to machine.
  R.graphEdges = function (model, machines, nodeOf) {
    const edges = new Map();
    const add = (from, to, kind) => {
      if (!from || !to || from === to) return;
      const key = `${from.key}>${to.key}`, known = edges.get(key);
      if (known) known.count += 1; else edges.set(key, { from, to, kind, count: 1 });
    };
    for (const machine of machines) {
      const written = new Map(), first = model.machines[machine].programs[0][0];
      for (const block of model.blocks[machine]) {
        if (block.program !== first) continue;
        for (let number = block.first; number < block.first + block.count; number += 1) {
          const node = nodeOf.get(`${machine}:${number}`);
          for (const name of model.inputs(machine, number)) add(nodeOf.get(`${machine}:${written.get(name)}`), node, "data");
          for (const name of model.outputs(machine, number)) written.set(name, number);
          for (const peer of model.peers(machine, number).list) {
            if (peer.machine === machine || !machines.includes(peer.machine) || model.machines[machine].server) continue;
            const there = nodeOf.get(`${peer.machine}:${peer.number}`), type = model.type(machine, number);
            if (type === "recv" || type === "fetch_barrier") add(there, node, "message"); else add(node, there, "message");
          }
        }
      }
    }
    return [...edges.values()];
  };
})(globalThis.Report ||= {});
