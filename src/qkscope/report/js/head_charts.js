// @ts-check
/* Charts of the head page, over training: one component with its null band, what determines the head's scores, and its
 * scores by distance. Wavelengths have a view of their own. */
"use strict";

const headCharts = (() => {
  const { state } = store;
  const { h } = dom;
  const { high, low } = data.thresholds;

  const index = () => store.currentHead();
  const checkpoints = () => data.checkpointsOf(index());

  /* A value of the head at a checkpoint; the page holds components beyond the first over own windows only. */
  /** @type {(name: string, checkpoint: number, run: number) => number} */
  function at(name, checkpoint, run) {
    if (state.pc === 0) return data.value(store.table(run), name, checkpoint, index());
    return data.component(name, checkpoint, index(), state.pc, run);
  }

  /* The component shown, and where that is not the page's, the window that it was measured over. */
  const component = () => `PC${state.pc}${state.pc && state.window === "matched" ? ", training context" : ""}`;

  /* ---- the chart of one component ---- */

  /** @typedef {{ checkpoint: number, value: number, se: number, limit: number }} Point */

  /** @type {(name: string, run: number) => Point[]} */
  function series(name, run) {
    return checkpoints()
      .map(({ index: checkpoint }) => ({
        checkpoint,
        value: at(name, checkpoint, run),
        se: at(`${name}_se`, checkpoint, run),
        limit: at(`${name}_null`, checkpoint, run),
      }))
      .filter(({ value }) => !Number.isNaN(value));
  }

  /* The null band: what |r| comes to by chance. Queries and keys have one each. */
  /** @type {(points: Point[], colour: string) => any[]} */
  function nullMarks(points, colour) {
    const found = points.filter(({ limit }) => !Number.isNaN(limit));
    const band = { x: "checkpoint", y1: (/** @type {Point} */ d) => -d.limit, y2: "limit" };
    if (found.length > 1) return [Plot.areaY(found, { ...band, fill: colour, fillOpacity: 0.11 })];
    return [Plot.ruleX(found, { ...band, stroke: colour, strokeOpacity: 0.16, strokeWidth: 22 })];
  }

  /** @type {(name: string, run: number, colour: string, symbol: "circle" | "square" | "triangle") => any[]} */
  function valueMarks(name, run, colour, symbol) {
    const points = series(name, run);
    const second = axes.isSecond(run);
    const at = { x: "checkpoint", y: "value", stroke: colour };
    const joined = data.training ? [Plot.line(points, { ...at, strokeWidth: 2, strokeDasharray: axes.dashOf(run) })] : [];
    if (joined.length && data.checkpoints.length > 60) return joined; // dots would hide the line
    const look = { fill: second ? "var(--paper)" : colour, stroke: second ? colour : "var(--paper)" };
    return [...joined, axes.errorBars(points, at), Plot.dot(points, { ...at, symbol, r: 4.2, ...look })];
  }

  /** @type {(checkpoint: number, meaning: boolean) => (string | null)[]} */
  function lines(checkpoint, meaning) {
    const numbers = store.runs().flatMap((run) =>
      ["r_q", "r_k", "explained_variance"].map((name) => {
        const [value, se, limit] = [name, `${name}_se`, `${name}_null`].map((one) => at(one, checkpoint, run));
        const more = Number.isNaN(limit) ? "" : `, null ${text.number(limit)}`;
        return { name, value, se, more, whose: axes.letterOf(run) };
      }),
    );
    const known = numbers.filter(({ name, value }) => name !== "explained_variance" || !Number.isNaN(value));
    return [`${data.checkpoints[checkpoint].label} · PC${state.pc}`, ...text.described(known, [], meaning)];
  }

  /** @param {number} width */
  function correlationChart(width) {
    const shown = store.runs();
    const axis = axes.checkpointAxis(width, 290, `correlation with position, ${component()}`);
    return axes.checkpointChart(
      {
        ...axis,
        y: {
          ...{ tickSize: 0, label: null, domain: [-1.03, 1.03], ticks: [-1, -high, -low, 0, low, high, 1] },
          tickFormat: (/** @type {number} */ v) => text.number(v, 1),
        },
        marks: [
          ...axis.marks,
          Plot.gridY([-high, -low, low, high], { stroke: "var(--rule)", strokeOpacity: 1, strokeDasharray: "2 4" }),
          Plot.ruleY([0], { stroke: "var(--faint)" }),
          ...nullMarks(series("r_q", shown[0]), "var(--r_q)"),
          ...nullMarks(series("r_k", shown[0]), "var(--r_k)"),
          ...shown.flatMap((run) => valueMarks("r_q", run, "var(--r_q)", "circle")),
          ...shown.flatMap((run) => valueMarks("r_k", run, "var(--r_k)", "square")),
        ],
      },
      { name: `r_q and r_k of PC${state.pc} at each ${axes.checkpointWord}`, prefix: "correlation", lines },
    );
  }

  /** @param {number} width */
  function varianceChart(width) {
    const points = store.runs().flatMap((run) => series("explained_variance", run));
    const axis = axes.checkpointAxis(width, 290, `explained variance, ${component()}`);
    const most = Math.max(0.05, 1.15 * (d3.max(points, (d) => d.value) || 0));
    const tickFormat = (/** @type {number} */ v) => text.number(v, 2);
    return axes.checkpointChart(
      {
        ...axis,
        y: { tickSize: 0, domain: [0, most], ticks: 5, tickFormat, label: null },
        marks: [
          ...axis.marks,
          axes.grid(5),
          Plot.ruleY([0], { stroke: "var(--faint)" }),
          ...store.runs().flatMap((run) => valueMarks("explained_variance", run, "var(--variance)", "triangle")),
        ],
      },
      { name: `Explained variance of PC${state.pc} at each ${axes.checkpointWord}`, prefix: "variance", lines },
    );
  }

  /* ---- what determines where it looks ---- */

  /** @type {(width: number, run: number) => Drawn} */
  function sharesChart(width, run) {
    const value = (/** @type {number} */ checkpoint, /** @type {string} */ name) => data.value(store.table(run), name, checkpoint, index());
    return scores.chart({
      ...{ width, height: 290, prefix: `shares${data.letters[run]}` },
      title: axes.ofRun(run, "share of score variance over keys"),
      checkpoints: checkpoints().map((one) => one.index),
      share: value,
      error: (checkpoint, name) => value(checkpoint, `${name}_se`),
    });
  }

  /* ---- curves: the chosen checkpoint in ink, the others behind it, pale to deep as training goes on ---- */

  /** @type {(curve: PackedCurve, width: number, run: number) => HTMLElement} */
  function curveChart(curve, width, run) {
    const checkpoint = data.checkpointOf(data.heads[index()], state.checkpoint);
    const last = Math.max(1, data.checkpoints.length - 1);
    const colour = paint.ramp([-0.35 * last, last]);
    const second = store.both() ? store.over(1).curves.find(({ name }) => name === curve.name) : undefined;
    /** @type {(one: number, of?: PackedCurve, side?: number) => { at: number, value: number }[]} */
    const points = (one, of = curve, side = run) =>
      [...data.curve(of, one, index(), `${side}:${state.window}`)].flatMap((value, i) =>
        Number.isNaN(value) ? [] : [{ at: of.at[i], value }],
      );
    /** @type {(one: number, look: any) => any} */
    const line = (one, look) => Plot.line(points(one), { x: "at", y: "value", ...look });
    const ink = { x: "at", y: "value", stroke: "var(--ink)", strokeWidth: 2.2 };
    const svg = axes.plot({
      width,
      height: 250,
      marginLeft: 46,
      marginBottom: 36,
      x: curve.log
        ? { type: "log", base: 2, label: curve.axis, tickSize: 0, ticks: 6, tickFormat: text.tokens }
        : { label: curve.axis, tickSize: 0 },
      y: { label: null, tickSize: 0, ticks: 5 },
      marks: [
        axes.grid(5),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...(store.both() ? [] : checkpoints())
          .filter((one) => one.index !== checkpoint)
          .map((one) => line(one.index, { stroke: colour(one.index), strokeWidth: 1.2 })),
        Plot.line(points(checkpoint), ink),
        ...(second ? [Plot.line(points(checkpoint, second, 1), { ...ink, strokeDasharray: axes.dashOf(1) })] : []),
      ],
    });
    axes.dress(svg, `${curve.title} at ${data.checkpoints[checkpoint].label}`);
    const whose = store.both() ? (second ? ", B dashed" : ", A alone") : " in bold";
    return h("div", {}, h("p", { class: "small" }, `${curve.title}, ${data.checkpoints[checkpoint].label}${whose}`), svg);
  }

  /* Whether the head has such a curve at any checkpoint: one that does not rotate has none by rotary pair. */
  /** @type {(curve: PackedCurve, run: number) => boolean} */
  const isKnown = (curve, run) =>
    checkpoints().some((one) =>
      data.curve(curve, one.index, index(), `${run}:${state.window}`).some((value) => !Number.isNaN(value)),
    );

  /* Nothing where the results hold none of it. */
  /** @type {(width: number) => HTMLElement[]} */
  function anatomy(width) {
    const [run] = store.runs();
    const shares = data.parts.length ? store.runs().map((one) => h("div", {}, scores.legend(), sharesChart(width, one))) : [];
    const known = store.over(run).curves.filter((curve) => !curve.waves && isKnown(curve, run));
    const found = [...shares, ...known.map((curve) => curveChart(curve, width, run))];
    if (!found.length) return [];
    return [h("h3", {}, "What determines where it looks"), h("div", { class: "pair" }, found)];
  }

  return { correlationChart, varianceChart, anatomy };
})();
