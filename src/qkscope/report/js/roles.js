// @ts-check
/* What heads do: how many heads have each role at the chosen checkpoint, which they are, and since when. */
"use strict";

const roles = (() => {
  const { state } = store;
  const { h, s } = dom;
  const MOST = 6; // heads that a row names
  const overTraining = data.training && data.checkpoints.length > 1;

  /** @type {(head: Head, run: number) => number} */
  const bitsOf = (head, run) =>
    data.roleBits(store.table(run), data.checkpointOf(head, state.checkpoint), head.index);

  /* The heads with a role at the chosen checkpoint. */
  /** @type {(role: number, population: string, run: number) => number[]} */
  const having = (role, population, run) =>
    store
      .members(population)
      .filter((head) => bitsOf(head, run) & (1 << role))
      .map(({ index }) => index);

  /* How many heads have each role at each checkpoint: by role, then population. */
  /** @type {(run: number) => number[][][]} */
  function countsOf(run) {
    const table = store.table(run);
    const found = data.roles.map(() => data.populations.map(() => data.checkpoints.map(() => 0)));
    data.populations.forEach((population, p) => {
      for (const { index: head } of store.members(population))
        for (const { index: checkpoint } of data.checkpoints) {
          const bits = data.roleBits(table, checkpoint, head);
          for (let role = 0; bits >> role; role += 1) if (bits & (1 << role)) found[role][p][checkpoint] += 1;
        }
    });
    return found;
  }

  /* The number of heads with a role over training, a line per population. */
  /** @type {(counts: number[][], most: number) => SVGElement} */
  function spark(counts, most) {
    const [width, height] = [150, 30];
    const x = d3.scaleLinear([0, Math.max(1, data.checkpoints.length - 1)], [4, width - 4]);
    const y = d3.scaleLinear([0, Math.max(1, most)], [height - 3, 3]);
    const lines = data.populations.map((population, p) => {
      const d = d3.line()(counts[p].map((count, i) => /** @type {[number, number]} */ ([x(i), y(count)])));
      return s("path", { d, stroke: paint.ofPopulation(population), "data-counts": counts[p].join() });
    });
    const now = s("line", { x1: x(state.checkpoint), x2: x(state.checkpoint), y1: 0, y2: height, class: "now" });
    const box = { width, height, viewBox: `0 0 ${width} ${height}`, class: "spark", "aria-hidden": "true" };
    return s("svg", box, s("line", { x1: 0, x2: width, y1: y(0), y2: y(0) }), now, lines);
  }

  /* The first checkpoint at which some head has a role. */
  /** @param {number[][]} counts */
  const first = (counts) => data.checkpoints.find(({ index }) => counts.some((count) => count[index]))?.label || "–";

  /** @type {(role: number, population: string, run: number) => HTMLElement} */
  function cell(role, population, run) {
    const heads = having(role, population, run);
    const all = data.heads.filter((head) => head.population === population).length;
    if (!heads.length) return h("td", { class: "num none" }, "0");
    const whole = `${all}${population === "all" ? "" : ` ${population}`}`;
    const label = `${text.headCount(heads.length)} of ${whole}: ${data.roles[role].name}. Select them.`;
    const about = { class: "link", "aria-label": label, title: heads.map(data.shortName).join(", ") };
    const act = (/** @type {MouseEvent} */ event) => store.select(heads, event);
    const pick = dom.button(`role-${role}-${population}-${run}`, String(heads.length), act, about);
    return h("td", { class: "num" }, pick);
  }

  /* What a role means, and from which score on a head has it. */
  /** @param {number} role */
  function meaning(role) {
    const { means, score, threshold } = data.roles[role];
    return `${means} (above ${data.isShare(score) ? axes.percent(threshold) : threshold})`;
  }

  /** @type {(role: number, run: number, counts: number[][], most: number, narrow: boolean) => HTMLElement} */
  function row(role, run, counts, most, narrow) {
    const heads = data.populations.flatMap((population) => having(role, population, run));
    const named = heads.slice(0, MOST).map(data.shortName).join(", ");
    const more = heads.length > MOST ? ` and ${heads.length - MOST} more` : "";
    const swatch = h("i", { class: "block", style: `background-color:${paint.ofRole(role)}` });
    // Of two runs, whose rows stand one below the other, the first says what the role means.
    const means = narrow || run !== store.runs()[0] ? null : h("span", { class: "means" }, meaning(role));
    return h(
      "tr",
      { class: heads.length ? null : "none" },
      h("th", { scope: "row" }, swatch, axes.ofRun(run, data.roles[role].name), means),
      ...data.populations.map((population) => cell(role, population, run)),
      ...(overTraining ? [h("td", {}, spark(counts, most)), h("td", {}, first(counts))] : []),
      h("td", { class: "which" }, heads.length ? `${named}${more}` : "–"),
    );
  }

  /* How many of the heads with a role have more than one. */
  function overlap() {
    const [run] = store.runs();
    const counts = data.populations
      .flatMap(store.members)
      .map((head) => data.rolesOf(store.table(run), data.checkpointOf(head, state.checkpoint), head.index).length);
    const [some, several] = [0, 1].map((least) => counts.filter((count) => count > least).length);
    if (!several) return "";
    return `Roles overlap: ${several} of the ${text.headCount(some)} with a role have more than one.`;
  }

  function draw() {
    const drawing = dom.find("roles-drawing");
    const all = d3.range(data.roles.length);
    const narrow = axes.widthOf(drawing) < 560;
    const counts = new Map(store.runs().map((run) => [run, countsOf(run)]));
    /** @type {(run: number, role: number) => number[][]} */
    const of = (run, role) => counts.get(run)?.[role] || [];
    const most = d3.max([...counts.values()].flat(3)) || 1;
    const ever = all.filter((role) => store.runs().some((run) => d3.max(of(run, role).flat())));
    /** @param {number} role */
    const known = (role) =>
      store.runs().some((run) => store.table(run).columns[data.roles[role].score]?.some((score) => !Number.isNaN(score)));
    const [never, unknown] = [true, false].map((measured) =>
      all.filter((role) => !ever.includes(role) && known(role) === measured).map((role) => data.roles[role].name),
    );
    const kinds = data.populations.map((one) => (one === "all" ? "heads" : narrow ? one : `${one} heads`));
    const trend = overTraining ? ["over training", "first at"] : [];
    const head = ["role", ...kinds, ...trend, `heads at ${data.labelOf(state.checkpoint)}`];
    const cells = head.map((name, i) =>
      h("th", { scope: "col", class: i > 0 && i <= kinds.length ? "num" : null }, name),
    );
    const table = h(
      "table",
      { class: "plain roles" },
      h("thead", {}, h("tr", {}, cells)),
      h("tbody", {}, ever.flatMap((role) => store.runs().map((run) => row(role, run, of(run, role), most, narrow)))),
    );
    const terms = ever.map((role) => h("div", {}, h("dt", {}, data.roles[role].name), h("dd", {}, meaning(role))));
    marks.mount(
      drawing,
      ever.length ? dom.scroller("Heads by role", table) : dom.absent("No head has a role beyond its error."),
      narrow && ever.length
        ? h("details", {}, h("summary", {}, "What the roles mean"), h("dl", { class: "terms" }, terms))
        : null,
    );
    dom.note("roles", [
      "A head has a role if its score is more than two standard errors above the threshold.",
      overlap(),
      never.length > 0 && `No head is ever ${never.join(", ")}.`,
      unknown.length > 0 && `Not measured over this window: ${unknown.join(", ")}.`,
    ]);
  }

  /** @type {View} */
  return { draw, needs: ["checkpoint", "window", "run", "filter"] };
})();
