/* What charts over checkpoints share: the axis, what lies behind the marks, ramps of colour. */
"use strict";

(() => {
  const { data, s, mark, shorten, count } = qk;

  /* ---- axes of checkpoints ---- */

  /* Evenly many of the checkpoints when each takes `room` pixels: always the first and the last. */
  function spread(width, room) {
    const n = data.stops.length;
    const fit = Math.max(2, Math.floor(width / room));
    if (n <= fit) return d3.range(n);
    return [...new Set(d3.range(fit).map((i) => Math.round((i * (n - 1)) / (fit - 1))))];
  }

  const LETTER = 7; // pixels of a letter at 12 px, on average

  /* How to label checkpoints `step` pixels apart: side by side, slanted, or every so many. */
  function labelling(stops, step) {
    const names = stops.map((stop) => shorten(data.stops[stop].label, 12));
    const longest = d3.max(names, (name) => name.length) * LETTER;
    const flat = (every) => ({ every, slant: false, room: 18, names });
    if (longest + 4 <= step) return flat(1);
    if (step < 17) return flat(Math.ceil((longest + 12) / step));
    return { every: 1, slant: true, room: Math.round(longest * 0.66 + 14), names };
  }

  const stopWord = data.training ? "checkpoint" : "model";

  function stopLines(index) {
    const { label, model, phase, window: size } = data.stops[index];
    const parts = [model === label ? null : model, phase, size ? `window ${count(size)}` : null];
    return [label, parts.filter(Boolean).join(" · ")];
  }

  /* Plot's options for an x axis of checkpoints, numbered 0, 1, ..., with room for phases above. */
  function stopAxis(width, height, title) {
    const [marginLeft, marginRight, marginTop] = [40, 14, 44];
    const n = data.stops.length;
    const half = n > 60 ? 1 : 0.5;
    const step = (width - marginLeft - marginRight) / (n - 1 + 2 * half);
    const { every, slant, room, names } = labelling(d3.range(n), step);
    return {
      width,
      height,
      marginLeft,
      marginRight,
      marginTop,
      marginBottom: room + 8,
      className: "plot",
      style: { fontSize: "12px", background: "none", overflow: "visible" },
      x: {
        type: "linear",
        domain: [-half, n - 1 + half],
        ticks: d3.range(0, n, every),
        label: null,
        tickSize: 0,
        tickPadding: 8,
        tickRotate: slant ? -40 : 0,
        tickFormat: (i) => names[i],
      },
      marks: [
        Plot.text([title], {
          frameAnchor: "top-left",
          dy: -40,
          dx: -36,
          text: (d) => d,
          fill: "var(--muted)",
          textAnchor: "start",
          lineAnchor: "top",
        }),
        ...stopGround(step),
      ],
    };
  }

  /* Behind the marks: alternating phases with their names, window changes, the chosen checkpoint. */
  function stopGround(step) {
    const phases = data.phases.map(([label, first, last], i) => ({
      label: label || "",
      x1: first - 0.5,
      x2: last + 0.5,
      shade: i % 2 === 1,
    }));
    const several = phases.length > 1;
    const changes = qk.state.window === "own" ? data.windowChanges.map((i) => i - 0.5) : [];
    const letters = (d) => Math.floor(((d.x2 - d.x1) * step - 4) / 6);
    return [
      Plot.rectX(several ? phases.filter(({ shade }) => shade) : [], {
        x1: "x1",
        x2: "x2",
        fill: "var(--shade)",
      }),
      Plot.ruleX(changes, { stroke: "var(--muted)", strokeDasharray: "3 3" }),
      Plot.text(several ? phases.filter((d) => letters(d) >= 3) : [], {
        x: (d) => (d.x1 + d.x2) / 2,
        frameAnchor: "top",
        dy: -10,
        text: (d) => shorten(d.label, letters(d)),
        fill: "var(--muted)",
        fontSize: 11,
      }),
    ];
  }

  /* Ramps of colour: light to deep for what grows from zero, orange to blue for what has a sign. */
  const sequential = d3.piecewise(d3.interpolateLab, ["#f4f4ee", "#bcdad8", "#6aaebf", "#2a77a1", "#123765"]);
  const diverging = d3.piecewise(d3.interpolateLab, ["#9c4200", "#e39a64", "#f6f2ec", "#80b5d9", "#00538a"]);
  const clamp = (v) => Math.max(0, Math.min(1, v));
  const ramp = (name, most = 1) =>
    name === "r_k" ? (v) => diverging(clamp((v + 1) / 2)) : (v) => sequential(clamp(v / most));

  /* A mark over each checkpoint of a Plot drawing, as wide as its column: it chooses the checkpoint. The chosen one
   * is shaded; `showChosen` moves the shade without drawing anew. */
  function stopColumns(svg, { label, lines, prefix = "stop" }) {
    const x = svg.scale("x");
    const y = svg.scale("y");
    const [bottom, top] = y.range;
    const layer = s("g", { class: "columns-layer" });
    for (const { index, model } of data.stops) {
      const from = x.apply(index - 0.5);
      const rect = s("rect", {
        x: from,
        y: top,
        width: x.apply(index + 0.5) - from,
        height: bottom - top,
        fill: "transparent",
      });
      const act = () => qk.set({ stop: index });
      layer.append(
        mark(rect, {
          key: `${prefix}:${model}`,
          label: label(index),
          lines: () => lines(index),
          act,
        }),
      );
    }
    svg.append(layer);
    showChosen(svg);
  }

  function showChosen(svg) {
    const { stop } = qk.state;
    const columns = svg.querySelector(".columns-layer").children;
    for (const [index, column] of [...columns].entries()) {
      column.setAttribute("aria-pressed", String(index === stop));
    }
    svg.querySelector(".chosen-stop")?.remove();
    if (columns.length === 1) return;
    const shade = s("rect", { class: "chosen-stop", "aria-hidden": "true" });
    for (const name of ["x", "y", "width", "height"])
      shade.setAttribute(name, columns[stop].getAttribute(name));
    svg.querySelector("g").before(shade);
  }

  /* A drawing of Plot's for a screen reader: one named group of marks; axes, lines and grids stay silent. */
  function dress(svg, label) {
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", label);
    for (const group of svg.querySelectorAll("g[aria-label]")) {
      group.removeAttribute("aria-label");
      if (!group.querySelector(".mark")) group.setAttribute("aria-hidden", "true");
    }
  }

  const widthOf = (container) => Math.max(280, container.clientWidth || 600);

  Object.assign(qk, {
    spread,
    labelling,
    ramp,
    stopWord,
    stopAxis,
    dress,
    stopColumns,
    showChosen,
    stopLines,
    widthOf,
  });
})();
