// @ts-check
/* What determines attention: the parts of the variance of scores over keys, stacked, for each population at every
 * checkpoint, and for each layer at the chosen one. */
"use strict";

const scores = (() => {
  const { state } = store;

  /** @param {number} part */
  const colour = (part) => `var(--${data.parts[part].name})`;

  /** @typedef {{ at: number, part: number, low: number, high: number }} Piece */

  /* Stacked pieces of each place; `share` gives a part's share there. */
  /** @type {(places: number[], share: (at: number, name: string) => number | null | undefined) => Piece[]} */
  const stack = (columns, share) =>
    columns.flatMap((at) => {
      let from = 0;
      return data.parts.flatMap(({ name }, part) => {
        const value = share(at, name);
        if (value === null || value === undefined || Number.isNaN(value)) return [];
        from += value;
        return [{ at, part, low: from - value, high: from }];
      });
    });

  /* What position explains, by itself or with the query: the first parts of the stack. */
  /** @type {(at: number, share: (at: number, name: string) => number | null | undefined) => number} */
  const positional = (at, share) =>
    d3.sum(data.parts.filter(({ name }) => name.endsWith("position")), ({ name }) => share(at, name) ?? NaN);

  /* The chart of stacked shares over checkpoints, for a population or for one head. */
  /** @type {(options: { width: number, height: number, title: string, prefix: string, checkpoints: number[],
   *   share: (checkpoint: number, name: string) => number | null | undefined,
   *   error: (checkpoint: number, name: string) => number | null | undefined }) => Drawn} */
  function chart({ width, height, title, prefix, checkpoints, share, error }) {
    const axis = axes.checkpointAxis(width, height, title);
    const half = data.checkpoints.length > 40 ? 0.5 : 0.38;
    const room = (width / data.checkpoints.length) * 2 * half;
    const sums = room < 17 ? [] : checkpoints.map((checkpoint) => ({ checkpoint, sum: positional(checkpoint, share) }));
    return axes.checkpointChart(
      {
        ...axis,
        y: { domain: [0, 1], ticks: 5, tickSize: 0, label: null, tickFormat: axes.percent },
        marks: [
          ...axis.marks,
          Plot.rect(stack(checkpoints, share), {
            ...{ x1: (d) => d.at - half, x2: (d) => d.at + half, y1: "low", y2: "high" },
            ...{ fill: (d) => colour(d.part), stroke: "var(--paper)", strokeWidth: 0.6 },
          }),
          Plot.text(
            sums.filter(({ sum }) => sum > 0.1),
            {
              ...{ x: "checkpoint", y: "sum", dy: 9, text: (d) => String(Math.round(100 * d.sum)) },
              ...{ fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 3, fontSize: room < 26 ? 10 : 11 },
            },
          ),
        ],
      },
      {
        name: `${title}, at each ${axes.checkpointWord}`,
        prefix,
        lines(checkpoint, meaning) {
          /** @type {(name: string, value?: number | null) => Quantity} */
          const of = (name, value = null) => ({ name, value: value ?? NaN, se: error(checkpoint, name) });
          const whole = of("share_positional", positional(checkpoint, share));
          const parts = data.parts.map(({ name }) => of(name, share(checkpoint, name)));
          return [`${data.labelOf(checkpoint)} · ${title}`, ...text.described([whole, ...parts], [], meaning)];
        },
      },
    );
  }

  const legend = () => dom.legend(data.parts.map(({ label }, part) => dom.blockKey(colour(part), label)));

  /* The mean share of a part over the heads of a layer at the chosen checkpoint. */
  /** @type {(width: number, height: number, run: number) => Drawn} */
  function byLayer(width, height, run) {
    const { places, ...means } = store.over(run).averages.layers;
    const here = data.heads.filter((d) => data.checkpointsOf(d.index).some(({ index }) => index === state.checkpoint));
    const layers = [...new Set(here.map(({ layer }) => layer))];
    /** @type {(layer: number, name: string, what?: "mean" | "se") => Maybe} */
    const share = (layer, name, what = "mean") =>
      means[name]?.[what][state.checkpoint * places.length + places.indexOf(layer)] ?? null;
    const name = text.shorten(data.labelOf(state.checkpoint), 24);
    const svg = axes.plot({
      ...{ width, height, marginLeft: axes.layerMargin, marginRight: 10, marginTop: 44, marginBottom: 26 },
      x: { domain: [0, 1], ticks: [0, 0.5, 1], tickSize: 0, label: null, tickFormat: axes.percent },
      y: { type: "band", domain: layers, axis: null, padding: 0.14 },
      marks: [
        axes.titled(axes.ofRun(run, `By layer at ${name}`), axes.layerMargin - 4),
        axes.layerNames(layers, (height - 70) / Math.max(1, layers.length)),
        Plot.rect(stack(layers, share), { x1: "low", x2: "high", y: "at", fill: (d) => colour(d.part) }),
        // A bar that cannot be seen, over each layer: the mark.
        Plot.barX(layers, { x1: 0, x2: 1, y: (d) => d, fill: "transparent" }),
      ],
    });
    svg.querySelectorAll('g[aria-label="bar"] rect').forEach((rect, i) => {
      const layer = layers[i];
      const numbers = data.parts.map(({ name }) => ({
        ...{ name, of: "mean", value: share(layer, name), se: share(layer, name, "se") },
      }));
      const where = `Layer ${layer}${axes.isNope(layer) ? " (NoPE)" : ""} at ${data.labelOf(state.checkpoint)}`;
      marks.mark(rect, {
        key: `layer:${layer}${data.letters[run]}`,
        say: (meaning) => [where, ...text.described(numbers, [], meaning)],
        verb: "Select its heads.",
        act: (event) => store.select(here.filter((d) => d.layer === layer).map((d) => d.index), event),
      });
    });
    axes.dress(svg, `What determines attention in each layer at ${data.labelOf(state.checkpoint)}`);
    return svg;
  }

  /* Means of each population at each checkpoint. */
  function numbersTable() {
    const columns = ["share_positional", ...data.parts.map(({ name }) => name)];
    const rows = data.populations.flatMap((population) =>
      data.checkpoints.flatMap(({ index, label }) =>
        store.runs().map((run) => {
          const { means } = store.over(run).averages;
          const where = population === "all" ? label : `${label}, ${population}`;
          const cells = columns.map((name) => {
            const { mean, se } = means[population]?.[name] || { mean: [], se: [] };
            return text.measure(name, mean[index] ?? null, se[index]);
          });
          return [axes.ofRun(run, where), ...cells];
        }),
      ),
    );
    return dom.numbers(dom.find("scores-drawing"), [axes.checkpointWord, ...columns.map(data.measureLabel)], rows);
  }

  function draw() {
    const drawing = dom.find("scores-drawing");
    const width = axes.widthOf(drawing);
    const columns = width > 640 ? data.populations.length + 1 : 1;
    const each = (width - 28 * (columns - 1)) / columns;
    const { means: all } = store.over().averages;
    if (!data.populations.some((one) => all[one]?.[data.parts[0].name]?.mean.some((v) => v !== null)))
      return marks.mount(drawing, dom.absent("Not measured over this window."));
    const layers = new Set(data.heads.map(({ layer }) => layer)).size;
    const tall = Math.min(560, Math.max(310, 70 + 14 * layers));
    /* Of each run, a chart of every population and one of the layers. */
    const panels = store.runs().flatMap((run) => {
      const { means, heads } = store.over(run).averages;
      const charts = data.populations.map((population) => {
        const whose = population === "all" ? "" : `${population}, `;
        return chart({
          width: each,
          height: 310,
          title: axes.ofRun(run, `${whose}${text.headCount(d3.max(heads[population] || [0]) || 0)}`),
          prefix: `scores:${population}${data.letters[run]}`,
          checkpoints: data.checkpoints.map(({ index }) => index),
          share: (checkpoint, name) => means[population]?.[name]?.mean[checkpoint],
          error: (checkpoint, name) => means[population]?.[name]?.se[checkpoint],
        });
      });
      return [...charts, byLayer(each, tall, run)];
    });
    marks.mount(drawing, legend(), dom.grid(drawing, columns, panels), numbersTable());
  }

  return { draw, needs: ["window", "run", "checkpoint"], chart, legend };
})();
