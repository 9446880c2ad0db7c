// @ts-check
/* Filters: which heads pass, by class, population, search or selection: in the table, the signal, the map by layer,
 * the classes and the portrait; and the heads as CSV, with the columns of heads.csv that the page holds. */
"use strict";

const filters = (() => {
  const { state } = store;
  const { h } = dom;
  /** @type {Record<string, any>} */
  const controls = {};

  /** @param {Partial<Filter>} changes */
  const filter = (changes) => store.set({ filter: { ...state.filter, ...changes } });

  /* The classes that some head has. */
  function used() {
    const tables = data.letters.flatMap((_, run) => [data.table("own", run), data.table("matched", run)]);
    return data.classes.filter((_, code) => tables.some((table) => table.classes[data.taxonomy].codes.includes(code)));
  }

  /* Buttons; `rows` gives the heads that the table lists. */
  /** @param {() => Head[]} rows */
  function actions(rows) {
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
    const table = store.table(run);
    const code = data.code(table, checkpoint, head.index);
    if (code < 0) return "";
    const numbers = NUMBERS.map((name) => data.value(table, name, checkpoint, head.index));
    const { model } = data.checkpointIn(run, checkpoint);
    const cells = [...(two ? [data.runNames[run]] : []), model, head.layer, head.head, head.kv];
    const kinds = data.taxonomies.map((name) => data.className(table, checkpoint, head.index, name));
    return [...cells, ...numbers, head.rope, ...kinds].map(field).join(",");
  }

  /** @type {(heads: Head[], checkpoints: Checkpoint[]) => void} */
  function download(heads, checkpoints) {
    const name = dom.fileName(`${state.heads.size ? "selection" : "heads"}.csv`);
    dom.download(new Blob([write(heads, checkpoints)], { type: "text/csv" }), name);
  }

  /* ---- the controls ---- */

  /** @param {() => Head[]} rows */
  function setUp(rows) {
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
    parts.push(actions(rows));
    dom.find("table-controls").replaceChildren(...parts);
  }

  function draw() {
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

  return { setUp, draw };
})();
