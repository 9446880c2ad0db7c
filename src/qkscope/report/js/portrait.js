/* Phase portrait: every head by r_q and r_k at the chosen checkpoint; the points move as training goes on. */
"use strict";

(() => {
  const { data, state, s, h } = qk;
  const drawing = document.getElementById("portrait-drawing");
  const note = document.getElementById("portrait-note");
  const MOST_PATHS = 150;
  let controls = null;
  let naming = null;
  let named = false;
  let frame = null; // the drawing that stands: scales, layers, size

  const CIRCLE = d3.symbol(d3.symbolCircle, 42)();
  const DIAMOND = d3.symbol(d3.symbolDiamond2, 44)();

  /* ---- the frame ---- */

  function leastQ() {
    let least = -0.06;
    for (const value of data.own.r_q) if (value < least) least = value;
    return Math.max(-1.02, least - 0.02);
  }
  const LEAST_Q = leastQ();

  function thresholdLines(x, y) {
    const { high, low } = data.thresholds;
    const layer = s("g", { class: "thresholds", "aria-hidden": "true" });
    const [left, right] = x.range();
    const [bottom, top] = y.range();
    for (const t of [low, high]) layer.append(s("line", { x1: x(t), x2: x(t), y1: bottom, y2: top }));
    for (const t of [-high, -low, low, high])
      layer.append(s("line", { x1: left, x2: right, y1: y(t), y2: y(t) }));
    return layer;
  }

  function regionNames(x, y) {
    const { high, low } = data.thresholds;
    const layer = s("g", { class: "regions", "aria-hidden": "true" });
    const put = (name, r_q, r_k, anchor) =>
      layer.append(s("text", { x: x(r_q), y: y(r_k), "text-anchor": anchor }, name));
    const [left, right] = x.domain();
    put("position-dominated", right - 0.015, 0.955, "end");
    put("position-dominated", right - 0.015, -0.985, "end");
    put("Q-positional", right - 0.015, -low + 0.03, "end");
    put("content-focused", left + 0.015, -low + 0.03, "start");
    put("K-positional", left + 0.015, 0.955, "start");
    put("K-positional", left + 0.015, -0.985, "start");
    put("mixed", (low + high) / 2, -(low + high) / 2 - 0.02, "middle");
    return layer;
  }

  function axes(x, y, width, height) {
    const layer = s("g", { class: "axis", "aria-hidden": "true" });
    const [bottom] = y.range();
    const [left] = x.range();
    for (const t of [0, 0.3, 0.7, 1].concat(LEAST_Q < -0.3 ? [-0.5, -1] : [])) {
      layer.append(s("text", { x: x(t), y: bottom + 18, class: "tick" }, qk.number(t, 1)));
    }
    for (const t of [-1, -0.7, -0.3, 0, 0.3, 0.7, 1]) {
      layer.append(s("text", { x: left - 8, y: y(t) + 4, class: "tick end" }, qk.number(t, 1)));
    }
    layer.append(s("text", { x: width - 10, y: height - 4, class: "axis-name end" }, "r_q  queries →"));
    layer.append(s("text", { x: 4, y: 12, class: "axis-name" }, "↑ r_k  keys"));
    return layer;
  }

  function build() {
    const width = qk.widthOf(drawing);
    const height = Math.round(Math.min(600, Math.max(340, width * 0.86)));
    const x = d3.scaleLinear([LEAST_Q, 1.02], [44, width - 10]);
    const y = d3.scaleLinear([-1.03, 1.03], [height - 40, 20]);
    const [left, right] = x.range();
    const [bottom, top] = y.range();
    const svg = s("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      class: "chart portrait",
      role: "group",
      "aria-label": "Scatter of heads: r_q across, r_k up. Arrow keys move between heads, Enter selects.",
    });
    const ground = s("rect", { x: left, y: top, width: right - left, height: bottom - top, class: "ground" });
    const zero = s("line", { x1: left, x2: right, y1: y(0), y2: y(0), class: "zero" });
    const layers = {};
    for (const name of ["paths", "bars", "points", "box"]) layers[name] = s("g", { class: name });
    layers.paths.setAttribute("aria-hidden", "true");
    layers.bars.setAttribute("aria-hidden", "true");
    svg.append(
      ground,
      thresholdLines(x, y),
      zero,
      axes(x, y, width, height),
      layers.paths,
      layers.bars,
      layers.points,
      regionNames(x, y),
      layers.box,
    );
    frame = { svg, x, y, width, layers };
    listenToBox(svg, layers.box);
    qk.mount(drawing, legend(), svg);
  }

  function legend() {
    const items = data.classes
      .map(
        (name, code) =>
          name !== "unmeasured" &&
          h(
            "span",
            { class: "key" },
            h("span", { class: "swatch", style: `color:${qk.colour("class", code)}` }, "●"),
            name,
          ),
      )
      .filter(Boolean);
    if (data.hasRope)
      items.push(
        h("span", { class: "key" }, "● rotates (RoPE)"),
        h("span", { class: "key" }, "◇ does not (NoPE)"),
      );
    return h("p", { class: "legend" }, items);
  }

  /* ---- the points ---- */

  function visible() {
    const shown = qk.shown();
    const table = data.table(state.window);
    return data.heads.filter(
      ({ index }) => (!shown || shown.has(index)) && data.measured(table, state.stop, index),
    );
  }

  function place(head, stop = state.stop) {
    const table = data.table(state.window);
    return [data.value(table, "r_q", stop, head), data.value(table, "r_k", stop, head)];
  }

  function lines(index) {
    const table = data.table(state.window);
    const at = (name) => data.value(table, name, state.stop, index);
    const kind = data.classes[data.code(table, "class", state.stop, index)];
    const { rope } = data.heads[index];
    const name = data.headName(index);
    return [
      name[0].toUpperCase() + name.slice(1),
      `r_q ${qk.withError(at("r_q"), at("r_q_se"))}`,
      `r_k ${qk.withError(at("r_k"), at("r_k_se"))}`,
      `${kind}${rope === null ? "" : rope === 1 ? ", RoPE" : ", NoPE"}`,
      `${data.stops[state.stop].label}`,
    ];
  }

  /* Points stay in the page as they move; only heads that come or go are made or removed. */
  function points(moving) {
    const table = data.table(state.window);
    const { x, y, layers } = frame;
    const list = visible();
    const at = ({ index }) => {
      const [r_q, r_k] = place(index);
      return `translate(${x(r_q)},${y(r_k)})`;
    };
    const joined = d3
      .select(layers.points)
      .selectAll("path")
      .data(list, (d) => d.index)
      .join((enter) =>
        enter
          .append("path")
          .attr("transform", at)
          .attr("d", (d) => (d.rope === 0 ? DIAMOND : CIRCLE))
          .each(function make(d) {
            qk.mark(this, {
              key: `head:${d.index}`,
              label: "",
              lines: () => lines(d.index),
              act: (event) => qk.select([d.index], event),
              pressed: false,
            });
          }),
      );
    joined.each(function paint(d) {
      this.style.setProperty("--kind", qk.colour("class", data.code(table, "class", state.stop, d.index)));
      this.setAttribute("class", `mark point${d.rope === 0 ? " open" : ""}`);
    });
    clearTimeout(naming);
    if (named) naming = setTimeout(name, 200);
    else name();
    markSelected();
    if (moving) joined.transition("move").duration(550).attr("transform", at);
    else joined.interrupt("move").attr("transform", at);
    qk.rove(drawing);
  }

  /* Labels take as long as all the rest: after the first time they follow the points' move. */
  function name() {
    named = true;
    for (const point of frame.layers.points.children) {
      point.setAttribute("aria-label", `${lines(point.__data__.index).join(", ")}. Select this head.`);
    }
  }

  function markSelected() {
    const { layers } = frame;
    layers.points.classList.toggle("some", state.heads.size > 0);
    for (const point of layers.points.children) {
      const picked = state.heads.has(point.__data__.index);
      if (point.classList.contains("selected") !== picked) point.classList.toggle("selected", picked);
      point.setAttribute("aria-pressed", String(picked));
    }
  }

  function bars(moving) {
    const table = data.table(state.window);
    const { x, y, layers } = frame;
    const wanted =
      state.bars === "none" || !table.r_q_se
        ? []
        : visible().filter(({ index }) => state.bars === "all" || state.heads.has(index));
    const path = ({ index }) => {
      const [r_q, r_k] = place(index);
      const [eq, ek] = ["r_q_se", "r_k_se"].map((name) => data.value(table, name, state.stop, index) || 0);
      return `M${x(r_q - eq)},${y(r_k)}H${x(r_q + eq)}M${x(r_q)},${y(r_k - ek)}V${y(r_k + ek)}`;
    };
    const joined = d3
      .select(layers.bars)
      .selectAll("path")
      .data(wanted, (d) => d.index)
      .join("path");
    if (moving) joined.transition("move").duration(550).attr("d", path);
    else joined.interrupt("move").attr("d", path);
  }

  function paths() {
    const { x, y, layers } = frame;
    const chosen = data.training && data.stops.length > 1 ? [...state.heads].slice(0, MOST_PATHS) : [];
    const table = data.table(state.window);
    const line = d3
      .line()
      .defined(([r_q, r_k]) => !Number.isNaN(r_q + r_k))
      .x(([r_q]) => x(r_q))
      .y(([, r_k]) => y(r_k));
    const groups = chosen.map((head) => {
      const way = data.stops.map(({ index }) => place(head, index));
      const code = data.code(table, "class", state.stop, head);
      const group = s(
        "g",
        { style: `--kind:${qk.colour("class", code)}` },
        s("path", { d: line(way) || "", class: "way" }),
        s("path", { d: line(way.slice(0, state.stop + 1)) || "", class: "way been" }),
      );
      if (chosen.length <= 12)
        way.forEach(([r_q, r_k], i) => {
          if (!Number.isNaN(r_q + r_k))
            group.append(
              s("circle", { cx: x(r_q), cy: y(r_k), r: 2, class: i <= state.stop ? "stop been" : "stop" }),
            );
        });
      return group;
    });
    layers.paths.replaceChildren(...groups);
    layers.paths.classList.toggle("many", chosen.length > 12);
  }

  /* ---- the box: drag to select, for mouse and pen; a finger scrolls and taps ---- */

  function inside(x0, y0, x1, y1) {
    const { x, y } = frame;
    return visible()
      .filter(({ index }) => {
        const [r_q, r_k] = place(index);
        return x(r_q) >= x0 && x(r_q) <= x1 && y(r_k) >= y0 && y(r_k) <= y1;
      })
      .map(({ index }) => index);
  }

  /* The head nearest to a place of the drawing, if it is within a fingertip. */
  function nearest(px, py, reach = 18) {
    const { x, y } = frame;
    let best = null;
    let least = reach;
    for (const { index } of visible()) {
      const [r_q, r_k] = place(index);
      const away = Math.hypot(x(r_q) - px, y(r_k) - py);
      if (away < least) [best, least] = [index, away];
    }
    return best;
  }

  function listenToBox(svg, layer) {
    let from = null;
    let dragged = false;
    const where = (event) => d3.pointer(event, svg);
    const corners = (event) => {
      const [x, y] = where(event);
      return [Math.min(x, from[0]), Math.min(y, from[1]), Math.max(x, from[0]), Math.max(y, from[1])];
    };
    svg.addEventListener("pointerdown", (event) => {
      dragged = false;
      if (event.button === 0 && event.pointerType !== "touch") from = where(event);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!from) return;
      const [x0, y0, x1, y1] = corners(event);
      if (!dragged && x1 - x0 + y1 - y0 < 6) return;
      if (!dragged) svg.setPointerCapture(event.pointerId);
      dragged = true;
      qk.hideTip();
      layer.replaceChildren(s("rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0 }));
    });
    svg.addEventListener("pointerup", (event) => {
      if (from && dragged) {
        const found = inside(...corners(event));
        layer.replaceChildren();
        if (found.length) qk.select(found, event);
      }
      from = null;
    });
    svg.addEventListener("pointercancel", () => {
      from = null;
      layer.replaceChildren();
    });
    // The click that ends a drag is none on the point it ends on.
    svg.addEventListener(
      "click",
      (event) => {
        if (dragged) event.stopPropagation();
        dragged = false;
      },
      true,
    );
    // Points are small for a finger: beside them the nearest one is meant.
    svg.addEventListener("click", (event) => {
      if (event.target.closest(".mark")) return;
      const near = nearest(...where(event));
      if (near !== null) qk.select([near], event);
    });
  }

  function setUp() {
    const parts = qk.player.make();
    if (data.own.r_q_se) {
      const choices = ["selected", "all", "none"].map((name) => [name, name]);
      controls = qk.options("bars", "Error bars", choices, state.bars, (value) => qk.set({ bars: value }));
      parts.push(controls);
    }
    document.getElementById("portrait-controls").replaceChildren(...parts);
  }

  function explain() {
    const table = data.table(state.window);
    const present = data.heads.filter(
      ({ index }) => data.code(table, "class", state.stop, index) >= 0,
    ).length;
    const list = visible();
    const said = [`${qk.headCount(list.length)} of ${qk.count(present)} at ${data.stops[state.stop].label}.`];
    const lacking = data.heads.filter(
      ({ index }) => data.code(table, "class", state.stop, index) === data.classes.length - 1,
    ).length;
    if (lacking) said.push(`${qk.headCount(lacking)} unmeasured here.`);
    if (!data.training) said.push("Different models: heads have no path from one to the next.");
    else if (data.stops.length === 1) said.push("One checkpoint: heads have no path to draw.");
    else if (state.heads.size > MOST_PATHS) said.push(`Paths of the first ${MOST_PATHS} selected heads.`);
    if (!table.r_q_se) said.push("The results hold no standard errors, so points have no error bars.");
    if (!data.hasRope) said.push("The results do not say which layers rotate: all points are circles.");
    note.textContent = said.join(" ");
  }

  function draw(keys) {
    const fresh = !frame || !keys || keys.has("size");
    if (fresh) named = false;
    if (fresh) build();
    const moving = !fresh && keys.has("stop") && data.training && !qk.reducedMotion();
    if (!fresh && qk.selectionOnly(keys)) markSelected();
    else points(moving);
    bars(moving);
    paths();
    qk.player.draw();
    if (controls) qk.choose(controls, state.bars);
    explain();
  }

  qk.portrait = { setUp, draw, needs: ["stop", "heads", "filter", "window", "bars"] };
})();
