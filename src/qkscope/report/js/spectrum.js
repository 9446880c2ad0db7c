// @ts-check
/* Wavelengths: how much of a head's scores, or of r_q, each rotary wavelength carries, training downwards: the mean
 * over RoPE heads or one head, and a wall of all heads. */
"use strict";

const spectrum = (() => {
  const { state } = store;
  const { h, s } = dom;
  const LEFT = 74;
  const WALL = 440; // pixels of the wall in view
  const { tokens } = text;

  /** @typedef {{ checkpoint: number, run: number, waves: number[], shares: number[], window: Maybe }} Line */

  const NAMES = { score_energy: "score strength", signal_q: "r_q" };
  const carried = () => /** @type {keyof NAMES} */ (state.carried);
  const shareName = () => `share of ${NAMES[carried()]}`;

  /* Of one head: its pairs' numbers at a checkpoint as shares of their sum. */
  /** @type {(head: number, checkpoint: number, run: number) => Line | null} */
  function ofHead(head, checkpoint, run) {
    const curve = store.over(run).curves.find(({ name }) => name === carried());
    const waves = curve?.waves?.[checkpoint];
    if (!curve || !waves) return null;
    const values = [...data.curve(curve, checkpoint, head, `${run}:${state.window}`)].map(Math.abs);
    const sum = carried() === "signal_q" ? d3.sum(values) : 1;
    if (!values.some((value) => !Number.isNaN(value))) return null;
    const known = d3.range(values.length).filter((i) => waves[i] !== null && !Number.isNaN(values[i]));
    const window_ = store.over(run).wavelengths?.[checkpoint]?.window ?? null;
    return {
      ...{ checkpoint, run, window: window_, waves: known.map((i) => waves[i] || 0) },
      shares: known.map((i) => values[i] / (sum || NaN)),
    };
  }

  /* The mean over RoPE heads at a checkpoint. */
  /** @type {(checkpoint: number, run: number) => Line | null} */
  function ofAll(checkpoint, run) {
    const found = store.over(run).wavelengths?.[checkpoint];
    const shares = found && (carried() === "signal_q" ? found.share : found.energy);
    if (!found || !shares || !found.at.length) return null;
    return { checkpoint, run, window: found.window, waves: found.at, shares: shares.map((share) => share ?? NaN) };
  }

  const one = () => (state.heads.size === 1 && data.training ? [...state.heads][0] : null);

  /** @returns {Line[]} */
  const lines = () =>
    data.checkpoints.flatMap(({ index }) =>
      store.runs().flatMap((run) => {
        const head = one();
        return (head === null ? ofAll(index, run) : ofHead(head, index, run)) || [];
      }),
    );

  /* Where a wavelength stands: in tokens, in windows, or as the number of its pair. */
  /** @type {(line: Line, wave: number, i: number) => number} */
  function position(line, wave, i) {
    if (state.scale === "pair") return i;
    return Math.log2(state.scale === "window" ? wave / (line.window || 1) : wave);
  }

  /** @param {Line} line */
  function edges(line) {
    const at = line.waves.map((wave, i) => position(line, wave, i));
    if (at.length < 2) return [at[0] - 0.5, at[0] + 0.5];
    const between = d3.pairs(at, (a, b) => (a + b) / 2);
    return [2 * at[0] - between[0], ...between, 2 * at[at.length - 1] - between[between.length - 1]];
  }

  /* Where the window stands among a line's wavelengths. */
  /** @param {Line} line */
  function windowPlace(line) {
    if (!line.window) return null;
    if (state.scale === "window") return 0;
    if (state.scale === "tokens") return Math.log2(line.window);
    const after = line.waves.findIndex((wave) => wave >= /** @type {number} */ (line.window));
    if (after <= 0) return after < 0 ? line.waves.length - 0.5 : -0.5;
    const [a, b] = [line.waves[after - 1], line.waves[after]].map(Math.log2);
    return after - 1 + (Math.log2(line.window) - a) / (b - a);
  }

  /** @type {(line: Line, i: number) => [string, ...(string | null)[]]} */
  const said = (line, i) => [
    `${tokens(line.waves[i])} tokens · ${axes.ofRun(line.run, data.labelOf(line.checkpoint))}`,
    `${shareName()} ${text.share(line.shares[i])}`,
    line.window ? `${text.number(line.waves[i] / line.window, 2)} windows of ${text.count(line.window)} tokens` : "",
    data.measureMeans(carried()),
  ];

  /** @type {(list: Line[], width: number) => HTMLElement} */
  function chart(list, width) {
    const tall = list.length <= 24 ? 22 : Math.max(3, Math.floor(480 / list.length));
    const right = 10;
    const height = list.length * tall + 42;
    const spans = list.map(edges);
    const x = d3.scaleLinear(/** @type {[number, number]} */ (d3.extent(spans.flat())), [LEFT, width - right]);
    const most = d3.max(list, (line) => d3.max(line.shares)) || 1;
    const colour = paint.fastRamp([0, most]);
    const [ink, muted] = paint.inks("ink", "muted");
    const written = tall >= 14;
    const every = Math.ceil(13 / tall);
    /** @param {number} at */
    const tick = (at) => {
      if (state.scale === "tokens") return tokens(2 ** at);
      return state.scale === "window" && at < 0 ? `1/${2 ** -at}` : String(state.scale === "pair" ? at : 2 ** at);
    };
    const names = { tokens: "wavelength, tokens", window: "wavelength / window", pair: "rotary pair, fast to slow" };
    return sheet.make({
      id: "spectrum",
      label: `${shareName()} by wavelength and ${axes.checkpointWord}`,
      width,
      height,
      start: { row: Math.max(0, list.findIndex((line) => line.checkpoint === state.checkpoint)), col: 0 },
      paint(context) {
        list.forEach((line, row) => {
          const y = row * tall;
          line.shares.forEach((share, i) => {
            if (Number.isNaN(share)) return;
            const [from, to] = [x(spans[row][i]), x(spans[row][i + 1])];
            context.fillStyle = colour(share);
            context.fillRect(from, y, to - from - (to - from > 6 ? 1 : 0), tall - (tall > 6 ? 1 : 0));
            if (!written || to - from < 18 || share < 0.005) return;
            context.fillStyle = paint.inkFor(colour(share));
            context.textAlign = "center";
            context.fillText(text.number(100 * share, 0), (from + to) / 2, y + tall / 2);
          });
          const at = windowPlace(line);
          if (at !== null) {
            context.fillStyle = ink;
            context.fillRect(x(at) - 1, y, 2, tall);
          }
          if (row % every) return;
          context.fillStyle = line.checkpoint === state.checkpoint ? ink : muted;
          context.textAlign = "right";
          const name = axes.ofRun(line.run, text.shorten(data.labelOf(line.checkpoint), 10));
          context.fillText(name, LEFT - 8, y + tall / 2);
        });
        context.fillStyle = muted;
        context.textAlign = "center";
        const ticks = x.ticks(Math.max(3, Math.floor(width / 90))).filter(Number.isInteger);
        for (const at of ticks) context.fillText(tick(at), x(at), list.length * tall + 12);
        context.textAlign = "right";
        context.fillText(names[/** @type {keyof names} */ (state.scale)], width - right, list.length * tall + 30);
      },
      over: () => {
        const row = list.findIndex((line) => line.checkpoint === state.checkpoint);
        if (row < 0 || data.checkpoints.length < 2) return [];
        const box = { x: LEFT - 1, y: row * tall, width: width - LEFT - right + 2, height: store.runs().length * tall };
        return [s("rect", { ...box, class: "chosen-row" })];
      },
      at(px, py) {
        const row = Math.floor(py / tall);
        if (!list[row]) return null;
        const col = d3.bisectRight(spans[row], x.invert(px)) - 1;
        return col >= 0 && col < list[row].waves.length ? { row, col } : null;
      },
      rows: list.length,
      cols: (row) => list[row].waves.length,
      box({ row, col }) {
        const [from, to] = [x(spans[row][col]), x(spans[row][col + 1])];
        return { x: from, y: row * tall, width: to - from, height: tall };
      },
      lines: ({ row, col }) => said(list[row], col),
      verb: `Choose this ${axes.checkpointWord}.`,
      act: ({ row }) => store.set({ checkpoint: list[row].checkpoint }),
    });
  }

  /* ---- the wall ---- */

  /* All heads as one small picture each, a pixel per pair and checkpoint; null where there are no numbers of them. */
  /** @type {(width: number) => HTMLElement | null} */
  function wall(width) {
    const [run] = store.runs();
    if (!data.training || !store.over(run).curves.some(({ name, waves }) => name === carried() && waves)) return null;
    const turning = data.heads.filter(({ index }) => ofHead(index, data.checkpoints.length - 1, run));
    const layers = [...new Set(turning.map(({ layer }) => layer))];
    const across = d3.max(turning, ({ head }) => head + 1) || 1;
    if (!turning.length) return null;
    const left = 40;
    const step = Math.min(210, (width - left) / across);
    const tall = Math.max(14, Math.min(36, 0.5 * step));
    const thumbs = thumbsOf(turning, run);
    const find = new Map(turning.map((one) => [`${layers.indexOf(one.layer)}:${one.head}`, one.index]));
    const height = 18 + layers.length * (tall + 3);
    const [muted] = paint.inks("muted");
    /** @type {(cell: Cell) => Box} */
    const box = ({ row, col }) => ({ x: left + col * step, y: 18 + row * (tall + 3), width: step - 3, height: tall });
    /** @param {Head} head */
    const cellOf = ({ layer, head }) => ({ row: layers.indexOf(layer), col: head });
    /** @param {Cell} cell */
    const headAt = ({ row, col }) => find.get(`${row}:${col}`);
    return sheet.make({
      id: "wall",
      label: `${shareName()} of every RoPE head by layer and head`,
      width,
      height,
      shown: Math.min(height, WALL),
      start: cellOf(turning[0]),
      paint(context, top) {
        context.imageSmoothingEnabled = false;
        context.fillStyle = muted;
        context.textAlign = "left";
        if (top < 18) context.fillText("layer", 0, 8 - top);
        for (const one of turning) {
          const at = box(cellOf(one));
          const image = thumbs.get(one.index);
          if (!image || at.y + tall < top || at.y - top > WALL) continue;
          context.drawImage(image, at.x, at.y - top, at.width, tall);
        }
        context.textAlign = "right";
        layers.forEach((layer, row) =>
          context.fillText(String(layer), left - 8, 18 + row * (tall + 3) + tall / 2 - top),
        );
      },
      over: () =>
        turning
          .filter(({ index }) => state.heads.has(index))
          .map((one) => s("rect", { ...box(cellOf(one)), class: "chosen-row" })),
      at(px, py) {
        const cell = { row: Math.floor((py - 18) / (tall + 3)), col: Math.floor((px - left) / step) };
        return headAt(cell) === undefined ? null : cell;
      },
      box: (cell) => (headAt(cell) === undefined ? null : box(cell)),
      rows: layers.length,
      cols: () => across,
      lines: (cell) => {
        const head = headAt(cell) ?? 0;
        const line = ofHead(head, state.checkpoint, run);
        const best = line ? d3.maxIndex(line.shares) : -1;
        if (!line || best < 0) return [data.headName(head)];
        const wave = `${tokens(line.waves[best])} tokens, ${text.share(line.shares[best])}`;
        return [data.headName(head), `most at ${data.labelOf(state.checkpoint)}: ${wave}`];
      },
      verb: "Show this head.",
      act: (cell, event) => store.select([headAt(cell) ?? 0], event),
    });
  }

  /** @type {{ key: string, found: Map<number, HTMLCanvasElement | null> }} those drawn last */
  let thumbnails = { key: "", found: new Map() };

  /** @type {(turning: Head[], run: number) => Map<number, HTMLCanvasElement | null>} */
  function thumbsOf(turning, run) {
    const last = data.checkpoints.length - 1;
    const key = [run, state.window, carried(), paint.ramp([0, 1])(0)].join();
    if (thumbnails.key === key) return thumbnails.found;
    const most = d3.quantile(turning.flatMap(({ index }) => ofHead(index, last, run)?.shares || []), 0.99) || 1;
    const colour = paint.fastRamp([0, most]);
    thumbnails = { key, found: new Map(turning.map(({ index }) => [index, thumb(index, run, last + 1, colour)])) };
    return thumbnails.found;
  }

  /** @type {(head: number, run: number, checkpoints: number,
   *   colour: (share: number) => string) => HTMLCanvasElement | null} */
  function thumb(head, run, checkpoints, colour) {
    const rows = d3.range(checkpoints).map((checkpoint) => ofHead(head, checkpoint, run));
    const pairs = d3.max(rows, (row) => row?.shares.length || 0) || 0;
    if (!pairs) return null;
    const canvas = h("canvas", { width: pairs, height: checkpoints });
    const context = canvas.getContext("2d");
    rows.forEach((row, y) =>
      row?.shares.forEach((share, i) => {
        if (!context || Number.isNaN(share)) return;
        context.fillStyle = colour(share);
        context.fillRect(i, y, 1, 1);
      }),
    );
    return canvas;
  }

  /* ---- together ---- */

  /** @param {Line[]} list */
  const numbersTable = (list) =>
    dom.numbers(dom.find("spectrum-drawing"), ["checkpoint", "wavelength, tokens", shareName()], () =>
      list.flatMap((line) =>
        line.waves.map((wave, i) => [
          axes.ofRun(line.run, data.labelOf(line.checkpoint)),
          tokens(wave),
          text.share(line.shares[i]),
        ]),
      ),
    );

  /* One sentence of what the picture shows at the chosen checkpoint. */
  /** @param {Line[]} list */
  function sentence(list) {
    return list
      .filter((line) => line.checkpoint === state.checkpoint)
      .map((line) => {
        const best = d3.maxIndex(line.shares);
        const long = d3.sum(line.shares.filter((_, i) => line.window && line.waves[i] > line.window));
        const beyond = line.window ? `; waves longer than the window carry ${text.share(long)}` : "";
        const share = `${text.share(line.shares[best])} of ${NAMES[carried()]}`;
        const where = axes.ofRun(line.run, `At ${data.labelOf(line.checkpoint)}`);
        return `${where}, the strongest wavelength is ${tokens(line.waves[best])} tokens (${share})${beyond}.`;
      })
      .join(" ");
  }

  function draw() {
    const drawing = dom.find("spectrum-drawing");
    for (const name of ["carried", "scale"])
      dom.choose(document.querySelector(`#spectrum-controls [data-name=${name}]`), state[name]);
    const list = lines();
    if (!list.length) {
      const rotates = one() === null;
      const why = rotates ? "Not measured over this window." : "This head does not rotate: it has no wavelengths.";
      return marks.mount(drawing, dom.absent(why));
    }
    const width = axes.widthOf(drawing);
    const head = one();
    const count = store.over().wavelengths?.[list[0].checkpoint]?.heads || 0;
    const whose = head === null ? `mean over ${text.headCount(count)} with RoPE` : data.headName(head);
    const most = d3.max(list, (line) => d3.max(line.shares)) || 1;
    const small = wall(width);
    const summary = "Every head: training downwards, fast pairs left";
    const open = drawing.querySelector(".every")?.hasAttribute("open");
    const top = drawing.querySelectorAll(".sheet-scroll")[1]?.scrollTop || 0;
    marks.mount(
      drawing,
      h("p", { class: "sentence", id: "spectrum-sentence" }, sentence(list)),
      dom.legend(
        dom.key(null, whose),
        paint.rampKeys(shareName(), [0, most], { percent: true }),
        dom.key(h("i", { class: "bar onset" }), "one window"),
      ),
      chart(list, width),
      small && h("details", { class: "every", open }, h("summary", {}, summary), small),
      numbersTable(list),
    );
    if (small) small.children[0].scrollTop = top;
  }

  function setUp() {
    /** @type {(name: string, legend: string, labels: Record<string, string>) => HTMLElement | null} */
    const strip = (name, legend, labels) => {
      const names = store.choices[name];
      if (names.length < 2) return null;
      /** @type {[string, string][]} */
      const choices = names.map((value) => [value, labels[value]]);
      const set = dom.options(name, legend, choices, state[name], (value) => store.set({ [name]: value }));
      set.dataset.name = name;
      return set;
    };
    const found = [
      strip("carried", "Share of", NAMES),
      strip("scale", "Across", { tokens: "tokens", window: "windows", pair: "pairs" }),
    ];
    dom.find("spectrum-controls").replaceChildren(...found.filter((one_) => one_ !== null));
  }

  /** @type {View} */
  return { setUp, draw, needs: ["window", "run", "checkpoint", "heads", "carried", "scale"] };
})();
