// @ts-check
/* Position signal: the mean of r_q and r_k (or of the explained variance) over the checkpoints. */
"use strict";

const signal = (() => {
  const { state } = store;
  const { h } = dom;
  const { number, withError } = text;
  const drawing = dom.find("signal-drawing");
  const note = dom.find("signal-note");
  const course = data.training && data.stops.length > 1;
  /** @type {HTMLElement | null} */
  let controls = null;
  /** @type {Drawn | null} what stands */
  let drawn = null;

  /* A series: its name, colour, mark, and per checkpoint the mean, the spread over heads and the error. */
  /** @typedef {"circle" | "square" | "triangle"} Shape */
  /** @typedef {{ run: number, column: string, label: string, symbol: Shape, colour: string, mean: Maybe[],
   *   sd: Maybe[], se: Maybe[] }} Line */
  /** @typedef {{ index: number, mean: number, sd: Maybe, se: Maybe }} Point */

  const gap = data.stops.map(() => null);
  /** @type {Record<Shape, string>} */
  const SHAPES = { circle: "●", square: "■", triangle: "▲" };

  /** @type {(windowName: WindowName, run: number) => Line[]} */
  function whole(windowName, run) {
    const { signal: means, variance } = data.aggregate(windowName, run);
    // The bands of two runs would hide each other.
    const spread = store.both() ? { sd: gap } : {};
    if (state.measure === "variance")
      return [
        {
          run,
          column: "explained_variance",
          label: "explained variance",
          symbol: "triangle",
          colour: "var(--variance)",
          ...variance,
          ...spread,
        },
      ];
    /** @type {(name: string, label: string, symbol: Shape, colour: string) => Line} */
    const line = (name, label, symbol, colour) => ({
      run,
      column: name,
      label,
      symbol,
      colour,
      mean: means[`mean_${name}`],
      sd: means[`sd_${name}`] || gap,
      se: means[`se_${name}`] || gap,
      ...spread,
    });
    const absolute = state.measure === "abs_r_k";
    return [
      line("r_q", "r_q", "circle", "var(--r_q)"),
      line(absolute ? "abs_r_k" : "r_k", absolute ? "|r_k|" : "r_k", "square", "var(--r_k)"),
    ];
  }

  /* Means over some heads, head by head from the page's own data: no document-level error is known for these. */
  /** @type {(heads: number[], name: string, run: number) => Maybe[]} */
  function meansOf(heads, name, run) {
    const table = store.table(run);
    return data.stops.map(({ index }) => {
      const values = heads.map((head) =>
        data.measured(table, index, head) ? data.value(table, name, index, head) : NaN,
      );
      const average = text.mean(values);
      return Number.isNaN(average) ? null : average;
    });
  }

  /* Quantity by quantity, of each run shown. */
  /** @type {(of: (run: number) => Line[]) => Line[]} */
  const ofRuns = (of) => d3.transpose(store.runs().map(of)).flat();

  /** @type {(heads: number[]) => Line[]} */
  const part = (heads) =>
    ofRuns((run) => whole(state.window, run)).map((one) => ({
      ...one,
      mean: meansOf(heads, one.column, one.run),
      sd: gap,
      se: gap,
    }));

  /** @param {Line} one */
  const nameOf = (one) => (store.both() ? `${one.label} ${data.letters[one.run]}` : one.label);

  /** @type {(one: Line) => Point[]} */
  const points = (one) =>
    data.stops.flatMap(({ index }) => {
      const mean = one.mean[index];
      return mean === null ? [] : [{ index, mean, sd: one.sd[index], se: one.se[index] }];
    });

  /* ---- marks ---- */

  /** @param {Line} one */
  function bandMarks(one) {
    const found = points(one).filter(({ sd }) => sd !== null);
    const band = {
      x: "index",
      y1: (/** @type {Point} */ d) => d.mean - (d.sd || 0),
      y2: (/** @type {Point} */ d) => d.mean + (d.sd || 0),
    };
    if (course) return [Plot.areaY(found, { ...band, fill: one.colour, fillOpacity: 0.07 })];
    return [Plot.ruleX(found, { ...band, stroke: one.colour, strokeOpacity: 0.16, strokeWidth: 18 })];
  }

  /** @type {(one: Line, look?: { chosen?: boolean, faint?: boolean }) => any[]} */
  function lineMarks(one, { chosen = false, faint = false } = {}) {
    const at = { x: "index", y: "mean", stroke: one.colour };
    if (!course && !faint) return [];
    if (!course) return [Plot.dot(points(one), { ...at, dx: 13, symbol: one.symbol, r: 3 })];
    return [
      Plot.line(points(one), {
        ...at,
        strokeWidth: faint ? 1.6 : chosen && store.both() ? 1.2 : 2.5,
        strokeDasharray: faint ? "1.5 3.5" : chosen && !store.both() ? "6 4" : axes.dashOf(one.run),
        strokeOpacity: faint ? 0.9 : 1,
      }),
    ];
  }

  /** @type {(one: Line, hollow: boolean) => any[]} */
  function dotMarks(one, hollow) {
    if (data.stops.length > 60) return []; // the line says it all
    const found = points(one);
    // Two runs of different models would stand on each other: a little apart.
    const dx = store.both() && !course ? 10 * (one.run - 0.5) : 0;
    return [
      Plot.ruleX(
        found.filter(({ se }) => se !== null),
        {
          x: "index",
          dx,
          y1: (/** @type {Point} */ d) => d.mean - (d.se || 0),
          y2: (/** @type {Point} */ d) => d.mean + (d.se || 0),
          stroke: one.colour,
          strokeWidth: 1.6,
        },
      ),
      Plot.dot(found, {
        x: "index",
        y: "mean",
        dx,
        symbol: one.symbol,
        r: 4.8,
        fill: hollow ? "var(--paper)" : one.colour,
        stroke: hollow ? one.colour : "var(--paper)",
        strokeWidth: hollow ? 1.6 : 1,
      }),
    ];
  }

  /* The series' names at the ends of their lines, where a glance finds them; apart where they would overlap. */
  /** @type {(all: Line[], height: number, domain: number[]) => any[]} */
  function nameMarks(all, height, domain) {
    if (!course) return [];
    const ends = all.map((one) => ({ one, point: points(one).at(-1) })).filter(({ point }) => point);
    const apart = (18 * (domain[1] - domain[0])) / (height - 70); // less what the margins take
    ends.sort((a, b) => (a.point?.mean || 0) - (b.point?.mean || 0));
    let least = -Infinity;
    return ends.map(({ one, point }) => {
      least = Math.max(point?.mean || 0, least + apart);
      const place = { x: data.stops.length - 1, y: least };
      return Plot.text([place], {
        x: "x",
        y: "y",
        dx: 12,
        text: () => (state.measure === "variance" ? data.letters[one.run] : nameOf(one)),
        textAnchor: "start",
        fill: one.colour,
        fontWeight: 650,
        fontSize: 14,
      });
    });
  }

  /** @type {(all: Line[]) => [number, number]} */
  function range(all) {
    const ends = all.flatMap((one) =>
      points(one).flatMap(({ mean, sd }) => [mean - (sd || 0), mean + (sd || 0)]),
    );
    if (state.measure === "variance") return [0, Math.min(1, (d3.max(ends) || 1) * 1.15)];
    return [Math.min(0, d3.min(ends) || 0) - 0.02, Math.min(1.02, Math.max(0.4, d3.max(ends) || 1) + 0.04)];
  }

  /** @type {(index: number, all: Line[], chosen: Line[]) => (string | null)[]} */
  function lines(index, all, chosen) {
    const said = all.map((one) => `mean ${nameOf(one)} ${withError(one.mean[index], one.se[index])}`);
    const picked = chosen.map((one) => `selected heads: mean ${nameOf(one)} ${number(one.mean[index])}`);
    const [name, about] = axes.stopLines(index);
    return [name, about, ...said, ...picked];
  }

  /** @type {(all: Line[], also: { chosen: Line[], other: Line[] }) => HTMLElement} */
  function legend(all, { chosen, other }) {
    /** @type {(mark: HTMLElement, said: string) => HTMLElement} */
    const key = (mark, said) => h("span", { class: "key" }, mark, said);
    const items = all
      .filter(({ run }) => !axes.isSecond(run))
      .map((one) =>
        key(h("span", { class: "swatch", style: `color:${one.colour}` }, SHAPES[one.symbol]), one.label),
      );
    items.push(...axes.runKeys());
    if (all.some((one) => one.sd.some((v) => v !== null)))
      items.push(key(h("i", { class: "band" }), "± 1 sd across heads"));
    if (all.some((one) => one.se.some((v) => v !== null)))
      items.push(key(h("i", { class: "bar" }), "± 1 se over documents"));
    if (chosen.length)
      items.push(
        store.both()
          ? key(h("i", { class: "hair" }), "thin: selected heads")
          : key(h("i", { class: "dash" }), "selected heads"),
      );
    const which = state.window === "own" ? "matched window" : "own windows";
    if (other.length) items.push(key(h("i", { class: course ? "dots" : "ring" }), which));
    return h("p", { class: "legend" }, items);
  }

  /** @param {Line[]} all */
  function numbersTable(all) {
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, axes.stopWord),
      all.map((one) => h("th", { scope: "col", class: "num" }, `mean ${nameOf(one)}`)),
    );
    const rows = data.stops.map(({ index, label }) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, label),
        all.map((one) => h("td", { class: "num" }, withError(one.mean[index], one.se[index]))),
      ),
    );
    const table = h("table", { class: "plain" }, h("thead", {}, head), h("tbody", {}, rows));
    const open = Boolean(drawing.querySelector("details[open]"));
    const scroller = h(
      "div",
      { class: "scroller short", tabindex: "0", role: "region", "aria-label": "Numbers of the chart" },
      table,
    );
    return h("details", { open }, h("summary", { id: "signal-numbers" }, "The numbers"), scroller);
  }

  /** @param {Set<number> | null} shown */
  function explain(shown) {
    const said = [];
    if (data.stops.length === 1)
      said.push("One checkpoint was measured: there is no change over training to draw.");
    if (!data.training) said.push("These are different models, not one in training: no line joins them.");
    if (shown)
      said.push(
        `The filter holds: means are over ${text.headCount(shown.size)} that pass it at ` +
          `${data.stops[state.stop].label}, without document-level errors.`,
      );
    else if (!store.aggregate().signal.se_r_q.some((v) => v !== null))
      said.push("The results hold no leave-one-out values, so the means have no error bars.");
    if (state.measure === "abs_r_k" && !shown) said.push("No band is drawn for |r_k|.");
    if (data.windowChanges.length && state.window === "own") {
      said.push("Dashed uprights: the context window changes.");
      if (!data.matched) said.push("No matched window was measured.");
      else if (!store.both()) said.push("Dotted: every checkpoint over the matched window.");
    }
    note.textContent = said.join(" ");
  }

  /** @type {(all: Line[], chosen: Line[], other: Line[]) => any} */
  function plotOptions(all, chosen, other) {
    const width = axes.widthOf(drawing);
    const height = Math.round(Math.min(500, Math.max(280, width * 0.46)));
    const title = state.measure === "variance" ? "explained variance" : "correlation with position";
    const axis = axes.stopAxis(width, height, title);
    const domain = range([...all, ...chosen]);
    const named = state.measure !== "variance" || store.both();
    const digits = state.measure === "variance" ? 2 : 1;
    return {
      ...axis,
      marginRight: course && named ? (store.both() ? 62 : 44) : axis.marginRight,
      y: {
        tickSize: 0,
        domain,
        label: null,
        ticks: 6,
        tickFormat: (/** @type {number} */ v) => number(v, digits),
      },
      marks: [
        ...axis.marks,
        Plot.gridY({ stroke: "var(--rule)", strokeOpacity: 1, ticks: 6 }),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...all.flatMap(bandMarks),
        ...other.flatMap((one) => lineMarks(one, { faint: true })),
        ...all.flatMap((one) => lineMarks(one)),
        ...all.flatMap((one) => dotMarks(one, axes.isSecond(one.run))),
        ...chosen.flatMap((one) => lineMarks(one, { chosen: true })),
        ...(store.both() ? [] : chosen.flatMap((one) => dotMarks(one, true))),
        ...(named ? nameMarks(all, height, domain) : []),
      ],
    };
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    dom.choose(controls, state.measure);
    if (drawn && store.only(keys, "stop")) {
      axes.showChosen(drawn);
      return;
    }
    const shown = store.shown();
    const all = shown ? part([...shown]) : ofRuns((run) => whole(state.window, run));
    const chosen = state.heads.size ? part([...state.heads]) : [];
    const [main] = store.runs();
    const dotted = data.matched && !shown && !store.both();
    const other = dotted ? whole(state.window === "own" ? "matched" : "own", main) : [];
    const svg = axes.plot(plotOptions(all, chosen, other));
    axes.stopColumns(svg, {
      label: (index) =>
        `${lines(index, all, chosen).filter(Boolean).join(". ")}. Choose this ${axes.stopWord}.`,
      lines: (index) => lines(index, all, chosen),
    });
    axes.dress(svg, `Chart of the mean position signal at ${data.stops.length} ${axes.stopWord}s`);
    marks.mount(drawing, legend(all, { chosen, other }), svg, numbersTable(all));
    drawn = svg;
    explain(shown);
  }

  function setUp() {
    const hasVariance = data.aggregate("own", 0).variance.mean.some((v) => v !== null);
    controls = dom.options(
      "measure",
      "Show",
      [
        ["r_k", "r_q, r_k"],
        ["abs_r_k", "r_q, |r_k|"],
        ["variance", "explained variance", hasVariance ? null : "The table holds no explained variance."],
      ],
      state.measure,
      (value) => store.set({ measure: value }),
    );
    dom.find("signal-controls").replaceChildren(controls);
  }

  /** @type {View} */
  return { setUp, draw, needs: ["measure", "window", "run", "filter", "heads", "stop"] };
})();
