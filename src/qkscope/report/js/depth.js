/* Depth map: the mean over the heads of each layer (or tenth of the depth) at each checkpoint, as colour. */
"use strict";

(() => {
  const { data, state, h, s } = qk;
  const drawing = document.getElementById("depth-drawing");
  const note = document.getElementById("depth-note");
  const BINS = d3.range(10);
  const NAMES = { r_q: "r_q", r_k: "r_k", abs_r_k: "|r_k|", explained_variance: "explained variance" };
  let controls = null;
  let drawn = null; // what stands: the drawing, its cells and colours

  const rowsOf = () => (state.rows === "bins" ? BINS : data.aggregate(state.window).layers.layers);
  const rowOf = (head) => (state.rows === "bins" ? data.heads[head].bin : data.heads[head].layer);
  const rowName = (row) => (state.rows === "bins" ? `depth ${row * 10}–${row * 10 + 10}%` : `layer ${row}`);

  /* Heads of each cell: found[stop][row], measured ones only. */
  function cellHeads(heads) {
    const table = data.table(state.window);
    const found = data.stops.map(() => new Map());
    for (const head of heads) {
      const row = rowOf(head);
      for (const { index } of data.stopsOf(head)) {
        if (!data.measured(table, index, head)) continue;
        if (!found[index].has(row)) found[index].set(row, []);
        found[index].get(row).push(head);
      }
    }
    return found;
  }

  function cells(shown) {
    const rows = rowsOf();
    const table = data.table(state.window);
    const known = data.aggregate(state.window)[state.rows][state.cell];
    const members = cellHeads(shown ? [...shown] : data.heads.map(({ index }) => index));
    const found = [];
    for (const { index } of data.stops) {
      rows.forEach((row, i) => {
        const heads = members[index].get(row) || [];
        const at = index * rows.length + i;
        const mean = shown
          ? qk.mean(heads.map((head) => data.value(table, state.cell, index, head)))
          : known.mean[at];
        if (mean === null || Number.isNaN(mean)) return;
        found.push({ stop: index, row, heads, mean, se: shown || !known.se ? null : known.se[at] });
      });
    }
    return found;
  }

  function scale(list) {
    const most = state.cell === "explained_variance" ? d3.max(list, (d) => d.mean) || 1 : 1;
    return { domain: [state.cell === "r_k" ? -1 : 0, most], colour: qk.ramp(state.cell, most) };
  }

  const ink = (fill) => (d3.lab(fill).l > 58 ? "#111" : "#fff");

  function lines({ stop, row, heads, mean, se }) {
    const picked = heads.reduce((n, head) => n + (state.heads.has(head) ? 1 : 0), 0);
    return [
      `${data.stops[stop].label} · ${rowName(row)}`,
      `mean ${NAMES[state.cell]} ${qk.withError(mean, se)}`,
      qk.headCount(heads.length) + (picked ? `, ${picked} selected` : ""),
    ];
  }

  function plotOptions(list, colours) {
    const width = qk.widthOf(drawing);
    const rows = rowsOf();
    const cellWidth = (width - 56) / data.stops.length;
    const { every: apart, slant, room, names } = qk.labelling(d3.range(data.stops.length), cellWidth);
    const tall = state.rows === "bins" ? Math.min(42, Math.max(26, width / 13)) : 14;
    const height = Math.round(Math.min(680, Math.max(300, rows.length * tall + 32 + room)));
    const cellHeight = (height - 32 - room) / rows.length;
    const ticks = d3.range(0, data.stops.length, apart);
    const every = Math.ceil(rows.length / (height / 16));
    const written = cellWidth >= 36 && cellHeight >= 14 ? list : [];
    const at = { x: "stop", y: "row" };
    return {
      width,
      height,
      marginLeft: 48,
      marginRight: 8,
      marginTop: 22,
      marginBottom: room + 8,
      className: "plot",
      style: { fontSize: "12px", background: "none", overflow: "visible" },
      x: {
        type: "band",
        domain: d3.range(data.stops.length),
        ticks,
        tickFormat: (i) => names[i],
        tickRotate: slant ? -40 : 0,
        tickSize: 0,
        label: null,
        padding: data.stops.length > 60 ? 0 : 0.04,
      },
      y: {
        type: "band",
        domain: rows,
        ticks: rows.filter((_, i) => i % every === 0),
        tickFormat: (row) => (state.rows === "bins" ? `${row * 10}%` : String(row)),
        tickSize: 0,
        label: null,
        padding: 0.04,
      },
      marks: [
        Plot.text([state.rows === "bins" ? "depth" : "layer"], {
          frameAnchor: "top-left",
          dy: -16,
          dx: -44,
          text: (d) => d,
          textAnchor: "start",
          fill: "var(--muted)",
        }),
        Plot.cell(list, { ...at, fill: (d) => colours.colour(d.mean), rx: 1.5 }),
        Plot.text(written, {
          ...at,
          text: (d) => qk.number(d.mean, 2),
          fill: (d) => ink(colours.colour(d.mean)),
          fontSize: 11,
          pointerEvents: "none",
        }),
      ],
    };
  }

  /* Outlines: the chosen checkpoint's column, and the cells with selected heads. */
  function outlines() {
    const { svg, list, rects } = drawn;
    const x = svg.scale("x");
    const y = svg.scale("y");
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
    const rows = rowsOf();
    const top = y.apply(rows[0]);
    const bottom = y.apply(rows[rows.length - 1]) + y.bandwidth;
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
    drawing.querySelector(".outlined-key").hidden = !state.heads.size;
  }

  function legend(colours) {
    const [low, high] = colours.domain;
    const stops = d3.range(9).map((i) => colours.colour(low + ((high - low) * i) / 8));
    const digits = state.cell === "explained_variance" ? 2 : 0;
    return h(
      "p",
      { class: "legend" },
      h("span", { class: "key" }, `mean ${NAMES[state.cell]}`),
      h(
        "span",
        { class: "key ramp-key" },
        qk.number(low, low ? digits : 0),
        h("i", { class: "ramp", style: `background:linear-gradient(to right,${stops.join(",")})` }),
        qk.number(high, digits),
      ),
      h("span", { class: "key outlined-key" }, h("i", { class: "block outlined" }), "holds selected heads"),
    );
  }

  function explain(list, shown) {
    const said = [];
    if (state.rows === "bins")
      said.push("Depth is layer / (layers − 1); a tenth with no measured head is left empty.");
    if (data.stops.length === 1) said.push("One checkpoint: one column.");
    if (shown)
      said.push(
        `The filter holds: means over ${qk.headCount(shown.size)} that pass it at ${data.stops[state.stop].label}.`,
      );
    if (!list.length) said.push("No head to average here.");
    note.textContent = said.join(" ");
  }

  /* Whether only the outlines change: another selection or checkpoint, with no filter that hangs on them. */
  const outlinesOnly = (keys) => Boolean(drawn) && qk.only(keys, "heads", "head", "stop");

  function draw(keys) {
    if (outlinesOnly(keys)) {
      outlines();
      return;
    }
    qk.choose(controls.rows, state.rows);
    qk.choose(controls.cell, state.cell);
    const shown = qk.shown();
    const list = cells(shown);
    const colours = scale(list);
    const svg = Plot.plot(plotOptions(list, colours));
    const rects = [...svg.querySelectorAll('g[aria-label="cell"] rect')];
    rects.forEach((rect, i) => {
      const cell = list[i];
      qk.mark(rect, {
        key: `cell:${cell.stop}:${cell.row}`,
        label: `${lines(cell).join(", ")}. Select them.`,
        lines: () => lines(cell),
        act: (event) => qk.select(cell.heads, event, { stop: cell.stop }),
      });
    });
    qk.dress(svg, `Map of mean ${NAMES[state.cell]} by depth and ${qk.stopWord}`);
    qk.mount(drawing, legend(colours), svg);
    drawn = { svg, list, rects };
    outlines();
    explain(list, shown);
  }

  function setUp() {
    const why = data.own.explained_variance ? null : "The table holds no explained variance.";
    controls = {
      cell: qk.options(
        "cell",
        "Show",
        [
          ["r_q", "r_q"],
          ["r_k", "r_k"],
          ["abs_r_k", "|r_k|"],
          ["explained_variance", "expl. variance", why],
        ],
        state.cell,
        (value) => qk.set({ cell: value }),
      ),
      rows: qk.options(
        "rows",
        "Rows",
        [
          ["bins", "ten bins"],
          ["layers", "layers"],
        ],
        state.rows,
        (value) => qk.set({ rows: value }),
      ),
    };
    document.getElementById("depth-controls").replaceChildren(controls.cell, controls.rows);
  }

  qk.depth = { setUp, draw, needs: ["cell", "rows", "window", "filter", "heads", "stop"] };
})();
