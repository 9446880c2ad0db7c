// @ts-check
/* Numbers: the mean of every measure and the number of heads of every class, by population, at the chosen checkpoint
 * and window, searchable. */
"use strict";

const numbers = (() => {
  const { state } = store;
  const { h } = dom;
  const drawing = dom.find("numbers-drawing");
  const pager = dom.pager("numbers", 8, "number", draw);
  let search = "";

  /* The measures of the position signal first; depth is no measurement. */
  const names = data.measures.map(({ name }) => name).filter((name) => name !== "depth");
  const first = store.choices.measure.filter((name) => names.includes(name));
  const measures = [...new Set([...first, ...names])];

  /** @typedef {{ what: string, means: string | null, population: string, cells: string[] }} Line */

  /* Columns: the chosen checkpoint of each run shown, and the first one where training has one before it. */
  const columns = () => {
    const here = store.runs().map((run) => ({ checkpoint: state.checkpoint, run }));
    const before = data.training && state.checkpoint > 0 && !store.both();
    return before ? [{ checkpoint: 0, run: store.runs()[0] }, ...here] : here;
  };

  /** @returns {Line[]} */
  function lines() {
    const found = data.populations.flatMap((population) =>
      measures.map((name) => ({
        what: `mean ${data.measureName(name)}`,
        means: data.measureMeans(name),
        population,
        cells: columns().map(({ checkpoint, run }) => {
          const { mean, se } = store.over(run).averages.means[population]?.[name] || { mean: [], se: [] };
          return text.measure(name, mean[checkpoint] ?? null, se[checkpoint]);
        }),
      })),
    );
    const counts = data.populations.flatMap((population) =>
      data.classes.flatMap((name, code) => {
        const heads = data.heads.filter((d) => d.population === population);
        const cells = columns().map(
          ({ checkpoint, run }) =>
            heads.filter((d) => data.code(store.table(run), checkpoint, d.index) === code).length,
        );
        return cells.some(Boolean)
          ? [{ what: `${name} heads`, means: null, population, cells: cells.map(String) }]
          : [];
      }),
    );
    return [...found, ...counts];
  }

  function draw() {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const list = lines().filter(({ what, population }) =>
      words.every((word) => `${what} ${population}`.toLowerCase().includes(word)),
    );
    const two = data.populations.length > 1;
    const heads = columns().map(({ checkpoint, run }) =>
      h("th", { scope: "col", class: "num" }, axes.ofRun(run, data.labelOf(checkpoint))),
    );
    const rows = pager.cut(list).map(({ what, means, population, cells }) =>
      h(
        "tr",
        {},
        marks.explained(h("th", { scope: "row" }, what), what, means),
        two ? h("td", {}, population) : null,
        cells.map((cell) => h("td", { class: "num" }, cell)),
      ),
    );
    const over = data.matched ? `, ${data.windowName(state.window)}` : "";
    const table = h(
      "table",
      { class: "plain" },
      h("caption", {}, `${data.labelOf(state.checkpoint)}${over}; ± standard error over documents`),
      h(
        "thead",
        {},
        h("tr", {}, h("th", { scope: "col" }, "number"), two ? h("th", { scope: "col" }, "heads") : null, heads),
      ),
      h("tbody", {}, rows),
    );
    marks.mount(drawing, dom.scroller("Table of numbers", table), pager.buttons(list.length));
  }

  function setUp() {
    const box = h("input", { type: "search", id: "numbers-search", placeholder: "r_q NoPE", autocomplete: "off" });
    box.addEventListener("input", () => {
      search = box.value;
      pager.first();
      draw();
    });
    dom
      .find("numbers-controls")
      .replaceChildren(h("label", { class: "field" }, h("span", {}, "Search"), box));
  }

  /** @type {View} */
  return { setUp, draw, needs: ["checkpoint", "window", "run"] };
})();
