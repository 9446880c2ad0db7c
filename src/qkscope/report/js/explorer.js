// @ts-check
/* RoPE explorer: the score by distance that the mean query and key of one head predict,
 * sum over rotary pairs of |q_p||k_p| cos(w_p D + phi_p), over the measured one, at any theta and window. */
"use strict";

const explorer = (() => {
  const { state } = store;
  const { h } = dom;
  const LEFT = 58;
  const RIGHT = 64; // room for the strength of each pair
  const LINE = "var(--share_position)"; // what position alone predicts

  /** @typedef {{ checkpoint: number, frequency: number[], theta: Maybe, products: Float32Array, still: number,
   *   measured: { at: number, value: number }[] }} Waves */

  const head = () => store.currentHead();

  /* What is known of a head at the chosen checkpoint, or at the nearest one that the page has; null if it does not
   * rotate. */
  /** @type {(index?: number, run?: number, wanted?: number) => Waves | null} */
  function wavesOf(index = head(), run = store.runs()[0], wanted = state.checkpoint) {
    const known = data.rotary(run);
    if (!known || !data.training) return null;
    const at = d3.leastIndex(known.checkpoints, (checkpoint) => Math.abs(checkpoint - wanted)) ?? 0;
    const row = at * data.heads.length + index;
    const set = known.sets[known.set[row]];
    if (!set) return null;
    const width = 2 * known.pairs + 1;
    const products = known.parts.subarray(row * width, (row + 1) * width);
    const { at: measuredAt, values } = known.measured;
    const measured = measuredAt.flatMap((distance, i) => {
      const value = values[row * measuredAt.length + i];
      return Number.isNaN(value) ? [] : [{ at: distance, value }];
    });
    const still = products[width - 1];
    return { checkpoint: known.checkpoints[at], ...set, products, still, measured };
  }

  /* w_p at another theta: the run's own, stretched by what theta^(-p/P) changes. */
  /** @type {(waves: Waves, theta: Maybe) => number[]} */
  const frequencies = ({ frequency, theta: own }, theta) =>
    frequency.map((w, p) => (theta && own ? w * (theta / own) ** (-p / frequency.length) : w));

  /* Distances of a curve over a window: each up to 32, then sixteen an octave. */
  /** @param {number} span */
  function distances(span) {
    const far = d3.range(1, 16 * 32 + 1).map((i) => Math.round(32 * 2 ** (i / 16)));
    return [...new Set([...d3.range(1, 33), ...far])].filter((at) => at <= span - 5);
  }

  /* The score at each distance and every pair's part of it, in logits. */
  /** @type {(waves: Waves, theta: Maybe, at: number[]) => { total: number[], parts: number[][] }} */
  function predict(waves, theta, at) {
    const parts = frequencies(waves, theta).map((w, p) => {
      const [re, im] = [waves.products[2 * p], waves.products[2 * p + 1]];
      return at.map((distance) => re * Math.cos(w * distance) - im * Math.sin(w * distance));
    });
    const total = at.map((_, i) => waves.still + d3.sum(parts, (part) => part[i]));
    return { total, parts };
  }

  /* ---- settings ---- */

  /** @param {Waves} waves */
  const ownTheta = (waves) => waves.theta || 1e4;
  /** @param {Waves} waves */
  const ownSpan = (waves) => data.checkpoints[waves.checkpoint].window || 256;
  /** @type {{ theta: Maybe, span: Maybe }} while a slider is dragged, and not in the hash yet */
  const dragged = { theta: null, span: null };
  const theta = () => dragged.theta ?? state.theta;
  const span = () => dragged.span ?? state.span;

  /* The settings that the run has, each with the checkpoints that have it. */
  /** @type {(of: (waves: Waves) => number) => { value: number, label: string }[]} */
  function real(of) {
    const known = data.rotary(store.runs()[0]);
    const found = (known?.checkpoints || []).flatMap((checkpoint) => {
      const waves = wavesOf(head(), store.runs()[0], checkpoint);
      return waves ? [{ value: of(waves), label: data.labelOf(checkpoint) }] : [];
    });
    return d3.groups(found, ({ value }) => value).map(([value, all]) => {
      const ends = [all[0].label, all[all.length - 1].label];
      return { value, label: ends[0] === ends[1] ? ends[0] : ends.join(" to ") };
    });
  }

  const { tokens, back } = text;

  /* A slider on a logarithmic scale with buttons at the run's own settings. */
  /** @type {(id: string, name: string, ends: [number, number], value: number,
   *   ticks: { value: number, label: string }[],
   *   act: { drag: (value: number) => void, done: (value: number) => void }) => HTMLElement} */
  function slider(id, name, [low, high], value, ticks, { drag, done }) {
    const step = (Math.log10(high) - Math.log10(low)) / 400;
    const input = h("input", {
      ...{ type: "range", id, min: Math.log10(low), max: Math.log10(high), step, value: Math.log10(value) },
      "aria-valuetext": tokens(value),
    });
    const said = h("output", { for: id }, tokens(value));
    /* Near one of the run's settings the slider holds it exactly. */
    const read = () => {
      const found = 10 ** Number(input.value);
      const near = ticks.find((tick) => Math.abs(Math.log10(tick.value / found)) < 1.5 * step);
      return near ? near.value : found;
    };
    input.addEventListener("input", () => {
      said.textContent = tokens(read());
      input.setAttribute("aria-valuetext", tokens(read()));
      drag(read());
    });
    input.addEventListener("change", () => done(read()));
    const buttons = ticks.map((tick) => {
      const part = (Math.log10(tick.value) - Math.log10(low)) / (Math.log10(high) - Math.log10(low));
      return h(
        "button",
        {
          ...{ type: "button", class: "tick", id: `${id}-${tick.value}`, onclick: () => done(tick.value) },
          ...{ style: `left:calc(8px + (100% - 16px) * ${part})`, title: tick.label },
          "aria-label": `${name} ${tokens(tick.value)}, as at ${tick.label}`,
        },
        tokens(tick.value),
      );
    });
    const label = h("label", { for: id }, name, " ", said);
    return h("div", { class: "dial" }, label, input, h("div", { class: "ticks" }, buttons));
  }

  /** @param {Waves} waves */
  function sliders(waves) {
    const known = real(ownTheta);
    const spans = real(ownSpan);
    const low = Math.min(1e4, ...known.map(({ value }) => value));
    const high = Math.max(1e7, ...known.map(({ value }) => value));
    const longest = 8 * Math.max(...spans.map(({ value }) => value));
    /** @type {(key: "theta" | "span", own: number, round: (value: number) => number) => any} */
    const acts = (key, own, round) => ({
      drag(/** @type {number} */ value) {
        dragged[key] = value;
        redraw();
      },
      done(/** @type {number} */ value) {
        dragged[key] = null;
        store.set({ [key]: value === own ? null : round(value) });
      },
    });
    const [own, end] = [ownTheta(waves), ownSpan(waves)];
    return h(
      "div",
      { class: "dials" },
      slider("explorer-theta", "θ", [low, high], theta() || own, known, acts("theta", own, Number)),
      slider("explorer-span", "Distances up to", [64, longest], span() || end, spans, acts("span", end, Math.round)),
    );
  }

  /* ---- drawing ---- */

  /* The measured and the predicted curve of a run; of the second one hollow and dashed. Marks at every octave say both
   * numbers. */
  /** @type {(waves: Waves, at: number[], run: number) => any[]} */
  function curveMarks(waves, at, run) {
    const measured = waves.measured.filter((point) => point.at <= at[at.length - 1]);
    const { total } = predict(waves, theta(), at);
    const second = axes.isSecond(run);
    const look = { fill: second ? "var(--paper)" : "var(--ink)", stroke: second ? "var(--ink)" : "none" };
    return [
      Plot.dot(measured, { x: "at", y: "value", r: 2.4, ...look, opacity: 0.55 }),
      Plot.line(
        at.map((distance, i) => ({ at: distance, value: total[i] })),
        { x: "at", y: "value", stroke: LINE, strokeWidth: 2.4, strokeDasharray: axes.dashOf(run) },
      ),
    ];
  }

  /* The predicted score at 1, 2, 4, ... tokens back. */
  /** @type {(waves: Waves, at: number[]) => { at: number, value: number }[]} */
  function octaves(waves, at) {
    const found = at.filter((distance) => Number.isInteger(Math.log2(distance)));
    return predict(waves, theta(), found).total.map((value, i) => ({ at: found[i], value }));
  }

  /** @type {(waves: Waves, at: number[], width: number) => Drawn} */
  function curve(waves, at, width) {
    const most = at[at.length - 1];
    const second = store.both() ? wavesOf(head(), 1) : null;
    const own = ownSpan(waves);
    const svg = axes.plot({
      ...{ width, height: 270, marginLeft: LEFT, marginRight: RIGHT, marginTop: 26, marginBottom: 30 },
      x: { type: "log", base: 2, domain: [1, most], label: null, ticks: 6, tickFormat: tokens, tickSize: 0 },
      y: { label: null, tickSize: 0, ticks: 5 },
      marks: [
        axes.titled("mean score, logits", LEFT - 6, 22),
        axes.grid(5),
        Plot.ruleX(own < most ? [own] : [], { stroke: "var(--muted)", strokeDasharray: "3 3" }),
        Plot.text(own < most ? [own] : [], {
          ...{ x: (/** @type {number} */ d) => d, frameAnchor: "top", dy: -12, fill: "var(--muted)" },
          text: (/** @type {number} */ d) => `window ${tokens(d)}`,
        }),
        ...(second ? curveMarks(second, at, 1) : []),
        ...curveMarks(waves, at, store.runs()[0]),
        Plot.dot(octaves(waves, at), { ...{ x: "at", y: "value", r: 3.4, fill: LINE }, className: "octaves" }),
      ],
    });
    const measured = new Map(waves.measured.map((point) => [point.at, point.value]));
    const dots = svg.querySelectorAll(".octaves circle");
    octaves(waves, at).forEach(({ at: distance, value }, i) => {
      const numbers = [
        { name: "predicted_score", value },
        { name: "distance_score_measured", value: measured.get(distance) ?? NaN },
      ].filter((one) => !Number.isNaN(one.value));
      const where = `${data.headName(head())} at ${data.labelOf(waves.checkpoint)}: ${text.back(distance)}`;
      marks.mark(dots[i], {
        key: `explorer:${distance}`,
        say: (meaning) => [where, ...text.described(numbers, [], meaning)],
      });
    });
    axes.dress(svg, "Mean score by distance, predicted and measured");
    return svg;
  }

  /* One row for each pair, fast to slow: its part of the score at each distance, and its strength. */
  /** @type {(waves: Waves, at: number[], parts: number[][], width: number) => HTMLElement} */
  function strip(waves, at, parts, width) {
    const count = parts.length;
    const tall = count <= 24 ? 14 : count <= 48 ? 10 : 7;
    const reach = d3.max(parts.flat(), Math.abs) || 1;
    const colour = paint.fastRamp([-reach, reach]);
    const x = d3.scaleLog([1, at[at.length - 1]], [LEFT, width - RIGHT]);
    const edges = [1, ...d3.pairs(at, (a, b) => Math.sqrt(a * b)), at[at.length - 1]].map(x);
    const waveLength = frequencies(waves, theta()).map((w) => (2 * Math.PI) / w);
    const strength = parts.map((_, p) => Math.hypot(waves.products[2 * p], waves.products[2 * p + 1]));
    const strongest = d3.max(strength) || 1;
    const [muted, bar] = paint.inks("muted", "share_position");
    return sheet.make({
      id: "explorer",
      label: "Part of each rotary pair by distance",
      width,
      height: 18 + count * tall,
      start: { row: d3.maxIndex(strength), col: 0 },
      paint(context) {
        context.fillStyle = muted;
        context.textAlign = "left";
        context.fillText("wavelength", 0, 8);
        context.textAlign = "right";
        context.fillText("strength", width, 8);
        parts.forEach((part, row) => {
          const y = 18 + row * tall;
          part.forEach((value, col) => {
            context.fillStyle = colour(value);
            context.fillRect(edges[col], y, edges[col + 1] - edges[col] + 0.5, tall - 1);
          });
          context.fillStyle = bar;
          context.fillRect(width - RIGHT + 8, y, ((RIGHT - 8) * strength[row]) / strongest, tall - 2);
          if (row % Math.ceil(12 / tall)) return;
          context.fillStyle = muted;
          context.textAlign = "right";
          context.fillText(tokens(waveLength[row]), LEFT - 8, y + tall / 2);
        });
      },
      at(px, py) {
        const [row, col] = [Math.floor((py - 18) / tall), d3.bisectRight(edges, px) - 1];
        return row >= 0 && row < count && col >= 0 ? { row, col: Math.min(col, at.length - 1) } : null;
      },
      rows: count,
      cols: () => at.length,
      box: ({ row, col }) => ({
        ...{ x: edges[col], y: 18 + row * tall, width: Math.max(4, edges[col + 1] - edges[col]), height: tall },
      }),
      lines: ({ row, col }) => [
        `Pair ${row} · wavelength ${tokens(waveLength[row])} tokens · ${back(at[col])}`,
        ...text.described([
          { name: "pair_score", value: parts[row][col] },
          { name: "pair_strength", value: strength[row] },
        ]),
      ],
    });
  }

  /** @param {Waves} waves */
  function facts(waves) {
    const own = tokens(ownTheta(waves));
    if (theta() !== null && theta() !== ownTheta(waves))
      return h(
        "p",
        { class: "sentence" },
        `At θ ${tokens(theta() || 0)} the line is a prediction: nothing was measured there. `,
        `r and shares are known at the run’s θ ${own} only. `,
        dom.button("explorer-reset", "Back to it", () => store.set({ theta: null, span: null }), { class: "link" }),
      );
    const table = data.table("own", store.runs()[0]);
    const said = ["share_positional", "r_q", "r_k"]
      .filter((name) => data.has(name))
      .map((name) => `${data.measureLabel(name)} ${text.ofHead(table, name, waves.checkpoint, head())}`);
    const { label } = data.checkpoints[waves.checkpoint];
    const where = `${store.both() ? "in run A " : ""}at ${label} (θ ${own}, training context)`;
    return h("p", { class: "sentence" }, `Measured ${where}: ${said.join(", ")}.`);
  }

  const legend = () =>
    dom.legend(
      dom.lineKey(LINE, "predicted from mean query and key"),
      dom.symbolKey("●", "measured"),
      axes.runKeys(),
      dom.blockKey(paint.ramp([-1, 1])(1), "raises the score"),
      dom.blockKey(paint.ramp([-1, 1])(-1), "lowers it"),
    );

  const plotPlace = h("div", {});
  const factPlace = h("div", {});

  /* Only what follows the sliders: they keep the pointer while they are dragged. */
  function redraw() {
    const waves = wavesOf();
    if (!waves) return;
    const width = axes.widthOf(dom.find("explorer-drawing"));
    const at = distances(span() || ownSpan(waves));
    const { parts } = predict(waves, theta(), at);
    factPlace.replaceChildren(facts(waves));
    marks.mount(plotPlace, curve(waves, at, width), strip(waves, at, parts, width));
  }

  function numbersTable() {
    return dom.numbers(dom.find("explorer-drawing"), ["tokens back", "predicted", "measured"], () => {
      const waves = wavesOf();
      if (!waves) return [];
      const at = distances(span() || ownSpan(waves));
      const { total } = predict(waves, theta(), at);
      const known = new Map(waves.measured.map((point) => [point.at, point.value]));
      return at.map((distance, i) => [
        text.count(distance),
        text.measure("predicted_score", total[i]),
        text.measure("distance_score_measured", known.get(distance) ?? null),
      ]);
    });
  }

  function headChoice() {
    const known = data.rotary(store.runs()[0]);
    const turning = data.heads.filter(({ index }) => known?.sets[known.set[index]]);
    return dom.menu(
      "explorer-head",
      "Head",
      turning.map(({ index, layer, head: number }) => [index, `layer ${layer}, head ${number}`]),
      head(),
      (value) => store.set({ head: Number(value), heads: new Set([Number(value)]) }),
    ).field;
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    const drawing = dom.find("explorer-drawing");
    const waves = wavesOf();
    marks.mount(dom.find("explorer-controls"), headChoice());
    if (!waves) {
      const why = `Layer ${data.heads[head()].layer} does not rotate: its scores do not depend on θ.`;
      return marks.mount(drawing, dom.absent(`${why} Choose another head.`));
    }
    if (keys && [...keys].every((key) => key === "theta" || key === "span") && drawing.contains(plotPlace)) {
      drawing.querySelector(".dials")?.replaceWith(sliders(waves));
      redraw();
      return;
    }
    redraw();
    marks.mount(drawing, factPlace, sliders(waves), legend(), plotPlace, numbersTable());
    const { label } = data.checkpoints[waves.checkpoint];
    dom.note("explorer", [
      waves.checkpoint !== state.checkpoint && `The page has these vectors of some checkpoints: this is ${label}.`,
      store.both() && "The pairs below the curves, and the table, are of A.",
    ]);
  }

  /** @type {View & { wavesOf: typeof wavesOf, predict: typeof predict, distances: typeof distances }} */
  return { draw, wavesOf, predict, distances, needs: ["head", "heads", "checkpoint", "run", "theta", "span"] };
})();
