// Differences of two inputs, machine by machine, to filter.
(function (R) {
  "use strict";

  const data = JSON.parse(document.getElementById("data").textContent);
  const names = new Map();
  for (const difference of data.differences) {
    const place = [difference.role, difference.program && `@${difference.program}`].filter(Boolean).join(" ") || "both";
    names.set(place, [...(names.get(place) ?? []), difference]);
  }
  const body = R.el("main", { id: "main" }), status = R.el("p", { role: "status" });

  function line({ sign, text }) {
    const kind = { "-": "less", "+": "gain" }[sign];
    return R.el("span", { class: `code ${kind ?? ""}` }, `${sign}${text}`);
  }

  function draw(wanted) {
    let shown = 0;
    const sections = [...names].map(([place, list]) => {
      const found = list.filter((item) => R.matches([place, ...item.lines.map((part) => part.text)], wanted));
      shown += found.length;
      return found.length ? R.el("section", null, R.el("h2", null, place), found.slice(0, 500).map((item) => R.el("div", { class: "hunk" },
        R.el("h3", null, item.heading), R.el("pre", { tabindex: "0", "aria-label": item.heading }, item.lines.map(line)))),
      found.length > 500 ? R.el("p", { class: "note" }, `And ${found.length - 500} more here.`) : null) : null;
    });
    R.clear(body, sections.filter(Boolean));
    R.clear(status, wanted ? `${shown} of ${R.plural(data.differences.length, "difference")} shown` : data.summary);
  }

  const search = R.el("input", { type: "search", "aria-label": "Filter differences", placeholder: "Filter", oninput: () => draw(search.value.trim().toLowerCase()) });
  draw("");
  document.getElementById("page").append(R.el("a", { class: "skip", href: "#main" }, "Skip to the differences"),
    R.el("header", null, R.el("h1", null, `${data.a} and ${data.b}`), R.el("div", { class: "tools" }, search), status), body,
    R.el("footer", null, data.made_by));
})(globalThis.Report ||= {});
