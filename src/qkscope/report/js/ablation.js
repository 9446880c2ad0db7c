// @ts-check
/* Does the model depend on it: how much the loss rises without a part of the scores of some heads, a panel per set of
 * heads. A bar is these heads, the diamond random heads of the same layers; whiskers are one standard error. */
"use strict";

const ablation = (() => {
  const { s } = dom;
  const ROW = 38;
  const TOP = 26;
  const NATS = "nats per token";

  /** @param {string} part */
  const colour = (part) =>
    part === "sink" ? "var(--sink)" : part === "head" ? "var(--muted)" : `var(--share_${part})`;
  /** @type {(found: Ablation, part: string) => string} */
  const nameOf = (found, part) => found.parts[part] || part;

  /** @type {(value: Maybe, se?: Maybe) => string} */
  const change = (value, se) => text.change("loss", value, se);

  /** @type {(found: Ablation, of: AblatedSet, row: AblatedRow, meaning: boolean) => (string | null)[]} */
  function lines(found, of, row, meaning) {
    const part = data.measureMeans(`share_${row.part}`);
    const draws = `${found.draws} ${found.draws === 1 ? "draw" : "draws"}`;
    const said = [
      { of: "change of", value: row.delta, se: row.delta_se },
      {
        ...{ whose: `random heads of the same layers (${draws})`, of: "change of" },
        ...{ value: row.random, se: row.random_se },
      },
      { whose: "difference", value: row.above_random, se: row.above_random_se },
    ].filter(({ value }) => value !== null);
    const also = [
      row.random === null ? "no other heads in these layers to compare with" : null,
      meaning && part ? `${nameOf(found, row.part)}: ${part}` : null,
    ];
    const numbers = said.map((one) => ({ name: "loss", sign: true, ...one }));
    return [`Without ${nameOf(found, row.part)} · ${of.name}`, ...text.described(numbers, also, meaning)];
  }

  /** @type {(found: Ablation, of: AblatedSet, width: number, ends: [number, number], key: string) => SVGElement} */
  function panel(found, of, width, ends, key) {
    const x = d3.scaleLinear(ends, [4, width - 10]);
    const height = TOP + of.rows.length * ROW + 24;
    const label = `Change of loss without each part of the scores: ${of.name}`;
    const look = { class: "chart ablation", role: "group", "aria-label": label };
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, ...look });
    svg.append(s("text", { x: 0, y: 14, class: "panel-name", "aria-hidden": "true" }, of.name));
    const axis = s("g", { class: "count-axis", "aria-hidden": "true" });
    for (const tick of x.ticks(4))
      axis.append(
        s("line", { x1: x(tick), x2: x(tick), y1: TOP, y2: height - 20 }),
        s("text", { x: x(tick), y: height - 6, class: "middle" }, text.number(tick, 1)),
      );
    svg.append(axis);
    of.rows.forEach((row, i) => {
      const y = TOP + i * ROW;
      const middle = y + 26;
      /** @type {(value: number, se: Maybe) => SVGElement} */
      const whisker = (value, se) =>
        s("line", { x1: x(value - (se || 0)), x2: x(value + (se || 0)), y1: middle, y2: middle, class: "whisker" });
      const delta = row.delta ?? 0;
      const bar = { x: Math.min(x(0), x(delta)), width: Math.abs(x(delta) - x(0)) };
      const diamond = { d: "M0,-5.5L5.5,0L0,5.5L-5.5,0Z", class: "random" };
      const group = s(
        "g",
        {},
        s("rect", { x: 0, y, width, height: ROW - 2, class: "ground" }),
        s("text", { x: 0, y: y + 13 }, nameOf(found, row.part)),
        s("text", { x: width - 4, y: y + 13, class: "value" }, change(row.delta)),
        s("rect", { ...bar, y: middle - 6, height: 12, class: "cost", fill: colour(row.part) }),
        whisker(delta, row.delta_se),
        ...(row.random === null
          ? []
          : [
              whisker(row.random, row.random_se),
              s("path", { ...diamond, transform: `translate(${x(row.random)},${middle})` }),
            ]),
      );
      svg.append(
        marks.mark(group, {
          key: `${key}:${row.part}`,
          say: (meaning) => lines(found, of, row, meaning),
        }),
      );
    });
    return svg;
  }

  const legend = () =>
    dom.legend(
      dom.blockKey("var(--muted)", "these heads"),
      dom.symbolKey("◇", "as many random heads of the same layers, or all others"),
      dom.lineKey(null, "±1 se"),
      dom.key(null, `change of loss, ${NATS}`),
    );

  /** @type {(all: Ablation[], runs: number[]) => HTMLElement} */
  function numbersTable(all, runs) {
    const rows = all.flatMap((found, i) =>
      found.sets.flatMap((of) =>
        of.rows.map((row) => [
          axes.ofRun(runs[i], of.name),
          nameOf(found, row.part),
          change(row.delta, row.delta_se),
          change(row.random, row.random_se),
          change(row.above_random, row.above_random_se),
        ]),
      ),
    );
    const heads = ["heads", "without", NATS, "random heads of the same layers", "difference"];
    return dom.numbers(dom.find("ablation-drawing"), heads, rows);
  }

  function draw() {
    const drawing = dom.find("ablation-drawing");
    const runs = store.runs().filter((run) => data.ablation(run));
    const all = runs.flatMap((run) => data.ablation(run) || []);
    if (!all.length) return marks.mount(drawing, dom.absent("Not measured in this run."));
    const width = axes.widthOf(drawing);
    const count = d3.sum(all, ({ sets }) => sets.length);
    const fit = Math.max(1, Math.min(count, Math.floor((width + 28) / 236)));
    const columns = Math.ceil(count / Math.ceil(count / fit)); // rows of about the same length
    const each = (width - 28 * (columns - 1)) / columns;
    const rows = all.flatMap(({ sets }) => sets.flatMap((of) => of.rows));
    /** @type {(value: Maybe, se: Maybe) => number[]} */
    const reach = (value, se) => (value === null ? [] : [value - (se || 0), value + (se || 0)]);
    const values = rows.flatMap((row) => [...reach(row.delta, row.delta_se), ...reach(row.random, row.random_se)]);
    /** @type {[number, number]} */
    const ends = [Math.min(0, d3.min(values) ?? 0), Math.max(0.01, d3.max(values) ?? 0)];
    const panels = all.flatMap((found, i) =>
      found.sets.map((of, k) => {
        const named = { ...of, name: axes.ofRun(runs[i], of.name) };
        return panel(found, named, each, ends, `ablation:${data.letters[runs[i]]}${k}`);
      }),
    );
    marks.mount(
      drawing,
      legend(),
      dom.grid(drawing, columns, panels),
      numbersTable(all, runs),
    );
    const [first] = all;
    dom.note("ablation", [
      `${data.labelOf(first.checkpoint)}: ${text.quantity({ name: "loss", value: first.loss })} as it is,`,
      `${text.count(first.tokens)} tokens of ${first.documents} held-out documents. Costs of parts do not add up.`,
    ]);
  }

  /** @type {View} */
  return { draw, needs: ["run"] };
})();
