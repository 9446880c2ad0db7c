/* Head page: one head over training on every principal component, its null band, and the heads of its key group. */
"use strict";

(() => {
  const { data, state, h, s } = qk;
  const drawing = document.getElementById("head-drawing");
  const note = document.getElementById("head-note");
  const title = document.getElementById("head-title");

  const index = () => qk.currentHead();
  function at(name, stop, pc = state.pc) {
    if (pc === 0) return data.value(data.table(state.window), name, stop, index());
    return data.component(name, stop, index(), pc);
  }

  const stops = () => data.stopsOf(index());

  /* ---- choosing the head ---- */

  function choose(head) {
    qk.set({ head });
  }

  function pickerRow() {
    const heads = state.heads.size ? [...state.heads].sort((a, b) => a - b) : data.heads.map((d) => d.index);
    const here = heads.indexOf(index());
    const go = (step) => choose(heads[(Math.max(here, 0) + step + heads.length) % heads.length]);
    const { layer, head, owner } = data.heads[index()];
    const layers = [...new Set(data.heads.filter((d) => d.owner === owner).map((d) => d.layer))];
    const sameLayer = data.heads.filter((d) => d.owner === owner && d.layer === layer);
    const select = (id, label, entries, value, act) => {
      const box = h("select", { id }, entries.map(([v, text]) => h("option", { value: v }, text)));
      box.value = value;
      box.addEventListener("change", () => act(Number(box.value)));
      return h("label", { class: "field" }, h("span", {}, label), box);
    };
    const find = (test) => data.heads.find(test).index;
    const parts = [];
    if (owner !== null) parts.push(select("head-model", "Model", data.stops.map((d) => [d.index, d.label]), owner, (v) => choose(find((d) => d.owner === v))));
    parts.push(
      select("head-layer", "Layer", layers.map((v) => [v, v]), layer, (v) => choose(find((d) => d.owner === owner && d.layer === v))),
      select("head-head", "Head", sameLayer.map((d) => [d.head, d.head]), head, (v) => choose(find((d) => d.owner === owner && d.layer === layer && d.head === v))),
      h("button", { type: "button", id: "head-before", "aria-label": "Previous head", onclick: () => go(-1) }, "‹"),
      h("button", { type: "button", id: "head-after", "aria-label": "Next head", onclick: () => go(1) }, "›"),
      h("span", { class: "hint" }, state.heads.size > 1 ? `‹ › go through the ${qk.headCount(state.heads.size)} selected` : ""),
    );
    return parts;
  }

  /* ---- the chart of one component ---- */

  function series(name) {
    return stops().map(({ index: stop }) => ({
      stop, value: at(name, stop), se: at(`${name}_se`, stop), limit: at(`${name}_null`, stop),
    })).filter(({ value }) => !Number.isNaN(value));
  }

  /* The null band: what |r| comes to when positions are shifted; drawn for the larger of queries and keys apart. */
  function nullMarks(points, colour) {
    const found = points.filter(({ limit }) => !Number.isNaN(limit));
    const band = { x: "stop", y1: (d) => -d.limit, y2: (d) => d.limit };
    if (found.length > 1) return [Plot.areaY(found, { ...band, fill: colour, fillOpacity: 0.11 })];
    return [Plot.ruleX(found, { ...band, stroke: colour, strokeOpacity: 0.16, strokeWidth: 22 })];
  }

  function valueMarks(points, colour, symbol) {
    const joined = data.training ? [Plot.line(points, { x: "stop", y: "value", stroke: colour, strokeWidth: 2 })] : [];
    const barred = points.filter(({ se }) => !Number.isNaN(se));
    return [
      ...joined,
      Plot.ruleX(barred, { x: "stop", y1: (d) => d.value - d.se, y2: (d) => d.value + d.se, stroke: colour, strokeWidth: 1.6 }),
      Plot.dot(points, { x: "stop", y: "value", symbol, r: data.stops.length > 60 ? 2.2 : 4.2, fill: colour, stroke: "var(--paper)" }),
    ];
  }

  function lines(stop) {
    const said = ["r_q", "r_k"].map((name) => {
      const limit = at(`${name}_null`, stop);
      const band = Number.isNaN(limit) ? "" : `, null ${qk.number(limit)}`;
      return `${name} ${qk.withError(at(name, stop), at(`${name}_se`, stop))}${band}`;
    });
    const variance = at("explained_variance", stop);
    return [`${data.stops[stop].label} · PC${state.pc}`, ...said, Number.isNaN(variance) ? null : `explained variance ${qk.number(variance)}`];
  }

  function correlationChart(width) {
    const height = 290;
    const [q, k] = [series("r_q"), series("r_k")];
    const axis = qk.stopAxis(width, height, `correlation with position, PC${state.pc}`);
    const svg = Plot.plot({
      ...axis,
      y: { tickSize: 0, domain: [-1.03, 1.03], ticks: [-1, -0.7, -0.3, 0, 0.3, 0.7, 1], tickFormat: (v) => qk.number(v, 1), label: null },
      marks: [
        ...axis.marks,
        Plot.gridY([-0.7, -0.3, 0.3, 0.7], { stroke: "var(--rule)", strokeOpacity: 1, strokeDasharray: "2 4" }),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...nullMarks(q, "var(--rq)"), ...nullMarks(k, "var(--rk)"),
        ...valueMarks(q, "var(--rq)", "circle"), ...valueMarks(k, "var(--rk)", "square"),
      ],
    });
    return finish(svg, `r_q and r_k of PC${state.pc} at each ${qk.stopWord}`, "correlation");
  }

  function varianceChart(width) {
    const points = series("explained_variance");
    const height = 290;
    const axis = qk.stopAxis(width, height, `explained variance, PC${state.pc}`);
    const svg = Plot.plot({
      ...axis,
      y: { tickSize: 0, domain: [0, Math.max(0.05, 1.15 * (d3.max(points, (d) => d.value) || 0))], ticks: 5, tickFormat: (v) => qk.number(v, 2), label: null },
      marks: [
        ...axis.marks,
        Plot.gridY({ ticks: 5, stroke: "var(--rule)", strokeOpacity: 1 }),
        Plot.ruleY([0], { stroke: "var(--faint)" }),
        ...valueMarks(points, "var(--ev)", "triangle"),
      ],
    });
    return finish(svg, `Explained variance of PC${state.pc} at each ${qk.stopWord}`, "variance");
  }

  function finish(svg, name, prefix) {
    qk.stopColumns(svg, { prefix, lines, label: (stop) => `${lines(stop).filter(Boolean).join(", ")}. Choose this ${qk.stopWord}.` });
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", name);
    return svg;
  }

  /* ---- all components at a glance: three small maps, component by checkpoint ---- */

  const NAMES = { r_q: "r_q", r_k: "r_k", explained_variance: "explained variance" };

  function componentMap(name, width) {
    const list = [];
    for (const { index: stop } of stops()) {
      for (let pc = 0; pc < data.components; pc += 1) {
        const value = data.component(name, stop, index(), pc);
        if (!Number.isNaN(value)) list.push({ stop, pc, value });
      }
    }
    const colour = qk.ramp(name, name === "explained_variance" ? d3.max(list, (d) => d.value) : 1);
    const here = stops().map((d) => d.index);
    const svg = Plot.plot({
      width, height: 34 + 15 * data.components, marginLeft: 34, marginRight: 4, marginTop: 22, marginBottom: 8,
      className: "plot", style: { fontSize: "11px", background: "none", overflow: "visible" },
      x: { type: "band", domain: here, axis: null, padding: here.length > 40 ? 0 : 0.06 },
      y: { type: "band", domain: d3.range(data.components), tickSize: 0, tickFormat: (pc) => `PC${pc}`, label: null, padding: 0.08 },
      marks: [
        Plot.text([NAMES[name]], { frameAnchor: "top-left", dy: -16, text: (d) => d, textAnchor: "start", fill: "var(--muted)", fontSize: 12 }),
        Plot.cell(list, { x: "stop", y: "pc", fill: (d) => colour(d.value), rx: 1 }),
      ],
    });
    svg.querySelectorAll('g[aria-label="cell"] rect').forEach((rect, i) => {
      const { stop, pc, value } = list[i];
      const said = [`${data.stops[stop].label} · PC${pc}`, `${NAMES[name]} ${qk.number(value)}`];
      qk.mark(rect, { key: `${name}:${stop}:${pc}`, label: `${said.join(", ")}. Show this component.`, lines: said, pressed: stop === state.stop && pc === state.pc, act: () => qk.set({ stop, pc }) });
    });
    outline(svg);
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", `Map of ${NAMES[name]} by component and ${qk.stopWord}`);
    return svg;
  }

  function outline(svg) {
    const [x, y] = [svg.scale("x"), svg.scale("y")];
    const box = { x: x.apply(stops()[0].index) - 1, y: y.apply(state.pc) - 1, height: y.bandwidth + 2, class: "chosen-row" };
    const last = stops()[stops().length - 1].index;
    svg.append(s("rect", { ...box, width: x.apply(last) + x.bandwidth - box.x + 1, "aria-hidden": "true" }));
  }

  /* ---- what it is, and the heads that share its keys ---- */

  function strip() {
    const table = data.table(state.window);
    const items = stops().map(({ index: stop, label }) => {
      const code = data.code(table, "class", stop, index());
      const name = data.classes[code] || "not measured here";
      const here = stop === state.stop;
      return h("li", { class: here ? "chosen" : null, title: `${label}: ${name}` },
        h("i", { class: name === "unmeasured" ? "block hatched" : "block", style: `background-color:${qk.colour("class", code)}` }),
        h("span", { class: "visually-hidden" }, `${label}: ${name}`));
    });
    return h("ol", { class: "strip", "aria-label": "Kind of head over training" }, items);
  }

  function facts() {
    const table = data.table(state.window);
    const stop = data.training ? state.stop : data.heads[index()].owner;
    const { kv, rope } = data.heads[index()];
    const value = (name) => data.value(table, name, stop, index());
    const rows = [
      [`at ${data.stops[stop].label}`, data.classes[data.code(table, "class", stop, index())] || "not measured"],
      ["polarity", data.polarities[data.code(table, "polarity", stop, index())] || "–"],
      ["r_q", qk.withError(value("r_q"), value("r_q_se"))],
      ["r_k", qk.withError(value("r_k"), value("r_k_se"))],
      ["explained variance", qk.number(value("explained_variance"))],
      ["key head", kv === null ? "not known" : String(kv)],
      ["position embedding", rope === null ? "not known" : rope === 1 ? "RoPE" : "NoPE"],
    ];
    return h("dl", { class: "facts head-facts" }, rows.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
  }

  function spark(head) {
    const [width, height] = [86, 26];
    const table = data.table(state.window);
    const x = d3.scaleLinear([0, Math.max(1, data.stops.length - 1)], [2, width - 2]);
    const y = d3.scaleLinear([-1, 1], [height - 2, 2]);
    const way = (name) => d3.line().defined(([, v]) => !Number.isNaN(v)).x(([i]) => x(i)).y(([, v]) => y(v))(data.stops.map((d) => [d.index, data.value(table, name, d.index, head)]));
    return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "spark", "aria-hidden": "true" },
      s("line", { x1: 0, x2: width, y1: y(0), y2: y(0) }),
      s("path", { d: way("r_q") || "", class: "q" }), s("path", { d: way("r_k") || "", class: "k" }));
  }

  function neighbours() {
    const { owner, layer, kv, index: me } = data.heads[index()];
    if (kv === null) return h("p", { class: "absent" }, "The table does not say which query heads share a key head (no kv_head column).");
    const group = data.heads.filter((d) => d.owner === owner && d.layer === layer && d.kv === kv);
    if (group.length === 1) return h("p", { class: "absent" }, `No other measured head reads key head ${kv} of layer ${layer}.`);
    const table = data.table(state.window);
    const stop = data.training ? state.stop : owner;
    const items = group.map((d) => {
      const said = `r_q ${qk.number(data.value(table, "r_q", stop, d.index))}, r_k ${qk.number(data.value(table, "r_k", stop, d.index))}`;
      const content = [h("span", { class: "who" }, `head ${d.head}`), data.training && data.stops.length > 1 ? spark(d.index) : null, h("span", { class: "what" }, said)];
      return h("li", {}, h("button", { type: "button", id: `near-${d.index}`, class: "near", "aria-current": d.index === me ? "true" : null, onclick: () => choose(d.index) }, content));
    });
    return h("div", {}, h("p", { class: "small" }, `Layer ${layer}, key head ${kv} at ${data.stops[stop].label}:`), h("ul", { class: "neighbours" }, items));
  }

  /* ---- together ---- */

  function componentPicker() {
    const choices = d3.range(data.components).map((pc) => [String(pc), `PC${pc}`]);
    return qk.options("pc", "Component", choices, String(state.pc), (value) => qk.set({ pc: Number(value) }));
  }

  function explain() {
    const said = [];
    if (state.head === null && !state.heads.size) said.push(data.training && data.stops.length > 1 ? "No head chosen: this is the one whose r_q changed most." : "No head chosen: this is the one with the largest r_q.");
    if (stops().length === 1) said.push(data.training ? "One checkpoint: there is no course over training." : "A head of one model: there is no course over training.");
    if (data.omitted) said.push(data.omitted);
    if (data.own.r_q_null) said.push("Shaded: the null band, what |r| reaches when positions are shifted.");
    else said.push("The results hold no shift null, so no null band is drawn.");
    if (!data.own.r_q_se) said.push("The results hold no standard errors, so no error bars.");
    if (state.window === "matched" && state.pc > 0) said.push("Components beyond the first are over the own windows.");
    note.textContent = said.join(" ");
  }

  function legend() {
    const key = (colour, shape, name) => h("span", { class: "key" }, h("span", { class: "swatch", style: `color:${colour}` }, shape), name);
    return h("p", { class: "legend" }, key("var(--rq)", "●", "r_q"), key("var(--rk)", "■", "r_k"), data.own.explained_variance ? key("var(--ev)", "▲", "explained variance") : null,
      data.own.r_q_null ? h("span", { class: "key" }, h("i", { class: "band" }), "null band") : null);
  }

  function draw() {
    const { layer, head, owner } = data.heads[index()];
    title.textContent = `${owner === null ? "" : `${data.stops[owner].label} · `}Layer ${layer} · head ${head}`;
    const width = qk.widthOf(drawing);
    const two = width > 760;
    const half = two ? (width - 32) / 2 : width;
    const third = two ? (width - 48) / 3 : width;
    const hasVariance = Boolean(data.own.explained_variance);
    const charts = [h("div", {}, correlationChart(half)), h("div", {}, hasVariance ? varianceChart(half) : h("p", { class: "absent" }, "The table holds no explained variance."))];
    const maps = data.components > 1 ? ["r_q", "r_k", ...(hasVariance ? ["explained_variance"] : [])].map((name) => h("div", {}, componentMap(name, third))) : [];
    const picker = document.getElementById("head-controls");
    qk.mount(picker, pickerRow());
    qk.mount(drawing, strip(), legend(), data.components > 1 ? componentPicker() : null,
      h("div", { class: "pair" }, charts), maps.length ? h("h3", {}, "All components") : null, h("div", { class: "triple" }, maps),
      h("div", { class: "pair" }, h("div", {}, h("h3", {}, "This head"), facts()), h("div", {}, h("h3", {}, "Heads that share its keys"), neighbours())));
    explain();
  }

  qk.head = { setUp() {}, draw, needs: ["head", "heads", "pc", "window", "stop"] };
})();
