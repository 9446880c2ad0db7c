// @ts-check
/* One state for all views: a checkpoint, a window, a set of heads, a filter, and the choices of each view.
 *
 * `set` changes some of it, writes it to the URL's hash and notifies every view which keys changed. The hash holds only
 * what differs from the start, names checkpoints by name and heads as layer.head ranges, so that it can be sent.
 * A new view, head, selection, window or measure is a new entry of the browser's history.
 */
"use strict";

const store = (() => {
  const last = data.checkpoints.length - 1;
  const VIEWS = [...document.querySelectorAll("main section[id]")].map(({ id }) => id);
  // Changes that the back button undoes.
  const STEPS = [
    ...["view", "head", "heads", "window", "measure", "map", "rows", "spacing", "taxonomy", "carried", "scale"],
    ...["run", "excerpt", "token"],
  ];

  /* Measures that both windows have. */
  const signals = ["share_positional", "r_q", "abs_r_k", "eta_q", "eta_k", "plasticity"].filter((name) =>
    data.letters.every((_, run) =>
      /** @type {WindowName[]} */ (["own", "matched"]).every((w) => name in data.table(w, run).columns),
    ),
  );
  const placed = data.measures.map(({ name }) => name);
  const others = placed.filter((name) => name !== "depth");

  /* Views' choices: the first option is where it starts. */
  /** @type {Record<string, string[]>} */
  const CHOICES = {
    run: data.runNames.length ? ["both", ...data.letters] : [""],
    window: data.matched ? ["matched", "own"] : ["own"],
    measure: signals, // of the signal's chart
    map: [...new Set([...signals, "class", ...(data.roles.length ? ["roles"] : []), ...others])], // of the raster
    rows: data.training ? ["onset", "depth", "layers"] : ["layers"],
    spacing: ["order", ...(data.training ? [...(data.steps ? ["step"] : []), ...(data.tokens ? ["tokens"] : [])] : [])],
    taxonomy: data.taxonomies,
    carried: ["score_energy", "signal_q"].filter((name) => data.carried(name)), // of the spectrum
    scale: ["tokens", "window", "pair"],
    // The share that claims lead with first, where its causes are known.
    number: d3.sort(
      new Set(data.letters.flatMap((_, run) => data.causes(run).map(({ number }) => number))),
      (number) => Number(number !== "mean share_positional"),
    ),
    across: ["r_q", ...placed.filter((name) => name !== "r_q")],
    up: ["r_k", ...placed.filter((name) => name !== "r_k")],
    excerpt: data.letters.flatMap((_, run) => data.examples(run)?.words.map((_, i) => String(i)) || []),
    token: ["", ...d3.range(256).map(String)], // of the excerpt, whose attention is shown
    tint: ["class", ...(data.populations.length > 1 ? ["rope"] : []), ...placed],
  };

  const NUMBERS = ["theta", "span"];

  /** @returns {State} */
  function start() {
    /** @type {any} */
    const found = {
      view: null,
      checkpoint: last,
      heads: new Set(),
      head: null,
      pc: 0,
      sort: "layer",
      down: false,
      filter: { classes: [], rope: "", search: "", only: false },
      theta: null,
      span: null,
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
    const ranges = [];
    for (const index of [...set].sort((a, b) => a - b)) {
      const { layer, head, owner } = data.heads[index];
      const tail = ranges[ranges.length - 1];
      if (tail && tail.owner === owner && tail.layer === layer && tail.to === head - 1) tail.to = head;
      else ranges.push({ owner, layer, from: head, to: head });
    }
    return ranges
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

  function hash() {
    const params = new URLSearchParams();
    if (state.view) params.set("view", state.view);
    if (state.checkpoint !== last) params.set("at", data.checkpoints[state.checkpoint].model);
    if (state.heads.size) params.set("heads", writeHeads(state.heads));
    if (state.head !== null) params.set("head", writeHeads([state.head]));
    if (state.pc) params.set("pc", String(state.pc));
    for (const [name, options] of Object.entries(CHOICES)) {
      if (options.length && state[name] !== options[0]) params.set(name, state[name]);
    }
    for (const name of NUMBERS) if (state[name] !== null) params.set(name, String(Math.round(state[name])));
    if (state.sort !== "layer" || state.down) params.set("sort", (state.down ? "-" : "") + state.sort);
    const { classes, rope, search, only: alone } = state.filter;
    if (classes.length) params.set("classes", classes.join(","));
    if (rope) params.set("rope", rope);
    if (search) params.set("search", search);
    if (alone) params.set("only", "1");
    return params.toString();
  }

  /* A hash from anywhere: what it does not name starts as it does; what it names wrongly is ignored. */
  /** @type {(said: string) => State} */
  function parse(said) {
    const found = start();
    if (VIEWS.includes(said)) return { ...found, view: said };
    const params = new URLSearchParams(said);
    /** @type {(name: string) => string} */
    const get = (name) => params.get(name) || "";
    if (VIEWS.includes(get("view"))) found.view = get("view");
    const checkpoint = data.checkpoints.findIndex(({ model }) => model === params.get("at"));
    if (checkpoint >= 0) found.checkpoint = checkpoint;
    found.heads = readHeads(get("heads"));
    const [head] = readHeads(get("head"));
    if (head !== undefined) found.head = head;
    const pc = Number(params.get("pc"));
    if (Number.isInteger(pc) && pc >= 0 && pc < data.components) found.pc = pc;
    for (const [name, options] of Object.entries(CHOICES)) {
      const wanted = params.get(name);
      if (wanted !== null && options.includes(wanted)) found[name] = wanted;
    }
    for (const name of NUMBERS) {
      const wanted = Number(params.get(name));
      if (wanted >= 16 && wanted <= 1e9) found[name] = wanted;
    }
    const sort = get("sort") || "layer";
    found.down = sort.startsWith("-");
    found.sort = sort.replace(/^-/, "");
    found.filter = {
      classes: get("classes")
        .split(",")
        .filter((name) => data.allClasses.includes(name)),
      rope: data.populations.includes(get("rope")) ? get("rope") : "",
      search: get("search"),
      only: get("only") === "1",
    };
    return found;
  }

  /* ---- changing it ---- */

  /** @param {Set<string>} keys */
  function notify(keys) {
    data.sortBy(state.taxonomy);
    if (["checkpoint", "window", "run", "filter", "heads", "taxonomy"].some((key) => keys.has(key))) shownCache = null;
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
    if (STEPS.some((key) => keys.has(key))) history.pushState(null, "", written);
    else history.replaceState(null, "", written);
    notify(keys);
  }

  /* The state of another hash: of the history, or typed into the address bar. */
  function restore() {
    if (location.hash === written) return;
    Object.assign(state, parse(location.hash.slice(1)));
    written = location.hash;
    notify(new Set([...Object.keys(state), "restored"]));
  }

  /* ---- runs and populations ---- */

  /* The runs shown, the first of them the one that a view shows which has room for one. */
  const runs = () => (state.run === "both" ? [0, 1] : [Math.max(0, data.letters.indexOf(state.run))]);
  const both = () => state.run === "both";

  /* The columns, and the averages and curves, of a run over the window shown. */
  const table = (run = runs()[0]) => data.table(state.window, run);
  const over = (run = runs()[0]) => data.over(state.window, run);

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
    const stillSelected = state.head !== null && next.has(state.head);
    const head = next.size && !stillSelected ? [...next][0] : state.head;
    set({ ...also, heads: next, head: chosen.length === 1 && next.has(chosen[0]) ? chosen[0] : head });
  }

  function filtering() {
    const { classes, rope, search, only: alone } = state.filter;
    return Boolean(classes.length || rope || search.trim() || alone);
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
    const { classes, rope, search, only: alone } = state.filter;
    const here = table();
    const matches = matcher(search);
    /** @type {(head: Head) => boolean} */
    return (head) => {
      const checkpoint = data.checkpointOf(head, state.checkpoint);
      const kind = data.className(here, checkpoint, head.index);
      const roles = data.rolesOf(here, checkpoint, head.index).map((role) => data.roles[role].name);
      if (alone && !state.heads.has(head.index)) return false;
      if (classes.length && !classes.includes(kind)) return false;
      if (rope && head.population !== rope) return false;
      return !search.trim() || matches(head, [kind, ...roles, head.population, data.headName(head.index)]);
    };
  }

  /* The heads that pass the filter, as a Set of their numbers; null when there is no filter. */
  function shown() {
    if (!filtering()) return null;
    if (!shownCache) shownCache = new Set(data.heads.filter(passes()).map(({ index }) => index));
    return shownCache;
  }

  /* The heads of a population that pass the filter. */
  /** @param {string} population */
  function members(population) {
    const passing = shown();
    return data.heads.filter((d) => d.population === population && (!passing || passing.has(d.index)));
  }

  /* The head page's head: the one chosen, a selected one, or the one whose r_q changed most over the window that the
   * page starts with; of two runs the one whose r_q differs most between them at the end. */
  /** @type {Maybe} */
  let striking = null;

  /** @returns {number} */
  function currentHead() {
    if (state.head !== null) return state.head;
    if (state.heads.size) return [...state.heads][0];
    if (striking === null) {
      const [ours, theirs] = data.letters.map((_, run) => data.table("matched", run));
      /** @param {Head} head */
      const change = ({ index }) => {
        const checkpoints = data.checkpointsOf(index);
        const final = checkpoints[checkpoints.length - 1].index;
        const other = theirs
          ? data.value(theirs, "r_q", final, index)
          : checkpoints.length > 1
            ? data.value(ours, "r_q", checkpoints[0].index, index)
            : 0;
        return Math.abs(data.value(ours, "r_q", final, index) - other);
      };
      striking = Math.max(0, d3.maxIndex(data.heads, change));
    }
    return striking;
  }

  /* Whether a change concerns the selection alone, and no filter depends on it: views then only mark it. */
  /** @param {Set<string> | null} keys */
  function selectionOnly(keys) {
    return keys !== null && !state.filter.only && [...keys].every((key) => key === "heads" || key === "head");
  }

  /* Whether a change concerns at most these keys, and no filter depends on it. */
  /** @type {(keys: Set<string> | null, ...wanted: string[]) => boolean} */
  const only = (keys, ...wanted) =>
    keys !== null && !filtering() && [...keys].every((key) => wanted.includes(key));

  return {
    choices: CHOICES,
    state,
    runs,
    both,
    table,
    over,
    set,
    select,
    shown,
    members,
    only,
    selectionOnly,
    currentHead,
    isAdding: () => adding,
    /** @param {boolean} value */
    setAdding(value) {
      adding = value;
    },
    /* Draw everything anew: the colours changed. */
    repaint: () => notify(new Set(["size"])),
    /* Sort heads into classes in another way; a filter by the classes of the one before would match none. */
    /** @param {string} taxonomy */
    sortBy: (taxonomy) => set({ taxonomy, filter: { ...state.filter, classes: [] } }),
    clearFilter: () => set({ filter: start().filter }),
    /** @param {(keys: Set<string>) => void} listener */
    onChange: (listener) => listeners.push(listener),
    startFromHash() {
      Object.assign(state, parse(location.hash.slice(1)));
      data.sortBy(state.taxonomy);
      written = location.hash;
      window.addEventListener("popstate", restore);
      window.addEventListener("hashchange", restore);
    },
  };
})();
