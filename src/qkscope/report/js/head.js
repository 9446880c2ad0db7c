// @ts-check
/* Head page: one head over training, its class, its measures and the heads that share its keys. */
"use strict";

const head = (() => {
  const { state } = store;
  const { h, s } = dom;
  const { correlationChart, varianceChart, climb, anatomy } = headCharts;
  const drawing = dom.find("head-drawing");
  const title = dom.find("head-title");
  const PC0 = `PC0 is ${text.pc0} r_q and r_k say how closely queries and keys follow position along it.`;

  const index = () => store.currentHead();
  const checkpoints = () => data.checkpointsOf(index());

  /* ---- choosing the head ---- */

  /** @param {number} head */
  const choose = (head) => store.set({ head });

  function pickerRow() {
    const heads = state.heads.size ? [...state.heads].sort((a, b) => a - b) : data.heads.map((d) => d.index);
    const here = heads.indexOf(index());
    /** @param {number} step */
    const turn = (step) => () => choose(heads[(Math.max(here, 0) + step + heads.length) % heads.length]);
    const { layer, head, owner } = data.heads[index()];
    const ofModel = data.heads.filter((d) => d.owner === owner);
    const ofLayer = ofModel.filter((d) => d.layer === layer);
    /** @type {(name: string, entries: [any, any][], value: number, among: Head[],
     *   key: "owner" | "layer" | "head") => HTMLElement} */
    const menu = (name, entries, value, among, key) =>
      dom.menu(`head-${name.toLowerCase()}`, name, entries, value, (chosen) =>
        choose(among.find((d) => d[key] === Number(chosen))?.index ?? index()),
      ).field;
    /** @type {[number, string][]} */
    const models = data.checkpoints.map((d) => [d.index, d.label]);
    const said = state.heads.size > 1 ? `‹ › go through the ${text.headCount(state.heads.size)} selected` : "";
    return [
      owner === null ? null : menu("Model", models, owner, data.heads, "owner"),
      menu("Layer", [...new Set(ofModel.map((d) => d.layer))].map((v) => [v, v]), layer, ofModel, "layer"),
      menu("Head", ofLayer.map((d) => [d.head, d.head]), head, ofLayer, "head"),
      dom.button("head-before", "‹", turn(-1), { "aria-label": "Previous head" }),
      dom.button("head-after", "›", turn(1), { "aria-label": "Next head" }),
      h("span", { class: "hint" }, said),
    ];
  }

  /* ---- what it is, and the heads that share its keys ---- */

  /** @param {number} run */
  function strip(run) {
    const table = store.table(run);
    const items = checkpoints().map(({ index: checkpoint, label }) => {
      const code = data.code(table, checkpoint, index());
      const name = data.classes[code] || "not measured here";
      const here = checkpoint === state.checkpoint;
      return h(
        "li",
        { class: here ? "chosen" : null, title: `${label}: ${name}` },
        paint.block(code),
        h("span", { class: "visually-hidden" }, `${label}: ${name}`),
      );
    });
    const whose = store.both() ? ` in ${data.letters[run]}` : "";
    const letter = store.both() ? h("li", { "aria-hidden": "true" }, data.letters[run]) : null;
    return h("ol", { class: "strip", "aria-label": `Class over training${whose}` }, letter, items);
  }

  /* The names of the classes in the strips. */
  function stripKeys() {
    const found = store.runs().flatMap((run) =>
      checkpoints().map(({ index: checkpoint }) => data.code(store.table(run), checkpoint, index())),
    );
    const codes = d3.range(data.classes.length).filter((code) => found.includes(code));
    const over = checkpoints().length > 1 ? " over training" : "";
    return dom.legend(
      dom.key(null, `class by ${data.taxonomyOf(data.taxonomy).label}${over}`),
      codes.map((code) => dom.key(paint.block(code), data.classes[code])),
    );
  }

  /* Where its class or its first axis changed, and whether the one came with the other. */
  function history() {
    const table = store.table();
    const steps = d3.pairs(checkpoints()).flatMap(([{ index: before }, { index: checkpoint, label }]) => {
      const [from, to] = [before, checkpoint].map((at) => data.code(table, at, index()));
      const another = data.anotherAxis(table, checkpoint, index());
      if (another === null || from < 0 || to < 0 || (from === to && !another)) return [];
      const kinds = from === to ? data.classes[to] : `${data.classes[from]} → ${data.classes[to]}`;
      return [h("li", {}, `${label}: ${kinds}${another ? ", a different direction became PC0" : ""}`)];
    });
    if (!data.has("same_axis") || checkpoints().length < 2) return null;
    return h(
      "div",
      { class: "history" },
      h("h3", {}, "Changes of class and of PC0"),
      steps.length ? h("ul", {}, steps) : dom.absent("None over training."),
    );
  }

  function facts() {
    const checkpoint = data.checkpointOf(data.heads[index()], state.checkpoint);
    const { kv, rope } = data.heads[index()];
    /* One sentence per run shown; a single one if they are equal. */
    /** @type {(say: (table: Table) => string) => Child[]} */
    const each = (say) => {
      const said = store.runs().map((run) => say(store.table(run)));
      if (new Set(said).size === 1) return said.slice(0, 1);
      return said.map((one, run) => h("span", { class: "each" }, axes.ofRun(run, one)));
    };
    /** @param {Table} table */
    const since = (table) => data.checkpoints[table.classes[data.taxonomy].since?.[index()] ?? -1]?.label || "–";
    /** @type {(string | Child[])[][]} */
    const rows = [
      ...data.taxonomies.map((by) => [
        by === data.taxonomies[0] ? `class at ${data.labelOf(checkpoint)}` : "published class",
        each((table) => data.className(table, checkpoint, index(), by) || "not measured"),
      ]),
      ...(data.roles.length ? [["roles", each((table) => data.roleNames(table, checkpoint, index()) || "none")]] : []),
      ...(store.table().classes[data.taxonomy].since ? [["final class since", each(since)]] : []),
      ...data.measures
        .filter(({ name }) => name !== "abs_r_k")
        .map(({ name }) => [
          [marks.explained(h("span", {}, data.measureName(name)), data.measureName(name), data.measureMeans(name))],
          each((table) => text.ofHead(table, name, checkpoint, index())),
        ]),
      ["key head", kv === null ? "not known" : String(kv)],
      ["position embedding", rope === null ? "not known" : rope === 1 ? "RoPE" : "NoPE"],
    ];
    return h(
      "dl",
      { class: "facts head-facts" },
      rows.map(([name, said]) => h("div", {}, h("dt", {}, name), h("dd", {}, said))),
    );
  }

  /** @param {number} head */
  function spark(head) {
    const [width, height] = [86, 26];
    const table = store.table();
    const x = d3.scaleLinear([0, Math.max(1, data.checkpoints.length - 1)], [2, width - 2]);
    const y = d3.scaleLinear([-1, 1], [height - 2, 2]);
    /** @param {string} name */
    const way = (name) =>
      d3
        .line()
        .defined(([, v]) => !Number.isNaN(v))
        .x(([i]) => x(i))
        .y(([, v]) => y(v))(data.checkpoints.map((d) => [d.index, data.value(table, name, d.index, head)]));
    return s(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, class: "spark", "aria-hidden": "true" },
      s("line", { x1: 0, x2: width, y1: y(0), y2: y(0) }),
      s("path", { d: way("r_q") || "", class: "q" }),
      s("path", { d: way("r_k") || "", class: "k" }),
    );
  }

  function neighbours() {
    const { owner, layer, kv, index: me } = data.heads[index()];
    if (kv === null) return dom.absent("Not known: the table has no kv_head column.");
    const group = data.heads.filter((d) => d.owner === owner && d.layer === layer && d.kv === kv);
    if (group.length === 1) return dom.absent(`No other measured head uses key head ${kv} of layer ${layer}.`);
    const checkpoint = data.checkpointOf(data.heads[me], state.checkpoint);
    const items = group.map((d) => {
      const numbers = ["r_q", "r_k"].map((name) =>
        text.quantity(data.estimate(store.table(), name, checkpoint, d.index)),
      );
      const content = [
        h("span", { class: "who" }, `head ${d.head}`),
        data.training && data.checkpoints.length > 1 ? spark(d.index) : null,
        h("span", { class: "what" }, numbers.join(", ")),
      ];
      const current = d.index === me ? "true" : null;
      const near = { type: "button", id: `near-${d.index}`, class: "near", "aria-current": current };
      return h("li", {}, h("button", { ...near, onclick: () => choose(d.index) }, content));
    });
    const where = `Layer ${layer}, key head ${kv} at ${data.labelOf(checkpoint)}:`;
    return h("div", {}, h("p", { class: "small" }, where), h("ul", { class: "neighbours" }, items));
  }

  /* ---- together ---- */

  function componentPicker() {
    /** @type {[string, string][]} */
    const choices = d3.range(data.components).map((pc) => [String(pc), `PC${pc}`]);
    return dom.options("pc", "Component", choices, String(state.pc), (value) => store.set({ pc: Number(value) }));
  }

  function explain() {
    const said = [];
    if (state.head === null && !state.heads.size)
      said.push(
        data.runNames.length
          ? "No head chosen: this is the one whose r_q differs most between the runs at the end."
          : data.training && data.checkpoints.length > 1
            ? "No head chosen: this is the one whose r_q changed most."
            : "No head chosen: this is the one with the largest r_q.",
      );
    if (store.both())
      said.push("Changes, null bands and neighbours are of A; switch to B for its own.");
    if (checkpoints().length === 1) said.push("One checkpoint: there is no trend over training.");
    if (data.omitted) said.push(data.omitted);
    if (!data.has("r_q_null")) said.push("The results hold no null, so no null band is drawn.");
    if (!data.has("r_q_se")) said.push("The results hold no standard errors, so no error bars.");
    if (state.window === "matched" && data.components > 1)
      said.push("Components beyond PC0 are measured over the training context only.");
    dom.note("head", said);
  }

  const legend = () =>
    dom.legend(
      dom.symbolKey("●", "r_q", "var(--r_q)"),
      dom.symbolKey("■", "r_k", "var(--r_k)"),
      data.has("explained_variance") ? dom.symbolKey("▲", "explained variance", "var(--variance)") : null,
      axes.runKeys(),
      data.has("r_q_null") ? dom.key(h("i", { class: "band" }), "null band: |r| by chance") : null,
      data.matched ? dom.key(null, data.windowName(state.window)) : null,
    );

  function draw() {
    const { layer, head, owner } = data.heads[index()];
    title.textContent = `${owner === null ? "" : `${data.labelOf(owner)} · `}Layer ${layer} · head ${head}`;
    const width = axes.widthOf(drawing);
    const half = width > 760 ? (width - 32) / 2 : width;
    const variance = data.has("explained_variance")
      ? varianceChart(half)
      : dom.absent("The table holds no explained variance.");
    marks.mount(dom.find("head-controls"), pickerRow());
    marks.mount(
      drawing,
      store.runs().map(strip),
      stripKeys(),
      h("p", { class: "small" }, PC0),
      legend(),
      data.components > 1 ? componentPicker() : null,
      h("div", { class: "pair" }, h("div", {}, correlationChart(half)), h("div", {}, variance)),
      ...climb(width),
      history(),
      ...anatomy(half),
      h(
        "div",
        { class: "pair" },
        h("div", {}, h("h3", {}, "This head"), facts()),
        h("div", {}, h("h3", {}, "Heads that share its keys"), neighbours()),
      ),
    );
    explain();
  }

  function setUp() {
    dom.find("back").addEventListener("click", () => go("table"));
  }

  /** @type {View} */
  return { setUp, draw, needs: ["head", "heads", "pc", "window", "run", "checkpoint", "taxonomy"] };
})();
