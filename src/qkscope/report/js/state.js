// @ts-check
/* One state for all views: a checkpoint, a set of heads, a filter, and the choices of each view.
 *
 * `set` changes some of it, writes it to the URL's hash and tells every view which keys changed. The hash holds only
 * what differs from the start, names checkpoints by name and heads as layer.head ranges, so that it can be sent.
 */
"use strict";

const store = (() => {
  const last = data.stops.length - 1;
  const VIEWS = [...document.querySelectorAll("main section[id]")].map(({ id }) => id);

  const names = data.measures.map(({ name }) => name);
  /* A model with fewer layers than there are bins shows its layers: bins would stand empty. */
  const layers = new Set(data.heads.map(({ layer }) => layer)).size;

  /* Views' choices: the first option is where it starts. */
  /** @type {Record<string, string[]>} */
  const CHOICES = {
    run: data.runNames.length ? ["both", ...data.letters] : [""],
    window: data.matched ? ["own", "matched"] : ["own"],
    measure: ["r_k", "abs_r_k", "variance"],
    kind: ["class", "polarity"],
    rows: layers < data.bins ? ["layers"] : ["bins", "layers"],
    cell: ["r_q", "r_k", "abs_r_k", "explained_variance"],
    bars: ["selected", "all", "none"],
    number: [...new Set(data.letters.flatMap((_, run) => data.causes(run).map(({ number }) => number)))],
    across: names,
    up: ["r_k", ...names.filter((name) => name !== "r_k")],
    tint: ["class", "polarity", ...(data.hasRope ? ["rope"] : []), ...names],
  };

  /** @returns {State} */
  function start() {
    /** @type {any} */
    const found = {
      view: null,
      stop: last,
      heads: new Set(),
      head: null,
      pc: 0,
      sort: "layer",
      down: false,
      filter: { classes: [], polarity: "", rope: "", axis: "", layers: null, search: "", only: false },
    };
    for (const [name, options] of Object.entries(CHOICES)) found[name] = options[0] ?? "";
    return /** @type {State} */ (found);
  }

  const state = start();
  /** @type {((keys: Set<string>) => void)[]} */
  const listeners = [];
  /** @type {Set<number> | null} */
  let shownCache = null;

  /* ---- the hash ---- */

  /* Heads as "layer.first-last" of each layer, with the model's number before it in a study of models. */
  /** @param {Iterable<number>} set */
  function writeHeads(set) {
    /** @type {{ owner: Maybe, layer: number, from: number, to: number }[]} */
    const runs = [];
    for (const index of [...set].sort((a, b) => a - b)) {
      const { layer, head, owner } = data.heads[index];
      const tail = runs[runs.length - 1];
      if (tail && tail.owner === owner && tail.layer === layer && tail.to === head - 1) tail.to = head;
      else runs.push({ owner, layer, from: head, to: head });
    }
    return runs
      .map(({ owner, layer, from, to }) => {
        const range = from === to ? `${layer}.${from}` : `${layer}.${from}-${to}`;
        return owner === null ? range : `${owner}~${range}`;
      })
      .join(",");
  }

  const byKey = new Map(
    data.heads.map((h) => [`${h.owner === null ? "" : `${h.owner}~`}${h.layer}.${h.head}`, h.index]),
  );

  /** @param {string} said */
  function readHeads(said) {
    /** @type {Set<number>} */
    const found = new Set();
    for (const part of said.split(",")) {
      const match = /^(\d+~)?(\d+)\.(\d+)(?:-(\d+))?$/.exec(part);
      if (!match) continue;
      const [, owner = "", layer, from, to = from] = match;
      // A hash may ask for any range: no layer has more heads than the page does.
      const end = Math.min(Number(to), Number(from) + data.heads.length);
      for (let head = Number(from); head <= end; head += 1) {
        const index = byKey.get(`${owner}${layer}.${head}`);
        if (index !== undefined) found.add(index);
      }
    }
    return found;
  }

  /** @param {URLSearchParams} params */
  function writeFilter(params) {
    const { classes, polarity, rope, axis, layers: range, search, only: alone } = state.filter;
    if (classes.length) params.set("classes", classes.join(","));
    if (polarity) params.set("polarity", polarity);
    if (rope) params.set("rope", rope);
    if (axis) params.set("axis", axis);
    if (range) params.set("layers", range.join("-"));
    if (search) params.set("search", search);
    if (alone) params.set("only", "1");
  }

  function hash() {
    const params = new URLSearchParams();
    if (state.view) params.set("view", state.view);
    if (state.stop !== last) params.set("at", data.stops[state.stop].model);
    if (state.heads.size) params.set("heads", writeHeads(state.heads));
    if (state.head !== null) params.set("head", writeHeads([state.head]));
    if (state.pc) params.set("pc", String(state.pc));
    for (const [name, options] of Object.entries(CHOICES)) {
      if (options.length && state[name] !== options[0]) params.set(name, state[name]);
    }
    if (state.sort !== "layer" || state.down) params.set("sort", (state.down ? "-" : "") + state.sort);
    writeFilter(params);
    return params.toString();
  }

  /** @type {(params: URLSearchParams) => Filter} */
  function readFilter(params) {
    /** @type {(name: string) => string} */
    const get = (name) => params.get(name) || "";
    const range = /^(\d+)-(\d+)$/.exec(get("layers"));
    return {
      classes: get("classes")
        .split(",")
        .filter((name) => data.classes.includes(name)),
      polarity: data.polarities.includes(get("polarity")) ? get("polarity") : "",
      rope: ["rope", "nope"].includes(get("rope")) ? get("rope") : "",
      axis: ["same", "another"].includes(get("axis")) ? get("axis") : "",
      layers: range ? [Number(range[1]), Number(range[2])] : null,
      search: get("search"),
      only: get("only") === "1",
    };
  }

  /* A hash from anywhere: what it does not name starts as it does; what it names wrongly is ignored. */
  /** @type {(said: string) => State} */
  function parse(said) {
    const found = start();
    if (VIEWS.includes(said)) return { ...found, view: said };
    const params = new URLSearchParams(said);
    if (VIEWS.includes(params.get("view") || "")) found.view = params.get("view");
    const stop = data.stops.findIndex(({ model }) => model === params.get("at"));
    if (stop >= 0) found.stop = stop;
    found.heads = readHeads(params.get("heads") || "");
    const [head] = readHeads(params.get("head") || "");
    if (head !== undefined) found.head = head;
    const pc = Number(params.get("pc"));
    if (Number.isInteger(pc) && pc >= 0 && pc < data.components) found.pc = pc;
    for (const [name, options] of Object.entries(CHOICES)) {
      const asked = params.get(name);
      if (asked !== null && options.includes(asked)) found[name] = asked;
    }
    const sort = params.get("sort") || "layer";
    found.down = sort.startsWith("-");
    found.sort = sort.replace(/^-/, "");
    found.filter = readFilter(params);
    return found;
  }

  /* ---- changing it ---- */

  /** @param {Set<string>} keys */
  function tell(keys) {
    if (["stop", "window", "run", "filter", "heads"].some((key) => keys.has(key))) shownCache = null;
    for (const listener of listeners) listener(keys);
  }

  /** @type {string | null} */
  let written = null;

  /** @param {Partial<State>} changes */
  function set(changes) {
    /** @type {Set<string>} */
    const keys = new Set();
    for (const [name, value] of Object.entries(changes)) {
      if (state[name] !== value) {
        state[name] = value;
        keys.add(name);
      }
    }
    if (!keys.size) return;
    written = `#${hash()}`;
    history.replaceState(null, "", written);
    tell(keys);
  }

  function restore() {
    if (location.hash === written) return;
    Object.assign(state, parse(location.hash.slice(1)));
    written = location.hash;
    tell(new Set(Object.keys(state)));
  }

  /* ---- runs ---- */

  /* The runs shown, the first of them the one that a view shows which has room for one. */
  const runs = () => (state.run === "both" ? [0, 1] : [Math.max(0, data.letters.indexOf(state.run))]);
  const both = () => state.run === "both";

  /* The columns and the averages of a run over the window shown. */
  const table = (run = runs()[0]) => data.table(state.window, run);
  const aggregate = (run = runs()[0]) => data.aggregate(state.window, run);

  /* ---- heads ---- */

  let adding = false;

  /* Select heads: instead of the others, or with them when adding; the same ones again deselects.
   * `also` changes with it, so that all is drawn once. */
  /** @type {(indices: Iterable<number>, event?: MouseEvent | KeyboardEvent, also?: Partial<State>) => void} */
  function select(indices, event, also = {}) {
    const extend = adding || Boolean(event && (event.shiftKey || event.ctrlKey || event.metaKey));
    const chosen = [...indices];
    const all = chosen.length > 0 && chosen.every((index) => state.heads.has(index));
    let next;
    if (extend) {
      next = new Set(state.heads);
      for (const index of chosen) {
        if (all) next.delete(index);
        else next.add(index);
      }
    } else {
      next = all && state.heads.size === chosen.length ? new Set() : new Set(chosen);
    }
    const kept = state.head !== null && next.has(state.head);
    const head = next.size && !kept ? [...next][0] : state.head;
    set({ ...also, heads: next, head: chosen.length === 1 && next.has(chosen[0]) ? chosen[0] : head });
  }

  function filtering() {
    const { classes, polarity, rope, axis, layers: range, search, only: alone } = state.filter;
    return Boolean(classes.length || polarity || rope || axis || range || search.trim() || alone);
  }

  /* Words of the search: "7.3" or "L7H3" a head, "L7" a layer, anything else a part of a name. */
  /** @param {string} search */
  function matcher(search) {
    const words = search.trim().toLowerCase().split(/\s+/).filter(Boolean);
    /** @type {(head: Head, about: string[]) => boolean} */
    return (head, about) =>
      words.every((word) => {
        const exact = /^l?(\d+)[.h:](\d+)$/.exec(word);
        if (exact) return head.layer === Number(exact[1]) && head.head === Number(exact[2]);
        const layer = /^l(\d+)$/.exec(word);
        if (layer) return head.layer === Number(layer[1]);
        const number = /^h(\d+)$/.exec(word);
        if (number) return head.head === Number(number[1]);
        return about.some((name) => name.toLowerCase().includes(word));
      });
  }

  /* Whether a head passes the filter at the chosen checkpoint. */
  function passes() {
    const { classes, polarity, rope, axis, layers: range, search, only: alone } = state.filter;
    const here = table();
    const matches = matcher(search);
    /** @type {(head: Head) => boolean} */
    return (head) => {
      const stop = data.stopOf(head, state.stop);
      const kind = data.classes[data.code(here, "class", stop, head.index)] || "";
      const sign = data.polarities[data.code(here, "polarity", stop, head.index)] || "";
      if (alone && !state.heads.has(head.index)) return false;
      if (classes.length && !classes.includes(kind)) return false;
      if (polarity && sign !== polarity) return false;
      if (rope && head.rope !== (rope === "rope" ? 1 : 0)) return false;
      if (axis && data.anotherAxis(here, stop, head.index) !== (axis === "another")) return false;
      if (range && (head.layer < range[0] || head.layer > range[1])) return false;
      const shape = head.rope === 1 ? "rope" : head.rope === 0 ? "nope" : "";
      return !search.trim() || matches(head, [kind, sign, shape, data.headName(head.index)]);
    };
  }

  /* The heads that pass the filter, as a Set of their numbers; null when there is no filter. */
  function shown() {
    if (!filtering()) return null;
    if (!shownCache) shownCache = new Set(data.heads.filter(passes()).map(({ index }) => index));
    return shownCache;
  }

  /* The head page's head: the one chosen, a selected one, or the one whose r_q changed most; of two runs the one
   * whose r_q differs most between them at the end. */
  /** @type {Maybe} */
  let striking = null;

  /** @returns {number} */
  function currentHead() {
    if (state.head !== null) return state.head;
    if (state.heads.size) return [...state.heads][0];
    if (striking === null) {
      let best = -1;
      striking = 0;
      for (const { index } of data.heads) {
        const stops = data.stopsOf(index);
        const first = data.value(data.own, "r_q", stops[0].index, index);
        const final = data.value(data.own, "r_q", stops[stops.length - 1].index, index);
        const other = data.runNames.length
          ? data.value(data.table("own", 1), "r_q", stops[stops.length - 1].index, index)
          : stops.length > 1
            ? first
            : 0;
        const change = Math.abs(final - other);
        if (change > best) [best, striking] = [change, index];
      }
    }
    return striking;
  }

  /* Whether a change concerns the selection alone, and no filter hangs on it: views then only mark it. */
  /** @param {Set<string> | null} keys */
  function selectionOnly(keys) {
    return keys !== null && !state.filter.only && [...keys].every((key) => key === "heads" || key === "head");
  }

  /* Whether a change concerns at most these keys, and no filter hangs on it. */
  /** @type {(keys: Set<string> | null, ...wanted: string[]) => boolean} */
  const only = (keys, ...wanted) =>
    keys !== null && !filtering() && [...keys].every((key) => wanted.includes(key));

  return {
    choices: CHOICES,
    state,
    runs,
    both,
    table,
    aggregate,
    set,
    select,
    shown,
    filtering,
    only,
    selectionOnly,
    currentHead,
    isAdding: () => adding,
    /** @param {boolean} value */
    setAdding(value) {
      adding = value;
    },
    clearFilter: () => set({ filter: start().filter }),
    /** @param {(keys: Set<string>) => void} listener */
    onChange: (listener) => listeners.push(listener),
    startFromHash() {
      Object.assign(state, parse(location.hash.slice(1)));
      window.addEventListener("hashchange", restore);
    },
  };
})();
