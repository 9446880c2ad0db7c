// @ts-check
/* Distance: the mean score of a key by its distance, relative to the curve's mean, for each population. */
"use strict";

const distance = (() => {
  const { state } = store;
  const { h } = dom;

  /** @typedef {{ at: number, value: number, se: Maybe }} Point */
  /** @typedef {{ run: number, population: string, points: Point[] }} Curve */

  /** @type {() => Curve[]} */
  const curves = () =>
    data.populations.flatMap((population) =>
      store.runs().flatMap((run) => {
        const found = store.over(run).distances;
        const { score = [], se = [] } = found?.curves[population]?.[state.checkpoint] || {};
        const points = score.flatMap((value, i) =>
          value === null ? [] : [{ at: found?.at[i] || 0, value, se: se[i] }],
        );
        return points.length ? [{ run, population, points }] : [];
      }),
    );

  /** @param {Curve} curve */
  const nameOf = ({ population }) => (population === "all" ? "all heads" : population);

  /* The curve's value near a distance. */
  /** @type {(curve: Curve, at: number) => Point} */
  const near = ({ points }, at) => points[d3.leastIndex(points, (d) => Math.abs(Math.log(d.at / at))) ?? 0];

  /* At least half a logit up and down, so that noise around zero looks like what it is. */
  /** @type {(list: Curve[]) => [number, number]} */
  function range(list) {
    const points = list.flatMap((curve) => curve.points);
    const ends = points.flatMap(({ value, se }) => [value - (se || 0), value + (se || 0)]);
    return [Math.min(-0.5, d3.min(ends) ?? 0), Math.max(0.5, d3.max(ends) ?? 0)];
  }

  /** @param {Curve[]} list */
  function numbersTable(list) {
    const found = list.map(({ points }) => new Map(points.map((point) => [point.at, point])));
    const distances = [...new Set(list.flatMap(({ points }) => points.map(({ at }) => at)))].sort((a, b) => a - b);
    const names = list.map((curve) => axes.ofRun(curve.run, nameOf(curve)));
    const rows = distances.map((at) => [
      text.count(at),
      ...found.map((curve) => text.measure("distance_score", curve.get(at)?.value ?? null, curve.get(at)?.se)),
    ]);
    return dom.numbers(dom.find("distance-drawing"), ["tokens back", ...names], rows);
  }

  function draw() {
    const drawing = dom.find("distance-drawing");
    const list = curves();
    if (!list.length) return marks.mount(drawing, dom.absent("Not measured over this window."));
    const longest = d3.max(list, (curve) => curve.points[curve.points.length - 1].at) || 1;
    const octaves = d3.range(0, Math.floor(Math.log2(longest)) + 1).map((octave) => 2 ** octave);
    // The axis ends with a tick: none just before it.
    const ticks = [...octaves.filter((at, i) => i % 2 === 0 && at * 1.5 < longest), longest];
    const [least, most] = range(list);
    const marked = list.flatMap((curve) => octaves.map((at) => ({ curve, ...near(curve, at) })));
    const tickFormat = (/** @type {number} */ v) => text.count(v);
    const svg = axes.plot({
      ...{ width: axes.widthOf(drawing), height: 300 },
      ...{ marginLeft: 40, marginRight: 12, marginTop: 26, marginBottom: 36 },
      x: { type: "log", base: 2, domain: [1, longest], ticks, tickFormat, label: "tokens back", tickSize: 0 },
      y: { domain: [least, most], label: null, tickSize: 0, ticks: 5 },
      marks: [
        axes.titled("score, logits", 36, 22),
        axes.grid(5),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...list.map((curve) =>
          Plot.areaY(curve.points, {
            ...{ x: "at", fill: paint.ofPopulation(curve.population), fillOpacity: 0.18 },
            y1: (/** @type {Point} */ d) => d.value - (d.se || 0),
            y2: (/** @type {Point} */ d) => d.value + (d.se || 0),
          }),
        ),
        ...list.map((curve) =>
          Plot.line(curve.points, {
            ...{ x: "at", y: "value", strokeWidth: 2.2 },
            ...{ stroke: paint.ofPopulation(curve.population), strokeDasharray: axes.dashOf(curve.run) },
          }),
        ),
        Plot.dot(marked, {
          ...{ x: "at", y: "value", r: 3.4, stroke: (d) => paint.ofPopulation(d.curve.population) },
          fill: (d) => (axes.isSecond(d.curve.run) ? "var(--paper)" : paint.ofPopulation(d.curve.population)),
        }),
      ],
    });
    const name = data.labelOf(state.checkpoint);
    svg.querySelectorAll('g[aria-label="dot"] circle').forEach((dot, i) => {
      const { curve, at, value, se } = marked[i];
      const where = axes.ofRun(curve.run, `${nameOf(curve)} at ${name}: ${text.back(at)}`);
      const score = { name: "distance_score", value, se, of: "mean" };
      marks.mark(dot, {
        key: `distance:${curve.population}:${curve.run}:${at}`,
        say: (meaning) => [where, ...text.described([score], [], meaning)],
      });
    });
    axes.dress(svg, `Mean score by distance at ${name}`);
    const keys = d3.groups(list, ({ population }) => population).map(([population, [curve]]) =>
      dom.lineKey(paint.ofPopulation(population), nameOf(curve)),
    );
    const band = list.some(({ points }) => points.some(({ se }) => se))
      ? dom.key(h("i", { class: "band" }), "±1 se")
      : null;
    marks.mount(drawing, dom.legend(dom.key(null, name), keys, band, axes.runKeys()), svg, numbersTable(list));
  }

  /** @type {View} */
  return { draw, needs: ["window", "run", "checkpoint"] };
})();
