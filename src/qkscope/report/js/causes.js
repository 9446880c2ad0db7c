// @ts-check
/* Causes: each change between neighbouring checkpoints, split in the real order: RoPE settings, training, window.
 * Both windows of the page have the same causes. A waterfall: each part begins where the one before ended, and the dot
 * is their sum. Two runs stand one below the other, change by change. */
"use strict";

const causes = (() => {
  const { state } = store;
  const { h } = dom;
  /** @type {HTMLSelectElement | null} */
  let box = null;

  const numbers = store.choices.number;
  /** @type {Record<string, string>} */
  const FACTORS = { rotation: "RoPE settings", weights: "training", window: "window" };
  const TALL = 0.76 / Object.keys(FACTORS).length; // of a bar, in rows
  const shownNumber = () => (numbers.includes(state.number) ? state.number : numbers[0]);

  /* "mean share_key" as the page calls that measure elsewhere. */
  /** @param {string} number */
  const named = (number) => (number.startsWith("mean ") ? `mean ${data.measureName(measureOf(number))}` : number);

  /** @typedef {Cause & { run: number }} Change */
  /** @typedef {{ y1: number, y2: number, name: string, low: number, high: number, changed: boolean }} Part */

  /** @returns {Change[]} */
  function changes() {
    const found = store
      .runs()
      .flatMap((run) => data.causes(run).map((cause) => ({ ...cause, run })))
      .filter((cause) => cause.number === shownNumber());
    return found.sort((a, b) => a.to - b.to || a.run - b.run);
  }

  /* The bars of the i-th change, one below the other, each beginning where the one before ended; `stayed` is the end of
   * what comes from heads whose first axis stayed. */
  /** @type {(cause: Change, i: number) => (Omit<Part, "changed"> & { stayed: number })[]} */
  function barsOf({ parts: all }, i) {
    const found = all.filter(({ value }) => value);
    const top = i - (found.length * TALL) / 2;
    let high = 0;
    return found.map(({ name, value, same }, k) => {
      const low = high;
      high += value;
      const stayed = low + (same ?? value);
      return { name, low, stayed, high, y1: top + k * TALL, y2: top + (k + 1) * TALL };
    });
  }

  /* Of every bar the two pieces; what comes from heads in which another axis became the first is pale. */
  /** @type {(list: Change[]) => Part[]} */
  const parts = (list) =>
    list.flatMap(barsOf).flatMap(({ stayed, ...bar }) => [
      { ...bar, high: stayed, changed: false },
      ...(stayed === bar.high ? [] : [{ ...bar, low: stayed, changed: true }]),
    ]);

  /* Lines that join the end of a bar with the beginning of the next. */
  /** @param {Change[]} list */
  const joins = (list) =>
    list.flatMap((cause, i) => d3.pairs(barsOf(cause, i), (a, b) => ({ x: a.high, y1: a.y1, y2: b.y2 })));

  /** @param {{ from: number, to: number, run: number }} cause */
  const rowName = ({ from, to, run }) =>
    `${data.labelOf(from)} → ${data.labelOf(to)}${store.both() ? ` ${data.letters[run]}` : ""}`;

  /* The measure whose mean a number is, or the number itself. */
  /** @param {string} number */
  const measureOf = (number) => number.replace(/^mean /, "").replace("|r_k|", "abs_r_k");
  /** @type {(number: string, value: number, se?: Maybe) => string} */
  const change = (number, value, se) => text.change(measureOf(number), value, se);

  /* ", −0.020 of it from heads ...": the part of an effect from heads whose first axis changed. */
  /** @type {(number: string, effect: Effect) => string} */
  function fromChanged(number, { value, same }) {
    const changed = value - (same ?? value);
    if (Math.abs(changed) < 0.0005) return "";
    return `, ${change(number, changed)} of it from heads in which another axis became PC0`;
  }

  /** @type {(number: string, list: Effect[]) => string[]} */
  const effects = (number, list) =>
    list
      .filter(({ value }) => value)
      .map((one) => `${FACTORS[one.name]} ${change(number, one.value, one.se)}${fromChanged(number, one)}`);

  /** @type {(cause: Change, meaning: boolean) => (string | null)[]} */
  function lines(cause, meaning) {
    const { number, total, total_se, parts: all, other } = cause;
    const of = number.startsWith("mean ") ? "change of mean" : "change of";
    const first = other.length ? [`in the other order: ${effects(number, other).join(", ")}`] : [];
    const whole = { name: measureOf(number), value: total, se: total_se, of, sign: true };
    return [rowName(cause), ...text.described([whole], [...effects(number, all), ...first], meaning)];
  }

  /** @type {(list: Change[], width: number) => any} */
  function plotOptions(list, width) {
    const rows = list.map(rowName);
    const share = data.isShare(measureOf(shownNumber()));
    const points = (/** @type {number} */ v) => text.number(100 * v, 0);
    const marginLeft = Math.min(width * 0.42, 12 + 7 * Math.max(...rows.map((row) => row.length)));
    return {
      width,
      height: 46 + 30 * rows.length,
      marginLeft,
      marginRight: 14,
      marginTop: 8,
      marginBottom: 34,
      x: {
        ...{ label: `change of ${named(shownNumber())}${share ? ", points" : ""}`, tickSize: 0, nice: true },
        ...{ ticks: Math.max(3, width / 110), tickFormat: share ? points : undefined },
      },
      y: {
        domain: [rows.length - 0.5, -0.5],
        ticks: d3.range(rows.length),
        tickFormat: (/** @type {number} */ i) => rows[i],
        label: null,
        tickSize: 0,
      },
      marks: [
        Plot.gridX({ stroke: "var(--rule)", strokeOpacity: 1 }),
        Plot.rect(parts(list), {
          ...{ x1: "low", x2: "high", y1: "y1", y2: "y2" },
          fill: (/** @type {Part} */ d) => `var(--${d.name})`,
          fillOpacity: (/** @type {Part} */ d) => (d.changed ? 0.38 : 1),
        }),
        Plot.ruleX(joins(list), { x: "x", y1: "y1", y2: "y2", stroke: "var(--muted)" }),
        Plot.ruleX([0], { stroke: "var(--muted)" }),
        Plot.ruleY(
          d3.range(list.length).filter((i) => list[i].total_se !== null),
          {
            y: (/** @type {number} */ i) => i,
            x1: (/** @type {number} */ i) => list[i].total - (list[i].total_se || 0),
            x2: (/** @type {number} */ i) => list[i].total + (list[i].total_se || 0),
            stroke: "var(--ink)",
            strokeWidth: 1.6,
          },
        ),
        Plot.dot(list, {
          ...{ x: "total", y: (/** @type {Change} */ d) => list.indexOf(d), r: 4.5 },
          ...{ fill: "var(--ink)", stroke: "var(--paper)" },
        }),
      ],
    };
  }

  /* The factors that changed anything between these checkpoints. */
  /** @param {Change[]} list */
  const acting = (list) =>
    Object.keys(FACTORS).filter((factor) =>
      list.some(({ parts: all }) => all.some(({ name, value }) => name === factor && value)),
    );

  /** @param {Change[]} list */
  const legend = (list) =>
    dom.legend(
      acting(list).map((name) => dom.blockKey(`var(--${name})`, FACTORS[name])),
      parts(list).some(({ changed }) => changed)
        ? dom.key(h("i", { class: "block pale" }), "pale: from heads in which another axis became PC0")
        : null,
      dom.key(null, "● total change"),
    );

  function draw() {
    const list = changes();
    if (box) box.value = shownNumber();
    const drawing = dom.find("causes-drawing");
    if (!list.length) {
      const whose = data.runNames.length ? `${store.runs().map((run) => data.runNames[run]).join(" and ")}: ` : "";
      return marks.mount(drawing, dom.absent(`${whose}not measured.`));
    }
    const svg = axes.plot(plotOptions(list, axes.widthOf(drawing)));
    svg.querySelectorAll('g[aria-label="dot"] circle').forEach((dot, i) => {
      marks.mark(dot, {
        key: `cause:${i}`,
        say: (meaning) => lines(list[i], meaning),
        verb: `Choose ${data.labelOf(list[i].to)}.`,
        act: () => store.set({ checkpoint: list[i].to }),
      });
    });
    axes.dress(svg, `Causes of each change of ${named(shownNumber())}`);
    marks.mount(drawing, legend(list), svg, numbersTable(list));
    const gaps = lacking(list);
    const said = gaps.length ? [`Not measured: ${gaps.join(", ")}.`] : [];
    dom.note("causes", [...largest(list), ...said, ...list.flatMap(interaction)]);
  }

  /* The sentence about the largest change, where it has one cause and no claim beside the picture says so already. */
  /** @param {Change[]} list */
  function largest(list) {
    if (shownNumber() === numbers[0] && document.querySelector("#causes .claim")) return [];
    const cause = d3.greatest(list, ({ total }) => Math.abs(total));
    if (!cause?.same_text || list.length < 2) return [];
    const [first, ...others] = cause.parts.filter(({ value }) => value);
    if (first?.name !== "weights" || others.length) return [];
    return [
      `The largest change, ${rowName(cause)}, is training alone: neither RoPE settings nor the training context ` +
        "changed there, so these measurements name no other cause.",
    ];
  }

  /* The sentence about a change whose two orders differ by more than their error. */
  /** @param {Change} cause */
  const interaction = (cause) =>
    cause.other.length
      ? [
          `${rowName(cause)}: RoPE settings and training interact; had training come first, ` +
            `${effects(cause.number, cause.other).join(", ")}.`,
        ]
      : [];

  /* A factor that did not change has no part; one that never can, as the window of equal windows, no column. */
  /** @param {Change[]} list */
  function numbersTable(list) {
    const names = acting(list);
    const rows = list.map((cause) => [
      rowName(cause),
      change(cause.number, cause.total, cause.total_se),
      ...names.map((name) => {
        const part = cause.parts.find((one) => one.name === name);
        return part && part.value ? change(cause.number, part.value, part.se) : "–";
      }),
    ]);
    return dom.numbers(
      dom.find("causes-drawing"),
      ["change", "total", ...names.map((name) => FACTORS[name])],
      rows,
    );
  }

  /* Neighbours on the page between which a run's causes are not known: it has another checkpoint there, or failed. */
  /** @param {Change[]} list */
  const lacking = (list) =>
    store.runs().flatMap((run) =>
      d3
        .range(1, data.checkpoints.length)
        .filter((to) => !list.some((cause) => cause.run === run && cause.from === to - 1 && cause.to === to))
        .map((to) => rowName({ from: to - 1, to, run })),
    );

  function setUp() {
    if (numbers.length < 2) return;
    const menu = dom.menu(
      "number",
      "Change of",
      numbers.map((name) => [name, named(name)]),
      shownNumber(),
      (value) => store.set({ number: value }),
    );
    box = menu.box;
    dom.find("causes-controls").replaceChildren(menu.field);
  }

  /** @type {View} */
  return { setUp, draw, needs: ["number", "run"] };
})();
