// @ts-check
/* Emergence: the mean of the position signal over the heads of each layer at each checkpoint, as colour; of two runs
 * together the difference of their means. */
"use strict";

const emergence = (() => {
  const { state } = store;
  const { h, s } = dom;
  const drawing = dom.find("emergence-drawing");
  const note = dom.find("emergence-note");

  /** @typedef {{ stop: number, row: number, heads: number[], mean: number, se: Maybe }} Cell */
  /** @type {HTMLSelectElement | null} */
  let controls = null;
  /** @type {{ svg: Drawn, list: Cell[], rects: SVGElement[] } | null} what stands */
  let drawn = null;

  /** @param {number} row */
  const rowName = (row) => `layer ${row}${axes.isNope(row) ? " (NoPE)" : ""}`;
  const rows = () => store.over().averages.layers.places;

  /* Heads of each cell: found[stop].get(row), measured ones only. */
  /** @param {Iterable<number>} heads */
  function cellHeads(heads) {
    const table = store.table();
    /** @type {Map<number, number[]>[]} */
    const found = data.stops.map(() => new Map());
    for (const head of heads) {
      const row = data.heads[head].layer;
      for (const { index } of data.stopsOf(head)) {
        if (!data.measured(table, index, head)) continue;
        const members = found[index].get(row);
        if (members) members.push(head);
        else found[index].set(row, [head]);
      }
    }
    return found;
  }

  /** @type {(shown: Set<number> | null, run: number) => Cell[]} */
  function cellsIn(shown, run) {
    const { places, [state.map]: known } = store.over(run).averages.layers;
    const table = store.table(run);
    const members = cellHeads(shown || data.heads.map(({ index }) => index));
    /** @type {Cell[]} */
    const found = [];
    for (const { index } of data.stops) {
      places.forEach((row, i) => {
        const heads = members[index].get(row) || [];
        const at = index * places.length + i;
        const mean = shown
          ? text.mean(heads.map((head) => data.value(table, state.map, index, head)))
          : known.mean[at];
        if (mean === null || Number.isNaN(mean)) return;
        found.push({ stop: index, row, heads, mean, se: shown ? null : known.se[at] });
      });
    }
    return found;
  }

  /** @type {(shown: Set<number> | null) => Cell[]} */
  function cells(shown) {
    const [ours, theirs] = store.runs().map((run) => cellsIn(shown, run));
    if (!theirs) return ours;
    const others = new Map(theirs.map((cell) => [`${cell.stop}:${cell.row}`, cell]));
    return ours.flatMap((cell) => {
      const other = others.get(`${cell.stop}:${cell.row}`);
      if (!other) return [];
      const se = cell.se === null || other.se === null ? null : Math.hypot(cell.se, other.se);
      return [{ ...cell, mean: cell.mean - other.mean, se }];
    });
  }

  const name = () =>
    `${store.both() ? "A − B, " : ""}mean ${axes.signalName(state.map)}`;

  /** @type {(list: Cell[]) => [number, number]} */
  function range(list) {
    const most = d3.max(list, (d) => Math.abs(d.mean)) || 0;
    if (store.both()) return [-Math.max(0.1, most), Math.max(0.1, most)];
    return [state.map === "r_k" ? -1 : 0, 1];
  }

  /** @param {string} fill */
  const ink = (fill) => (d3.lab(fill).l > 58 ? "#111" : "#fff");

  /** @param {Cell} cell */
  function lines({ stop, row, heads, mean, se }) {
    const picked = heads.reduce((n, head) => n + (state.heads.has(head) ? 1 : 0), 0);
    return [
      `${data.stops[stop].label} · ${rowName(row)}`,
      `${name()} ${text.measure(state.map, mean, se)}`,
      text.headCount(heads.length) + (picked ? `, ${picked} selected` : ""),
    ];
  }

  /** @type {(list: Cell[], colour: (value: number) => string) => any} */
  function plotOptions(list, colour) {
    const width = axes.widthOf(drawing);
    const layers = rows();
    const marginLeft = axes.layerMargin;
    const cellWidth = (width - marginLeft - 8) / data.stops.length;
    const { every: apart, slant, room, names } = axes.labelling(d3.range(data.stops.length), cellWidth);
    const tall = layers.length <= 16 ? 25 : 14;
    const height = Math.round(Math.min(680, Math.max(160, layers.length * tall) + 32 + room));
    const cellHeight = (height - 32 - room) / layers.length;
    const written = cellWidth >= 36 && cellHeight >= 14 ? list : [];
    const digits = state.map.startsWith("share_") ? 0 : 2;
    const at = { x: "stop", y: "row" };
    return {
      width,
      height,
      marginLeft,
      marginRight: 8,
      marginTop: 22,
      marginBottom: room + 8,
      className: "plot",
      style: { fontSize: "12px", background: "none", overflow: "visible" },
      x: {
        type: "band",
        domain: d3.range(data.stops.length),
        ticks: d3.range(0, data.stops.length, apart),
        tickFormat: (/** @type {number} */ i) => names[i],
        tickRotate: slant ? -40 : 0,
        tickSize: 0,
        label: null,
        padding: data.stops.length > 60 ? 0 : 0.04,
      },
      y: { type: "band", domain: layers, axis: null, padding: 0.06 },
      marks: [
        Plot.text(["layer"], {
          frameAnchor: "top-left",
          dy: -16,
          dx: 4 - marginLeft,
          text: (d) => d,
          textAnchor: "start",
          fill: "var(--muted)",
        }),
        axes.layerNames(layers, cellHeight),
        Plot.cell(list, { ...at, fill: (d) => colour(d.mean), rx: 1.5 }),
        Plot.text(written, {
          ...at,
          text: (d) => text.number(digits ? d.mean : 100 * d.mean, digits),
          fill: (d) => ink(colour(d.mean)),
          fontSize: 11,
          pointerEvents: "none",
        }),
      ],
    };
  }

  /* Outlines: the chosen checkpoint's column, and the cells with selected heads. */
  function outlines() {
    if (!drawn) return;
    const { svg, list, rects } = drawn;
    const [x, y] = [axes.scale(svg, "x"), axes.scale(svg, "y")];
    const layer = s("g", { class: "outlines", "aria-hidden": "true" });
    const picked = cellHeads(state.heads);
    const [width, height] = [x.bandwidth, y.bandwidth].map((size) => Math.max(1, size - 1.5));
    let path = "";
    list.forEach(({ stop, row, heads }, i) => {
      const found = picked[stop].get(row) || [];
      const all = String(found.length > 0 && found.length === heads.length);
      if (rects[i].getAttribute("aria-pressed") !== all) rects[i].setAttribute("aria-pressed", all);
      if (!found.length) return;
      path += `M${x.apply(stop) + 0.75},${y.apply(row) + 0.75}h${width}v${height}h${-width}z`;
    });
    // A dark line in a light casing is seen on every colour of the ramp.
    layer.append(s("path", { d: path, class: "casing" }), s("path", { d: path, class: "has-selected" }));
    const layers = rows();
    const top = y.apply(layers[0]);
    const bottom = y.apply(layers[layers.length - 1]) + y.bandwidth;
    layer.append(
      s("rect", {
        x: x.apply(state.stop) - 1.5,
        y: top - 2,
        width: x.bandwidth + 3,
        height: bottom - top + 4,
        rx: 2,
        class: "chosen-column",
      }),
    );
    svg.querySelector(".outlines")?.remove();
    svg.append(layer);
    const key = drawing.querySelector(".outlined-key");
    if (key instanceof HTMLElement) key.hidden = !state.heads.size;
  }

  /** @param {[number, number]} ends */
  const legend = (ends) =>
    h(
      "p",
      { class: "legend" },
      paint.rampKeys(name(), ends, 2, state.map.startsWith("share_")),
      h("span", { class: "key outlined-key" }, h("i", { class: "block outlined" }), "holds selected heads"),
    );

  /** @param {Cell[]} list */
  const numbersTable = (list) => {
    const at = new Map(list.map((cell) => [`${cell.stop}:${cell.row}`, cell]));
    /** @type {(row: number, stop: number) => string} */
    const said = (row, stop) => {
      const cell = at.get(`${stop}:${row}`);
      return cell ? text.measure(state.map, cell.mean, cell.se) : "–";
    };
    return dom.numbers(
      drawing,
      ["layer", ...data.stops.map(({ label }) => label)],
      rows().map((row) => [rowName(row), ...data.stops.map(({ index }) => said(row, index))]),
    );
  };

  /** @type {(list: Cell[], shown: Set<number> | null) => void} */
  function explain(list, shown) {
    const said = [];
    if (store.both()) said.push("Blue: higher in A. Orange: higher in B.");
    if (shown) said.push(`Filtered: ${text.headCount(shown.size)}.`);
    if (!list.length) said.push("No head to average here.");
    note.textContent = said.join(" ");
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    // Another selection or checkpoint, with no filter that hangs on them, moves the outlines only.
    if (drawn && store.only(keys, "heads", "head", "stop")) {
      outlines();
      return;
    }
    if (controls) controls.value = state.map;
    const shown = store.shown();
    const list = cells(shown);
    const ends = range(list);
    const svg = axes.plot(plotOptions(list, paint.ramp(ends)));
    /** @type {SVGElement[]} */
    const rects = [...svg.querySelectorAll('g[aria-label="cell"] rect')].map((r) => /** @type {any} */ (r));
    rects.forEach((rect, i) => {
      const cell = list[i];
      marks.mark(rect, {
        key: `cell:${cell.stop}:${cell.row}`,
        label: `${lines(cell).join(", ")}. Select them.`,
        lines: () => lines(cell),
        act: (event) => store.select(cell.heads, event, { stop: cell.stop }),
      });
    });
    axes.dress(svg, `Map of ${name()} by layer and ${axes.stopWord}`);
    marks.mount(drawing, legend(ends), svg, numbersTable(list));
    drawn = { svg, list, rects };
    outlines();
    explain(list, shown);
  }

  function setUp() {
    controls = axes.signalChoice("map", "emergence-measure", "emergence-controls");
  }

  /** @type {View} */
  return { setUp, draw, needs: ["map", "window", "run", "filter", "heads", "stop"] };
})();
