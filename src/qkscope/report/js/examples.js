// @ts-check
/* Examples: where one head looks when it reads a token of a real text, what distance alone predicts, and the
 * difference. */
"use strict";

const examples = (() => {
  const { state } = store;
  const { h, s } = dom;
  const SINK = 4; // tokens at the start that keep their attention in the prediction
  const LEAST = 0.25; // pixels of a bar that is drawn
  const LONGEST = 14; // characters of a token in the text; all of it is in the tooltip
  const FONT = '14px ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "Liberation Mono", monospace';

  /** @typedef {{ key: number, real: number, alone: number, named: boolean }} Mass */
  /** @typedef {{ query: number, masses: Mass[], other: number, sink: number, known: boolean,
   *   checkpoint: number }} Row */

  const found = () => data.examples(store.runs()[0]);
  const excerpt = () => Math.min(Number(state.excerpt), (found()?.words.length || 1) - 1);

  /* The head that is shown: the page's own if its attention is known, else the first that has a role. */
  function head() {
    const { heads = [], roles = [] } = found() || {};
    if (state.head !== null && heads.includes(state.head)) return state.head;
    const selected = heads.find((index) => state.heads.has(index));
    const able = heads.find((_, i) => roles[roles.length - 1]?.[i].includes("previous-token"));
    return selected ?? able ?? heads[0];
  }

  /* The query that is shown: the one chosen, or a typical one of the last checkpoint. */
  /** @param {number} index */
  function query(index) {
    const [first, end] = [found()?.first[excerpt()] || 0, found()?.words[excerpt()].length || 1];
    const chosen = Number(state.token);
    return state.token !== "" && chosen >= first && chosen < end ? chosen : typical(index, first, end);
  }

  /* Of the queries from `first` on, the one of whose attention distance alone reproduces the median share. */
  /** @type {Map<string, number>} */
  const typicalQueries = new Map();
  /** @type {(index: number, first: number, end: number) => number} */
  function typical(index, first, end) {
    const key = [store.runs()[0], excerpt(), index].join();
    if (!typicalQueries.has(key)) {
      const rows = d3.range(first, end).map((at) => row(index, excerpt(), at, data.checkpoints.length - 1));
      const known = d3.sort(rows.filter((one) => one.known), overlap);
      typicalQueries.set(key, known[known.length >> 1]?.query ?? end - 1);
    }
    return typicalQueries.get(key) ?? end - 1;
  }

  /* Scores that distance alone predicts at these distances; null where the rotation is not known. */
  /** @type {(checkpoint: number, index: number, distances: number[]) => number[] | null} */
  function predicted(checkpoint, index, distances) {
    const all = found();
    const i = all?.heads.indexOf(index) ?? -1;
    const { slope, softcap } = all?.softmax || {};
    const waves = explorer.wavesOf(index, store.runs()[0], checkpoint);
    if (waves ? waves.checkpoint !== checkpoint : data.heads[index].rope !== 0 && !slope?.[i]) return null;
    const scores = waves ? explorer.predict(waves, null, distances).total : distances.map(() => 0);
    const cap = softcap?.[i];
    return scores.map((score, d) => (cap ? cap * Math.tanh(score / cap) : score) - (slope?.[i] || 0) * distances[d]);
  }

  /* Attention of a query to every token it sees, as measured and as distance alone predicts: the first four tokens keep
   * what they have, the rest goes to the others by the softmax of the predicted scores. */
  /** @type {(index: number, text_: number, at: number, checkpoint?: number) => Row} */
  function row(index, text_, at, checkpoint = state.checkpoint) {
    const all = /** @type {Examples} */ (found());
    const nth = d3.leastIndex(all.checkpoints, (one) => Math.abs(one - checkpoint)) ?? 0;
    const i = all.heads.indexOf(index);
    const { keys, sink } = all.row(nth, i, text_, at);
    const mass = new Map(keys);
    const from = Math.max(0, at - (all.softmax.reach[i] ?? Infinity) + 1);
    const seen = d3.range(from, at + 1);
    const other = Math.max(0, 1 - sink - d3.sum(mass.values()));
    const each = other / Math.max(1, seen.length - mass.size);
    const real = seen.map((key) => mass.get(key) ?? each);
    const late = seen.filter((key) => key >= SINK);
    const scores = predicted(all.checkpoints[nth], index, late.map((key) => at - key));
    const most = d3.max(scores || []) ?? 0;
    const parts = (scores || []).map((score) => Math.exp(score - most));
    const left = d3.sum(real.slice(seen.length - late.length));
    const total = d3.sum(parts) || 1;
    const masses = seen.map((key, j) => {
      const alone = key < SINK ? real[j] : scores ? (left * parts[j - (seen.length - late.length)]) / total : NaN;
      return { key, real: real[j], alone, named: mass.has(key) };
    });
    return { query: at, masses, other, sink, known: scores !== null, checkpoint: all.checkpoints[nth] };
  }

  /* The share of a row that distance alone reproduces. */
  /** @param {Row} shown */
  const overlap = (shown) => d3.sum(shown.masses, ({ real, alone }) => Math.min(real, alone));

  /* ---- words ---- */

  /** @type {Record<string, string>} */
  const SYMBOLS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };
  const UNSEEN = /[\s\p{C}\p{Zl}\p{Zp}]/gu;

  /* A token with what cannot be seen made visible: spaces, ends of lines, controls, marks of direction. */
  /** @param {string} word */
  function visible(word) {
    /** @param {string} c */
    const code = (c) => `\\u${(c.codePointAt(0) || 0).toString(16).padStart(4, "0")}`;
    const shown = word.replace(UNSEEN, (c) => SYMBOLS[c] || code(c));
    return (/^\p{M}/u.test(shown) ? `◌${shown}` : shown) || "∅";
  }
  /** @param {string} word */
  const short = (word) => {
    const shown = [...visible(word)];
    return shown.length > LONGEST ? `${shown.slice(0, LONGEST - 1).join("")}…` : shown.join("");
  };
  /** @param {number} back */
  const away = (back) => (back === 0 ? "itself" : text.back(back));

  /** @param {string} said */
  const word = (said) => h("code", {}, short(said));
  /* A token in a sentence, and how far back it is. */
  /** @type {(words: string[], from: number, key: number) => Child[]} */
  const token = (words, from, key) => (key === from ? ["itself"] : [word(words[key]), `, ${away(from - key)}`]);

  /* ---- drawing ---- */

  /** @type {(words: string[], width: number, left: number) => { x: number, line: number, width: number }[]} */
  function layout(words, width, left) {
    const context = /** @type {CanvasRenderingContext2D} */ (h("canvas").getContext("2d"));
    context.font = FONT;
    let [x, line] = [left, 0];
    return words.map((word) => {
      const wide = Math.max(11, Math.ceil(context.measureText(short(word)).width) + 3);
      if (x + wide > width && x > left) [x, line] = [left, line + 1];
      const box = { x, line, width: wide };
      x += wide;
      return box;
    });
  }

  const NAMES = ["attention", "distance alone", "difference"];
  // What comes from the tokens themselves has the colour of content that matches.
  const COLOURS = ["var(--ink)", "var(--share_position)", "var(--share_match)"];

  /* What a tooltip says of one token's attention: as measured, by distance alone, and the difference. */
  /** @type {(mass: { real: number, alone: number, named?: boolean }, known: boolean,
   *   meaning: boolean) => (string | null)[]} */
  function shares({ real, alone, named = true }, known, meaning) {
    const more = named ? "" : ", the average of the tokens that have little";
    const numbers = [
      { name: "attention", value: real, more },
      { name: "attention_by_distance", value: alone },
      { name: "attention", value: real - alone, of: "difference of", sign: true },
    ];
    return text.described(known ? numbers : numbers.slice(0, 1), [], meaning);
  }

  /* The largest share outside the first four tokens: bars of this share are as long as there is room. */
  /** @param {Row} shown */
  const longest = ({ masses }) =>
    Math.max(0.02, d3.max(masses, ({ key, real, alone }) => (key < SINK ? 0 : Math.max(real, alone || 0))) || 0);

  /** @type {(shown: Row, words: string[], width: number) => SVGSVGElement} */
  function chart(shown, words, width) {
    const all = /** @type {Examples} */ (found());
    const narrow = width < 620;
    const left = narrow ? 0 : 112;
    const boxes = layout(words, width, left);
    // A text of many lines has shorter bars.
    const [line, bar, gap] = [26, boxes[boxes.length - 1].line > 3 ? 20 : 30, 6];
    const most = longest(shown);
    const masses = new Map(shown.masses.map((one) => [one.key, one]));
    /* A line of the text without bars that are drawn has no room for them; on a phone, one with short bars neither. */
    const ends = d3.rollups(boxes, (some) => Math.max(...some.map((box) => box.x + box.width)), (box) => box.line);
    const least = narrow ? most / 6 : (LEAST / bar) * most;
    /** @param {number} key */
    const tells = (key) => {
      const { real: mass, alone: predicted_ } = masses.get(key) || { real: -1, alone: -1 };
      return Math.max(mass, predicted_ || 0) >= least;
    };
    const seen = ends.map(([number]) => boxes.some((box, key) => box.line === number && tells(key)));
    const tops = [0, ...d3.cumsum(seen, (bars) => line + (bars ? 4 * bar + 3 * gap + (narrow ? 8 : 14) : 4))];
    const svg = s("svg", { width, height: tops[tops.length - 1], class: "chart excerpt" });
    /* Where the bars of each row stand; those of the last go down as well. */
    const floors = [1, 2, 3].map((i) => line + i * (gap + bar));
    ends.forEach(([number, end]) => {
      if (!seen[number]) return;
      NAMES.forEach((name, i) => {
        const floor = tops[number] + floors[i];
        svg.append(s("line", { x1: left, x2: end, y1: floor + 0.5, y2: floor + 0.5, class: "floor" }));
        if (narrow) svg.append(s("text", { x: 0, y: floor - 3, class: "row-name under" }, name));
        else svg.append(s("text", { x: left - 14, y: floor - 3, class: "row-name" }, name));
      });
    });
    words.forEach((word, key) => {
      const { x, width: wide } = boxes[key];
      const y = tops[boxes[key].line];
      const mass = masses.get(key);
      const isQuery = key >= all.first[excerpt()];
      /** @type {(i: number, value: number) => SVGElement[]} */
      const bars = (i, value) => {
        const size = Math.min(1, Math.abs(value) / most) * bar;
        if (!(size > LEAST) || !seen[boxes[key].line]) return [];
        const top = y + floors[i] - (value < 0 ? 0 : size);
        const look = { fill: COLOURS[i], rx: 1, class: NAMES[i].replace(" ", "-") };
        const box = { x: x + 1, width: wide - 2, y: top, height: size, ...look };
        // A bar that is longer than there is room for is broken.
        if (Math.abs(value) <= most * 1.001) return [s("rect", box)];
        return [s("rect", box), s("path", { d: `M${x},${top + 8}l${wide},-4`, class: "cut" })];
      };
      const shade = mass ? 0.85 * Math.min(1, mass.real / most) : 0;
      const paper = { x: x + 0.5, y: y + 3, width: wide - 1, height: line - 4 };
      const group = s(
        "g",
        { class: `token${isQuery ? " query" : ""}${mass ? "" : " unseen"}${key === shown.query ? " reading" : ""}` },
        s("rect", { x, y, width: wide, height: tops[boxes[key].line + 1] - y - 6, class: "ground" }),
        s("rect", { ...paper, class: "paper", "fill-opacity": shade, rx: 3 }),
        s("text", { x: x + wide / 2, y: y + 18, class: shade > 0.6 ? "on-dark" : null }, short(word)),
        isQuery ? s("line", { x1: x + 1, x2: x + wide - 1, y1: y + line, y2: y + line, class: "query-line" }) : null,
        mass ? bars(0, mass.real) : [],
        mass && shown.known ? bars(1, mass.alone) : [],
        mass && shown.known ? bars(2, mass.real - mass.alone) : [],
      );
      svg.append(
        marks.mark(group, {
          key: `token:${key}`,
          say: (meaning) => said(shown, key, words, meaning),
          ...(isQuery ? { act: () => store.set({ token: String(key) }), pressed: key === shown.query } : {}),
        }),
      );
    });
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", "The text, token by token");
    return svg;
  }

  /** @type {(shown: Row, key: number, words: string[], meaning: boolean) => (string | null)[]} */
  function said(shown, key, words, meaning) {
    const mass = shown.masses.find((one) => one.key === key);
    const name = `“${visible(words[key])}”`;
    if (!mass) return [name, `${key > shown.query ? "later than the token read" : "outside the window"}: not seen`];
    return [`${name} · ${away(shown.query - key)}`, ...shares(mass, shown.known, meaning)];
  }

  /* Attention to one token over training, as measured and as distance alone predicts: that which the query looks at
   * most at the last checkpoint. */
  /** @type {(shown: Row, words: string[], width: number) => Node[]} */
  function overTraining(shown, words, width) {
    const all = /** @type {Examples} */ (found());
    const rows = all.checkpoints.map((checkpoint) => row(head(), excerpt(), shown.query, checkpoint));
    const key = d3.greatest(rows[rows.length - 1].masses, ({ real }) => real)?.key ?? 0;
    const history = rows.flatMap(({ checkpoint, masses }) => {
      const mass = masses.find((one) => one.key === key);
      return mass ? [{ checkpoint, ...mass }] : [];
    });
    if (history.length < 2) return [];
    const axis = axes.checkpointAxis(width, 190, "share of attention");
    const [real, alone] = COLOURS;
    const dots = (/** @type {"real" | "alone"} */ name, /** @type {string} */ fill) => [
      Plot.line(history, { x: "checkpoint", y: name, stroke: fill, strokeWidth: 2 }),
      Plot.dot(history, { x: "checkpoint", y: name, r: 3.4, fill }),
    ];
    const most = d3.max(history, (one) => Math.max(one.real, one.alone || 0)) || 1;
    const svg = axes.checkpointChart(
      {
        ...axis,
        y: { label: null, tickSize: 0, ticks: 4, domain: [0, 1.08 * most], tickFormat: axes.percent },
        marks: [
          ...axis.marks,
          axes.grid(4),
          ...(shown.known ? dots("alone", alone) : []),
          ...dots("real", real),
        ],
      },
      {
        name: `Attention to one token at each ${axes.checkpointWord}`,
        prefix: "history",
        lines(checkpoint, meaning) {
          const one = history.find((point) => point.checkpoint === checkpoint);
          const { label } = data.checkpoints[checkpoint];
          return one ? [label, ...shares(one, shown.known, meaning)] : [label, "not on the page"];
        },
      },
    );
    const ends = [word(words[shown.query]), " to ", ...token(words, shown.query, key)];
    return [h("p", { class: "small over-training" }, "Over training: attention from ", ...ends), svg];
  }

  /* ---- around it ---- */

  /* The roles of a head at each checkpoint that has excerpts. */
  /** @param {number} index */
  const rolesOf = (index) => (found()?.roles || []).map((some) => some[found()?.heads.indexOf(index) ?? 0] || []);

  /** @type {(shown: Row, words: string[]) => HTMLElement} */
  function sentence(shown, words) {
    const top = d3.greatest(shown.masses, ({ real }) => real);
    if (!top) return h("p", { class: "sentence" });
    const there = top.key < SINK ? "" : `predicts ${text.share(top.alone)} there and `;
    return h(
      "p",
      { class: "sentence" },
      ...["Reading ", word(words[shown.query]), ", this head looks most at "],
      ...token(words, shown.query, top.key),
      `: ${text.share(top.real)} of its attention. `,
      shown.known
        ? `Distance alone ${there}reproduces ${text.share(overlap(shown))} of the whole row.`
        : "What distance alone predicts is not known for this head at this checkpoint.",
    );
  }

  /** @param {Row} shown */
  function legend(shown) {
    const names = [
      "attention: where the head looks",
      "distance alone: where it would look if only distance counted",
      "difference: what the tokens themselves add (up) or take away (down)",
    ];
    return dom.legend(
      names.map((name, i) => dom.blockKey(COLOURS[i], name)),
      dom.key(null, `full bar ${text.share(longest(shown))}`),
      dom.key(null, `other tokens ${text.share(shown.other)}`),
      shown.sink > 0 ? dom.key(null, `learned sink ${text.share(shown.sink)}`) : null,
    );
  }

  function badges() {
    const all = rolesOf(head());
    const now = all[d3.leastIndex(found()?.checkpoints || [], (one) => Math.abs(one - state.checkpoint)) ?? 0] || [];
    const { population } = data.heads[head()];
    const style = `border-color:${paint.ofPopulation(population)}`;
    return h(
      "p",
      { class: "badges" },
      population === "all" ? null : h("span", { class: "badge", style }, population),
      [...new Set(all.flat())].map((name) =>
        now.includes(name)
          ? h("span", { class: "badge has" }, name)
          : h("span", { class: "badge", title: "not at this checkpoint" }, name),
      ),
    );
  }

  function controls() {
    const all = found();
    if (!all) return [];
    const menu = dom.menu(
      "examples-head",
      "Head",
      all.heads.map((index) => {
        const roles = rolesOf(index).at(-1) || [];
        return [index, `${data.headName(index)}${roles.length ? ` · ${roles.join(", ")}` : ""}`];
      }),
      head(),
      (value) => store.set({ head: Number(value), heads: new Set([Number(value)]), token: "" }),
    ).field;
    /** @type {any} */
    const texts = all.words.map((_, i) => [String(i), `Text ${i + 1}`]);
    const choice = dom.options("excerpt", "Text", texts, String(excerpt()), (value) =>
      store.set({ excerpt: value, token: "" }),
    );
    return [menu, all.words.length > 1 ? choice : null];
  }

  const controlPlace = h("div", { class: "menus" });

  function setUp() {
    dom.find("examples-controls").replaceChildren(...player.make("examples-"), controlPlace);
  }

  function draw() {
    const drawing = dom.find("examples-drawing");
    player.draw();
    const all = found();
    if (!all) {
      marks.mount(controlPlace);
      return marks.mount(drawing, dom.absent("This run has no excerpts."));
    }
    marks.mount(controlPlace, controls());
    const words = all.words[excerpt()];
    const shown = row(head(), excerpt(), query(head()));
    drawing.dataset.active = `token:${shown.query}`;
    marks.mount(
      drawing,
      badges(),
      sentence(shown, words),
      legend(shown),
      chart(shown, words, axes.widthOf(drawing)),
      overTraining(shown, words, Math.min(760, axes.widthOf(drawing))),
      dom.numbers(drawing, ["position", "token", "tokens back", ...NAMES], () =>
        shown.masses.map(({ key, real, alone }) => [
          text.count(key),
          visible(words[key]),
          text.count(shown.query - key),
          ...[text.share(real), text.share(alone), text.points(real - alone)],
        ]),
      ),
    );
    const { label } = data.checkpoints[shown.checkpoint];
    const wanted = state.head ?? [...state.heads][0] ?? head();
    dom.note("examples", [
      wanted !== head() && `The page has no excerpts of ${data.headName(wanted)}: this is ${data.headName(head())}.`,
      shown.checkpoint !== state.checkpoint && `The page has excerpts of some checkpoints: this is ${label}.`,
      store.both() && "This is run A; choose B above for the other.",
    ]);
  }

  /** @type {View & { row: typeof row }} */
  return { setUp, draw, row, needs: ["head", "heads", "checkpoint", "run", "excerpt", "token"] };
})();
