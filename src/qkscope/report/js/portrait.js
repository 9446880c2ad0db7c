// @ts-check
/* Phase portrait: every head by two measures, r_q and r_k to begin with, at the chosen checkpoint; the points move as
 * training goes on. Of two runs, a line leads from each head to where it stands in the second. What lies behind the
 * points is in portrait_frame.js. */
"use strict";

const portrait = (() => {
  const { state } = store;
  const { s, h } = dom;
  const drawing = dom.find("portrait-drawing");
  const MOST_PATHS = 150;
  const CIRCLE = d3.symbol(d3.symbolCircle, 42)() || "";
  const DIAMOND = d3.symbol(d3.symbolDiamond2, 44)() || "";

  /** @type {Record<string, HTMLElement & { value?: string }>} */
  const controls = {};
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let naming;
  let named = false;
  /** @type {ReturnType<typeof portraitFrame.build> | null} as drawn last */
  let frame = null;

  const { table } = store;
  /** @type {(element: Element) => number} */
  const headOf = (element) => /** @type {any} */ (element).__data__.index;

  /* ---- where a head stands, and in which colour ---- */

  /** @type {(head: number, checkpoint?: number, run?: number) => [number, number]} */
  const valuesOf = (head, checkpoint = state.checkpoint, run = store.runs()[0]) => [
    data.value(store.table(run), state.across, checkpoint, head),
    data.value(store.table(run), state.up, checkpoint, head),
  ];

  /** @type {(head: number) => [number, number]} */
  function spot(head) {
    const [a, b] = valuesOf(head);
    return frame ? [frame.x(a), frame.y(b)] : [0, 0];
  }

  function visible() {
    const shown = store.shown();
    return data.heads.filter(({ index }) => {
      const [a, b] = valuesOf(index);
      return (!shown || shown.has(index)) && !Number.isNaN(a + b);
    });
  }

  /* The colour of a head: its class's, its population's, or a number on a ramp. */
  function tinter() {
    const { tint } = state;
    if (tint === "class")
      return (/** @type {number} */ head) => paint.colour(data.code(table(), state.checkpoint, head));
    if (tint === "rope")
      return (/** @type {number} */ head) => paint.ofPopulation(data.heads[head].population);
    const colour = paint.ramp(portraitFrame.extent(tint), tint);
    return (/** @type {number} */ head) => {
      const value = data.value(table(), tint, state.checkpoint, head);
      return Number.isNaN(value) ? "var(--faint)" : colour(value);
    };
  }

  /** @type {(index: number, meaning: boolean) => (string | null)[]} */
  function lines(index, meaning) {
    /** @param {string} name */
    const numbers = (name) =>
      store.runs().map((run) => ({
        ...data.estimate(table(run), name, state.checkpoint, index),
        whose: axes.letterOf(run),
      }));
    const kinds = store
      .runs()
      .map((run) => data.classes[data.code(table(run), state.checkpoint, index)] || "not measured");
    const kind = [...new Set(kinds)].join(" in A, ") + (new Set(kinds).size > 1 ? " in B" : "");
    const { rope } = data.heads[index];
    const name = data.headName(index);
    const tinted = store.choices.across.includes(state.tint) ? [state.tint] : [];
    const names = [...new Set([state.across, state.up, ...tinted])];
    const another = data.anotherAxis(table(), state.checkpoint, index) ? "a different direction became PC0" : null;
    return [
      `${name[0].toUpperCase()}${name.slice(1)} · ${data.labelOf(state.checkpoint)}`,
      ...text.described(
        names.flatMap(numbers),
        [`${kind}${rope === null ? "" : rope === 1 ? ", RoPE" : ", NoPE"}`, another],
        meaning,
      ),
    ];
  }

  function legend() {
    const { tint } = state;
    /** @type {HTMLElement[]} */
    let items;
    if (tint === "class")
      items = data.classes.flatMap((name, code) =>
        name === data.unmeasured || !table().classes[data.taxonomy].codes.includes(code)
          ? []
          : [dom.symbolKey("●", name, paint.colour(code))],
      );
    else if (tint === "rope")
      items = data.populations.map((name) => dom.symbolKey("●", name, paint.ofPopulation(name)));
    else {
      const look = { percent: data.isShare(tint), measure: tint };
      items = paint.rampKeys(data.measureLabel(tint), portraitFrame.extent(tint), look);
    }
    const changed = data.heads.some(({ index }) => data.anotherAxis(table(), state.checkpoint, index));
    return dom.legend(
      items,
      data.populations.length > 1 ? dom.key(null, "● RoPE ◆ NoPE") : null,
      changed ? dom.key(null, "○ a different direction became PC0") : null,
      store.both() ? dom.key(h("i", { class: "move" }), "from A to where it stands in B") : null,
    );
  }

  /* ---- the points ---- */

  /* Points stay in the page as they move; only heads that come or go are made or removed. */
  /** @param {boolean} moving */
  function points(moving) {
    if (!frame) return;
    const tint = tinter();
    const at = (/** @type {Head} */ { index }) => `translate(${spot(index).join(",")})`;
    const joined = d3
      .select(frame.layers.points)
      .selectAll("path")
      .data(visible(), (d) => /** @type {Head} */ (d).index)
      .join((enter) =>
        enter
          .append("path")
          .attr("transform", at)
          .attr("d", (d) => (d.rope === 0 ? DIAMOND : CIRCLE))
          .each(function make(d) {
            marks.mark(this, {
              key: `head:${d.index}`,
              named: false, // soon: see `name`
              say: (meaning) => lines(d.index, meaning),
              act: (event) => store.select([d.index], event),
              pressed: false,
            });
          }),
      );
    joined.each(function dress(d) {
      const path = /** @type {SVGPathElement} */ (this);
      path.style.setProperty("--kind", tint(d.index));
      const another = data.anotherAxis(table(), state.checkpoint, d.index);
      path.setAttribute("class", `mark point${another ? " open" : ""}`);
    });
    clearTimeout(naming);
    if (named) naming = setTimeout(name, 200);
    else name();
    markSelected();
    (moving ? joined.transition("move").duration(550) : joined.interrupt("move")).attr("transform", at);
    marks.rove(drawing);
  }

  /* Labels take as long as all the rest: after the first time they follow the points' move. */
  function name() {
    named = true;
    for (const point of frame?.layers.points.children || [])
      marks.name(point, lines(headOf(point), false), "Select this head.");
  }

  function markSelected() {
    frame?.layers.points.classList.toggle("some", state.heads.size > 0);
    frame?.layers.points.classList.toggle("ramped", store.choices.across.includes(state.tint));
    for (const point of frame?.layers.points.children || []) {
      const picked = state.heads.has(headOf(point));
      if (point.classList.contains("selected") !== picked) point.classList.toggle("selected", picked);
      point.setAttribute("aria-pressed", String(picked));
    }
  }

  /** @param {boolean} moving */
  function bars(moving) {
    if (!frame) return;
    const { x, y, layers } = frame;
    const known = data.has(`${state.across}_se`) || data.has(`${state.up}_se`);
    const wanted = known ? visible().filter(({ index }) => state.heads.has(index)) : [];
    const path = (/** @type {Head} */ { index }) => {
      const [a, b] = valuesOf(index);
      const [ea, eb] = [state.across, state.up].map(
        (one) => data.value(table(), `${one}_se`, state.checkpoint, index) || 0,
      );
      return `M${x(a - ea)},${y(b)}H${x(a + ea)}M${x(a)},${y(b - eb)}V${y(b + eb)}`;
    };
    const joined = d3
      .select(layers.bars)
      .selectAll("path")
      .data(wanted, (d) => /** @type {Head} */ (d).index)
      .join("path");
    (moving ? joined.transition("move").duration(550) : joined.interrupt("move")).attr("d", path);
  }

  /* Lines from each head's place in the first run to its place in the second. */
  function moves() {
    if (!frame) return;
    const { x, y, layers } = frame;
    const tint = tinter();
    const drawn = (store.both() ? visible() : []).flatMap(({ index }) => {
      const [[a, b], [c, d]] = [0, 1].map((run) => valuesOf(index, state.checkpoint, run));
      if (Number.isNaN(c + d)) return [];
      const picked = state.heads.has(index) ? "move picked" : "move";
      const way = `M${x(a)},${y(b)}L${x(c)},${y(d)}`;
      const end = s("circle", { cx: x(c), cy: y(d), r: 2.2 });
      return [s("g", { class: picked, style: `--kind:${tint(index)}` }, s("path", { d: way }), end)];
    });
    layers.moves.replaceChildren(...drawn);
    layers.moves.classList.toggle("some", state.heads.size > 0);
  }

  function paths() {
    if (!frame) return;
    const { x, y, layers } = frame;
    const chosen = data.training && data.checkpoints.length > 1 ? [...state.heads].slice(0, MOST_PATHS) : [];
    const tint = tinter();
    /** @type {PathOf} */
    const line = d3
      .line()
      .defined(([a, b]) => !Number.isNaN(a + b))
      .x(([a]) => x(a))
      .y(([, b]) => y(b));
    const groups = chosen.map((head) => {
      const way = data.checkpoints.map(({ index }) => valuesOf(head, index));
      const group = s(
        "g",
        { style: `--kind:${tint(head)}` },
        s("path", { d: line(way) || "", class: "way" }),
        s("path", { d: line(way.slice(0, state.checkpoint + 1)) || "", class: "way been" }),
      );
      if (chosen.length <= 12)
        way.forEach(([a, b], i) => {
          const been = i <= state.checkpoint ? "checkpoint been" : "checkpoint";
          if (!Number.isNaN(a + b)) group.append(s("circle", { cx: x(a), cy: y(b), r: 2, class: been }));
        });
      return group;
    });
    layers.paths.replaceChildren(...groups);
    layers.paths.classList.toggle("many", chosen.length > 12);
  }

  /* ---- choosing by place: a box, or the point nearest to a fingertip ---- */

  /** @type {(box: number[], event: PointerEvent) => void} */
  function selectBox([x0, y0, x1, y1], event) {
    const found = visible()
      .map(({ index }) => index)
      .filter((head) => {
        const [px, py] = spot(head);
        return px >= x0 && px <= x1 && py >= y0 && py <= y1;
      });
    if (found.length) store.select(found, event);
  }

  /** @type {(at: [number, number], event: MouseEvent) => void} */
  function selectNear([px, py], event) {
    let best = null;
    let least = 18;
    for (const { index } of visible()) {
      const [x, y] = spot(index);
      const away = Math.hypot(x - px, y - py);
      if (away < least) [best, least] = [index, away];
    }
    if (best !== null) store.select([best], event);
  }

  /* ---- together ---- */

  /** @type {(key: "across" | "up" | "tint", label: string, names: string[]) => HTMLElement} */
  function axisMenu(key, label, names) {
    const { field, box } = dom.menu(
      key,
      label,
      names.map((one) => [one, one === "rope" ? "RoPE/NoPE" : data.measureName(one), data.measureMeans(one)]),
      state[key],
      (value) => store.set({ [key]: value }),
    );
    controls[key] = box;
    return field;
  }

  function setUp() {
    const menus = h(
      "div",
      { class: "menus" },
      axisMenu("across", "Across", store.choices.across),
      axisMenu("up", "Up", store.choices.up),
      axisMenu("tint", "Colour", store.choices.tint),
    );
    dom.find("portrait-controls").replaceChildren(...player.make(), menus);
  }

  function explain() {
    const codes = data.heads.map(({ index }) => data.code(table(), state.checkpoint, index));
    const present = codes.filter((code) => code >= 0).length;
    const label = data.labelOf(state.checkpoint);
    const over = data.matched ? `, ${data.windowName(state.window)}` : "";
    const said = [`${text.headCount(visible().length)} of ${text.count(present)} at ${label}${over}.`];
    const lacking = codes.filter((code) => data.classes[code] === data.unmeasured).length;
    if (lacking) said.push(`${text.headCount(lacking)} unmeasured here.`);
    if (!data.training) said.push("Different models: heads have no path from one to the next.");
    else if (state.heads.size > MOST_PATHS) said.push(`Paths of the first ${MOST_PATHS} selected heads.`);
    if (!data.hasRope) said.push("The results do not say which layers have RoPE.");
    dom.note("portrait", said);
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    const rebuilt = ["size", "across", "up", "window", "run", "tint", "taxonomy"];
    const fresh = !frame || !keys || rebuilt.some((key) => keys.has(key));
    if (fresh) {
      named = false;
      frame = portraitFrame.build(drawing, { box: selectBox, near: selectNear });
      marks.mount(drawing, legend(), frame.svg);
    } else if (keys.has("checkpoint")) drawing.querySelector(".legend")?.replaceWith(legend());
    const moving = !fresh && keys.has("checkpoint") && data.training && !dom.reducedMotion();
    if (!fresh && store.selectionOnly(keys)) markSelected();
    else points(moving);
    bars(moving);
    moves();
    paths();
    player.draw();
    for (const key of ["across", "up", "tint"]) controls[key].value = state[key];
    explain();
  }

  /** @type {View} */
  return {
    setUp,
    draw,
    needs: ["checkpoint", "heads", "filter", "window", "run", "across", "up", "tint", "taxonomy"],
  };
})();
