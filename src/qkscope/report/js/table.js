/* Heads table: the rows that pass the filter at the chosen checkpoint, sorted, fifty to a page; CSV of the selection. */
"use strict";

(() => {
  const { data, state, h } = qk;
  const drawing = document.getElementById("table-drawing");
  const note = document.getElementById("table-note");
  const PAGE = 50;
  const controls = {};
  let page = 0;

  const table = () => data.table(state.window);
  const stopOf = (head) => (data.training ? state.stop : head.owner);
  const at = (name, head) => data.value(table(), name, stopOf(head), head.index);
  const named = (kind, head) => {
    const code = data.code(table(), kind, stopOf(head), head.index);
    return { code, name: (kind === "class" ? data.classes : data.polarities)[code] || "" };
  };

  const ropeName = (head) => (head.rope === null ? "" : head.rope === 1 ? "RoPE" : "NoPE");

  function aboveNull(head) {
    const said = ["r_q", "r_k"].filter((name) => Math.abs(at(name, head)) > at(`${name}_null`, head));
    return said.map((name) => name.slice(-1).toUpperCase()).join(" ") || "–";
  }

  function measureCell(name) {
    return (head) => {
      const se = at(`${name}_se`, head);
      return [qk.number(at(name, head)), Number.isNaN(se) ? null : h("span", { class: "se" }, ` ±${qk.number(se)}`)];
    };
  }

  function kindCell(kind) {
    return (head) => {
      const { code, name } = named(kind, head);
      const block = h("i", { class: name === "unmeasured" ? "block hatched" : "block", style: `background-color:${qk.colour(kind, code)}` });
      return [block, name];
    };
  }

  /* Columns: key, heading, what to sort by, what to show, whether it is a number. */
  function columnsOf() {
    const found = [];
    if (!data.training) found.push({ key: "model", name: "model", by: (d) => d.owner, cell: (d) => qk.shorten(data.stops[d.owner].label, 24) });
    found.push({ key: "layer", name: "layer", by: (d) => d.layer * 10000 + d.head, cell: (d) => String(d.layer), num: true });
    found.push({ key: "head", name: "head", by: (d) => d.head, cell: (d) => String(d.head), num: true, opens: true });
    found.push({ key: "class", name: "class", by: (d) => named("class", d).code, cell: kindCell("class") });
    found.push({ key: "r_q", name: "r_q", by: (d) => at("r_q", d), cell: measureCell("r_q"), num: true });
    found.push({ key: "r_k", name: "r_k", by: (d) => at("r_k", d), cell: measureCell("r_k"), num: true });
    if (data.own.explained_variance) found.push({ key: "explained_variance", name: "expl. variance", by: (d) => at("explained_variance", d), cell: (d) => qk.number(at("explained_variance", d)), num: true });
    found.push({ key: "polarity", name: "polarity", by: (d) => named("polarity", d).code, cell: kindCell("polarity") });
    if (data.hasKv) found.push({ key: "kv", name: "key head", by: (d) => d.kv, cell: (d) => (d.kv === null ? "–" : String(d.kv)), num: true });
    if (data.hasRope) found.push({ key: "rope", name: "RoPE", by: (d) => d.rope, cell: ropeName });
    if (data.own.r_q_null) found.push({ key: "null", name: "above null", by: aboveNull, cell: aboveNull });
    return found;
  }
  const columns = columnsOf();

  function rows() {
    const shown = qk.shown();
    const list = data.heads.filter((d) => (!shown || shown.has(d.index)) && named("class", d).code >= 0);
    const column = columns.find(({ key }) => key === state.sort) || columns.find(({ key }) => key === "layer");
    const sign = state.down ? -1 : 1;
    const missing = (v) => v === null || Number.isNaN(v);
    const keyed = list.map((d) => [column.by(d), d]);
    keyed.sort(([a, x], [b, y]) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return a < b ? -sign : a > b ? sign : x.index - y.index;
    });
    return keyed.map(([, d]) => d);
  }

  /* ---- the table ---- */

  function header() {
    const cells = columns.map(({ key, name, num }) => {
      const sorted = state.sort === key ? (state.down ? "descending" : "ascending") : null;
      const arrow = sorted ? (state.down ? " ↓" : " ↑") : "";
      const button = h("button", { type: "button", id: `sort-${key}`, class: "sort" }, name, h("span", { "aria-hidden": "true" }, arrow));
      button.addEventListener("click", () => {
        page = 0;
        qk.set({ sort: key, down: state.sort === key ? !state.down : false });
      });
      return h("th", { scope: "col", class: num ? "num" : null, "aria-sort": sorted }, button);
    });
    return h("tr", {}, h("th", { scope: "col", class: "check" }, h("span", { class: "visually-hidden" }, "selected")), cells);
  }

  function row(head) {
    const picked = state.heads.has(head.index);
    const name = data.headName(head.index);
    const box = h("input", { type: "checkbox", id: `pick-${head.index}`, "aria-label": `Select ${name}` });
    box.checked = picked;
    box.addEventListener("change", () => {
      const next = new Set(state.heads);
      if (box.checked) next.add(head.index);
      else next.delete(head.index);
      qk.set({ heads: next, head: box.checked ? head.index : state.head });
    });
    const cells = columns.map((column) => {
      const content = column.cell(head);
      const inner = column.opens
        ? h("button", { type: "button", id: `open-${head.index}`, class: "link", "aria-label": `Open ${name}`, onclick: () => open(head) }, content)
        : content;
      return h("td", { class: column.num ? "num" : null, "data-column": column.key }, inner);
    });
    return h("tr", { class: picked ? "selected" : null, "data-head": head.index }, h("td", { class: "check" }, box), cells);
  }

  function open(head) {
    qk.set({ head: head.index });
    qk.go("head");
  }

  function pager(total) {
    const pages = Math.max(1, Math.ceil(total / PAGE));
    page = Math.min(page, pages - 1);
    const turn = (step) => () => {
      page += step;
      draw();
    };
    return h("div", { class: "pager" },
      h("button", { type: "button", id: "page-before", disabled: page === 0, onclick: turn(-1) }, "‹ Previous"),
      h("span", {}, total ? `${qk.count(page * PAGE + 1)}–${qk.count(Math.min(total, (page + 1) * PAGE))} of ${qk.headCount(total)}` : "No head passes the filter"),
      h("button", { type: "button", id: "page-after", disabled: page >= pages - 1, onclick: turn(1) }, "Next ›"));
  }

  /* ---- CSV ---- */

  const CSV = ["model", "layer", "head", "kv_head", "r_q", "r_k", "explained_variance", "r_q_se", "r_k_se", "r_q_null", "r_k_null", "rope", "class", "polarity"];

  /* A field that a spreadsheet would take for a formula is quoted as text. */
  function field(value) {
    if (value === null || Number.isNaN(value)) return "";
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  }

  function csv(heads, stops) {
    const lines = [CSV.join(",")];
    for (const stop of stops) {
      for (const head of heads) {
        const code = data.code(table(), "class", stop.index, head.index);
        if (code < 0) continue;
        const value = (name) => data.value(table(), name, stop.index, head.index);
        const numbers = CSV.slice(4, 11).map(value);
        const sign = data.polarities[data.code(table(), "polarity", stop.index, head.index)];
        lines.push([stop.model, head.layer, head.head, head.kv, ...numbers, head.rope, data.classes[code], sign].map(field).join(","));
      }
    }
    return `${lines.join("\r\n")}\r\n`;
  }

  function download(everywhere) {
    const heads = state.heads.size ? data.heads.filter((d) => state.heads.has(d.index)) : rows();
    const stops = everywhere || !data.training ? data.stops : [data.stops[state.stop]];
    const url = URL.createObjectURL(new Blob([csv(heads, stops)], { type: "text/csv" }));
    const safe = (data.name || "heads").replace(/[^\w.-]+/g, "_").slice(0, 60);
    const link = h("a", { href: url, download: `${safe}_${state.heads.size ? "selection" : "heads"}.csv` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  /* ---- filters ---- */

  const filter = (changes) => {
    page = 0;
    qk.set({ filter: { ...state.filter, ...changes } });
  };

  function classBoxes() {
    const used = data.classes.filter((_, code) => table().class.includes(code));
    const set = h("fieldset", { class: "chips" }, h("legend", {}, "Class"));
    controls.classes = used.map((name) => {
      const box = h("input", { type: "checkbox", id: `class-${data.classes.indexOf(name)}`, value: name });
      box.addEventListener("change", () => filter({ classes: controls.classes.filter((b) => b.checked).map((b) => b.value) }));
      const block = h("i", { class: name === "unmeasured" ? "block hatched" : "block", style: `background-color:${qk.colour("class", data.classes.indexOf(name))}` });
      set.append(box, h("label", { for: box.id }, block, name));
      return box;
    });
    return set;
  }

  function choice(id, label, entries, key) {
    const box = h("select", { id }, entries.map(([value, text]) => h("option", { value }, text)));
    box.addEventListener("change", () => filter({ [key]: box.value }));
    controls[key] = box;
    return h("label", { class: "field" }, h("span", {}, label), box);
  }

  function layerBoxes() {
    const all = data.heads.map((d) => d.layer);
    const [least, most] = [d3.min(all), d3.max(all)];
    const read = () => {
      const from = controls.from.value === "" ? least : Number(controls.from.value);
      const to = controls.to.value === "" ? most : Number(controls.to.value);
      filter({ layers: controls.from.value === "" && controls.to.value === "" ? null : [from, to] });
    };
    const box = (id, label, hint) => {
      const input = h("input", { type: "number", id, min: least, max: most, step: 1, placeholder: hint, "aria-label": label });
      input.addEventListener("change", read);
      return input;
    };
    controls.from = box("layer-from", "From layer", least);
    controls.to = box("layer-to", "To layer", most);
    return h("div", { class: "field", role: "group", "aria-label": "Layers" }, h("span", {}, "Layers"), h("span", { class: "range" }, controls.from, "–", controls.to));
  }

  function setUp() {
    controls.search = h("input", { type: "search", id: "search", placeholder: "7.3, L7, mixed…", autocomplete: "off", spellcheck: "false" });
    controls.search.addEventListener("input", () => filter({ search: controls.search.value }));
    const parts = [h("label", { class: "field" }, h("span", {}, "Search"), controls.search), classBoxes(), layerBoxes(),
      choice("polarity", "Polarity", [["", "any"], ...data.polarities.map((name) => [name, name])], "polarity")];
    if (data.hasRope) parts.push(choice("rope", "Positions", [["", "any"], ["rope", "RoPE"], ["nope", "NoPE"]], "rope"));
    controls.only = h("input", { type: "checkbox", id: "only" });
    controls.only.addEventListener("change", () => filter({ only: controls.only.checked }));
    parts.push(h("label", { class: "tickbox" }, controls.only, "selected only"));
    parts.push(h("div", { class: "actions" },
      h("button", { type: "button", id: "select-shown", onclick: () => selectShown() }, "Select all shown"),
      h("button", { type: "button", id: "clear-filter", onclick: () => qk.clearFilter() }, "Clear filter"),
      controls.save = h("button", { type: "button", id: "save", onclick: () => download(false) }, "CSV"),
      data.training && data.stops.length > 1 ? h("button", { type: "button", id: "save-all", onclick: () => download(true) }, "CSV, every checkpoint") : null));
    document.getElementById("table-controls").replaceChildren(...parts);
  }

  function selectShown() {
    const list = rows();
    qk.set({ heads: new Set(list.map((d) => d.index)), head: list.length ? list[0].index : state.head });
  }

  function showFilter() {
    const { classes, polarity, rope, layers, search, only } = state.filter;
    for (const box of controls.classes) box.checked = classes.includes(box.value);
    controls.polarity.value = polarity;
    if (controls.rope) controls.rope.value = rope;
    controls.from.value = layers ? layers[0] : "";
    controls.to.value = layers ? layers[1] : "";
    if (controls.search.value !== search) controls.search.value = search;
    controls.only.checked = only;
    document.getElementById("clear-filter").disabled = !qk.filtering();
    controls.save.textContent = state.heads.size ? `CSV of ${qk.headCount(state.heads.size)} selected` : "CSV of the heads shown";
  }

  function draw() {
    showFilter();
    const list = rows();
    const turns = pager(list.length);
    const body = list.slice(page * PAGE, (page + 1) * PAGE).map(row);
    const caption = h("caption", {}, `${data.training ? data.stops[state.stop].label : "All models"}, ${state.window === "matched" && data.matched ? "matched window" : "own window"}`);
    const grid = h("table", { class: "heads" }, caption, h("thead", {}, header()), h("tbody", {}, body));
    qk.mount(drawing, h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Table of heads" }, grid), turns);
    const said = [];
    if (!data.hasKv) said.push("No kv_head column: key heads are not known.");
    if (!data.hasRope) said.push("No rope column: which layers rotate is not known.");
    note.textContent = said.join(" ");
  }

  qk.table = { setUp, draw, csv, needs: ["stop", "heads", "filter", "window", "sort", "down"] };
})();
