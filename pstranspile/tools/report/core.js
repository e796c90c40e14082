// Elements, numbers, tables and tabs. Names and values of programs are only ever set as text.
(function (R) {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";

  // el("button", {class: "quiet", onclick: f}, "text", child, ...)
  R.el = function (name, attributes, ...children) {
    return fill(document.createElement(name), attributes, children);
  };

  R.svg = function (name, attributes, ...children) {
    return fill(document.createElementNS(SVG, name), attributes, children);
  };

  function fill(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key === "style") Object.assign(node.style, value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    return R.put(node, ...children);
  }

  // Appends what is there of some children.
  R.put = function (node, ...children) {
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  };

  R.clear = function (node, ...children) {
    node.replaceChildren(...children.flat());
    return node;
  };

  R.bytes = function (count) {
    if (count < 10000) return `${R.number(count)} B`;
    const units = ["kB", "MB", "GB", "TB"];
    let value = count / 1000, unit = 0;
    while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
    return `${value.toFixed(1)} ${units[unit]}`;
  };

  // A number as commands print it: whole with commas between thousands (`12,000`), or with 6 digits, and an exponent of
  // two digits at least (`1.9e-07`).
  R.number = (value) => typeof value !== "number" ? String(value)
    : Number.isInteger(value) && Math.abs(value) < 1e15 ? String(value).replace(/\B(?=(\d{3})+$)/g, ",")
    : Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6 ? short(value.toExponential(5)) : short(value.toPrecision(6));

  const short = (text) => text.replace(/(\.\d*?)0+($|e)/, "$1$2").replace(/\.($|e)/, "$1").replace(/e([+-])(\d)$/, "e$10$2");

  R.percent = (part, whole) => whole ? `${(100 * part / whole).toFixed(1)} %` : "";

  R.plural = (count, noun) => `${R.number(count)} ${noun}${count === 1 ? "" : "s"}`;

  R.ROWS = 60;  // rows of a table that are shown at first
  R.PRINTED = 500;  // and on paper

  // A table: columns are {title, value(row), show(row) -> text or node, numeric}. Heads sort; `filter` looks for a text.
  R.table = function (caption, columns, rows, options = {}) {
    let by = options.by ?? -1, down = options.down ?? false, wanted = "", shown = R.ROWS;
    const body = R.el("tbody"), more = R.el("p", { class: "more" });
    const heads = columns.map((column, index) => {
      const sort = () => { down = by === index ? !down : Boolean(column.numeric); by = index; draw(); };
      const button = R.el("button", { type: "button", class: "head", onclick: sort }, column.title);
      return R.el("th", { scope: "col", class: column.numeric && "number" }, button);
    });
    const cell = (column, row, index) => {
      const content = column.show ? column.show(row) : R.number(column.value(row));
      const attributes = { class: column.numeric && "number", scope: index ? null : "row" };
      return R.el(index ? "td" : "th", attributes, content);
    };

    function draw() {
      let listed = wanted ? rows.filter((row) => R.matches(columns.map((c) => c.value(row)), wanted)) : rows.slice();
      if (by >= 0) {
        const value = columns[by].value;
        listed.sort((a, b) => R.compare(value(a), value(b)) * (down ? -1 : 1));
      }
      heads.forEach((head, index) => {
        head.setAttribute("aria-sort", index === by ? (down ? "descending" : "ascending") : "none");
      });
      const row = (item) => R.el("tr", null, columns.map((column, index) => cell(column, item, index)));
      R.clear(body, listed.slice(0, shown).map(row));
      R.clear(more, listed.length > shown ? [`${R.plural(listed.length - shown, "more row")}. `, R.el("button", {
        type: "button", onclick: () => { shown *= 4; draw(); } }, "Show more")] : [`${R.plural(listed.length, "row")}.`]);
    }

    const search = R.el("input", {
      type: "search", "aria-label": `Filter: ${caption}`, placeholder: "Filter",
      oninput: () => { wanted = search.value.trim().toLowerCase(); draw(); },
    });
    draw();
    window.addEventListener("beforeprint", () => { if (shown < R.PRINTED) { shown = R.PRINTED; draw(); } });
    const table = R.el("table", null, R.el("caption", null, caption), R.el("thead", null, R.el("tr", null, heads)), body);
    const region = R.el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
    return R.el("div", { class: "table" }, rows.length > 8 ? search : null, region, rows.length > 8 ? more : null);
  };

  R.matches = (values, wanted) => values.some((value) => String(value).toLowerCase().includes(wanted));

  R.compare = function (a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };

  // Bars: a part of a whole, with the number as text beside it.
  R.bar = function (part, whole, label, kind = 0) {
    const width = whole > 0 ? Math.max(100 * part / whole, part ? 0.5 : 0) : 0;
    const filled = R.el("span", { class: `fill kind${kind % 8}`, style: { width: `${width}%` } });
    return R.el("span", { class: "bar" }, R.el("span", { class: "track", "aria-hidden": "true" }, filled), R.el("span", null, label));
  };

  // Tabs: [name, title, make(panel)]; a panel is made when it is first shown, and all are made for printing.
  R.tabs = function (parts) {
    const list = R.el("div", { role: "tablist", "aria-label": "Parts of the report" });
    const panels = [], buttons = [], made = new Set();
    parts.forEach(([name, title], index) => {
      buttons.push(R.el("button", {
        type: "button", role: "tab", id: `tab-${name}`, "aria-controls": name, onclick: () => choose(index),
        onkeydown: (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          const next = event.key === "Home" ? 0 : event.key === "End" ? parts.length - 1 : step
            ? (index + step + parts.length) % parts.length : -1;
          if (next >= 0) { event.preventDefault(); choose(next); buttons[next].focus(); }
        },
      }, title));
      panels.push(R.el("section", { role: "tabpanel", id: name, "aria-labelledby": `tab-${name}`, tabindex: "0" }));
    });

    function make(index) {
      if (made.has(index)) return;
      made.add(index);
      panels[index].append(R.el("h2", { class: "print" }, parts[index][1]));
      parts[index][2](panels[index]);
    }

    function choose(index) {
      panels.forEach((panel, other) => panel.classList.toggle("chosen", other === index));
      buttons.forEach((button, other) => {
        button.setAttribute("aria-selected", String(other === index));
        button.tabIndex = other === index ? 0 : -1;
      });
      make(index);
      panels[index].dispatchEvent(new Event("shown"));
    }

    if (typeof window !== "undefined") window.addEventListener("beforeprint", () => parts.forEach((_, index) => make(index)));
    list.append(...buttons);
    choose(0);
    return { list, panels, choose: (name) => choose(parts.findIndex((part) => part[0] === name)) };
  };
})(globalThis.Report ||= {});
