// @ts-check
/* When: a row for every head and a column for every checkpoint. Heads that follow position first are at the top, RoPE
 * and NoPE heads apart, so that the edge of the colour is the time at which position took over. Rows may also be
 * layers. */
"use strict";

const raster = (() => {
  const { state } = store;
  const { h, s } = dom;
  const drawing = dom.find("emergence-drawing");

  /* A head follows position from the checkpoint at which position determines so much of its scores; without scores, by
   * r_q. */
  const LEADING = data.has("share_positional") ? "share_positional" : "r_q";
  const ENOUGH = data.enough;
  const ABOVE = `above ${LEADING === "r_q" ? ENOUGH : `${100 * ENOUGH}%`}`;
  const TALLEST = 700; // pixels of rows in view; more scroll
  const GROUP = 24; // height of a group's name

  /** @typedef {{ index: number, name: string, layer: number, heads: number[], onset: number, y: number }} Row */
  /** @typedef {{ name: string, rows: Row[], y: number }} Group */
  /** @type {Record<string, HTMLSelectElement>} */
  const controls = {};
  const NAMES = ["class", "roles"]; // what a head is called, not a number

  const byLayer = () => state.rows === "layers";
  const isNamed = () => NAMES.includes(state.map) && !store.both() && !byLayer();
  const isClass = () => isNamed() && state.map === "class";
  const measure = () => (NAMES.includes(state.map) && !isNamed() ? LEADING : state.map);

  /* What a head is called at a checkpoint; nothing where it is not there. */
  /** @type {(head: number, checkpoint: number) => string} */
  function called(head, checkpoint) {
    const table = store.table();
    if (isClass()) return data.className(table, checkpoint, head);
    return data.roleNames(table, checkpoint, head) || (data.code(table, checkpoint, head) < 0 ? "" : "no role");
  }

  /* By table, as there are few: the checkpoint of every head. */
  /** @type {Map<Table, number[]>} */
  const onsets = new Map();

  /* The first checkpoint at which a head follows position; -1 where there is none. */
  /** @type {(head: number, run?: number) => number} */
  function onsetOf(head, run = store.runs()[0]) {
    const table = store.table(run);
    /** @param {Head} one */
    const onset = (one) =>
      data.checkpoints.findIndex(({ index }) => data.value(table, LEADING, index, one.index) > ENOUGH);
    if (!onsets.has(table)) onsets.set(table, data.heads.map(onset));
    return onsets.get(table)?.[head] ?? -1;
  }

  /* ---- rows ---- */

  /** @returns {Group[]} */
  function groups() {
    const last = data.checkpoints.length;
    let index = 0;
    return data.populations.flatMap((population) => {
      const members = store.members(population);
      if (!members.length) return [];
      let rows = byLayer()
        ? d3.groups(members, (d) => d.layer).map(([layer, found]) => ({
            ...{ name: `layer ${layer}`, layer, onset: -1, heads: found.map((d) => d.index) },
          }))
        : members.map((d) => ({
            ...{ name: data.shortName(d.index), layer: d.layer, heads: [d.index], onset: onsetOf(d.index) },
          }));
      if (state.rows === "onset")
        rows = d3.sort(
          rows,
          ({ onset }) => (onset < 0 ? last : onset),
          ({ heads, onset }) => -data.value(store.table(), LEADING, onset < 0 ? last - 1 : onset, heads[0]),
        );
      return [{ name: population, rows: rows.map((row) => ({ ...row, y: 0, index: index++ })), y: 0 }];
    });
  }

  /* ---- values ---- */

  /* The mean over a layer's heads, with its error where all of them are meant and the page knows it. */
  /** @type {(row: Row, checkpoint: number, run: number) => [number, Maybe]} */
  function inLayer(row, checkpoint, run) {
    const { places: layers, [measure()]: known } = store.over(run).averages.layers;
    const at = checkpoint * layers.length + layers.indexOf(row.layer);
    if (known && !store.shown() && known.mean[at] !== null) return [known.mean[at], known.se[at]];
    const table = store.table(run);
    return [text.mean(row.heads.map((head) => data.value(table, measure(), checkpoint, head))), null];
  }

  /** @type {(row: Row, checkpoint: number, run: number) => [number, Maybe]} */
  function ofRun(row, checkpoint, run) {
    if (byLayer()) return inLayer(row, checkpoint, run);
    const { value, se } = data.estimate(store.table(run), measure(), checkpoint, row.heads[0]);
    return [value, se];
  }

  /* What a cell shows: of two runs together their difference. */
  /** @type {(row: Row, checkpoint: number) => [number, Maybe]} */
  function valueOf(row, checkpoint) {
    if (isNamed()) return [data.code(store.table(), checkpoint, row.heads[0]), null];
    const [[value, se], other] = store.runs().map((run) => ofRun(row, checkpoint, run));
    if (!other) return [value, se];
    return [value - other[0], se === null || other[1] === null ? null : Math.hypot(se, other[1])];
  }

  /** @type {(rows: Row[]) => [number, number]} */
  function range(rows) {
    const found = rows.flatMap((row) => data.checkpoints.map(({ index }) => valueOf(row, index)[0]));
    const [low, high] = [d3.min(found) ?? 0, d3.max(found) ?? 1];
    if (store.both()) return [-Math.max(0.1, -low, high), Math.max(0.1, -low, high)];
    if (measure() === "r_k") return [-1, 1];
    if (data.isShare(measure()) || (low >= -0.05 && high <= 1 && high > 0.25)) return [0, 1];
    return low < 0 ? [-Math.max(-low, high), Math.max(-low, high)] : [0, high || 1];
  }

  /* The colours of a cell: one, or one for each role of the head. */
  /** @type {(ends: [number, number]) => (row: Row, checkpoint: number, value: number) => string[]} */
  function colours(ends) {
    if (isNamed() && !isClass()) {
      const ofRoles = data.roles.map((_, role) => paint.resolved(paint.ofRole(role)));
      const [none] = paint.inks("rule");
      return (row, checkpoint) => {
        const found = data.rolesOf(store.table(), checkpoint, row.heads[0]).map((role) => ofRoles[role]);
        return found.length ? found : [none];
      };
    }
    if (isClass()) {
      const ofClasses = data.classes.map((_, code) => paint.resolved(paint.colour(code)));
      return (_row, _checkpoint, code) => [ofClasses[code] || "transparent"];
    }
    const ramp = paint.fastRamp(ends, measure());
    return (_row, _checkpoint, value) => [ramp(value)];
  }

  const name = () =>
    `${store.both() ? "A − B, " : ""}${byLayer() ? "mean " : ""}${data.measureLabel(measure())}`;

  /* ---- words ---- */

  /* The measure by which a head follows position, where the colours show another one. */
  const led = () => (state.map === LEADING ? "" : `${data.measureLabel(LEADING)} `);

  /** @param {Row} row */
  function whose(row) {
    if (!byLayer()) return data.headName(row.heads[0]);
    return `${row.name}${axes.isNope(row.layer) ? " (NoPE)" : ""}, ${text.headCount(row.heads.length)}`;
  }

  /** @type {(row: Row, checkpoint: number) => (string | null)[]} */
  function lines(row, checkpoint) {
    const [value, se] = valueOf(row, checkpoint);
    const another = byLayer() ? null : data.anotherAxis(store.table(), checkpoint, row.heads[0]);
    const since = byLayer() || row.onset < 0 ? null : `${led()}${ABOVE} from ${data.labelOf(row.onset)} on`;
    const also = [since, another ? "PC0 is a different direction than at the checkpoint before" : null];
    const of = [store.both() ? "A − B," : "", byLayer() ? "mean" : ""].filter(Boolean).join(" ");
    return [
      `${data.labelOf(checkpoint)} · ${whose(row)}`,
      ...(isNamed()
        ? [called(row.heads[0], checkpoint) || "not measured here", ...also]
        : text.described([{ name: measure(), value, se, of, sign: store.both() }], also)),
    ];
  }

  /* Counts for each population: how many heads follow position at a checkpoint. */
  /** @type {(group: Group, checkpoint: number) => string} */
  function counted(group, checkpoint) {
    const heads = group.rows.flatMap((row) => row.heads);
    const many = heads.filter((head) => data.value(store.table(), LEADING, checkpoint, head) > ENOUGH).length;
    return `${many} of ${text.count(heads.length)}${group.name === "all" ? "" : ` ${group.name}`} heads`;
  }

  const rule =
    LEADING === "r_q" ? `r_q is ${ABOVE}` : `position determines more than ${100 * ENOUGH}% of score variance`;

  /* One sentence: of the pinned head, of the selection, or of all heads. */
  /** @param {Group[]} list */
  function sentence(list) {
    if (state.heads.size === 1 && data.training) return pinned([...state.heads][0]);
    const { label } = data.checkpoints[state.checkpoint];
    if (isNamed()) {
      const said = list.map((group) => {
        const names = group.rows.map((row) => called(row.heads[0], state.checkpoint)).filter(Boolean);
        const counts = d3.rollups(names.flatMap((one) => one.split(", ")), (all) => all.length, (one) => one);
        const parts = d3.sort(counts, ([, n]) => -n).map(([one, n]) => `${n} ${one}`);
        return `${group.name === "all" ? "" : `${group.name} heads: `}${parts.join(", ")}`;
      });
      return [`At ${label}, ${said.join("; ")}.`];
    }
    const every = list.map((group) => counted(group, state.checkpoint)).join(" and ");
    const whose = store.both() ? "in run A " : "";
    if (!state.heads.size) return [`At ${label}, ${whose}${rule} in ${every}.`];
    const rows = /** @type {any} */ ([{ heads: [...state.heads] }]);
    return [`At ${label}, ${rule} in ${counted({ name: "all", rows, y: 0 }, state.checkpoint)} selected.`];
  }

  /** @param {number} head */
  function pinned(head) {
    const onset = onsetOf(head);
    const table = store.table();
    /** @param {number} checkpoint */
    const at = (checkpoint) => text.ofHead(table, LEADING, checkpoint, head);
    const last = data.checkpoints.length - 1;
    const changed = data.checkpoints.filter(({ index }) => data.anotherAxis(table, index, head));
    const when = onset < 0 ? `never ${ABOVE}` : `${ABOVE} from ${data.labelOf(onset)} (${at(onset)})`;
    const labels = changed.flatMap(({ label }, i) => [i ? ", " : "", h("span", { class: "label" }, label)]);
    const moved = changed.length ? ["; PC0 changed at ", ...labels] : [];
    const open = dom.button("emergence-open", "Open this head", () => go("head", { head }), { class: "link" });
    const kind = data.heads[head].population;
    return [
      h("strong", {}, `${data.shortName(head)}${kind === "all" ? "" : ` (${kind})`}`),
      `: ${data.measureLabel(LEADING)} ${when}, ${at(last)} at ${data.labelOf(last)}`,
      ...moved,
      ". ",
      open,
    ];
  }

  /* ---- the sheet ---- */

  /* Where the columns begin and end: even, or each around its checkpoint's step or tokens, none too narrow to click. */
  /** @type {(left: number, right: number) => number[]} */
  function columnEdges(left, right) {
    const n = data.checkpoints.length;
    const at = state.spacing === "step" ? data.steps : state.spacing === "tokens" ? data.tokens : null;
    if (!at || n < 2) return d3.range(n + 1).map((i) => left + (i * (right - left)) / n);
    const between = d3.pairs(at, (a, b) => (a + b) / 2);
    const ends = [at[0], ...between, at[n - 1] + (at[n - 1] - between[n - 2])];
    const total = ends[n] - ends[0];
    const least = Math.min(10, (right - left) / n / 2);
    const room = right - left - n * least;
    const wide = d3.pairs(ends, (a, b) => least + (room * (b - a)) / total);
    return [left, ...d3.cumsum(wide)].map((value, i) => (i ? left + value : value));
  }

  /** @type {(list: Group[], rows: Row[], ends: [number, number]) => HTMLElement} */
  function build(list, rows, ends) {
    const width = axes.widthOf(drawing);
    const left = byLayer() ? 62 : rows.length > 200 && width < 500 ? 44 : 56;
    const even = (width - left) / data.checkpoints.length;
    const { slant, room, names } = axes.labelling(data.checkpoints.map(({ index }) => index), even);
    const edges = columnEdges(left, width - (slant ? 26 : 4));
    const phases = data.phases.length > 1 && data.training ? data.phases : [];
    const header = room + (phases.length ? 18 : 4);
    const many = width < 500 ? 24 : 60; // rows from which on they are lower
    const tall = byLayer() ? (rows.length <= 24 ? 24 : 14) : rows.length <= many ? 12 : rows.length <= 240 ? 8 : 6;
    const grouped = data.populations.length > 1;
    let y = header;
    for (const group of list) {
      group.y = y;
      y += grouped ? GROUP : 4;
      for (const row of group.rows) {
        row.y = y;
        y += tall;
      }
    }
    const height = y + 4;
    const shown = Math.min(height, TALLEST + header);
    const colour = colours(ends);
    /** @param {number} checkpoint */
    const wide = (checkpoint) => edges[checkpoint + 1] - edges[checkpoint];
    const [ink, muted, paper, tick, frame] = paint.inks("ink", "muted", "paper", "axis", "rule");

    /** @type {(context: CanvasRenderingContext2D, top: number) => void} */
    function draw(context, top) {
      for (const row of rows) {
        const at = row.y - top;
        if (at + tall >= header && at <= shown) drawRow(context, row, at);
      }
      context.fillStyle = ink;
      for (const group of grouped ? list : []) {
        const at = group.y - top + GROUP / 2 + 2;
        if (at < header || at > shown) continue;
        context.font = context.font.replace(/^(\d+ )?11px/, "650 11px");
        context.textAlign = "left";
        const size = d3.sum(group.rows, (row) => row.heads.length);
        context.fillText(`${group.name} · ${text.headCount(size)}`, 0, at);
        context.font = context.font.replace(/^650 /, "");
      }
      drawHeader(context);
    }

    /** @type {(context: CanvasRenderingContext2D, row: Row, at: number) => void} */
    function drawRow(context, row, at) {
      const between = tall > 7 ? 1 : 0;
      for (const { index } of data.checkpoints) {
        const [value] = valueOf(row, index);
        if (!(isNamed() ? value >= 0 : Number.isFinite(value))) continue;
        const cell = wide(index);
        const fills = colour(row, index, value);
        const part = (cell - (cell > 8 ? 1 : 0)) / fills.length;
        fills.forEach((fill, i) => {
          context.fillStyle = fill;
          context.fillRect(edges[index] + i * part, at, part, tall - between);
        });
        if (byLayer() && cell >= 36 && tall >= 14) {
          context.fillStyle = paint.inkFor(fills[0]);
          context.textAlign = "center";
          const number = data.isShare(measure()) ? text.number(100 * value, 0) : text.number(value, 2);
          context.fillText(number, edges[index] + cell / 2, at + tall / 2);
        }
        if (!byLayer() && !isNamed() && data.anotherAxis(store.table(), index, row.heads[0])) {
          context.fillStyle = tick;
          context.fillRect(edges[index], at + 1, Math.min(3, Math.max(1, cell / 3)), tall - between - 2);
        }
      }
      if (row.onset > 0 && !store.both() && !isNamed()) {
        context.fillStyle = ink;
        context.fillRect(edges[row.onset] - 2, at, 2, tall);
      }
      const picked = row.heads.every((head) => state.heads.has(head));
      if (row.index % Math.ceil(12 / tall) && !picked) return;
      context.fillStyle = picked ? ink : muted;
      context.textAlign = "right";
      context.fillText(row.name, left - 8, at + tall / 2);
    }

    /** @param {CanvasRenderingContext2D} context */
    function drawHeader(context) {
      context.fillStyle = paper;
      context.fillRect(0, 0, width, header - 2);
      context.textAlign = "left";
      for (const phase of phases) {
        const [, first, past] = phase;
        const letters = Math.floor((edges[past + 1] - edges[first]) / 6.4);
        context.fillStyle = muted;
        context.fillText(axes.phaseName(phase, letters), edges[first] + 1, 8);
        context.fillStyle = frame;
        if (first > 0) context.fillRect(edges[first] - 1, 0, 1, header - 2);
      }
      for (const index of labelled) {
        context.save();
        context.fillStyle = index === state.checkpoint ? ink : muted;
        context.translate(edges[index] + wide(index) / 2, header - 12);
        if (slant) context.rotate((-40 * Math.PI) / 180);
        context.textAlign = slant ? "left" : "center";
        context.fillText(names[index], 0, 0);
        context.restore();
      }
    }

    /* The chosen checkpoint and as many others as have room for their names. */
    const middle = (/** @type {number} */ checkpoint) => edges[checkpoint] + wide(checkpoint) / 2;
    const needs = slant ? 15 : 8 + 7 * Math.max(...names.map((one) => one.length));
    const labelled = [state.checkpoint];
    for (const { index } of data.checkpoints)
      if (labelled.every((other) => Math.abs(middle(other) - middle(index)) >= needs)) labelled.push(index);

    /* The chosen checkpoint's column, and bars beside the selected rows. */
    function over() {
      const bars = rows
        .filter((row) => row.heads.some((head) => state.heads.has(head)))
        .map((row) => `M${left - 5},${row.y}h3v${tall - 1}h-3z`);
      const selected = s("path", { d: bars.join(""), class: "has-selected" });
      if (data.checkpoints.length < 2) return [selected];
      const across = { x: edges[state.checkpoint] - 1, width: wide(state.checkpoint) + 1 };
      const down = { y: header - 1, height: height - header };
      return [selected, s("rect", { ...across, ...down, rx: 2, class: "chosen-column" })];
    }

    /** @param {number} at */
    const rowAt = (at) => rows[d3.bisectRight(rows.map((row) => row.y), at) - 1];
    return sheet.make({
      id: "emergence",
      label: `${name()} of each ${byLayer() ? "layer" : "head"} at each ${axes.checkpointWord}`,
      width,
      height,
      shown,
      header,
      start: { row: 0, col: state.checkpoint },
      paint: draw,
      over,
      at(px, py) {
        const row = rowAt(py);
        const col = d3.bisectRight(edges, px) - 1;
        if (!row || py >= row.y + tall || col >= data.checkpoints.length) return null;
        return { row: row.index, col: Math.max(0, col) };
      },
      rows: rows.length,
      cols: () => data.checkpoints.length,
      box: ({ row, col }) => ({ x: edges[col], y: rows[row].y, width: wide(col), height: tall }),
      lines: ({ row, col }) => lines(rows[row], col),
      verb: byLayer() ? "Select these heads." : "Pin this head.",
      act: ({ row, col }, event) => store.select(rows[row].heads, event, { checkpoint: col }),
      brush: (from, to, event) => {
        const found = rows.filter((row) => row.y + tall > from && row.y < to).flatMap((row) => row.heads);
        if (found.length) store.select(found, event);
      },
    });
  }

  /* The names that colours stand for: of the classes or roles that some head has. */
  function nameKeys() {
    const table = store.table();
    if (isClass())
      return data.classes.flatMap((kind, code) =>
        table.classes[data.taxonomy].codes.includes(code) ? [dom.key(paint.block(code), kind)] : [],
      );
    const bits = [...(table.roles || [])].reduce((all, one) => (one < 128 ? all | one : all), 0);
    const found = data.roles.map(({ name: one }, role) =>
      bits & (1 << role) ? dom.blockKey(paint.ofRole(role), one) : null,
    );
    return [...found, dom.blockKey("var(--rule)", "no role")];
  }

  /** @type {(ends: [number, number], axis: boolean) => HTMLElement} */
  const legend = (ends, axis) =>
    isNamed()
      ? dom.legend(nameKeys())
      : dom.legend(
          paint.rampKeys(name(), ends, { percent: data.isShare(measure()), measure: measure() }),
          byLayer() || store.both() ? null : dom.key(h("i", { class: "bar onset" }), `${led()}first ${ABOVE}`),
          axis ? dom.key(h("i", { class: "bar changed" }), "PC0 became a different direction") : null,
        );

  /* Layers at every checkpoint; heads, of which there may be a thousand, at the first, the chosen and the last. */
  /** @param {Row[]} rows */
  function numbersTable(rows) {
    const last = data.checkpoints.length - 1;
    const checkpoints = byLayer() ? d3.range(last + 1) : d3.sort(new Set([0, state.checkpoint, last]));
    /** @type {(row: Row, checkpoint: number) => string} */
    const said = (row, checkpoint) => {
      const [value, se] = valueOf(row, checkpoint);
      if (isNamed()) return called(row.heads[0], checkpoint) || "–";
      return (store.both() ? text.change : text.measure)(measure(), value, se);
    };
    const onset = byLayer() ? [] : [`${led()}${ABOVE} from`];
    return dom.numbers(
      drawing,
      [byLayer() ? "layer" : "head", ...onset, ...checkpoints.map((checkpoint) => data.labelOf(checkpoint))],
      () =>
        rows.map((row) => [
          byLayer() ? `layer ${row.layer}${axes.isNope(row.layer) ? " (NoPE)" : ""}` : row.name,
          ...(byLayer() ? [] : [data.checkpoints[row.onset]?.label || "–"]),
          ...checkpoints.map((checkpoint) => said(row, checkpoint)),
        ]),
    );
  }

  function explain() {
    const shown = store.shown();
    const said = [
      store.both() && "Blue: higher in A. Orange: higher in B.",
      shown && `Filtered: ${text.headCount(shown.size)}.`,
      isClass() && axes.taxonomyMeans(),
      !byLayer() && !isNamed() && data.has("same_axis") && `PC0: ${text.pc0}`,
    ];
    dom.note("emergence", said);
  }

  /** @type {{ list: Group[], ends: [number, number] } | null} the rows, and the range of their numbers */
  let known = null;

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    controls.map.value = state.map;
    controls.rows.value = state.rows;
    dom.choose(dom.find("emergence-controls").querySelector("fieldset"), state.spacing);
    // Another selection or checkpoint, with no filter that depends on them, has the same rows.
    if (!known || !store.only(keys, "heads", "head", "checkpoint")) {
      const found = groups();
      known = { list: found, ends: range(found.flatMap((group) => group.rows)) };
    }
    const { list, ends } = known;
    explain();
    if (!list.length) return marks.mount(drawing, dom.absent("No head passes the filter."));
    const top = drawing.querySelector(".sheet-scroll")?.scrollTop || 0;
    const rows = list.flatMap((group) => group.rows);
    const frame = build(list, rows, ends);
    const axis = data.has("same_axis") && !byLayer();
    const said = h("p", { class: "sentence", id: "emergence-sentence" }, sentence(list));
    marks.mount(drawing, said, legend(ends, axis), frame, numbersTable(rows));
    frame.children[0].scrollTop = top;
  }

  function setUp() {
    const { map, rows, spacing } = store.choices;
    /** @type {Record<string, string>} */
    const NAMED = {
      ...{ order: "checkpoint", step: "step", tokens: "tokens" },
      ...{ onset: "heads, earliest first", depth: "heads by layer", layers: "layers" },
    };
    /** @type {[string, string, string?][]} */
    const entries = map.map((one) => [one, data.measureLabel(one), data.measureMeans(one) || ""]);
    const colour = dom.menu("emergence-measure", "Colour", entries, state.map, (value) => store.set({ map: value }));
    const rowMenu = dom.menu("emergence-rows", "Rows", rows.map((one) => [one, NAMED[one]]), state.rows, (value) =>
      store.set({ rows: value }),
    );
    /** @type {[string, string][]} */
    const columns = spacing.map((one) => [one, NAMED[one]]);
    const spaced = dom.options("spacing", "Columns by", columns, state.spacing, (value) =>
      store.set({ spacing: value }),
    );
    Object.assign(controls, { map: colour.box, rows: rowMenu.box });
    const found = [colour.field, ...(rows.length > 1 ? [rowMenu.field] : []), ...(spacing.length > 1 ? [spaced] : [])];
    dom.find("emergence-controls").replaceChildren(...found);
  }

  /** @type {View & { onsetOf: typeof onsetOf, leading: string, above: string }} */
  return {
    ...{ setUp, draw, onsetOf, leading: LEADING, above: ABOVE },
    needs: ["map", "rows", "spacing", "taxonomy", "window", "run", "filter", "heads", "checkpoint"],
  };
})();
