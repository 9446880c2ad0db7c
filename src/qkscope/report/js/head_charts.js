// @ts-check
/* Charts of the head page: one component over training with its null band. */
"use strict";

const headCharts = (() => {
  const { state } = store;
    const { high, low } = data.thresholds;

  const index = () => store.currentHead();
  const stops = () => data.stopsOf(index());

  /* A value of the head at a checkpoint; the page holds components beyond the first over own windows only. */
  /** @type {(name: string, stop: number, run: number) => number} */
  function at(name, stop, run) {
    if (state.pc === 0) return data.value(store.table(run), name, stop, index());
    return data.component(name, stop, index(), state.pc, run);
  }

  /* The component shown, and where that is not the page's, the window that it was measured over. */
  const component = () => `PC${state.pc}${state.pc && state.window === "matched" ? ", training context" : ""}`;

  /* ---- the chart of one component ---- */

  /** @typedef {{ stop: number, value: number, se: number, limit: number }} Point */

  /** @type {(name: string, run: number) => Point[]} */
  function series(name, run) {
    return stops()
      .map(({ index: stop }) => ({
        stop,
        value: at(name, stop, run),
        se: at(`${name}_se`, stop, run),
        limit: at(`${name}_null`, stop, run),
      }))
      .filter(({ value }) => !Number.isNaN(value));
  }

  /* The null band: what |r| comes to by chance. Queries and keys have one each. */
  /** @type {(points: Point[], colour: string) => any[]} */
  function nullMarks(points, colour) {
    const found = points.filter(({ limit }) => !Number.isNaN(limit));
    const band = { x: "stop", y1: (/** @type {Point} */ d) => -d.limit, y2: "limit" };
    if (found.length > 1) return [Plot.areaY(found, { ...band, fill: colour, fillOpacity: 0.11 })];
    return [Plot.ruleX(found, { ...band, stroke: colour, strokeOpacity: 0.16, strokeWidth: 22 })];
  }

  /** @type {(name: string, run: number, colour: string, symbol: "circle" | "square" | "triangle") => any[]} */
  function valueMarks(name, run, colour, symbol) {
    const points = series(name, run);
    const second = axes.isSecond(run);
    const way = { x: "stop", y: "value", stroke: colour, strokeWidth: 2, strokeDasharray: axes.dashOf(run) };
    const joined = data.training ? [Plot.line(points, way)] : [];
    if (joined.length && data.stops.length > 60) return joined; // dots would hide the line
    const barred = points.filter(({ se }) => !Number.isNaN(se));
    return [
      ...joined,
      Plot.ruleX(barred, {
        x: "stop",
        y1: (d) => d.value - d.se,
        y2: (d) => d.value + d.se,
        stroke: colour,
        strokeWidth: 1.6,
      }),
      Plot.dot(points, {
        x: "stop",
        y: "value",
        symbol,
        r: 4.2,
        fill: second ? "var(--paper)" : colour,
        stroke: second ? colour : "var(--paper)",
      }),
    ];
  }

  /** @type {(stop: number, run: number) => (string | null)[]} */
  function linesOf(stop, run) {
    const said = ["r_q", "r_k"].map((name) => {
      const limit = at(`${name}_null`, stop, run);
      const band = Number.isNaN(limit) ? "" : `, null ${text.number(limit)}`;
      return `${name} ${text.withError(at(name, stop, run), at(`${name}_se`, stop, run))}${band}`;
    });
    const variance = at("explained_variance", stop, run);
    const more = Number.isNaN(variance) ? [] : [`explained variance ${text.number(variance)}`];
    return [...said, ...more].map((line) => axes.ofRun(run, line));
  }

  /** @type {(stop: number) => (string | null)[]} */
  const lines = (stop) => [
    `${data.stops[stop].label} · PC${state.pc}`,
    ...store.runs().flatMap((run) => linesOf(stop, run)),
  ];

  /** @param {number} width */
  function correlationChart(width) {
    const height = 290;
    const shown = store.runs();
    const axis = axes.stopAxis(width, height, `correlation with position, ${component()}`);
    const svg = axes.plot({
      ...axis,
      y: {
        tickSize: 0,
        domain: [-1.03, 1.03],
        ticks: [-1, -high, -low, 0, low, high, 1],
        tickFormat: (/** @type {number} */ v) => text.number(v, 1),
        label: null,
      },
      marks: [
        ...axis.marks,
        Plot.gridY([-high, -low, low, high], {
          stroke: "var(--rule)",
          strokeOpacity: 1,
          strokeDasharray: "2 4",
        }),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...nullMarks(series("r_q", shown[0]), "var(--r_q)"),
        ...nullMarks(series("r_k", shown[0]), "var(--r_k)"),
        ...shown.flatMap((run) => valueMarks("r_q", run, "var(--r_q)", "circle")),
        ...shown.flatMap((run) => valueMarks("r_k", run, "var(--r_k)", "square")),
      ],
    });
    return finish(svg, `r_q and r_k of PC${state.pc} at each ${axes.stopWord}`, "correlation");
  }

  /** @param {number} width */
  function varianceChart(width) {
    const points = store.runs().flatMap((run) => series("explained_variance", run));
    const height = 290;
    const axis = axes.stopAxis(width, height, `explained variance, ${component()}`);
    const svg = axes.plot({
      ...axis,
      y: {
        tickSize: 0,
        domain: [0, Math.max(0.05, 1.15 * (d3.max(points, (d) => d.value) || 0))],
        ticks: 5,
        tickFormat: (/** @type {number} */ v) => text.number(v, 2),
        label: null,
      },
      marks: [
        ...axis.marks,
        Plot.gridY({ ticks: 5, stroke: "var(--rule)", strokeOpacity: 1 }),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...store
          .runs()
          .flatMap((run) => valueMarks("explained_variance", run, "var(--variance)", "triangle")),
      ],
    });
    return finish(svg, `Explained variance of PC${state.pc} at each ${axes.stopWord}`, "variance");
  }

  /** @type {(svg: Drawn, name: string, prefix: string) => Drawn} */
  function finish(svg, name, prefix) {
    axes.stopColumns(svg, {
      prefix,
      lines: (stop) => [...lines(stop), ...["r_q", "r_k"].map((name) => `${name}: ${data.measureMeans(name)}`)],
      label: (stop) => `${lines(stop).filter(Boolean).join(", ")}. Choose this ${axes.stopWord}.`,
    });
    axes.dress(svg, name);
    return svg;
  }

  return { correlationChart, varianceChart };
})();
