// @ts-check
/* Heads table: the heads that pass the filter at the chosen checkpoint, sorted, in pages; the filter, which all views
 * of heads follow; and the heads as CSV, with the columns of heads.csv that the page holds. */
"use strict";

const headTable = (() => {
  const { state } = store;
  const { h } = dom;
  const drawing = dom.find("table-drawing");
  const pager = dom.pager("page", 12, "head", () => draw(null));

  const { table } = store;
  const NO_ERROR = "no error: leaving out some documents makes another axis PC0";
  /** @type {(name: string, head: Head, run?: number) => number} */
  const at = (name, head, run) => data.value(table(run), name, data.checkpointOf(head, state.checkpoint), head.index);
  /** @type {(head: Head, run?: number) => number} */
  const codeOf = (head, run) => data.code(table(run), data.checkpointOf(head, state.checkpoint), head.index);
  /** @type {(name: string, run?: number) => (head: Head) => Child[]} */
  function measureCell(name, run) {
    return (head) => {
      const se = at(`${name}_se`, head, run);
      const found = at(name, head, run);
      const [value, error] = text.measure(name, found, se).split(" ± ");
      if (error !== undefined) return [value, h("span", { class: "se" }, ` ±${error}`)];
      if (Number.isNaN(found) || !data.has(`${name}_se`)) return [value];
      return [value, h("span", { class: "se lost", title: NO_ERROR }, " ± –")];
    };
  }

  /** @type {(run?: number) => (head: Head) => Child[]} */
  const classCell = (run) => (head) => {
    const code = codeOf(head, run);
    return [paint.block(code), data.classes[code] || ""];
  };

  /** @param {Head} head */
  const rolesText = (head) => data.roleNames(table(), data.checkpointOf(head, state.checkpoint), head.index);

  /* Columns: key, heading, what to sort by, what to show, whether it is a number, what it means. */
  /** @typedef {{ key: string, name: string, by: (head: Head) => number | string | null,
   *   cell: (head: Head) => string | Child[], num?: boolean, opens?: boolean, means?: string }} Column */
  /* The position share first, as everywhere on the page. */
  /** @param {string} name */
  const rank = (name) => store.choices.measure.indexOf(name) + (name === "r_k" ? 99 : 0);

  /** @returns {Column[]} */
  function columnsOf() {
    const nope = () => h("span", { class: "nope" }, "NoPE ◆ ");
    /** @type {Column[]} */
    const model = [
      { key: "model", name: "model", by: (d) => d.owner, cell: (d) => text.shorten(data.labelOf(d.owner ?? 0), 24) },
    ];
    /** @type {Column[]} */
    const always = [
      {
        ...{ key: "layer", name: "layer", by: (d) => d.index, num: true },
        cell: (d) => (d.population === "NoPE" ? [nope(), `${d.layer}`] : `${d.layer}`),
      },
      { key: "head", name: "head", by: (d) => d.head, cell: (d) => String(d.head), num: true, opens: true },
    ];
    const found = data.training ? always : [...model, ...always];
    if (store.both()) return [...found, ...ofBoth()];
    const means = axes.taxonomyMeans();
    found.push({ key: "class", name: "class", by: (d) => codeOf(d), cell: classCell(), means });
    const shown = d3.sort(data.measures.filter(({ inTable }) => inTable), ({ name }) => rank(name));
    found.push(...shown.map(({ name, label }) => measureColumn(name, name, label)));
    if (data.roles.length)
      found.push({ key: "roles", name: "roles", by: (d) => rolesText(d) || null, cell: (d) => rolesText(d) || "–" });
    return found;
  }

  /* Columns of two runs: the class in each, and each correlation in A, in B and their difference. */
  /** @returns {Column[]} */
  function ofBoth() {
    const kinds = store.runs().map((run) => ({
      key: `class_${data.letters[run]}`,
      name: `class ${data.letters[run]}`,
      by: (/** @type {Head} */ d) => codeOf(d, run),
      cell: classCell(run),
    }));
    const shown = ["share_positional", "r_q", "r_k"]
      .filter((name) => data.has(name))
      .flatMap((name) => [...store.runs().map((run) => inRun(name, run)), change(name)]);
    return [...kinds, ...shown];
  }

  /** @type {(measure: string, key: string, name: string, run?: number) => Column} */
  const measureColumn = (measure, key, name, run) => ({
    ...{ key, name, by: (d) => at(measure, d, run), cell: measureCell(measure, run), num: true },
    means: (run === undefined && data.measureMeans(measure)) || undefined,
  });

  /** @type {(name: string, run: number) => Column} */
  const inRun = (name, run) =>
    measureColumn(name, `${name}_${data.letters[run]}`, `${data.measureLabel(name)} ${data.letters[run]}`, run);

  /* The difference of a number between the runs, sorted by its size. */
  /** @type {(name: string) => Column} */
  function change(name) {
    const value = (/** @type {Head} */ d) => at(name, d, 0) - at(name, d, 1);
    return {
      key: `${name}_change`,
      name: "A − B",
      by: (d) => Math.abs(value(d)),
      cell: (d) => text.change(name, value(d)),
      num: true,
      means: `${data.measureLabel(name)} in A less that in B; sorted by its size`,
    };
  }

  let columns = columnsOf();

  function rows() {
    const shown = store.shown();
    const list = data.heads.filter((d) => (!shown || shown.has(d.index)) && codeOf(d) >= 0);
    const sorted = columns.find(({ key }) => key === state.sort) || columns[data.training ? 0 : 1];
    const sign = state.down ? -1 : 1;
    /** @param {number | string | null} v */
    const missing = (v) => v === null || Number.isNaN(v);
    /** @type {[any, Head][]} */
    const keyed = list.map((d) => [sorted.by(d), d]);
    keyed.sort(([a, x], [b, y]) => {
      if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
      return a < b ? -sign : a > b ? sign : x.index - y.index;
    });
    return keyed.map(([, d]) => d);
  }

  /* ---- the table ---- */

  function header() {
    const cells = columns.map(({ key, name, num, means }) => {
      const sorted = state.sort === key ? (state.down ? "descending" : "ascending") : null;
      const arrow = sorted ? (state.down ? " ↓" : " ↑") : "";
      const button = h(
        "button",
        { type: "button", id: `sort-${key}`, class: "sort" },
        name,
        h("span", { "aria-hidden": "true" }, arrow),
      );
      button.addEventListener("click", () => {
        pager.first();
        store.set({ sort: key, down: state.sort === key ? !state.down : false });
      });
      marks.explained(button, name, means);
      return h("th", { scope: "col", class: num ? "num" : null, "aria-sort": sorted }, button);
    });
    return h(
      "tr",
      {},
      h("th", { scope: "col", class: "check" }, h("span", { class: "visually-hidden" }, "selected")),
      cells,
    );
  }

  /** @param {Head} head */
  function row(head) {
    const picked = state.heads.has(head.index);
    const name = data.headName(head.index);
    const box = h("input", { type: "checkbox", id: `pick-${head.index}`, "aria-label": `Select ${name}` });
    box.checked = picked;
    box.addEventListener("change", () => {
      const next = new Set(state.heads);
      if (box.checked) next.add(head.index);
      else next.delete(head.index);
      store.set({ heads: next, head: box.checked ? head.index : state.head });
    });
    const cells = columns.map((column) => {
      const content = column.cell(head);
      const opener = { class: "link", "aria-label": `Open ${name}` };
      const inner = column.opens
        ? dom.button(`open-${head.index}`, String(content), () => go("head", { head: head.index }), opener)
        : content;
      return h("td", { class: column.num ? "num" : null, "data-column": column.key }, inner);
    });
    return h(
      "tr",
      { class: picked ? "selected" : null, "data-head": head.index },
      h("td", { class: "check" }, box),
      cells,
    );
  }

  function markSelected() {
    for (const line of drawing.querySelectorAll("tbody tr")) {
      const picked = state.heads.has(Number(line.getAttribute("data-head")));
      line.classList.toggle("selected", picked);
      const box = line.querySelector("input");
      if (box) box.checked = picked;
    }
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    drawControls();
    if (store.selectionOnly(keys)) {
      markSelected();
      return;
    }
    if (keys && keys.has("filter")) pager.first();
    columns = columnsOf();
    const list = rows();
    const body = pager.cut(list).map(row);
    const where = data.training ? data.labelOf(state.checkpoint) : "All models";
    const whose = data.runNames.length ? `, ${state.run === "both" ? "A and B" : `run ${state.run}`}` : "";
    const over = data.matched ? `, ${data.windowName(state.window)}` : "";
    const caption = h("caption", {}, `${where}${over}${whose}`);
    const grid = h("table", { class: "heads" }, caption, h("thead", {}, header()), h("tbody", {}, body));
    marks.mount(
      drawing,
      dom.scroller("Table of heads", grid),
      pager.buttons(list.length),
    );
    dom.note("table", [
      drawing.querySelector(".lost") && `± –: ${NO_ERROR}.`,
      !data.hasRope && "No rope column: which layers have RoPE is not known.",
    ]);
  }

  /* ---- the filter ---- */

  /** @type {Record<string, any>} */
  const controls = {};

  /** @param {Partial<Filter>} changes */
  const filter = (changes) => store.set({ filter: { ...state.filter, ...changes } });

  /* The classes that some head has. */
  function used() {
    const tables = data.letters.flatMap((_, run) => [data.table("own", run), data.table("matched", run)]);
    return data.classes.filter((_, code) => tables.some((table) => table.classes[data.taxonomy].codes.includes(code)));
  }

  function actions() {
    const chosen = () => (state.heads.size ? data.heads.filter((d) => state.heads.has(d.index)) : rows());
    const selectShown = () => {
      const list = rows();
      store.set({ heads: new Set(list.map((d) => d.index)), head: list.length ? list[0].index : state.head });
    };
    controls.save = dom.button("save", "CSV", () => download(chosen(), data.checkpoints));
    return h("div", { class: "actions" }, dom.button("select-shown", "Select all", selectShown), controls.save);
  }

  /* ---- CSV ---- */

  const NUMBERS = Object.keys(data.own.columns).filter((name) => name !== "abs_r_k");
  const two = data.runNames.length > 0;
  const HEADER = [
    ...(two ? ["run"] : []),
    ...["model", "layer", "head", "kv_head", ...NUMBERS, "rope"],
    ...data.taxonomies.map((name) => (name === "scores" ? "score_class" : "class")),
  ];

  /* A field that a spreadsheet would take for a formula is quoted as text. */
  /** @param {string | number | null} value */
  function field(value) {
    if (value === null || Number.isNaN(value)) return "";
    let said = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(said)) said = `'${said}`;
    return /[",\n\r]/.test(said) ? `"${said.replace(/"/g, '""')}"` : said;
  }

  /* The first component of some heads at some checkpoints, over the window that is shown. */
  /** @type {(heads: Head[], checkpoints: Checkpoint[]) => string} */
  function write(heads, checkpoints) {
    const lines = store.runs().flatMap((run) =>
      checkpoints.flatMap((checkpoint) => heads.map((head) => line(run, checkpoint.index, head))),
    );
    return `${[HEADER.join(","), ...lines.filter(Boolean)].join("\r\n")}\r\n`;
  }

  /* One head at one checkpoint of a run; nothing where it is not there. */
  /** @type {(run: number, checkpoint: number, head: Head) => string} */
  function line(run, checkpoint, head) {
    const found = store.table(run);
    const code = data.code(found, checkpoint, head.index);
    if (code < 0) return "";
    const numbers = NUMBERS.map((name) => data.value(found, name, checkpoint, head.index));
    const { model } = data.checkpointIn(run, checkpoint);
    const cells = [...(two ? [data.runNames[run]] : []), model, head.layer, head.head, head.kv];
    const kinds = data.taxonomies.map((name) => data.className(found, checkpoint, head.index, name));
    return [...cells, ...numbers, head.rope, ...kinds].map(field).join(",");
  }

  /** @type {(heads: Head[], checkpoints: Checkpoint[]) => void} */
  function download(heads, checkpoints) {
    const name = dom.fileName(`${state.heads.size ? "selection" : "heads"}.csv`);
    dom.download(new Blob([write(heads, checkpoints)], { type: "text/csv" }), name);
  }

  /* ---- the controls ---- */

  function setUp() {
    const look = { placeholder: "7.3, L7, mixed…", autocomplete: "off", spellcheck: "false" };
    controls.search = h("input", { type: "search", id: "search", ...look });
    controls.search.addEventListener("input", () => filter({ search: controls.search.value }));
    /** @type {(key: string, label: string, entries: string[], act: (value: string) => void) => HTMLElement} */
    const menu = (key, label, entries, act) => {
      /** @type {[string, string][]} */
      const choices = [["", "any"], ...entries.map((one) => /** @type {[string, string]} */ ([one, one]))];
      const { field, box } = dom.menu(key, label, choices, "", act);
      controls[key] = box;
      return field;
    };
    const parts = [
      h("label", { class: "field" }, h("span", {}, "Search"), controls.search),
      ...axes.taxonomyChoice("table"),
      menu("class", "Class", used(), (value) => filter({ classes: value ? [value] : [] })),
    ];
    if (data.populations.length > 1)
      parts.push(menu("rope", "Layers", data.populations, (value) => filter({ rope: value })));
    controls.only = h("input", { type: "checkbox", id: "only" });
    controls.only.addEventListener("change", () => filter({ only: controls.only.checked }));
    parts.push(h("label", { class: "tickbox" }, controls.only, "selected only"));
    parts.push(actions());
    dom.find("table-controls").replaceChildren(...parts);
  }

  function drawControls() {
    const { classes, rope, search, only } = state.filter;
    axes.showTaxonomy("table");
    if (controls.listed !== data.taxonomy) {
      const names = ["", ...used()];
      controls.class.replaceChildren(...names.map((name) => h("option", { value: name }, name || "any")));
      controls.listed = data.taxonomy;
    }
    controls.class.value = classes[0] || "";
    if (controls.rope) controls.rope.value = rope;
    if (controls.search.value !== search) controls.search.value = search;
    controls.only.checked = only;
    controls.save.textContent = state.heads.size ? `CSV of ${text.headCount(state.heads.size)}` : "CSV";
    controls.save.title = "Every measure of these heads at every checkpoint, over the window shown";
  }

  /** @type {View} */
  return {
    setUp,
    draw,
    needs: ["checkpoint", "heads", "filter", "window", "run", "sort", "down", "taxonomy"],
  };
})();
