// @ts-check
/* What the phase portrait stands in: axes, the lines between classes with their names, and the box that a pointer
 * drags. Mouse and pen drag a box; a finger scrolls and taps. */
"use strict";

const portraitFrame = (() => {
  const { state } = store;
  const { s } = dom;
  const { high, low } = data.thresholds;

  /** @typedef {{ box: (corners: number[], event: PointerEvent) => void,
   *   near: (at: [number, number], event: MouseEvent) => void }} Choosing */

  /* Where a class begins on each measure that has classes. */
  /** @type {Record<string, number[]>} */
  const LIMITS = { r_q: [low, high], r_k: [-high, -low, low, high], abs_r_k: [low, high] };

  /* The range of a measure over all checkpoints of the window shown; correlations have theirs. */
  /** @type {(name: string) => [number, number]} */
  function extent(name) {
    if (name === "r_k") return [-1, 1];
    const ends = store
      .runs()
      .flatMap((run) =>
        d3.extent(store.table(run).columns[name] || [], (v) => (Number.isNaN(v) ? undefined : v)),
      );
    const [least, most] = d3.extent(ends, (v) => v);
    if (LIMITS[name]) return [Math.min(0, least ?? 0), 1];
    return [Math.min(0, least ?? 0), most ?? 1];
  }

  /** @type {(name: string, pixels: [number, number]) => LinearScale} */
  function scaleOf(name, pixels) {
    const [least, most] = extent(name);
    const room = 0.03 * (most - least || 1);
    return d3.scaleLinear([least - room, most + room], pixels);
  }

  /* Ticks at the limits of classes where there are some, wherever they are round otherwise. */
  /** @type {(name: string, scale: LinearScale) => number[]} */
  function ticksOf(name, scale) {
    if (!LIMITS[name]) return scale.ticks(6);
    const [least, most] = scale.domain();
    return [-1, ...LIMITS[name], 0, 1].filter((t) => t >= least && t <= most);
  }

  /** @type {(x: LinearScale, y: LinearScale) => SVGElement} */
  function limitLines(x, y) {
    const layer = s("g", { class: "thresholds", "aria-hidden": "true" });
    const [left, right] = x.range();
    const [bottom, top] = y.range();
    for (const t of LIMITS[state.across] || [])
      layer.append(s("line", { x1: x(t), x2: x(t), y1: bottom, y2: top }));
    for (const t of LIMITS[state.up] || [])
      layer.append(s("line", { x1: left, x2: right, y1: y(t), y2: y(t) }));
    return layer;
  }

  /* Names of the classes in their fields: at the outer edge of each, clear of the crowd in the middle. */
  /** @type {(x: LinearScale, y: LinearScale) => SVGElement} */
  function regionNames(x, y) {
    const layer = s("g", { class: "regions", "aria-hidden": "true" });
    if (state.across !== "r_q" || state.up !== "r_k" || data.taxonomy !== "published") return layer;
    const [left, right] = x.range();
    const [bottom, top] = y.range();
    for (const { name, r_q, r_k } of data.regions) {
      const side = r_q > high ? "end" : r_q < low ? "start" : "middle";
      const across = { end: right - 6, start: left + 6, middle: x(r_q) }[side];
      const up = r_k > high ? top + 15 : r_k < -high ? bottom - 7 : r_k < 0 ? y(r_k) : y(-low) - 7;
      layer.append(s("text", { x: across, y: up, "text-anchor": side }, name));
    }
    return layer;
  }

  /** @type {(x: LinearScale, y: LinearScale, width: number, height: number) => SVGElement} */
  function scales(x, y, width, height) {
    const layer = s("g", { class: "axis", "aria-hidden": "true" });
    const [bottom] = y.range();
    const [left] = x.range();
    /** @type {(name: string, t: number) => string} */
    const said = (name, t) => {
      if (data.isShare(name)) return axes.percent(t);
      return LIMITS[name] ? text.number(t, 1) : d3.format("~g")(t).replace("-", "−");
    };
    for (const t of ticksOf(state.across, x))
      layer.append(s("text", { x: x(t), y: bottom + 18, class: "tick" }, said(state.across, t)));
    for (const t of ticksOf(state.up, y))
      layer.append(s("text", { x: left - 8, y: y(t) + 4, class: "tick end" }, said(state.up, t)));
    const of = { r_q: "  queries", r_k: "  keys", abs_r_k: "  keys" };
    /** @param {string} name */
    const named = (name) => data.measureLabel(name) + (of[/** @type {keyof of} */ (name)] || "");
    const across = { x: width - 10, y: height - 4, class: "axis-name end" };
    layer.append(s("text", across, `${named(state.across)} →`));
    layer.append(s("text", { x: 4, y: 12, class: "axis-name" }, `↑ ${named(state.up)}`));
    return layer;
  }

  /** @type {(container: HTMLElement, choosing: Choosing) => { svg: SVGSVGElement, x: LinearScale, y: LinearScale,
   *   layers: Record<"moves" | "paths" | "bars" | "points" | "box", SVGGElement> }} */
  function build(container, choosing) {
    const width = axes.widthOf(container);
    const height = Math.round(Math.min(520, Math.max(340, width * 0.86)));
    const x = scaleOf(state.across, [44, width - 10]);
    const y = scaleOf(state.up, [height - 40, 20]);
    const [left, right] = x.range();
    const [bottom, top] = y.range();
    const [one, other] = [data.measureLabel(state.across), data.measureLabel(state.up)];
    const svg = s("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      class: "chart portrait",
      role: "group",
      "aria-label": `Scatter of heads: ${one} across, ${other} up. Arrow keys move between heads, Enter selects.`,
    });
    const layers = {
      moves: s("g", { class: "moves", "aria-hidden": "true" }),
      paths: s("g", { class: "paths", "aria-hidden": "true" }),
      bars: s("g", { class: "bars", "aria-hidden": "true" }),
      points: s("g", { class: "points" }),
      box: s("g", { class: "box" }),
    };
    svg.append(
      s("rect", { x: left, y: top, width: right - left, height: bottom - top, class: "ground" }),
      limitLines(x, y),
      s("line", { x1: left, x2: right, y1: y(0), y2: y(0), class: "zero" }),
      scales(x, y, width, height),
      layers.moves,
      layers.paths,
      layers.bars,
      layers.points,
      regionNames(x, y),
      layers.box,
    );
    listen(svg, layers.box, choosing);
    return { svg, x, y, layers };
  }

  /** @type {(svg: SVGSVGElement, layer: SVGGElement, choosing: Choosing) => void} */
  function listen(svg, layer, choosing) {
    /** @type {[number, number] | null} */
    let from = null;
    let dragged = false;
    /** @param {MouseEvent} event */
    const where = (event) => d3.pointer(event, svg);
    /** @type {(start: [number, number], event: PointerEvent) => number[]} */
    const corners = (start, event) => {
      const [x, y] = where(event);
      return [Math.min(x, start[0]), Math.min(y, start[1]), Math.max(x, start[0]), Math.max(y, start[1])];
    };
    svg.addEventListener("pointerdown", (event) => {
      dragged = false;
      if (event.button === 0 && event.pointerType !== "touch") from = where(event);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!from) return;
      const [x0, y0, x1, y1] = corners(from, event);
      if (!dragged && x1 - x0 + y1 - y0 < 6) return;
      if (!dragged) svg.setPointerCapture(event.pointerId);
      dragged = true;
      marks.hideTip();
      layer.replaceChildren(s("rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0 }));
    });
    svg.addEventListener("pointerup", (event) => {
      if (from && dragged) {
        layer.replaceChildren();
        choosing.box(corners(from, event), event);
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
      if (!(event.target instanceof Element && event.target.closest(".mark")))
        choosing.near(where(event), event);
    });
  }

  return { build, extent };
})();
