// Tests of the page's scripts, run by node: what they compute, without a browser. Data of a job come on stdin.
"use strict";

const assert = require("node:assert");
const path = require("node:path");
const folder = process.argv[2];
globalThis.window = { addEventListener() {} };
for (const name of ["core", "model", "list", "cluster", "plan", "layout", "graph", "run", "chart"]) require(path.join(folder, `${name}.js`));
const R = globalThis.Report;
const data = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));
const model = new R.Model(data.programs);

const tests = {
  "bytes and numbers are short"() {
    assert.deepEqual([0, 512, 40080, 1200000, 5e9].map(R.bytes), ["0 B", "512 B", "40.1 kB", "1.2 MB", "5.0 GB"]);
    assert.deepEqual([3, 0.1 + 0.2, 1e-9, "inf"].map(R.number), ["3", "0.3", "1e-09", "inf"]);
    assert.equal(R.percent(1, 3), "33.3 %");
    assert.equal(R.plural(1, "row") + R.plural(2, "row"), "1 row2 rows");
    assert.deepEqual([999, 1000, 12345678, -4000].map(R.number), ["999", "1,000", "12,345,678", "-4,000"]);
    assert.equal(R.plural(12000, "row") + R.bytes(9999), "12,000 rows9,999 B");
  },
  "names sort as people sort them"() {
    assert.deepEqual(["b10", "b9", "a"].sort(R.compare), ["a", "b9", "b10"]);
    assert.ok(R.compare(2, 10) < 0);
  },
  "marks of a time line are 1, 2 or 5 of a power of ten apart"() {
    assert.deepEqual(R.marks(0.0038, 8).map((time) => R.seconds(time)), ["0", "500 us", "1 ms", "1.5 ms", "2 ms", "2.5 ms", "3 ms", "3.5 ms"]);
    assert.deepEqual(R.marks(7, 4).map(R.seconds), ["0", "2 s", "4 s", "6 s"]);
    assert.deepEqual(R.marks(0, 8), [0]);
    assert.deepEqual([1e-5, 0.0123456, 1234.5].map(R.seconds), ["10 us", "12.3 ms", "1,230 s"]);
  },
  "a prediction differs from what was measured by a share of that"() {
    assert.deepEqual([R.difference(1.1, 1), R.difference(0.75, 1), R.difference(1, 1), R.difference(1, 0)], ["+10 %", "-25 %", "+0 %", ""]);
  },
  "rows in sight are few"() {
    const [first, last] = R.inSight(26 * 5000, 600, 10000);
    assert.ok(first <= 5000 && last >= 5023 && last - first < 60);
    assert.deepEqual(R.inSight(0, 600, 3), [0, 3]);
  },
  "an even cluster has an imbalance of one"() {
    assert.equal(R.imbalance([5, 5]), 1);
    assert.equal(R.imbalance([0, 4]), 2);
    assert.equal(R.imbalance([]), 1);
  },
  "every op has its place"() {
    model.names.forEach((name, machine) => {
      let at = 0;
      for (const block of model.blocks[machine]) {
        for (let number = 0; number < block.count; number += 1, at += 1) {
          assert.deepEqual(model.place(machine, at), { program: block.program, block: block.index, number });
        }
      }
      assert.equal(at, model.count(machine));
    });
  },
  "side by side, every op stands once, beside the op that it comes from"() {
    const columns = model.names.map((_, index) => index), seen = columns.map(() => new Set());
    for (const program of model.programs()) {
      for (const row of model.aligned(columns, program)) {
        row.cells.forEach((number, column) => {
          if (number < 0) return;
          assert.ok(!seen[column].has(number));
          seen[column].add(number);
          if (row.source !== undefined) assert.equal(model.source(columns[column], number), row.source);
        });
      }
    }
    columns.forEach((machine) => assert.equal(seen[machine].size, model.count(machine), model.names[machine]));
  },
  "in their own order, the blocks of a server stand below the op that runs them, and fold"() {
    const server = model.names.indexOf("pserver_0"), rows = model.inOrder([server], "main");
    const count = model.blocks[server].filter((block) => block.program === "main").reduce((sum, block) => sum + block.count, 0);
    assert.equal(rows.length, count);
    assert.ok(rows[0].folding[0] && rows[1].depths[0] === 1);
    assert.equal(model.inOrder([server], "main", new Set([`${server}:${rows[0].cells[0]}`])).length, 1);
  },
  "partners name each other"() {
    const trainer = model.names.indexOf("trainer_0");
    const send = model.search(trainer, "send(").find((number) => model.type(trainer, number) === "send");
    const server = model.peers(trainer, send).list.find((peer) => model.names[peer.machine].startsWith("pserver"));
    assert.ok(model.peers(server.machine, server.number).list.some((peer) => peer.machine === trainer && peer.number === send));
    assert.equal(model.rule(trainer, send)[0], "send-gradient");
    assert.ok(model.reason(trainer, send).length > 10);
    assert.ok(model.notes(trainer, send).some(([name]) => name === "epmap"));
  },
  "all words must be found"() {
    const trainer = model.names.indexOf("trainer_0");
    assert.ok(model.search(trainer, "SGD %w").length === 0 && model.search(0, "sgd(Param=%w").length === 1);
  },
  "the graph has every op of the main program in one box, and unfolds"() {
    data.cluster.forEach((machine, index) => { model.machines[index + 1].server = machine.kind === "server"; });
    const all = model.names.map((_, index) => index).slice(1);
    const open = new Set([...model.data.layers.map((_, index) => index), model.data.layers.length]);
    for (const layers of [new Set(), open]) {
      const { nodes, nodeOf } = R.graphNodes(model, all, layers);
      const count = all.reduce((sum, machine) => sum + model.blocks[machine].filter((b) => b.program === "main").reduce((n, b) => n + b.count, 0), 0);
      assert.equal(nodes.reduce((sum, node) => sum + node.ops.length, 0), count);
      const places = new Set(nodes.map((node) => `${node.x} ${node.y}`));
      assert.equal(places.size, nodes.length, "two boxes at one place");
      const edges = R.graphEdges(model, all, nodeOf);
      assert.ok(edges.some((edge) => edge.kind === "message" && edge.from.machine !== edge.to.machine));
      assert.ok(edges.some((edge) => edge.kind === "data"));
      nodes.sort((a, b) => a.y - b.y);
      for (const edge of edges) { edge.from.edges.push(edge); edge.to.edges.push(edge); }
      assert.equal(R.nodesInSight(nodes, 0, 0, 1e9, 1e9).length, nodes.length);
      assert.equal(R.edgesOf(nodes).length, edges.length);
      const [some] = nodes.slice(-1), near = R.nodesInSight(nodes, some.x, some.y, some.x, some.y);
      assert.deepEqual(near, [some]);
      assert.equal(R.nodesInSight(nodes, 0, 0, 1e9, 1e9, 2).length, 2);
      if (layers === open) assert.ok(nodes.every((node) => node.ops.length === 1));
    }
  },
  "parameters are filtered by name and server, and sorted"() {
    const { parameters } = data;
    assert.deepEqual(R.chosenParameters(parameters, "W", -1, "name").map((p) => p.name), ["w"]);
    assert.equal(R.chosenParameters(parameters, "", 1, "largest first")[0].name, "w");
    assert.deepEqual(R.chosenParameters(parameters, "", -1, "name").map((p) => p.name), ["b", "w"]);
  },
  "barriers stand behind all that their machine does before, and before what it does later"() {
    const trainer = model.names.indexOf("trainer_0"), server = model.names.indexOf("pserver_0");
    for (const folded of [new Set(), new Set(model.blocks.flatMap((blocks, machine) => blocks.map((block) => `${machine}:${block.owner}`)))]) {
      const rows = model.aligned([0, trainer, server], "main", folded).map((row) => row.cells[1]).filter((number) => number >= 0);
      const types = rows.map((number) => model.type(trainer, number));
      assert.equal(types.filter((type) => type.endsWith("_barrier")).length, 2);
      assert.ok(types.indexOf("send_barrier") > types.lastIndexOf("send"));
      assert.ok(types.indexOf("send_barrier") < types.indexOf("recv"));
      assert.ok(types.indexOf("fetch_barrier") > types.lastIndexOf("recv"));
      assert.equal(model.type(server, model.aligned([0, trainer, server], "main", folded)[0].cells[2]), "listen_and_serv");
    }
    const { nodes } = R.graphNodes(model, [trainer, server], new Set([model.data.layers.length]));
    const at = (type) => nodes.filter((node) => node.ops.some((number) => node.machine === trainer && model.type(trainer, number) === type));
    for (const type of ["send_barrier", "fetch_barrier"]) {
      assert.ok(at(type).every((node) => node.ops.length === 1 && nodes.every((other) => other.y <= node.y || at("fetch_barrier").includes(other))));
    }
    assert.ok(at("send_barrier")[0].y < at("fetch_barrier")[0].y);
  },
  "a graph fits its window"() {
    assert.equal(R.fitting({ width: 100, height: 100 }, 800, 500), 1);
    assert.equal(R.fitting({ width: 1600, height: 100 }, 800, 500), 0.5);
    assert.equal(R.fitting({ width: 100, height: 50000 }, 800, 500), 0.01);
  },
  "numbers have the form in which commands print them"() {
    assert.deepEqual([1.9e-7, 2.5e-5, 1e-4, 0.513711, 1234.5678, 1.5e6 + 0.5, 1e20, -3e-12, 0].map(R.number),
      ["1.9e-07", "2.5e-05", "0.0001", "0.513711", "1234.57", "1.5e+06", "1e+20", "-3e-12", "0"]);
  },
  "points of curves lie in their picture"() {
    const { lines, low, high } = R.points([{ steps: [1, 2, 3], values: [4, 2, 0] }], 100, 50);
    assert.deepEqual([low, high, lines], [0, 4, [[[0, 0], [50, 25], [100, 50]]]]);
    assert.deepEqual(R.points([{ steps: [1], values: [1] }], 100, 50).lines, [[[50, 25]]]);
  },
  "rows of the chart come by step"() {
    assert.deepEqual(R.stepsOf([["a"], ["m", "deliver", "x", "y", 1, 2, 3], ["b"]]).map((s) => [s.title, s.rows.length]), [["a", 1]]);
  },
};

for (const [name, test] of Object.entries(tests)) {
  try {
    test();
  } catch (problem) {
    console.log(`${name}: ${problem.stack}`);
    process.exitCode = 1;
  }
}
console.log(`${Object.keys(tests).length} tests`);
