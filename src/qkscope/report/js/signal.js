// @ts-check
/* Position signal: the mean of one measure over the RoPE and over the NoPE heads at each checkpoint. The measure that
 * it is compared with, |r_k| with r_q for one, stands beside it as a thinner line. */
"use strict";

const signal = (() => {
  const { state } = store;
  const { h } = dom;
  const drawing = dom.find("signal-drawing");
  const note = dom.find("signal-note");
  const course = data.training && data.stops.length > 1;
  /** @type {HTMLSelectElement | null} */
  let controls = null;
  /** @type {Drawn | null} what stands */
  let drawn = null;

  /* A line: a measure of a population of a run, with its mean, spread over heads and error at each checkpoint. */
  /** @typedef {{ run: number, population: string, measure: string, colour: string, mean: Maybe[], sd: Maybe[],
   *   se: Maybe[] }} Line */
  /** @typedef {{ index: number, mean: number, sd: Maybe, se: Maybe }} Point */

  const gap = data.stops.map(() => null);
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
    return data.stops.map(({ index }) => {
      const average = text.mean(heads.map((head) => data.value(table, measure, index, head)));
      return Number.isNaN(average) ? null : average;
    });
  }

  /* The heads that pass the filter, by population; the selected heads as one line. */
  /** @type {(shown: Set<number>) => Line[]} */
  const filtered = (shown) =>
    whole().map((line) => {
      const heads = [...shown].filter((head) => data.heads[head].population === line.population);
      return { ...line, mean: meansOf(heads, line.run, line.measure), sd: gap, se: gap };
    });

  /** @returns {Line[]} */
  const selected = () =>
    state.heads.size
      ? store.runs().map((run) => ({
          ...{ run, population: "selected", measure: state.measure, colour: "var(--ink)", sd: gap, se: gap },
          mean: meansOf([...state.heads], run),
        }))
      : [];

  /** @param {Line} line */
  const nameOf = (line) => {
    const several = measures().length > 1 ? axes.signalName(line.measure) : "";
    const population = line.population === "all" ? (several ? "" : "all heads") : line.population;
    return [population, several, store.both() ? data.letters[line.run] : ""].filter(Boolean).join(" ");
  };

  /** @type {(line: Line) => Point[]} */
  const points = (line) =>
    data.stops.flatMap(({ index }) => {
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
    if (course) return [Plot.areaY(found, { ...band, fill: line.colour, fillOpacity: 0.07 })];
    return [Plot.ruleX(found, { ...band, stroke: line.colour, strokeOpacity: 0.16, strokeWidth: 18 })];
  }

  /** @param {Line} line */
  function lineMarks(line) {
    const at = { x: "index", y: "mean", stroke: line.colour };
    const picked = line.population === "selected";
    if (!course) return picked ? [Plot.dot(points(line), { ...at, dx: 13, r: 3 })] : [];
    const dash = axes.dashOf(line.run) || (picked ? "2 3" : undefined);
    const strokeWidth = picked || isBeside(line) ? 1.3 : 2.5;
    return [Plot.line(points(line), { ...at, strokeWidth, strokeDasharray: dash })];
  }

  /** @param {Line} line */
  function dotMarks(line) {
    if (data.stops.length > 60) return []; // dots would hide the line
    const found = points(line);
    // Without lines, the dots of two runs would cover each other.
    const dx = store.both() && !course ? 10 * (line.run - 0.5) : 0;
    const hollow = axes.isSecond(line.run);
    const error = {
      y1: (/** @type {Point} */ d) => d.mean - (d.se || 0),
      y2: (/** @type {Point} */ d) => d.mean + (d.se || 0),
    };
    return [
      Plot.ruleX(
        found.filter(({ se }) => se !== null),
        { x: "index", dx, ...error, stroke: line.colour, strokeWidth: 1.6 },
      ),
      Plot.dot(found, {
        x: "index",
        y: "mean",
        dx,
        symbol: isOpen(line.population) ? "diamond2" : "circle",
        r: isBeside(line) ? 3 : 4.6,
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
    if (!course) return [];
    const ends = all.map((line) => ({ line, point: points(line).at(-1) })).filter(({ point }) => point);
    const apart = (18 * (domain[1] - domain[0])) / (height - 70); // less what the margins take
    ends.sort((a, b) => (a.point?.mean || 0) - (b.point?.mean || 0));
    let least = -Infinity;
    return ends.map(({ line, point }) => {
      least = Math.max(point?.mean || 0, least + apart);
      return Plot.text([{ x: data.stops.length - 1, y: least }], {
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
      state.measure.startsWith("share_") ? 0 : least - 0.02,
      Math.min(1.02, Math.max(0.2, d3.max(ends) || 1) + 0.04),
    ];
  }

  /** @type {(index: number, all: Line[]) => (string | null)[]} */
  function lines(index, all) {
    const said = all.map((line) => {
      const value = text.measure(line.measure, line.mean[index], line.se[index]);
      const what = measures().length > 1 && line.population !== "selected" ? "" : axes.signalName(line.measure);
      return `${nameOf(line)}: mean ${what ? `${what} ` : ""}${value}`;
    });
    const [name, about] = axes.stopLines(index);
    return [name, about, ...said];
  }

  /** @type {(all: Line[], picked: Line[], shown: Set<number> | null) => HTMLElement} */
  function legend(all, picked, shown) {
    /** @type {(mark: HTMLElement, said: string) => HTMLElement} */
    const key = (mark, said) => h("span", { class: "key" }, mark, said);
    const counts = store.over().averages.heads;
    const items = all
      .filter((line) => line.run === store.runs()[0] && !isBeside(line))
      .map(({ population, colour }) => {
        const shape = isOpen(population) ? "◆" : "●";
        const name = population === "all" ? "" : ` ${population}`;
        const count = shown ? store.countOf(population) : d3.max(counts[population] || [0]) || 0;
        const said = `${text.count(count)}${name} ${count === 1 ? "head" : "heads"}`;
        return key(h("span", { class: "swatch", style: `color:${colour}` }, shape), said);
      });
    items.push(...axes.runKeys());
    if (all.some((line) => line.sd.some((v) => v !== null)))
      items.push(key(h("i", { class: "band" }), "±1 sd across heads"));
    if (all.some((line) => line.se.some((v) => v !== null)))
      items.push(key(h("i", { class: "bar" }), "±1 se over documents"));
    if (picked.length) items.push(key(h("i", { class: "dots" }), "selected heads"));
    return h("p", { class: "legend" }, items);
  }

  /** @param {Line[]} all */
  const numbersTable = (all) =>
    dom.numbers(
      drawing,
      [axes.stopWord, ...all.map(nameOf)],
      data.stops.map(({ index, label }) => [
        label,
        ...all.map((line) => text.measure(line.measure, line.mean[index], line.se[index])),
      ]),
    );

  /** @param {Set<number> | null} shown */
  function explain(shown) {
    const said = [];
    if (data.stops.length === 1)
      said.push("One checkpoint was measured: there is no change over training to draw.");
    if (!data.training) said.push("These are different models, not one in training: no line joins them.");
    if (shown) said.push(`Filtered: ${text.headCount(shown.size)}, without document-level errors.`);
    if (!shown && !whole().some((line) => line.se.some((v) => v !== null)))
      said.push("The results hold no leave-one-out values, so the means have no error bars.");
    if (data.windowChanges.length && state.window === "own")
      said.push("Dashed vertical lines: the training context grows.");
    note.textContent = said.join(" ");
  }

  /** @type {(all: Line[], picked: Line[]) => any} */
  function plotOptions(all, picked) {
    const width = axes.widthOf(drawing);
    const height = Math.round(Math.min(430, Math.max(280, width * 0.46)));
    const over = data.matched ? `, ${data.windowName(state.window)}` : "";
    const axis = axes.stopAxis(width, height, `mean ${axes.signalName(state.measure)}${over}`);
    const domain = range([...all, ...picked]);
    const share = state.measure.startsWith("share_");
    /** @param {number} v */
    const tick = (v) => (share ? `${Math.round(100 * v)}%` : text.number(v, 1));
    return {
      ...axis,
      marginRight: course ? 14 + 8.4 * Math.max(...all.map((line) => nameOf(line).length)) : axis.marginRight,
      y: { tickSize: 0, domain, label: null, ticks: 6, tickFormat: tick },
      marks: [
        ...axis.marks,
        Plot.gridY({ stroke: "var(--rule)", strokeOpacity: 1, ticks: 6 }),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
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
    if (drawn && store.only(keys, "stop")) {
      axes.showChosen(drawn);
      return;
    }
    const shown = store.shown();
    const all = shown ? filtered(shown) : whole();
    const picked = selected();
    const svg = axes.plot(plotOptions(all, picked));
    const every = [...all, ...picked];
    axes.stopColumns(svg, {
      label: (index) => `${lines(index, every).filter(Boolean).join(". ")}. Choose this ${axes.stopWord}.`,
      lines: (index) => lines(index, every),
    });
    axes.dress(svg, `Chart of the mean position signal at ${data.stops.length} ${axes.stopWord}s`);
    marks.mount(drawing, legend(all, picked, shown), svg, numbersTable(all));
    drawn = svg;
    explain(shown);
  }

  function setUp() {
    controls = axes.signalChoice("measure", "measure", "signal-controls");
  }

  /** @type {View & { measures: () => string[] }} */
  return { setUp, draw, measures, needs: ["measure", "window", "run", "filter", "heads", "stop"] };
})();
