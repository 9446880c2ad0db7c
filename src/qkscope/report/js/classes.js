// @ts-check
/* Classes: heads of each class as stacked bars, a picture per population, joined by flows of the heads that stay in
 * or change their class. Two runs stand side by side at each checkpoint, and the flows show which heads differ. */
"use strict";

const classes = (() => {
  const { state } = store;
  const { h, s } = dom;
  const drawing = dom.find("classes-drawing");

  /** @typedef {{ i: number, code: number, heads: number[], y0: number, y1: number, element?: Element }} Segment */
  /** @typedef {{ i: number, from: number, to: number, heads: number[], a0: number, b0: number, n: number,
   *   element?: Element }} Flow */
  /** @typedef {(at: number) => number} Place */
  /** @typedef {{ checkpoint: number, run: number }} Bar what a bar shows: a checkpoint of a run */
  /** @typedef {{ svg: SVGSVGElement, population: string, checkpoints: number[], bars: Segment[][], list: Flow[],
   *   x: Place, y: Place, wide: number }} Picture */
  /** @type {Picture[]} as drawn last, a picture per population */
  let drawn = [];

  /* The checkpoints there is room for: all, or evenly many with the chosen one. */
  /** @param {number} width */
  function drawnCheckpoints(width) {
    const found = new Set(axes.spread(width, store.both() ? 72 : 36));
    if (!found.has(state.checkpoint)) found.add(state.checkpoint);
    return [...found].sort((a, b) => a - b);
  }

  /** @type {(checkpoints: number[]) => Bar[]} */
  const barsAt = (checkpoints) => checkpoints.flatMap((checkpoint) => store.runs().map((run) => ({ checkpoint, run })));

  /* Segments of the bars, a list of all classes for each bar; y0 and y1 in heads from the bottom. */
  /** @type {(shown: Bar[], heads: number[]) => Segment[][]} */
  function stack(shown, heads) {
    return shown.map(({ checkpoint, run }, i) => {
      const byClass = d3.group(heads, (head) => data.code(store.table(run), checkpoint, head));
      let y1 = 0;
      return data.classes.map((_, code) => {
        const found = byClass.get(code) || [];
        const y0 = y1;
        y1 += found.length;
        return { i, code, heads: found, y0, y1 };
      });
    });
  }

  /* Ribbons between neighbouring bars: heads by (from kind, to kind), placed along both segments in order. */
  /** @type {(shown: Bar[], bars: Segment[][]) => Flow[]} */
  function flows(shown, bars) {
    /** @type {Flow[]} */
    const found = [];
    for (let i = 0; i + 1 < shown.length; i += store.both() ? 2 : 1) {
      const { checkpoint, run } = shown[i + 1];
      const table = store.table(run);
      const used = data.classes.map(() => 0);
      for (const from of bars[i]) {
        const byTarget = d3.group(from.heads, (head) => data.code(table, checkpoint, head));
        let out = from.y0;
        data.classes.forEach((_, code) => {
          const heads = byTarget.get(code);
          if (!heads) return;
          const to = bars[i + 1][code];
          const into = to.y0 + used[code];
          found.push({ i, from: from.code, to: code, heads, a0: out, b0: into, n: heads.length });
          out += heads.length;
          used[code] += heads.length;
        });
      }
    }
    return found;
  }

  /** @type {(x0: number, x1: number, y: Place, flow: Flow, n: number) => string} */
  function ribbon(x0, x1, y, flow, n) {
    const mid = (x0 + x1) / 2;
    const [a0, a1, b0, b1] = [y(flow.a0), y(flow.a0 + n), y(flow.b0), y(flow.b0 + n)];
    return `M${x0},${a0}C${mid},${a0} ${mid},${b0} ${x1},${b0}L${x1},${b1}C${mid},${b1} ${mid},${a1} ${x0},${a1}Z`;
  }

  /** @param {number[]} heads */
  const selectedOf = (heads) => heads.reduce((n, head) => n + (state.heads.has(head) ? 1 : 0), 0);

  /** @type {(population: string, bar: Bar, segment: Segment, total: number, meaning: boolean) => (string | null)[]} */
  function segmentLines(population, { checkpoint, run }, segment, total, meaning) {
    const name = data.classes[segment.code];
    const known = store.shown() ? undefined : store.over(run).averages.classes[data.taxonomy]?.[population]?.[name];
    const error = known?.se[checkpoint] ?? null;
    const share =
      name === data.unmeasured ? "" : `, ${text.share(segment.heads.length / total, error)} of those measured`;
    const near = known?.borderline[checkpoint] ?? null;
    const whose = population === "all" ? "" : `${population} · `;
    return [
      axes.ofRun(run, `${data.labelOf(checkpoint)} · ${whose}${name}`),
      `${text.headCount(segment.heads.length)}${share}`,
      near === null ? null : `${near} of them within one standard error of another class`,
      error === null || !meaning ? null : text.error,
    ];
  }

  /** @type {(shown: Bar[], flow: Flow) => string[]} */
  function flowLines(shown, flow) {
    const [from, to] = [data.classes[flow.from], data.classes[flow.to]];
    const checkpoints = shown.map(({ checkpoint }) => checkpoint);
    if (store.both()) {
      const kind = flow.from === flow.to ? `${from} in both` : `${from} in A, ${to} in B`;
      return [data.labelOf(checkpoints[flow.i]), `${text.headCount(flow.n)} ${kind}`];
    }
    const what = flow.from === flow.to ? `stay ${from}` : `${from} → ${to}`;
    return [
      `${data.labelOf(checkpoints[flow.i])} to ${data.labelOf(checkpoints[flow.i + 1])}`,
      `${text.headCount(flow.n)} ${what}`,
    ];
  }

  /** @typedef {{ layer: SVGGElement, population: string, x: Place, y: Place, wide: number }} Ground */

  /** @type {(ground: Ground, shown: Bar[], flow: Flow) => void} */
  function drawFlow({ layer, population, x, y, wide }, shown, flow) {
    const stays = flow.from === flow.to;
    const d = ribbon(x(flow.i) + wide, x(flow.i + 1), y, flow, flow.n);
    const path = s("path", { d, class: stays ? "flow stay" : "flow", fill: paint.colour(flow.from) });
    const lines = flowLines(shown, flow);
    flow.element = path;
    layer.append(
      marks.mark(path, {
        key: `flow:${population}:${shown[flow.i].checkpoint}:${shown[flow.i + 1].checkpoint}:${flow.from}:${flow.to}`,
        say: (meaning) => (meaning ? lines : [lines.join(": ")]),
        verb: "Select them.",
        act: (event) => store.select(flow.heads, event),
      }),
    );
  }

  /** @type {(ground: Ground, bar: Bar, segment: Segment, total: number) => void} */
  function drawSegment({ layer, population, x, y, wide }, bar, segment, total) {
    const height = y(segment.y0) - y(segment.y1);
    const box = { x: x(segment.i), y: y(segment.y1), width: wide, height: Math.max(0.5, height - 1) };
    const hatched = data.classes[segment.code] === data.unmeasured;
    const fill = hatched ? `url(#hatch-${population})` : paint.colour(segment.code);
    const rect = s("rect", { ...box, class: "segment", fill });
    segment.element = rect;
    layer.append(
      marks.mark(rect, {
        key: `segment:${population}:${bar.checkpoint}${data.letters[bar.run]}:${segment.code}`,
        say: (meaning) => segmentLines(population, bar, segment, total, meaning),
        verb: "Select them.",
        act: (event) => store.select(segment.heads, event),
      }),
    );
    if (height <= 15 || wide <= 21) return;
    const at = { x: box.x + wide / 2, y: box.y + height / 2 + 4, fill: paint.inkOn(segment.code) };
    layer.append(s("text", { ...at, class: "segment-count", "aria-hidden": "true" }, String(segment.heads.length)));
  }

  /* The selected heads: the part of each flow that is theirs, and a strip beside each segment. */
  /** @param {Picture} picture */
  function drawPicked({ svg, checkpoints, bars, list, x, y, wide }) {
    const ticks = [...svg.querySelectorAll(".tick")];
    ticks.forEach((tick, i) => tick.classList.toggle("chosen", checkpoints[i] === state.checkpoint));
    const [ribbons, strips] = [s("g", { class: "picks" }), s("g", { class: "picks" })];
    for (const flow of list) {
      const picked = selectedOf(flow.heads);
      flow.element?.setAttribute("aria-pressed", String(picked === flow.n));
      const d = ribbon(x(flow.i) + wide, x(flow.i + 1), y, flow, picked);
      if (picked)
        ribbons.append(s("path", { d, class: "flow picked", fill: paint.colour(flow.from) }));
    }
    for (const segment of bars.flat()) {
      const picked = selectedOf(segment.heads);
      segment.element?.setAttribute("aria-pressed", String(picked === segment.heads.length));
      const tall = y(0) - y(picked);
      const box = { x: x(segment.i) - 5, y: y(segment.y0) - tall, width: 3.5, height: tall };
      if (picked) strips.append(s("rect", { ...box, class: "picked-strip" }));
    }
    svg.querySelectorAll(".picks").forEach((old) => old.remove());
    svg.querySelector(".flows")?.after(ribbons);
    svg.append(strips);
  }

  /* Numbers of heads on the left, with a line across at each. */
  /** @type {(y: LinearScale, left: number, width: number) => SVGElement} */
  function countAxis(y, left, width) {
    const layer = s("g", { class: "count-axis", "aria-hidden": "true" });
    for (const count of y.ticks(4).filter(Number.isInteger))
      layer.append(
        s("line", { x1: left, x2: width, y1: y(count), y2: y(count) }),
        s("text", { x: left - 4, y: y(count) + 4 }, String(count)),
      );
    return layer;
  }

  /** @param {string} population */
  function hatch(population) {
    const size = { width: 6, height: 6 };
    const pattern = { id: `hatch-${population}`, ...size, patternUnits: "userSpaceOnUse" };
    const line = s("path", { d: "M0,6L6,0", stroke: "var(--muted)", "stroke-width": 1.2 });
    return s("defs", {}, s("pattern", pattern, s("rect", { ...size, fill: "var(--paper)" }), line));
  }

  /** @type {(population: string, width: number, checkpoints: number[], shown: Bar[], bars: Segment[][],
   *   list: Flow[]) => Picture} */
  function picture(population, width, checkpoints, shown, bars, list) {
    const height = 270;
    const left = 34; // of the axis
    const step = (width - left - 6) / checkpoints.length;
    const labels = axes.labelling(checkpoints, step);
    const [top, bottom] = [8, height - labels.room - 8];
    const flowing = list.length > 0;
    const two = store.both();
    const between = two ? "the runs" : "neighbouring bars";
    const wide = Math.min(flowing ? 40 : 72, step * (two ? 0.32 : flowing ? 0.46 : 0.68));
    /** @type {Place} */
    const middle = (i) => left + step * (i + 0.5);
    /** @type {Place} */
    const x = (i) => (two ? middle(i >> 1) + (i % 2 ? 0.35 : -1.35) * wide : middle(i) - wide / 2);
    const most = d3.max(bars, (groups) => groups[groups.length - 1].y1) || 1;
    const y = d3.scaleLinear([0, most], [bottom, top]);
    const label = `Classes of ${population} heads as stacked bars, with flows between ${between}`;
    const size = { viewBox: `0 0 ${width} ${height}`, width, height };
    const svg = s("svg", { ...size, class: "chart", role: "group", "aria-label": label }, hatch(population));
    const [flowLayer, barLayer] = [s("g", { class: "flows" }), s("g", {})];
    const ground = { population, x, y, wide };
    for (const flow of list) drawFlow({ ...ground, layer: flowLayer }, shown, flow);
    bars.forEach((groups, i) => {
      const total = d3.sum(groups, (g) => (data.classes[g.code] === data.unmeasured ? 0 : g.heads.length));
      for (const segment of groups)
        if (segment.heads.length) drawSegment({ ...ground, layer: barLayer }, shown[i], segment, total);
    });
    const names = axes.checkpointLabels(checkpoints, middle, bottom + 16, labels);
    svg.append(countAxis(y, left - 4, width), flowLayer, barLayer, names);
    return { svg, population, checkpoints, bars, list, x, y, wide };
  }

  /** @param {Picture[]} pictures */
  const legend = (pictures) =>
    dom.legend(
      data.classes.map((name, code) =>
        pictures.some(({ bars }) => bars.some((groups) => groups[code].heads.length))
          ? dom.key(paint.block(code), name)
          : null,
      ),
      store.both() ? dom.key(null, "left bar A, right bar B") : null,
    );

  /* A row per bar of a population, a column per class. */
  function numbersTable() {
    const codes = d3
      .range(data.classes.length)
      .filter((code) => drawn.some(({ bars }) => bars.some((groups) => groups[code].heads.length)));
    const rows = drawn.flatMap(({ population, checkpoints, bars }) =>
      barsAt(checkpoints).map(({ checkpoint, run }, i) => [
        axes.ofRun(run, population === "all" ? data.labelOf(checkpoint) : `${data.labelOf(checkpoint)}, ${population}`),
        ...codes.map((code) => String(bars[i][code].heads.length)),
      ]),
    );
    return dom.numbers(drawing, [axes.checkpointWord, ...codes.map((code) => data.classes[code])], rows);
  }

  /* One sentence: how many heads of each class there are at the chosen checkpoint. */
  function sentence() {
    const said = drawn.map(({ population, bars, checkpoints }) => {
      const at = barsAt(checkpoints).findIndex(({ checkpoint }) => checkpoint === state.checkpoint);
      const total = d3.sum(bars[at], ({ heads }) => heads.length);
      const kinds = [...bars[at]].sort((a, b) => b.heads.length - a.heads.length).filter(({ heads }) => heads.length);
      const list = kinds.map(({ heads, code }) => `${heads.length} ${data.classes[code]}`).join(", ");
      return `${text.count(total)}${population === "all" ? "" : ` ${population}`} heads: ${list}`;
    });
    return `At ${data.labelOf(state.checkpoint)}${store.both() ? " in run A" : ""}, ${said.join("; ")}.`;
  }

  /** @type {(checkpoints: number[], shown: Set<number> | null) => void} */
  function explain(checkpoints, shown) {
    const said = [axes.taxonomyMeans()];
    if (store.both()) said.push("Flows show which heads are of another class in B than in A.");
    else if (!data.training)
      said.push("No flows: these are different models, whose heads are not each other’s.");
    else if (data.checkpoints.length === 1) said.push("No flows: one checkpoint was measured.");
    if (checkpoints.length < data.checkpoints.length)
      said.push(
        `${checkpoints.length} of ${data.checkpoints.length} ${axes.checkpointWord}s are drawn` +
          (store.both() ? "." : "; flows join the ones drawn."),
      );
    if (shown) said.push(`Filtered: ${text.headCount(shown.size)}.`);
    dom.note("classes", said);
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    const isDrawn = drawn.length > 0 && drawn[0].checkpoints.includes(state.checkpoint);
    if (isDrawn && (store.selectionOnly(keys) || store.only(keys, "checkpoint", "heads", "head"))) {
      drawn.forEach(drawPicked);
      dom.find("classes-sentence").textContent = sentence();
      return;
    }
    axes.showTaxonomy("classes");
    const shown = store.shown();
    const width = axes.widthOf(drawing);
    const side = data.populations.length > 1 && width > 620;
    const each = side ? (width - 32) / 2 : width;
    const checkpoints = drawnCheckpoints(each);
    const bars = barsAt(checkpoints);
    drawn = data.populations.map((population) => {
      const stacked = stack(bars, store.members(population).map(({ index }) => index));
      const list = data.training || store.both() ? flows(bars, stacked) : [];
      return picture(population, each, checkpoints, bars, stacked, list);
    });
    drawn.forEach(drawPicked);
    const panels = drawn.map(({ population, svg }) => {
      const whose = population === "all" ? "" : `${population}, `;
      const name = `${whose}${text.headCount(store.members(population).length)}`;
      return h("div", {}, h("p", { class: "small" }, name), svg);
    });
    const said = h("p", { class: "sentence", id: "classes-sentence" }, sentence());
    marks.mount(drawing, said, legend(drawn), h("div", { class: side ? "pair" : "" }, panels), numbersTable());
    explain(checkpoints, shown);
  }

  /** @type {View} */
  return {
    setUp: () => dom.find("classes-controls").replaceChildren(...axes.taxonomyChoice("classes")),
    draw,
    needs: ["window", "run", "filter", "heads", "checkpoint", "taxonomy"],
  };
})();
