// @ts-check
/* Charts of the head page, over training: one component with its null band, the axes by rank, what determines the
 * scores, and the scores by distance. Wavelengths have a view of their own. */
"use strict";

const headCharts = (() => {
  const { state } = store;
  const { h, s } = dom;
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
    const line = { ...at, strokeWidth: 2, strokeDasharray: axes.dashOf(run) };
    const joined = data.training ? [Plot.line(points, line)] : [];
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
    return [`${data.labelOf(checkpoint)} · PC${state.pc}`, ...text.described(known, [], meaning)];
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
    return axes.checkpointChart(
      {
        ...axis,
        y: { tickSize: 0, domain: [0, most], ticks: 5, tickFormat: axes.percent, label: null },
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
    /** @type {(checkpoint: number, name: string) => number} */
    const value = (checkpoint, name) => data.value(store.table(run), name, checkpoint, index());
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
    const colour = paint.ramp([0, last]);
    /* Of the ramp's pale end enough is left out that the first checkpoint is seen. */
    /** @param {number} checkpoint */
    const age = (checkpoint) => colour(0.25 * last + 0.75 * checkpoint);
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
          .map((one) => line(one.index, { stroke: age(one.index), strokeWidth: 1.2 })),
        Plot.line(points(checkpoint), ink),
        ...(second ? [Plot.line(points(checkpoint, second, 1), { ...ink, strokeDasharray: axes.dashOf(1) })] : []),
      ],
    });
    axes.dress(svg, `${curve.title} at ${data.labelOf(checkpoint)}`);
    const whose = store.both() ? (second ? ", B dashed" : ", A alone") : " in bold";
    return h("div", {}, h("p", { class: "small" }, `${curve.title}, ${data.labelOf(checkpoint)}${whose}`), svg);
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
    const shares = (data.parts.length ? store.runs() : []).map((one) =>
      h("div", {}, scores.legend(), sharesChart(width, one)),
    );
    const known = store.over(run).curves.filter((curve) => !curve.waves && isKnown(curve, run));
    const found = [...shares, ...known.map((curve) => curveChart(curve, width, run))];
    if (!found.length) return [];
    return [h("h3", {}, "What determines where it looks"), h("div", { class: "pair" }, found)];
  }

  /* ---- the climb of axes: the principal axes at every checkpoint by their rank, each joined to the axis that it
   * continues. A positional axis that climbs to the top becomes PC0. Beside it, the mean path along one of them ---- */

  const JOINED = 0.5; // overlap from which a line joins two axes

  /** @typedef {{ run: number, checkpoint: number, pc: number, r_q: number, r_k: number, variance: number,
   *   before: number, overlap: number }} Axis */

  /** @type {(run: number, checkpoint: number, pc: number) => Axis} */
  function axisAt(run, checkpoint, pc) {
    const [r_q, r_k, variance] = ["r_q", "r_k", "explained_variance"].map((name) =>
      data.component(name, checkpoint, index(), pc, run),
    );
    return { run, checkpoint, pc, r_q, r_k, variance, ...data.axisBefore(run, checkpoint, index(), pc) };
  }

  /** @type {(run: number) => Axis[]} */
  const axesOf = (run) =>
    checkpoints()
      .flatMap(({ index: checkpoint }) => d3.range(data.components).map((pc) => axisAt(run, checkpoint, pc)))
      .filter(({ r_q }) => !Number.isNaN(r_q));

  /** @param {Axis} axis */
  const size = ({ r_q, r_k }) => Math.max(Math.abs(r_q), Math.abs(r_k) || 0);

  /** @type {(axis: Axis, meaning: boolean) => (string | null)[]} */
  function axisLines({ run, checkpoint, pc, r_q, r_k, variance, before, overlap }, meaning) {
    const from =
      before < 0
        ? null
        : overlap < JOINED
          ? "continues no axis of the checkpoint before"
          : `continues PC${before} of the checkpoint before, overlap ${text.number(overlap, 2)}`;
    const numbers = [
      ...[{ name: "r_q", value: r_q }, { name: "r_k", value: r_k }],
      { name: "explained_variance", value: variance },
    ];
    return [axes.ofRun(run, `${data.labelOf(checkpoint)} · PC${pc}`), ...text.described(numbers, [from], meaning)];
  }

  /* ---- the path along an axis ---- */

  const panel = h("div", { class: "path-panel" });

  /** @param {Axis} axis */
  function showPath({ run, checkpoint, pc }) {
    const paths = data.axisPaths(run, checkpoint, index(), pc);
    const size_ = data.checkpoints[checkpoint].window || 1;
    const title = axes.ofRun(run, `Mean path along PC${pc} at ${data.labelOf(checkpoint)}, by position`);
    if (!paths) return panel.replaceChildren(dom.absent("The page has no mean paths of these heads."));
    const points = paths.flatMap((values, kind) =>
      values.map((value, i) => ({ at: ((i + 0.5) * size_) / values.length, value, kind: kind ? "r_k" : "r_q" })),
    );
    const svg = axes.plot({
      ...{ width: 300, height: 190, marginLeft: 14, marginBottom: 38, marginTop: 10, marginRight: 10 },
      x: { label: "position, tokens", ticks: 4, tickSize: 0, tickFormat: text.tokens },
      y: { domain: [-1.05, 1.05], axis: null },
      marks: [
        Plot.ruleY([0], { stroke: "var(--rule)" }),
        Plot.line(
          points.filter(({ value }) => !Number.isNaN(value)),
          { x: "at", y: "value", z: "kind", stroke: (d) => `var(--${d.kind})`, strokeWidth: 2.2 },
        ),
      ],
    });
    axes.dress(svg, `Mean path of queries and keys along PC${pc}`);
    svg.setAttribute("role", "img");
    const keys = dom.legend(dom.lineKey("var(--r_q)", "queries"), dom.lineKey("var(--r_k)", "keys"));
    panel.replaceChildren(h("p", { class: "small" }, title), svg, keys);
  }

  /* ---- axes by rank ---- */

  /** @type {(list: Axis[], width: number) => SVGElement} */
  function climbChart(list, width) {
    const here = checkpoints().map((checkpoint) => checkpoint.index);
    const [left, top, rowTall] = [40, 10, 26];
    const room = axes.labelling(here, (width - left) / here.length);
    const bottom = top + data.components * rowTall;
    const x = d3.scalePoint(here, [left + 16, width - 24]);
    /** @param {number} checkpoint */
    const across = (checkpoint) => x(checkpoint) || 0;
    /** @param {number} pc */
    const y = (pc) => top + (pc + 0.5) * rowTall;
    const colour = paint.ramp([0, 1]);
    /** @param {Axis} axis */
    const thick = ({ variance }) => 1.5 + 20 * (variance || 0);
    const svg = s("svg", { width, height: bottom + room.room + 8, class: "chart climb", role: "group" });
    const label = `Principal axes by rank at each ${axes.checkpointWord}, joined where they continue`;
    svg.setAttribute("aria-label", axes.ofRun(list[0].run, label));
    const behind = s("g", { "aria-hidden": "true" });
    for (const pc of d3.range(data.components))
      behind.append(s("text", { x: left - 10, y: y(pc) + 4, class: "rank" }, `PC${pc}`));
    for (const axis of list) {
      const column = here.indexOf(axis.checkpoint);
      if (column < 1 || axis.before < 0 || axis.overlap < JOINED) continue;
      const [from, to] = [across(here[column - 1]), across(axis.checkpoint)];
      const middle = (from + to) / 2;
      const d = `M${from},${y(axis.before)}C${middle},${y(axis.before)} ${middle},${y(axis.pc)} ${to},${y(axis.pc)}`;
      const look = { stroke: colour(size(axis)), "stroke-width": thick(axis), "stroke-opacity": axis.overlap };
      behind.append(s("path", { d, fill: "none", ...look }));
    }
    svg.append(behind, axes.checkpointLabels(here, (i) => across(here[i]), bottom + 16, room));
    for (const axis of list) {
      const dot = s("circle", {
        ...{ cx: across(axis.checkpoint), cy: y(axis.pc), r: Math.max(3.5, thick(axis) / 2) },
        ...{ fill: colour(size(axis)), class: "axis-dot" },
      });
      marks.mark(dot, {
        key: `climb:${data.letters[axis.run]}${axis.checkpoint}:${axis.pc}`,
        say: (meaning) => axisLines(axis, meaning),
        verb: "Show this component.",
        pressed: axis.checkpoint === state.checkpoint && axis.pc === state.pc,
        act: () => store.set({ checkpoint: axis.checkpoint, pc: axis.pc }),
      });
      for (const event of ["pointerenter", "focus"]) dot.addEventListener(event, () => showPath(axis));
      svg.append(dot);
    }
    return svg;
  }

  /** @type {(width: number) => HTMLElement[]} */
  function climb(width) {
    const lists = store.runs().map(axesOf).filter((list) => list.length);
    if (data.components < 2 || !lists.length) return [];
    const [list] = lists;
    const wide = width > 760;
    showPath(list.find(({ checkpoint, pc }) => checkpoint === state.checkpoint && pc === state.pc) || list[0]);
    const joined = list.some(({ before }) => before >= 0);
    const lead =
      "A line per principal axis, the widest at the top: thickness is its variance, depth of colour how closely it " +
      "follows position." +
      (joined ? " A line that climbs becomes PC0. Point at an axis to see its mean path." : "");
    const charts = lists.flatMap((one) => [
      store.both() ? h("p", { class: "small" }, `Run ${data.letters[one[0].run]}`) : null,
      climbChart(one, wide ? width - 340 : width),
    ]);
    return [
      h("h3", {}, "How axes climb to PC0"),
      h("p", { class: "small" }, lead),
      dom.legend(paint.rampKeys("|r|, the larger of r_q and r_k; training context", [0, 1])),
      h("div", { class: wide ? "climb-row" : "" }, h("div", {}, charts), panel),
    ];
  }

  return { correlationChart, varianceChart, climb, anatomy };
})();
