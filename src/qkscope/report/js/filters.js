// @ts-check
/* Filters: which heads pass, by class, population, search or selection: in the table, the signal, the map by layer,
 * the classes and the portrait. */
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
    /** @type {(id: string, said: string, act: () => void) => HTMLButtonElement} */
    const button = (id, said, act) => h("button", { type: "button", id, onclick: act }, said);
    const chosen = () => (state.heads.size ? data.heads.filter((d) => state.heads.has(d.index)) : rows());
    const selectShown = () => {
      const list = rows();
      store.set({ heads: new Set(list.map((d) => d.index)), head: list.length ? list[0].index : state.head });
    };
    controls.save = button("save", "CSV", () => csv.download(chosen(), data.stops));
    return h("div", { class: "actions" }, button("select-shown", "Select all", selectShown), controls.save);
  }

  /** @param {() => Head[]} rows */
  function setUp(rows) {
    controls.search = h("input", {
      type: "search",
      id: "search",
      placeholder: "7.3, L7, mixed…",
      autocomplete: "off",
      spellcheck: "false",
    });
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
