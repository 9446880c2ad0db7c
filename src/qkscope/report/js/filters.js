/* Filters: which heads pass, by class, layer, polarity, rotation, search or selection. They hold in every view. */
"use strict";

(() => {
  const { data, state, h } = qk;
  const controls = {};

  const filter = (changes) => qk.set({ filter: { ...state.filter, ...changes } });

  function classBoxes() {
    const tables = [data.own, data.matched].filter(Boolean);
    const used = data.classes.filter((_, code) => tables.some((table) => table.class.includes(code)));
    const set = h("fieldset", { class: "chips" }, h("legend", {}, "Class"));
    controls.classes = used.map((name) => {
      const box = h("input", { type: "checkbox", id: `class-${data.classes.indexOf(name)}`, value: name });
      box.addEventListener("change", () =>
        filter({ classes: controls.classes.filter((b) => b.checked).map((b) => b.value) }),
      );
      const block = h("i", {
        class: name === "unmeasured" ? "block hatched" : "block",
        style: `background-color:${qk.colour("class", data.classes.indexOf(name))}`,
      });
      set.append(box, h("label", { for: box.id }, block, name));
      return box;
    });
    return set;
  }

  function choice(id, label, entries, key) {
    const box = h(
      "select",
      { id },
      entries.map(([value, text]) => h("option", { value }, text)),
    );
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
  function actions(rows) {
    const button = (id, text, act) => h("button", { type: "button", id, onclick: act }, text);
    const chosen = () => (state.heads.size ? data.heads.filter((d) => state.heads.has(d.index)) : rows());
    const selectShown = () => {
      const list = rows();
      qk.set({ heads: new Set(list.map((d) => d.index)), head: list.length ? list[0].index : state.head });
    };
    const here = () => (data.training ? [data.stops[state.stop]] : data.stops);
    controls.clear = button("clear-filter", "Clear filter", () => qk.clearFilter());
    controls.save = button("save", "CSV", () => qk.download(chosen(), here()));
    const everywhere = button("save-all", "CSV, every checkpoint", () => qk.download(chosen(), data.stops));
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
      choice(
        "polarity",
        "Polarity",
        [["", "any"], ...data.polarities.map((name) => [name, name])],
        "polarity",
      ),
    ];
    const turning = Object.entries({ "": "any", rope: "RoPE", nope: "NoPE" });
    if (data.hasRope) parts.push(choice("rope", "Positions", turning, "rope"));
    controls.only = h("input", { type: "checkbox", id: "only" });
    controls.only.addEventListener("change", () => filter({ only: controls.only.checked }));
    parts.push(h("label", { class: "tickbox" }, controls.only, "selected only"));
    parts.push(actions(rows));
    document.getElementById("table-controls").replaceChildren(...parts);
  }

  function draw() {
    const { classes, polarity, rope, layers, search, only } = state.filter;
    for (const box of controls.classes) box.checked = classes.includes(box.value);
    controls.polarity.value = polarity;
    if (controls.rope) controls.rope.value = rope;
    controls.from.value = layers ? layers[0] : "";
    controls.to.value = layers ? layers[1] : "";
    if (controls.search.value !== search) controls.search.value = search;
    controls.only.checked = only;
    controls.clear.disabled = !qk.filtering();
    controls.save.textContent = state.heads.size
      ? `CSV of ${qk.headCount(state.heads.size)} selected`
      : "CSV of the heads shown";
  }

  qk.filters = { setUp, draw };
})();
