// @ts-check
/* Position signal: the mean of one measure over the RoPE and over the NoPE heads at each checkpoint. The measure that
 * it is compared with, |r_k| with r_q for one, stands beside it as a thinner line. */
"use strict";

const signal = (() => {
  const { state } = store;
  const { h } = dom;
  const drawing = dom.find("signal-drawing");
  const overTraining = data.training && data.checkpoints.length > 1;
  /** @type {HTMLSelectElement | null} */
  let controls = null;
  /** @type {Drawn | null} as drawn last */
  let drawn = null;

  /* A line: a measure of a population of a run, with its mean, spread over heads and error at each checkpoint. */
  /** @typedef {{ run: number, population: string, measure: string, colour: string, mean: Maybe[], sd: Maybe[],
   *   se: Maybe[] }} Line */
  /** @typedef {{ index: number, mean: number, sd: Maybe, se: Maybe }} Point */

  const gap = data.checkpoints.map(() => null);
  /** @param {string} population */
  const isOpen = (population) => population === "NoPE";

  /** @type {Record<string, string>} */
  const BESIDE = { r_q: "abs_r_k", abs_r_k: "r_q", eta_q: "r_q", eta_k: "abs_r_k" };
  const measures = () =>
    [state.measure, BESIDE[state.measure]].filter((name) => store.choices.measure.includes(name));
  /** @param {Line} line */
  const isBeside = (line) => line.measure !== state.measure;

  /** @returns {Line[]} */
  const whole = () =>
    data.populations.flatMap((population) =>
      measures().flatMap((measure) =>
        store.runs().flatMap((run) => {
          const found = store.over(run).averages.means[population]?.[measure];
          // More bands than one per population would hide each other.
          const spread = store.both() || measure !== state.measure ? { sd: gap } : {};
          const colour = paint.ofPopulation(population);
          return found ? [{ run, population, measure, colour, ...found, ...spread }] : [];
        }),
      ),
    );

  /* Means over some heads, from the page's own data: no document-level error is known for these. */
  /** @type {(heads: number[], run: number, measure?: string) => Maybe[]} */
  function meansOf(heads, run, measure = state.measure) {
    const table = store.table(run);
    return data.checkpoints.map(({ index }) => {
      const average = text.mean(heads.map((head) => data.value(table, measure, index, head)));
      return Number.isNaN(average) ? null : average;
    });
  }

  /* The heads that pass the filter, by population; the selected heads as one line. */
  /** @returns {Line[]} */
  const filtered = () =>
    whole().map((line) => {
      const heads = store.members(line.population).map(({ index }) => index);
      return { ...line, mean: meansOf(heads, line.run, line.measure), sd: gap, se: gap };
    });

  /** @returns {Line[]} */
  const selected = () =>
    state.heads.size
      ? store.runs().map((run) => ({
          ...{ run, population: "selected", measure: state.measure, colour: "var(--accent)", sd: gap, se: gap },
          mean: meansOf([...state.heads], run),
        }))
      : [];

  /** @param {Line} line */
  const nameOf = (line) => {
    const several = measures().length > 1 ? data.measureLabel(line.measure) : "";
    const population = line.population === "all" ? (several ? "" : "all heads") : line.population;
    return [population, several, axes.letterOf(line.run)].filter(Boolean).join(" ");
  };

  /** @type {(line: Line) => Point[]} */
  const points = (line) =>
    data.checkpoints.flatMap(({ index }) => {
      const mean = line.mean[index];
      return mean === null ? [] : [{ index, mean, sd: line.sd[index], se: line.se[index] }];
    });

  /* ---- marks ---- */

  /** @param {Line} line */
  function bandMarks(line) {
    const found = points(line).filter(({ sd }) => sd !== null);
    const band = {
      x: "index",
      y1: (/** @type {Point} */ d) => d.mean - (d.sd || 0),
      y2: (/** @type {Point} */ d) => d.mean + (d.sd || 0),
    };
    if (overTraining) return [Plot.areaY(found, { ...band, fill: line.colour, fillOpacity: 0.07 })];
    return [Plot.ruleX(found, { ...band, stroke: line.colour, strokeOpacity: 0.16, strokeWidth: 18 })];
  }

  /** @param {Line} line */
  function lineMarks(line) {
    const at = { x: "index", y: "mean", stroke: line.colour };
    const picked = line.population === "selected";
    if (!overTraining) return picked ? [Plot.dot(points(line), { ...at, dx: 13, r: 3 })] : [];
    const dash = axes.dashOf(line.run) || (picked ? "2 3" : undefined);
    const strokeWidth = picked || isBeside(line) ? 1.3 : 2.5;
    return [Plot.line(points(line), { ...at, strokeWidth, strokeDasharray: dash })];
  }

  /** @param {Line} line */
  function dotMarks(line) {
    if (data.checkpoints.length > 60) return []; // dots would hide the line
    const found = points(line);
    // Without lines, the dots of two runs would cover each other.
    const dx = store.both() && !overTraining ? 10 * (line.run - 0.5) : 0;
    const hollow = axes.isSecond(line.run);
    return [
      axes.errorBars(found, { x: "index", y: "mean", dx, stroke: line.colour }),
      Plot.dot(found, {
        ...{ x: "index", y: "mean", dx, r: isBeside(line) ? 3 : 4.6 },
        symbol: isOpen(line.population) ? "diamond2" : "circle",
        fill: hollow ? "var(--paper)" : line.colour,
        stroke: hollow ? line.colour : "var(--paper)",
        strokeWidth: hollow ? 1.6 : 1,
        className: `dots-${line.population}-${line.measure}${data.letters[line.run]}`,
      }),
    ];
  }

  /* The lines' names at their ends; moved apart where they would overlap. */
  /** @type {(all: Line[], height: number, domain: number[]) => any[]} */
  function nameMarks(all, height, domain) {
    if (!overTraining) return [];
    const ends = all.map((line) => ({ line, point: points(line).at(-1) })).filter(({ point }) => point);
    const apart = (18 * (domain[1] - domain[0])) / (height - 70); // less what the margins take
    ends.sort((a, b) => (a.point?.mean || 0) - (b.point?.mean || 0));
    let least = -Infinity;
    return ends.map(({ line, point }) => {
      least = Math.max(point?.mean || 0, least + apart);
      return Plot.text([{ x: data.checkpoints.length - 1, y: least }], {
        x: "x",
        y: "y",
        dx: 12,
        text: () => nameOf(line),
        textAnchor: "start",
        fill: line.colour,
        stroke: "var(--paper)", // no line runs through a name
        strokeWidth: 5,
        fontWeight: 650,
        fontSize: 14,
      });
    });
  }

  /** @type {(all: Line[]) => [number, number]} */
  function range(all) {
    const ends = all.flatMap((line) =>
      points(line).flatMap(({ mean, sd }) => [mean - (sd || 0), mean + (sd || 0)]),
    );
    const least = Math.min(0, d3.min(ends) || 0);
    return [
      data.isShare(state.measure) ? 0 : least - 0.02,
      Math.min(1.02, Math.max(0.2, d3.max(ends) || 1) + 0.04),
    ];
  }

  /** @type {(index: number, all: Line[], meaning: boolean) => (string | null)[]} */
  function lines(index, all, meaning) {
    const means = all.map((line) => ({
      ...{ name: line.measure, value: line.mean[index], se: line.se[index], of: "mean" },
      whose: `${line.population === "all" ? "all heads" : line.population} ${axes.letterOf(line.run)}`.trim(),
    }));
    return [...axes.checkpointLines(index), ...text.described([...means, ...losses(index)], [], meaning)];
  }

  /** @param {number} index */
  const losses = (index) =>
    store.runs().flatMap((run) => {
      const { loss } = store.over(run);
      const [value, se] = [loss?.mean[index] ?? null, loss?.se[index]];
      return value === null ? [] : [{ name: "loss", run, index, value, se, whose: axes.letterOf(run) }];
    });

  /* The loss below the signal, on the same axis of checkpoints; null where it was not measured. */
  /** @type {(width: number, right: number) => Drawn | null} */
  function lossChart(width, right) {
    const found = data.checkpoints.flatMap(({ index }) => losses(index));
    if (!found.length || !overTraining) return null;
    const axis = axes.checkpointAxis(width, 130, "loss, nats per token");
    const at = { x: "index", y: "value", stroke: "var(--muted)" };
    return axes.checkpointChart(
      {
        ...axis,
        marginRight: right,
        x: { ...axis.x, axis: null },
        marginBottom: 8,
        y: { tickSize: 0, label: null, ticks: 3, nice: true },
        marks: [
          axis.marks[0],
          axes.grid(3),
          ...d3.groups(found, ({ run }) => run).map(([run, line]) =>
            Plot.line(line, { ...at, strokeWidth: 2, strokeDasharray: axes.dashOf(run) }),
          ),
          axes.errorBars(found, at),
        ],
      },
      {
        name: `Loss at ${data.checkpoints.length} checkpoints`,
        prefix: "loss",
        lines: (index, meaning) => [data.labelOf(index), ...text.described(losses(index), [], meaning)],
      },
    );
  }

  /* The checkpoint by which half of a population's heads follow position; null if it is the first, or none. */
  /** @type {(population: string) => Maybe} */
  function emergence(population) {
    const heads = data.heads.filter((head) => head.population === population);
    const onsets = heads.map(({ index }) => raster.onsetOf(index));
    const checkpoint = data.checkpoints.findIndex(
      ({ index }) => onsets.filter((onset) => onset >= 0 && onset <= index).length >= heads.length / 2,
    );
    return checkpoint > 0 && heads.length ? checkpoint : null;
  }

  /** @returns {{ x1: number, x2: number, colour: string, label: string }[]} */
  const intervals = () =>
    state.measure !== raster.leading || !overTraining || store.both()
      ? []
      : data.populations.flatMap((population) => {
          const at = emergence(population);
          const whose = population === "all" ? "" : `${population} `;
          const label = `half of ${whose}heads ${raster.above}`;
          return at === null ? [] : [{ x1: at - 1, x2: at, colour: paint.ofPopulation(population), label }];
        });

  /* One sentence of what the picture shows at the chosen checkpoint: of the selected heads, or of all. */
  /** @type {(all: Line[], picked: Line[]) => string} */
  function sentence(all, picked) {
    const { label } = data.checkpoints[state.checkpoint];
    const list = (picked.length ? picked : all).filter((line) => !isBeside(line));
    const said = list.flatMap((line) => {
      const whose =
        line.population === "selected"
          ? `the ${state.heads.size > 1 ? `${text.headCount(state.heads.size)} selected` : "selected head"}`
          : `${line.population === "all" ? "all" : line.population} heads`;
      const [now, first] = [state.checkpoint, 0].map((at) => text.measure(line.measure, line.mean[at], line.se[at]));
      const from = overTraining && state.checkpoint > 0 && !store.both() ? ` (${first} at ${data.labelOf(0)})` : "";
      const letter = axes.letterOf(line.run);
      return line.mean[state.checkpoint] === null ? [] : [`${now} in ${whose}${letter && ` of ${letter}`}${from}`];
    });
    return said.length ? `At ${label}, mean ${data.measureLabel(state.measure)} is ${said.join(" and ")}.` : "";
  }

  /** @type {(all: Line[], picked: Line[], shown: Set<number> | null) => HTMLElement} */
  function legend(all, picked, shown) {
    const counts = store.over().averages.heads;
    const items = all
      .filter((line) => line.run === store.runs()[0] && !isBeside(line))
      .map(({ population, colour }) => {
        const count = shown ? store.members(population).length : d3.max(counts[population] || [0]) || 0;
        const name = population === "all" ? "" : ` ${population}`;
        const said = `${text.count(count)}${name} ${count === 1 ? "head" : "heads"}`;
        return dom.symbolKey(isOpen(population) ? "◆" : "●", said, colour);
      });
    const has = (/** @type {"sd" | "se"} */ error) => all.some((line) => line[error].some((v) => v !== null));
    return dom.legend(
      items,
      axes.runKeys(),
      has("sd") ? dom.key(h("i", { class: "band" }), "±1 sd across heads") : null,
      has("se") ? dom.key(h("i", { class: "bar" }), "±1 se over documents") : null,
      picked.length ? dom.key(h("i", { class: "dots" }), "selected heads") : null,
    );
  }

  /** @param {Line[]} all */
  const numbersTable = (all) =>
    dom.numbers(
      drawing,
      [axes.checkpointWord, ...all.map(nameOf)],
      data.checkpoints.map(({ index, label }) => [
        label,
        ...all.map((line) => text.measure(line.measure, line.mean[index], line.se[index])),
      ]),
    );

  /** @param {Set<number> | null} shown */
  function explain(shown) {
    const said = [];
    if (data.checkpoints.length === 1)
      said.push("One checkpoint was measured: there is no change over training to draw.");
    if (!data.training) said.push("These are different models, not one in training: no line joins them.");
    if (shown) said.push(`Filtered: ${text.headCount(shown.size)}, without document-level errors.`);
    if (!shown && !whole().some((line) => line.se.some((v) => v !== null)))
      said.push("The results hold no leave-one-out values, so the means have no error bars.");
    if (data.windowChanges.length && state.window === "own")
      said.push("Dashed vertical lines: the training context grows.");
    dom.note("signal", said);
  }

  /** @type {(all: Line[], picked: Line[]) => any} */
  function plotOptions(all, picked) {
    const width = axes.widthOf(drawing);
    const height = Math.round(Math.min(430, Math.max(280, width * 0.46)));
    const over = data.matched ? `, ${data.windowName(state.window)}` : "";
    const axis = axes.checkpointAxis(width, height, `mean ${data.measureLabel(state.measure)}${over}`);
    const domain = range([...all, ...picked]);
    /** @param {number} v */
    const tick = (v) => (data.isShare(state.measure) ? axes.percent(v) : text.number(v, 1));
    return {
      ...axis,
      marginRight: overTraining ? 14 + 8.4 * Math.max(...all.map((line) => nameOf(line).length)) : axis.marginRight,
      y: { tickSize: 0, domain, label: null, ticks: 6, tickFormat: tick },
      marks: [
        ...axis.marks,
        axes.grid(6),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        Plot.rectX(intervals(), { x1: "x1", x2: "x2", fill: "colour", fillOpacity: 0.16 }),
        Plot.text(intervals(), {
          ...{ x: "x2", frameAnchor: "top", dx: 6, dy: 10, textAnchor: "start", text: "label", fill: "colour" },
          ...{ stroke: "var(--paper)", strokeWidth: 4 },
        }),
        ...all.flatMap(bandMarks),
        ...all.flatMap(lineMarks),
        ...all.flatMap(dotMarks),
        ...picked.flatMap(lineMarks),
        ...nameMarks(all, height, domain),
      ],
    };
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    if (controls) controls.value = state.measure;
    const shown = store.shown();
    const all = shown ? filtered() : whole();
    const picked = selected();
    if (drawn && store.only(keys, "checkpoint")) {
      for (const svg of drawing.querySelectorAll("svg")) axes.showChosen(/** @type {Drawn} */ (svg));
      dom.find("signal-sentence").textContent = sentence(all, picked);
      dom.lower(dom.find("signal-sentence"));
      return;
    }
    const options = plotOptions(all, picked);
    drawn = axes.checkpointChart(options, {
      name: `Chart of the mean position signal at ${data.checkpoints.length} ${axes.checkpointWord}s`,
      lines: (index, meaning) => lines(index, [...all, ...picked], meaning),
    });
    marks.mount(
      drawing,
      h("p", { class: "sentence", id: "signal-sentence", "aria-live": "polite" }, sentence(all, picked)),
      legend(all, picked, shown),
      drawn,
      lossChart(options.width, options.marginRight),
      numbersTable(all),
    );
    explain(shown);
  }

  function setUp() {
    const names = store.choices.measure;
    if (names.length < 2) return;
    /** @type {[string, string][]} */
    const entries = names.map((name) => [name, data.measureLabel(name)]);
    const menu = dom.menu("measure", "Mean", entries, state.measure, (value) => store.set({ measure: value }));
    dom.find("signal-controls").replaceChildren(menu.field);
    controls = menu.box;
  }

  /** @type {View & { measures: () => string[] }} */
  return { setUp, draw, measures, needs: ["measure", "window", "run", "filter", "heads", "checkpoint"] };
})();
