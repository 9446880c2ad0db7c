// @ts-check
/* What charts over checkpoints share: the axis, what lies behind the marks. */
"use strict";

const axes = (() => {
  const { s } = dom;
  const { shorten, count } = text;
  const { mark } = marks;

  /* ---- axes of checkpoints ---- */

  /* Evenly many of the checkpoints when each takes `room` pixels: always the first and the last. */
  /** @type {(width: number, room: number) => number[]} */
  function spread(width, room) {
    const n = data.checkpoints.length;
    const fit = Math.max(2, Math.floor(width / room));
    if (n <= fit) return d3.range(n);
    return [...new Set(d3.range(fit).map((i) => Math.round((i * (n - 1)) / (fit - 1))))];
  }

  const LETTER = 7; // pixels of a letter at 12 px, on average

  /* How to label checkpoints `step` pixels apart: side by side, slanted, or every n-th. */
  /** @typedef {{ every: number, slant: boolean, room: number, names: string[] }} Labelling */
  /** @type {(checkpoints: number[], step: number) => Labelling} */
  function labelling(checkpoints, step) {
    const names = checkpoints.map((checkpoint) => shorten(data.labelOf(checkpoint), 12));
    const longest = Math.max(...names.map((name) => name.length)) * LETTER;
    /** @param {number} every */
    const flat = (every) => ({ every, slant: false, room: 18, names });
    if (longest + 4 <= step) return flat(1);
    if (step < 17) return flat(Math.ceil((longest + 12) / step));
    return { every: 1, slant: true, room: Math.round(longest * 0.66 + 14), names };
  }

  /* The names of checkpoints below a drawing, the chosen one in bold. */
  /** @type {(checkpoints: number[], at: (i: number) => number, y: number, labels: Labelling) => SVGElement} */
  function checkpointLabels(checkpoints, at, y, { every, slant, names }) {
    const layer = s("g", { class: "axis", "aria-hidden": "true" });
    checkpoints.forEach((checkpoint, i) => {
      if (i % every) return;
      const kind = `tick${slant ? " end" : ""}${checkpoint === store.state.checkpoint ? " chosen" : ""}`;
      const transform = slant ? `rotate(-40 ${at(i)} ${y})` : null;
      layer.append(s("text", { x: at(i), y, transform, class: kind }, names[i]));
    });
    return layer;
  }

  const checkpointWord = data.training ? "checkpoint" : "model";

  /** @type {(index: number) => [string, string]} */
  function checkpointLines(index) {
    const { label, phase } = data.checkpoints[index];
    const here = store.runs().map((run) => data.checkpointIn(run, index));
    const names = [...new Set(here.map(({ model }) => model))].filter((name) => name !== label);
    const sizes = [...new Set(here.map(({ window: size }) => size))].filter((size) => size !== null);
    const context = sizes.length ? `training context ${sizes.map(count).join(" and ")}` : null;
    const parts = [...names, phase, context];
    return [label, parts.filter(Boolean).join(" · ")];
  }

  /* ---- classes ---- */

  /* A choice of how heads are sorted into classes, for the controls of a view; nothing where there is one way. */
  /** @type {(view: string) => HTMLElement[]} */
  const taxonomyChoice = (view) =>
    data.taxonomies.length < 2
      ? []
      : [
          dom.options(
            `${view}-taxonomy`,
            "Class by",
            data.taxonomies.map((name) => [name, data.taxonomyOf(name).label]),
            data.taxonomy,
            store.sortBy,
          ),
        ];

  /** @param {string} view */
  const showTaxonomy = (view) => dom.choose(dom.find(`${view}-controls`).querySelector("fieldset"), data.taxonomy);

  /* What the classes shown mean, in a sentence or two. */
  const taxonomyMeans = () => data.taxonomyOf(data.taxonomy).means;

  /* ---- layers ---- */

  const nope = new Set(data.heads.filter((head) => head.population === "NoPE").map(({ layer }) => layer));
  /** @param {number} layer */
  const isNope = (layer) => nope.has(layer);
  /* Room on the left for the names of layers. */
  const layerMargin = nope.size ? 78 : 40;

  /* Names of layers beside their rows of `tall` pixels; those with NoPE are marked, and always named. */
  /** @type {(layers: number[], tall: number) => any} */
  function layerNames(layers, tall) {
    const every = Math.ceil(13 / tall);
    return Plot.text(
      layers.filter((layer, i) => isNope(layer) || i % every === 0),
      {
        y: (d) => d,
        frameAnchor: "left",
        dx: -8,
        text: (d) => (isNope(d) ? `NoPE ◆ ${d}` : String(d)),
        textAnchor: "end",
        fill: (d) => (isNope(d) ? "var(--NoPE)" : "var(--muted)"),
      },
    );
  }

  /* ---- two runs ---- */

  /* Beside the first run's, a line of the second is dashed and its points are hollow. */
  /** @param {number} run */
  const isSecond = (run) => store.both() && run === 1;
  /** @param {number} run */
  const dashOf = (run) => (isSecond(run) ? "6 4" : undefined);

  /* The letter of a run where the page shows both. */
  /** @param {number} run */
  const letterOf = (run) => (store.both() ? data.letters[run] : "");

  /* "A: " before a sentence about a run, where the page has two. */
  /** @type {(run: number, said: string) => string} */
  const ofRun = (run, said) => (store.both() ? `${data.letters[run]}: ${said}` : said);

  /* Keys of a legend for the runs shown, where the page has two. */
  function runKeys() {
    if (!data.runNames.length) return [];
    return store.runs().map((run) =>
      dom.key(
        dom.h("i", { class: isSecond(run) ? "dash" : "line" }),
        `${data.letters[run]} ${shorten(data.runNames[run], 28)}`,
      ),
    );
  }

  /* Plot's options for an x axis of checkpoints, numbered 0, 1, ..., with room for phases above. */
  /** @type {(width: number, height: number, title: string) => any} */
  function checkpointAxis(width, height, title) {
    const [marginLeft, marginRight, marginTop] = [40, 14, 44];
    const n = data.checkpoints.length;
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
      x: {
        type: "linear",
        domain: [-half, n - 1 + half],
        ticks: d3.range(0, n, every),
        label: null,
        tickSize: 0,
        tickPadding: 8,
        tickRotate: slant ? -40 : 0,
        tickFormat: (/** @type {number} */ i) => names[i],
      },
      marks: [titled(title), ...checkpointGround(step)],
    };
  }

  /* A phase's name where there is room for so many letters: else what the labels of its checkpoints begin with, as in
   * S2-650, or nothing. */
  /** @type {(phase: [string, number, number], letters: number) => string} */
  function phaseName([label, first, last], letters) {
    if (!label || label.length <= letters) return label || "";
    const begin = d3.range(first, last + 1).map((i) => data.checkpoints[i].label.match(/^(.+)-[^-]+$/)?.[1] || "");
    const short = begin.every((word) => word === begin[0]) ? begin[0] : "";
    if (letters < Math.min(3, short.length || 3)) return "";
    return short || shorten(label, letters);
  }

  /* Behind the marks: alternating phases with their names, window changes, the chosen checkpoint. */
  /** @param {number} step */
  function checkpointGround(step) {
    const phases = data.phases.map((phase, i) => ({
      ...{ phase, x1: phase[1] - 0.5, x2: phase[2] + 0.5, shade: i % 2 === 1 },
    }));
    const several = phases.length > 1;
    const changes = store.state.window === "own" ? data.windowChanges.map((i) => i - 0.5) : [];
    return [
      Plot.rectX(several ? phases.filter(({ shade }) => shade) : [], {
        x1: "x1",
        x2: "x2",
        fill: "var(--shade)",
      }),
      Plot.ruleX(changes, { stroke: "var(--muted)", strokeDasharray: "3 3" }),
      Plot.text(several ? phases : [], {
        ...{ x: (d) => (d.x1 + d.x2) / 2, frameAnchor: "top", dy: -10, fill: "var(--muted)", fontSize: 11 },
        text: (d) => phaseName(d.phase, Math.floor(((d.x2 - d.x1) * step - 6) / 6.4)),
      }),
    ];
  }

  /* A chart over checkpoints: a drawing of Plot's with a mark over each checkpoint, as wide as its column, that chooses
   * it. `lines` is what a column says, with or without what its measures mean. The chosen one is shaded; `showChosen`
   * moves the shade without drawing anew. */
  /** @type {(options: any, about: { name: string, prefix?: string,
   *   lines: (index: number, meaning: boolean) => (string | null)[] }) => Drawn} */
  function checkpointChart(options, { name, lines, prefix = "checkpoint" }) {
    const svg = plot(options);
    const x = /** @type {any} */ (svg.scale("x"));
    const [bottom, top] = /** @type {any} */ (svg.scale("y")).range;
    const layer = s("g", { class: "columns-layer" });
    for (const { index, model } of data.checkpoints) {
      const from = x.apply(index - 0.5);
      const box = { x: from, y: top, width: x.apply(index + 0.5) - from, height: bottom - top, fill: "transparent" };
      layer.append(
        mark(s("rect", box), {
          key: `${prefix}:${model}`,
          say: (meaning) => lines(index, meaning),
          verb: `Choose this ${checkpointWord}.`,
          act: () => store.set({ checkpoint: index }),
        }),
      );
    }
    svg.append(layer);
    showChosen(svg);
    dress(svg, name);
    return svg;
  }

  /** @param {Drawn} svg */
  function showChosen(svg) {
    const { checkpoint } = store.state;
    const columns = [...(svg.querySelector(".columns-layer")?.children || [])];
    columns.forEach((column, index) => column.setAttribute("aria-pressed", String(index === checkpoint)));
    svg.querySelector(".chosen-checkpoint")?.remove();
    if (columns.length < 2) return;
    const shade = s("rect", { class: "chosen-checkpoint", "aria-hidden": "true" });
    for (const name of ["x", "y", "width", "height"])
      shade.setAttribute(name, columns[checkpoint].getAttribute(name) || "0");
    svg.querySelector("g")?.before(shade);
  }

  /* A drawing of Plot's: without legends of its own it is an SVG. */
  /** @type {(options: any) => Drawn} */
  const plot = (options) =>
    /** @type {Drawn} */ (
      Plot.plot({ className: "plot", style: { fontSize: "12px", background: "none", overflow: "visible" }, ...options })
    );

  /** @param {number} [ticks] */
  const grid = (ticks) => Plot.gridY({ ticks, stroke: "var(--rule)", strokeOpacity: 1 });

  /* One standard error up and down from points that have one. */
  /** @type {(points: any[], look: any) => any} */
  function errorBars(points, { y, ...look }) {
    const known = points.filter(({ se }) => se !== null && !Number.isNaN(se));
    return Plot.ruleX(known, { strokeWidth: 1.6, ...look, y1: (d) => d[y] - d.se, y2: (d) => d[y] + d.se });
  }

  /* What the y axis shows, above its top; `left` and `up` are the margins there. */
  /** @type {(said: string, left?: number, up?: number) => any} */
  const titled = (said, left = 36, up = 40) =>
    Plot.text([said], {
      ...{ frameAnchor: "top-left", dx: -left, dy: -up, text: (/** @type {string} */ d) => d },
      ...{ fill: "var(--muted)", textAnchor: "start", lineAnchor: "top" },
    });

  /* A share at a tick of an axis: a decimal where ticks are closer than a percent. */
  /** @param {number} v */
  const percent = (v) => `${text.number(100 * v, Math.abs(100 * v - Math.round(100 * v)) < 0.05 ? 0 : 1)}%`;

  /* A drawing of Plot's for a screen reader: one named group of marks; axes, lines and grids stay silent. */
  /** @type {(svg: Element, label: string) => void} */
  function dress(svg, label) {
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", label);
    for (const group of svg.querySelectorAll("g[aria-label]")) {
      group.removeAttribute("aria-label");
      if (!group.querySelector(".mark")) group.setAttribute("aria-hidden", "true");
    }
  }

  /** @param {Element} container */
  const widthOf = (container) => Math.max(280, container.clientWidth || 600);

  return {
    ...{ spread, labelling, checkpointLabels, phaseName, checkpointWord, checkpointAxis, checkpointLines },
    ...{ checkpointChart, showChosen, plot, dress, grid, errorBars, titled, percent },
    ...{ isSecond, dashOf, letterOf, ofRun, runKeys, taxonomyChoice, showTaxonomy, taxonomyMeans },
    ...{ isNope, layerMargin, layerNames, widthOf },
  };
})();
