/* Position signal: the mean of r_q and r_k (or of the explained variance) over the checkpoints. */
"use strict";

(() => {
  const { data, state, h, number, withError } = qk;
  const drawing = document.getElementById("signal-drawing");
  const note = document.getElementById("signal-note");
  const course = data.training && data.stops.length > 1;
  let controls = null;
  let drawn = null; // the drawing that stands

  /* A series: its name, colour, mark, and per checkpoint the mean, the spread over heads and the error. */
  function series(name, label, symbol, colour, mean, sd, se) {
    const gap = data.stops.map(() => null);
    return { name, label, symbol, colour, mean, sd: sd || gap, se: se || gap };
  }

  function whole(windowName) {
    const { signal, variance } = data.aggregate(windowName);
    if (state.measure === "variance") {
      return [
        series("ev", "explained variance", "triangle", "var(--ev)", variance.mean, variance.sd, variance.se),
      ];
    }
    const absolute = state.measure === "abs_r_k";
    const keys = absolute
      ? series("rk", "|r_k|", "square", "var(--rk)", signal.mean_abs_r_k, null, signal.se_abs_r_k)
      : series("rk", "r_k", "square", "var(--rk)", signal.mean_r_k, signal.sd_r_k, signal.se_r_k);
    return [series("rq", "r_q", "circle", "var(--rq)", signal.mean_r_q, signal.sd_r_q, signal.se_r_q), keys];
  }

  /* Means over some heads, head by head from the page's own data: no document-level error is known for these. */
  function meansOf(heads, name) {
    const table = data.table(state.window);
    return data.stops.map(({ index }) => {
      const values = heads.map((head) =>
        data.measured(table, index, head) ? data.value(table, name, index, head) : NaN,
      );
      const average = qk.mean(values);
      return Number.isNaN(average) ? null : average;
    });
  }

  function part(heads) {
    const columns = {
      ev: "explained_variance",
      rq: "r_q",
      rk: state.measure === "abs_r_k" ? "abs_r_k" : "r_k",
    };
    return whole(state.window).map((one) => ({
      ...series(one.name, one.label, one.symbol, one.colour, meansOf(heads, columns[one.name])),
    }));
  }

  const points = (one) =>
    data.stops
      .map(({ index }) => ({ index, mean: one.mean[index], sd: one.sd[index], se: one.se[index] }))
      .filter(({ mean }) => mean !== null);

  function bandMarks(one) {
    const found = points(one).filter(({ sd }) => sd !== null);
    const band = { x: "index", y1: (d) => d.mean - d.sd, y2: (d) => d.mean + d.sd };
    if (course) return [Plot.areaY(found, { ...band, fill: one.colour, fillOpacity: 0.1 })];
    return [Plot.ruleX(found, { ...band, stroke: one.colour, strokeOpacity: 0.16, strokeWidth: 18 })];
  }

  function lineMarks(one, { dashed = false, faint = false } = {}) {
    if (!course)
      return faint
        ? [
            Plot.dot(points(one), {
              x: "index",
              y: "mean",
              dx: 13,
              symbol: one.symbol,
              r: 3,
              stroke: one.colour,
            }),
          ]
        : [];
    const dash = faint ? "1.5 3.5" : dashed ? "6 4" : null;
    return [
      Plot.line(points(one), {
        x: "index",
        y: "mean",
        stroke: one.colour,
        strokeWidth: faint ? 1.5 : 2.25,
        strokeDasharray: dash,
        strokeOpacity: faint ? 0.9 : 1,
      }),
    ];
  }

  function dotMarks(one, hollow) {
    const found = points(one);
    const barred = found.filter(({ se }) => se !== null);
    if (data.stops.length > 60) return []; // the line says it all
    const size = 4.4;
    const fill = hollow ? "var(--paper)" : one.colour;
    const dot = {
      x: "index",
      y: "mean",
      symbol: one.symbol,
      r: size,
      fill,
      stroke: hollow ? one.colour : "var(--paper)",
    };
    return [
      Plot.ruleX(barred, {
        x: "index",
        y1: (d) => d.mean - d.se,
        y2: (d) => d.mean + d.se,
        stroke: one.colour,
        strokeWidth: 1.6,
        marker: "none",
      }),
      Plot.dot(found, { ...dot, strokeWidth: hollow ? 1.6 : 1 }),
    ];
  }

  function range(all) {
    const ends = all.flatMap((one) =>
      points(one).flatMap(({ mean, sd }) => [mean - (sd || 0), mean + (sd || 0)]),
    );
    if (state.measure === "variance") return [0, Math.min(1, (d3.max(ends) || 1) * 1.15)];
    return [Math.min(0, d3.min(ends) || 0) - 0.02, 1.02];
  }

  function lines(index, all, chosen) {
    const said = all.map((one) => `mean ${one.label} ${withError(one.mean[index], one.se[index])}`);
    const picked = chosen.map((one) => `selected heads: mean ${one.label} ${number(one.mean[index])}`);
    const [name, about] = qk.stopLines(index);
    return [name, about, ...said, ...picked];
  }

  function legend(all, { chosen, other }) {
    const shape = { circle: "●", square: "■", triangle: "▲" };
    const items = all.map((one) =>
      h(
        "span",
        { class: "key" },
        h("span", { class: "swatch", style: `color:${one.colour}` }, shape[one.symbol]),
        one.label,
      ),
    );
    if (all.some((one) => one.sd.some((v) => v !== null)))
      items.push(h("span", { class: "key" }, h("i", { class: "band" }), "± 1 sd across heads"));
    if (all.some((one) => one.se.some((v) => v !== null)))
      items.push(h("span", { class: "key" }, h("i", { class: "bar" }), "± 1 se over documents"));
    if (chosen.length) items.push(h("span", { class: "key" }, h("i", { class: "dash" }), "selected heads"));
    if (other.length)
      items.push(
        h(
          "span",
          { class: "key" },
          h("i", { class: course ? "dots" : "ring" }),
          state.window === "own" ? "matched window" : "own windows",
        ),
      );
    return h("p", { class: "legend" }, items);
  }

  function numbersTable(all) {
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, qk.stopWord),
      all.map((one) => h("th", { scope: "col", class: "num" }, `mean ${one.label}`)),
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

  function explain(shown) {
    const said = [];
    if (data.stops.length === 1)
      said.push("One checkpoint was measured: there is no change over training to draw.");
    if (!data.training) said.push("These are different models, not one in training: no line joins them.");
    if (!data.matched) said.push("No matched window was measured, so only own windows are shown.");
    if (shown)
      said.push(
        `The filter holds: means are over ${qk.headCount(shown.size)} that pass it at ` +
          `${data.stops[state.stop].label}, without document-level errors.`,
      );
    else if (!data.aggregate(state.window).signal.se_r_q.some((v) => v !== null))
      said.push("The results hold no leave-one-out values, so the means have no error bars.");
    if (state.measure === "abs_r_k" && !shown) said.push("No band is drawn for |r_k|.");
    if (data.windowChanges.length && state.window === "own")
      said.push("Dashed uprights: the context window changes.");
    note.textContent = said.join(" ");
  }

  function draw(keys) {
    if (drawn && qk.only(keys, "stop")) {
      qk.showChosen(drawn);
      return;
    }
    const shown = qk.shown();
    const all = shown ? part([...shown]) : whole(state.window);
    const chosen = state.heads.size ? part([...state.heads]) : [];
    const other = data.matched && !shown ? whole(state.window === "own" ? "matched" : "own") : [];
    const svg = Plot.plot(plotOptions(all, chosen, other));
    qk.stopColumns(svg, {
      label: (index) =>
        `${lines(index, all, chosen).filter(Boolean).join(". ")}. Choose this ${qk.stopWord}.`,
      lines: (index) => lines(index, all, chosen),
    });
    qk.dress(svg, `Chart of the mean position signal at ${data.stops.length} ${qk.stopWord}s`);
    qk.mount(drawing, legend(all, { chosen, other }), svg, numbersTable(all));
    drawn = svg;
    explain(shown);
  }

  function plotOptions(all, chosen, other) {
    const width = qk.widthOf(drawing);
    const height = Math.round(Math.min(460, Math.max(280, width * 0.6)));
    const title = state.measure === "variance" ? "explained variance" : "correlation with position";
    const axis = qk.stopAxis(width, height, title);
    return {
      ...axis,
      y: {
        tickSize: 0,
        domain: range([...all, ...chosen]),
        label: null,
        ticks: 6,
        tickFormat: (v) =>
          number(v, 1) === "−0.0" ? "0.0" : number(v, state.measure === "variance" ? 2 : 1),
      },
      marks: [
        ...axis.marks,
        Plot.gridY({ stroke: "var(--rule)", strokeOpacity: 1, ticks: 6 }),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...all.flatMap(bandMarks),
        ...other.flatMap((one) => lineMarks(one, { faint: true })),
        ...all.flatMap((one) => lineMarks(one)),
        ...all.flatMap((one) => dotMarks(one, false)),
        ...chosen.flatMap((one) => lineMarks(one, { dashed: true })),
        ...chosen.flatMap((one) => dotMarks(one, true)),
      ],
    };
  }

  function setUp() {
    const hasVariance = data.aggregate("own").variance.mean.some((v) => v !== null);
    controls = qk.options(
      "measure",
      "Show",
      [
        ["r_k", "r_q, r_k"],
        ["abs_r_k", "r_q, |r_k|"],
        ["variance", "explained variance", hasVariance ? null : "The table holds no explained variance."],
      ],
      state.measure,
      (value) => qk.set({ measure: value }),
    );
    document.getElementById("signal-controls").replaceChildren(controls);
  }

  qk.signal = {
    setUp,
    draw(keys) {
      qk.choose(controls, state.measure);
      draw(keys);
    },
    needs: ["measure", "window", "filter", "heads", "stop"],
  };
})();
