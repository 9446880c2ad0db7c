// @ts-check
/* Axis climb: the principal axes of one head at every checkpoint by their rank, each joined to the axis that it continues.
 * A positional axis that climbs to the top becomes PC0. Beside it, the mean path along the axis that is pointed at. */
"use strict";

const climb = (() => {
  const { state } = store;
  const { h, s } = dom;
  const JOINED = 0.5; // overlap from which a line joins two axes

  const index = () => store.currentHead();
  const stops = () => data.stopsOf(index());

  /** @typedef {{ run: number, stop: number, pc: number, r_q: number, r_k: number, variance: number, before: number, overlap: number }} Axis */

  /** @type {(run: number, stop: number, pc: number) => Axis} */
  function axisAt(run, stop, pc) {
    const [r_q, r_k, variance] = ["r_q", "r_k", "explained_variance"].map((name) =>
      data.component(name, stop, index(), pc, run),
    );
    return { run, stop, pc, r_q, r_k, variance, ...data.axisBefore(run, stop, index(), pc) };
  }

  /** @type {(run: number) => Axis[]} */
  const all = (run) =>
    stops()
      .flatMap(({ index: stop }) => d3.range(data.components).map((pc) => axisAt(run, stop, pc)))
      .filter(({ r_q }) => !Number.isNaN(r_q));

  /** @param {Axis} axis */
  const size = ({ r_q, r_k }) => Math.max(Math.abs(r_q), Math.abs(r_k) || 0);

  /** @type {(axis: Axis, meaning: boolean) => (string | null)[]} */
  function lines({ run, stop, pc, r_q, r_k, variance, before, overlap }, meaning) {
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
    return [axes.ofRun(run, `${data.stops[stop].label} · PC${pc}`), ...text.described(numbers, [from], meaning)];
  }

  /* ---- the path along an axis ---- */

  const panel = h("div", { class: "path-panel" });

  /** @param {Axis} axis */
  function showPath({ run, stop, pc }) {
    const paths = data.axisPaths(run, stop, index(), pc);
    const size_ = data.stops[stop].window || 1;
    const title = h("p", { class: "small" }, axes.ofRun(run, `Mean path along PC${pc} at ${data.stops[stop].label}, by position`));
    if (!paths) {
      panel.replaceChildren(h("p", { class: "absent" }, "The page has no mean paths of these heads."));
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
    const here = stops().map((stop) => stop.index);
    const [left, top, rowTall] = [40, 10, 26];
    const room = axes.labelling(here, (width - left) / here.length);
    const bottom = top + data.components * rowTall;
    const x = d3.scalePoint(here, [left + 16, width - 24]);
    /** @param {number} stop */
    const across = (stop) => x(stop) || 0;
    /** @param {number} pc */
    const y = (pc) => top + (pc + 0.5) * rowTall;
    const colour = paint.ramp([0, 1]);
    /** @param {Axis} axis */
    const thick = ({ variance }) => 1.5 + 20 * (variance || 0);
    const svg = s("svg", { width, height: bottom + room.room + 8, class: "chart climb", role: "group" });
    svg.setAttribute("aria-label", axes.ofRun(list[0].run, `Principal axes by rank at each ${axes.stopWord}, joined where they continue`));
    const behind = s("g", { "aria-hidden": "true" });
    for (const pc of d3.range(data.components))
      behind.append(s("text", { x: left - 10, y: y(pc) + 4, class: "rank" }, `PC${pc}`));
    for (const axis of list) {
      const place = here.indexOf(axis.stop);
      if (place < 1 || axis.before < 0 || axis.overlap < JOINED) continue;
      const [from, to] = [across(here[place - 1]), across(axis.stop)];
      const middle = (from + to) / 2;
      const d = `M${from},${y(axis.before)}C${middle},${y(axis.before)} ${middle},${y(axis.pc)} ${to},${y(axis.pc)}`;
      behind.append(
        s("path", { d, fill: "none", stroke: colour(size(axis)), "stroke-width": thick(axis), "stroke-opacity": axis.overlap }),
      );
    }
    svg.append(behind, axes.stopLabels(here, (i) => across(here[i]), bottom + 16, room));
    for (const axis of list) {
      const dot = s("circle", {
        ...{ cx: across(axis.stop), cy: y(axis.pc), r: Math.max(3.5, thick(axis) / 2) },
        ...{ fill: colour(size(axis)), class: "axis-dot" },
      });
      marks.mark(dot, {
        key: `climb:${data.letters[axis.run]}${axis.stop}:${axis.pc}`,
        label: `${lines(axis, false).filter(Boolean).join(", ")}. Show this component.`,
        lines: () => lines(axis, true),
        pressed: axis.stop === state.stop && axis.pc === state.pc,
        act: () => store.set({ stop: axis.stop, pc: axis.pc }),
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
    showPath(list.find(({ stop, pc }) => stop === state.stop && pc === state.pc) || list[0]);
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
