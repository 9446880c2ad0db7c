// @ts-check
/* Filters: which heads pass, by class, layer, polarity, rotation, axis, search or selection; in every view. */
"use strict";

const filters = (() => {
  const { state } = store;
  const { h } = dom;
  /** @type {Record<string, any>} */
  const controls = {};
  /** @type {HTMLInputElement[]} */
  let classes = [];

  /** @param {Partial<Filter>} changes */
  const filter = (changes) => store.set({ filter: { ...state.filter, ...changes } });

  function classBoxes() {
    const tables = data.letters.flatMap((_, run) => [data.table("own", run), data.table("matched", run)]);
    const used = data.classes.filter((_, code) => tables.some((table) => table.class.includes(code)));
    const set = h("fieldset", { class: "chips" }, h("legend", {}, "Class"));
    classes = used.map((name) => {
      const code = data.classes.indexOf(name);
      const box = h("input", { type: "checkbox", id: `class-${code}`, value: name });
      box.addEventListener("change", () =>
        filter({ classes: classes.filter((b) => b.checked).map((b) => b.value) }),
      );
      set.append(box, h("label", { for: box.id }, paint.block("class", code), name));
      return box;
    });
    return set;
  }

  /** @type {(key: "polarity" | "rope" | "axis", label: string, entries: [string, string][]) => HTMLElement} */
  function choice(key, label, entries) {
    const { field, box } = dom.menu(key, label, entries, "", (value) => filter({ [key]: value }));
    controls[key] = box;
    return field;
  }

  function layerBoxes() {
    const all = data.heads.map((d) => d.layer);
    const [least, most] = [Math.min(...all), Math.max(...all)];
    const read = () => {
      const from = controls.from.value === "" ? least : Number(controls.from.value);
      const to = controls.to.value === "" ? most : Number(controls.to.value);
      filter({ layers: controls.from.value === "" && controls.to.value === "" ? null : [from, to] });
    };
    /** @type {(id: string, label: string, hint: number) => HTMLInputElement} */
    const box = (id, label, hint) => {
      const input = h("input", {
        type: "number",
        id,
        min: least,
        max: most,
        step: 1,
        placeholder: hint,
        "aria-label": label,
      });
      input.addEventListener("change", read);
      return input;
    };
    controls.from = box("layer-from", "From layer", least);
    controls.to = box("layer-to", "To layer", most);
    return h(
      "div",
      { class: "field", role: "group", "aria-label": "Layers" },
      h("span", {}, "Layers"),
      h("span", { class: "range" }, controls.from, "–", controls.to),
    );
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
    const here = () => (data.training ? [data.stops[state.stop]] : data.stops);
    controls.clear = button("clear-filter", "Clear filter", () => store.clearFilter());
    controls.save = button("save", "CSV", () => csv.download(chosen(), here()));
    const everywhere = button("save-all", "CSV, every checkpoint", () => csv.download(chosen(), data.stops));
    const several = data.training && data.stops.length > 1;
    return h(
      "div",
      { class: "actions" },
      button("select-shown", "Select all shown", selectShown),
      controls.clear,
      controls.save,
      several ? everywhere : null,
    );
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
    const parts = [
      h("label", { class: "field" }, h("span", {}, "Search"), controls.search),
      classBoxes(),
      layerBoxes(),
      choice("polarity", "Polarity", [
        ["", "any"],
        ...data.polarities.map((name) => /** @type {[string, string]} */ ([name, name])),
      ]),
    ];
    const turning = Object.entries({ "": "any", rope: "RoPE", nope: "NoPE" });
    if (data.hasRope) parts.push(choice("rope", "Positions", turning));
    const kept = Object.entries({ "": "any", same: "same axis", another: "another axis became the first" });
    if (data.has("same_axis")) parts.push(choice("axis", "First axis", kept));
    controls.only = h("input", { type: "checkbox", id: "only" });
    controls.only.addEventListener("change", () => filter({ only: controls.only.checked }));
    parts.push(h("label", { class: "tickbox" }, controls.only, "selected only"));
    parts.push(actions(rows));
    dom.find("table-controls").replaceChildren(...parts);
  }

  function draw() {
    const { polarity, rope, axis, layers, search, only } = state.filter;
    for (const box of classes) box.checked = state.filter.classes.includes(box.value);
    controls.polarity.value = polarity;
    if (controls.rope) controls.rope.value = rope;
    if (controls.axis) controls.axis.value = axis;
    controls.from.value = layers ? String(layers[0]) : "";
    controls.to.value = layers ? String(layers[1]) : "";
    if (controls.search.value !== search) controls.search.value = search;
    controls.only.checked = only;
    controls.clear.disabled = !store.filtering();
    controls.save.textContent = state.heads.size
      ? `CSV of ${text.headCount(state.heads.size)} selected`
      : "CSV of the heads shown";
  }

  return { setUp, draw };
})();
