// @ts-check
/* More of one head, where the results hold it: what determines its scores, and its scores by distance,
 * over training. Wavelengths have a view of their own. */
"use strict";

const headMeasures = (() => {
  const { state } = store;
  const { h } = dom;
  const index = () => store.currentHead();
  const stops = () => data.stopsOf(index());

  /** @type {(name: string, stop: number) => number} */
  const at = (name, stop) => data.value(store.table(), name, stop, index());

  /* What determines where it looks, at every checkpoint. */
  /** @param {number} width */
  const sharesChart = (width) =>
    h(
      "div",
      {},
      scores.legend(),
      scores.chart({
        width,
        height: 290,
        title: "share of score variance over keys",
        prefix: "shares",
        stops: stops().map((one) => one.index),
        share: (stop, name) => at(name, stop),
        error: (stop, name) => at(`${name}_se`, stop),
      }),
    );

  /* ---- curves: the chosen checkpoint in ink, the others behind it, pale to deep as training goes on ---- */

  /** @type {(curve: PackedCurve, width: number, run: number) => HTMLElement} */
  function curveChart(curve, width, run) {
    const stop = data.stopOf(data.heads[index()], state.stop);
    const last = Math.max(1, data.stops.length - 1);
    const colour = paint.ramp([-0.35 * last, last]);
    const second = store.both() ? store.over(1).curves.find(({ name }) => name === curve.name) : undefined;
    /** @type {(one: number, of?: PackedCurve, side?: number) => { at: number, value: number }[]} */
    const points = (one, of = curve, side = run) =>
      [...data.curve(of, one, index(), `${side}:${state.window}`)].flatMap((value, i) =>
        Number.isNaN(value) ? [] : [{ at: of.waves?.[one]?.[i] ?? of.at[i], value }],
      );
    /** @type {(one: number, look: any) => any} */
    const line = (one, look) => Plot.line(points(one), { x: "at", y: "value", ...look });
    const ink = { x: "at", y: "value", stroke: "var(--ink)", strokeWidth: 2.2 };
    const svg = axes.plot({
      width,
      height: 250,
      marginLeft: 46,
      marginBottom: 36,
      className: "plot",
      style: { fontSize: "12px", background: "none", overflow: "visible" },
      x: curve.log
        ? { type: "log", base: 2, label: curve.axis, tickSize: 0, ticks: 6, tickFormat: text.tokens }
        : { label: curve.axis, tickSize: 0 },
      y: { label: null, tickSize: 0, ticks: 5 },
      marks: [
        Plot.gridY({ stroke: "var(--rule)", strokeOpacity: 1, ticks: 5 }),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...(store.both() ? [] : stops())
          .filter((one) => one.index !== stop)
          .map((one) => line(one.index, { stroke: colour(one.index), strokeWidth: 1.2 })),
        Plot.line(points(stop), ink),
        ...(second ? [Plot.line(points(stop, second, 1), { ...ink, strokeDasharray: axes.dashOf(1) })] : []),
      ],
    });
    axes.dress(svg, `${curve.title} at ${data.stops[stop].label}`);
    const whose = store.both() ? (second ? ", B dashed" : ", A alone") : " in bold";
    return h(
      "div",
      {},
      h("p", { class: "small" }, `${curve.title}, ${data.stops[stop].label}${whose}`),
      svg,
    );
  }

  /* Whether the head has such a curve at any checkpoint: one that does not rotate has none by rotary pair. */
  /** @type {(curve: PackedCurve, run: number) => boolean} */
  const isKnown = (curve, run) =>
    stops().some((one) =>
      data.curve(curve, one.index, index(), `${run}:${state.window}`).some((value) => !Number.isNaN(value)),
    );

  /* Nothing where the results hold none of it. */
  /** @type {(width: number) => HTMLElement[]} */
  function charts(width) {
    const found = [];
    if (data.parts.length) found.push(sharesChart(width));
    const [run] = store.runs();
    const known = store.over(run).curves.filter((curve) => !curve.waves && isKnown(curve, run));
    found.push(...known.map((curve) => curveChart(curve, width, run)));
    if (!found.length) return [];
    return [h("h3", {}, "What determines where it looks"), h("div", { class: "pair" }, found)];
  }

  return { charts };
})();
