// Puts the parts of the report together.
(function (R) {
  "use strict";

  const data = JSON.parse(document.getElementById("data").textContent);
  let model = null, programs = null;

  // The programs stand behind this script: they are read when they are first shown.
  function withModel(use) {
    if (!model && document.readyState === "loading") {
      document.addEventListener("DOMContentLoaded", () => withModel(use), { once: true });
      return;
    }
    model ??= new R.Model(JSON.parse(document.getElementById("later").textContent).programs);
    use(model);
  }

  const tabs = R.tabs([
    ["cluster", "Cluster", (panel) => R.cluster(panel, data)],
    ["plan", "Plan", (panel) => R.plan(panel, data)],
    ["programs", "Programs", (panel) => withModel((model) => { programs = R.programs(panel, data, model); })],
    ["graph", "Graph", (panel) => withModel((model) => R.graph(panel, data, model, (machine, number) => { tabs.choose("programs"); programs.go(machine, number); }))],
    ["run", "Run", (panel) => R.run(panel, data)],
    ...(data.step ? [["step", "Time", (panel) => R.timeline(panel, data)]] : []),
  ]);
  const servers = data.servers.length ? ` and ${R.plural(data.servers.length, "server")}` : "";
  const verdict = data.check ? [R.el("p", { class: data.check.holds ? "good" : "bad" }, data.check.text.split("\n")[0])] : [];
  document.getElementById("page").append(
    R.el("a", { class: "skip", href: "#main" }, "Skip to the report"),
    R.el("header", null, R.el("h1", null, data.title), R.el("p", null, `Mode ${data.mode}: ${R.plural(data.trainers, "trainer")}${servers}`), ...verdict, tabs.list),
    R.el("main", { id: "main" }, tabs.panels),
    R.el("footer", null, data.made_by));
})(globalThis.Report ||= {});
