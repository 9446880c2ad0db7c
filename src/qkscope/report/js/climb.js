// @ts-check
/* Axis climb: the principal axes of one head at every checkpoint by their rank, each joined to the axis that it continues.
 * A positional axis that climbs to the top becomes PC0. Beside it, the mean path along the axis that is pointed at. */
"use strict";

const climb = (() => {
  const { state } = store;
  const { h, s } = dom;
  const JOINED = 0.5; // overlap from which a line joins two axes

  const index = () => store.currentHead();
  const checkpoints = () => data.checkpointsOf(index());

  /** @typedef {{ run: number, checkpoint: number, pc: number, r_q: number, r_k: number, variance: number, before: number, overlap: number }} Axis */

  /** @type {(run: number, checkpoint: number, pc: number) => Axis} */
  function axisAt(run, checkpoint, pc) {
    const [r_q, r_k, variance] = ["r_q", "r_k", "explained_variance"].map((name) =>
      data.component(name, checkpoint, index(), pc, run),
    );
    return { run, checkpoint, pc, r_q, r_k, variance, ...data.axisBefore(run, checkpoint, index(), pc) };
  }

  /** @type {(run: number) => Axis[]} */
  const all = (run) =>
    checkpoints()
      .flatMap(({ index: checkpoint }) => d3.range(data.components).map((pc) => axisAt(run, checkpoint, pc)))
      .filter(({ r_q }) => !Number.isNaN(r_q));

  /** @param {Axis} axis */
  const size = ({ r_q, r_k }) => Math.max(Math.abs(r_q), Math.abs(r_k) || 0);

  /** @type {(axis: Axis, meaning: boolean) => (string | null)[]} */
  function lines({ run, checkpoint, pc, r_q, r_k, variance, before, overlap }, meaning) {
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
    return [axes.ofRun(run, `${data.checkpoints[checkpoint].label} · PC${pc}`), ...text.described(numbers, [from], meaning)];
  }

  /* ---- the path along an axis ---- */

  const panel = h("div", { class: "path-panel" });

  /** @param {Axis} axis */
  function showPath({ run, checkpoint, pc }) {
    const paths = data.axisPaths(run, checkpoint, index(), pc);
    const size_ = data.checkpoints[checkpoint].window || 1;
    const title = h("p", { class: "small" }, axes.ofRun(run, `Mean path along PC${pc} at ${data.checkpoints[checkpoint].label}, by position`));
    if (!paths) {
      panel.replaceChildren(dom.absent("The page has no mean paths of these heads."));
      return;
    }
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
    panel.replaceChildren(title, svg, keys);
  }

  /* ---- the chart ---- */

  /** @type {(list: Axis[], width: number) => SVGElement} */
  function chart(list, width) {
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
    svg.setAttribute("aria-label", axes.ofRun(list[0].run, `Principal axes by rank at each ${axes.checkpointWord}, joined where they continue`));
    const behind = s("g", { "aria-hidden": "true" });
    for (const pc of d3.range(data.components))
      behind.append(s("text", { x: left - 10, y: y(pc) + 4, class: "rank" }, `PC${pc}`));
    for (const axis of list) {
      const place = here.indexOf(axis.checkpoint);
      if (place < 1 || axis.before < 0 || axis.overlap < JOINED) continue;
      const [from, to] = [across(here[place - 1]), across(axis.checkpoint)];
      const middle = (from + to) / 2;
      const d = `M${from},${y(axis.before)}C${middle},${y(axis.before)} ${middle},${y(axis.pc)} ${to},${y(axis.pc)}`;
      behind.append(
        s("path", { d, fill: "none", stroke: colour(size(axis)), "stroke-width": thick(axis), "stroke-opacity": axis.overlap }),
      );
    }
    svg.append(behind, axes.checkpointLabels(here, (i) => across(here[i]), bottom + 16, room));
    for (const axis of list) {
      const dot = s("circle", {
        ...{ cx: across(axis.checkpoint), cy: y(axis.pc), r: Math.max(3.5, thick(axis) / 2) },
        ...{ fill: colour(size(axis)), class: "axis-dot" },
      });
      marks.mark(dot, {
        key: `climb:${data.letters[axis.run]}${axis.checkpoint}:${axis.pc}`,
        label: `${lines(axis, false).filter(Boolean).join(", ")}. Show this component.`,
        lines: () => lines(axis, true),
        pressed: axis.checkpoint === state.checkpoint && axis.pc === state.pc,
        act: () => store.set({ checkpoint: axis.checkpoint, pc: axis.pc }),
      });
      for (const event of ["pointerenter", "focus"]) dot.addEventListener(event, () => showPath(axis));
      svg.append(dot);
    }
    return svg;
  }

  /** @type {(width: number) => HTMLElement[]} */
  function draw(width) {
    const lists = store.runs().map(all).filter((list) => list.length);
    if (data.components < 2 || !lists.length) return [];
    const [list] = lists;
    const wide = width > 760;
    showPath(list.find(({ checkpoint, pc }) => checkpoint === state.checkpoint && pc === state.pc) || list[0]);
    const joined = list.some(({ before }) => before >= 0);
    const lead =
      "A line per principal axis, the widest at the top: thickness is its variance, depth of colour how closely it follows position." +
      (joined ? " A line that climbs becomes PC0. Point at an axis to see its mean path." : "");
    const charts = lists.flatMap((one) => [
      store.both() ? h("p", { class: "small" }, `Run ${data.letters[one[0].run]}`) : null,
      chart(one, wide ? width - 340 : width),
    ]);
    return [
      h("h3", {}, "How axes climb to PC0"),
      h("p", { class: "small" }, lead),
      dom.legend(paint.rampKeys("|r|, the larger of r_q and r_k; training context", [0, 1])),
      h("div", { class: wide ? "climb-row" : "" }, h("div", {}, charts), panel),
    ];
  }

  return { draw };
})();
