// @ts-check
/* The page's data: packed columns -> arrays, and how to find a head's row in them.
 *
 * A page may hold two runs, whose checkpoints and heads are the same: run 0 and run 1, A and B.
 * Over training, row = checkpoint * heads + head. In a study of models each head belongs to one of them (owner)
 * and row = head. A missing number is NaN; a head that a checkpoint lacks has no class.
 */
"use strict";

const data = (() => {
  /** @type {Payload} */
  const raw = JSON.parse(document.getElementById("data")?.textContent || "null");
  const { missing, byteScale, noCode, scale: usual } = raw.encoding;

  /** @param {string} text */
  function bytes(text) {
    const binary = atob(text);
    const found = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i += 1) found[i] = binary.charCodeAt(i);
    return found;
  }

  /* base64 of int16 -> Float64Array; at the usual scale toFixed(3) shows what the table rounds to. */
  /** @type {(text: string, scale?: number) => Float64Array} */
  function unpack(text, scale = usual) {
    const view = new DataView(bytes(text).buffer);
    const found = new Float64Array(view.byteLength / 2);
    for (let i = 0; i < found.length; i += 1) {
      const n = view.getInt16(2 * i, true);
      found[i] = n === missing ? NaN : n / scale;
    }
    return found;
  }

  /* base64 of one byte of thousandths each -> Float64Array. */
  /** @param {string} text */
  const unpackSmall = (text) => Float64Array.from(bytes(text), (n) => (n === noCode ? NaN : n / byteScale));

  /** @type {(packed: PackedWindow) => Table} */
  function unpackTable(packed) {
    /** @type {Record<string, Float64Array>} */
    const columns = {};
    for (const [name, { values, scale }] of Object.entries(packed.columns))
      columns[name] = unpack(values, scale);
    if (columns.r_k) columns.abs_r_k = columns.r_k.map(Math.abs);
    /** @type {Table["classes"]} */
    const classes = {};
    for (const [name, { codes, since }] of Object.entries(packed.classes))
      classes[name] = { codes: bytes(codes), since };
    return { columns, classes, roles: packed.roles ? bytes(packed.roles) : null };
  }

  /** @type {Checkpoint[]} */
  const checkpoints = raw.checkpoints.model.map((model, index) => ({
    index,
    model,
    label: raw.checkpoints.label[index] || model,
    phase: raw.checkpoints.phase[index],
    window: raw.checkpoints.window[index],
  }));

  /* The taxonomy by which heads have classes: of all views the same, chosen by the reader. */
  const taxonomies = Object.keys(raw.taxonomies);
  let [taxonomy] = taxonomies;

  /** @param {Maybe} rope */
  const populationOf = (rope) => (raw.populations.length < 2 ? "all" : rope === 1 ? "RoPE" : "NoPE");

  /** @type {Head[]} */
  const heads = raw.heads.layer.map((layer, index) => {
    const rope = raw.heads.rope ? raw.heads.rope[index] : null;
    return {
      index,
      layer,
      head: raw.heads.head[index],
      owner: raw.heads.owner ? raw.heads.owner[index] : null,
      kv: raw.heads.kv ? raw.heads.kv[index] : null,
      rope,
      population: populationOf(rope),
    };
  });

  const training = raw.kind === "training";
  const parts = raw.other ? [raw, raw.other] : [raw];
  const runs = parts.map((part) => ({
    own: unpackTable(part.own),
    matched: part.matched ? unpackTable(part.matched) : null,
  }));
  const { own, matched } = runs[0];

  /* What heads can be placed by; |r_k| is computed here. */
  const measures = raw.measures.flatMap((one) =>
    one.name === "r_k"
      ? [one, { ...one, name: "abs_r_k", label: "|r_k|", description: `size of ${one.label}`, inTable: false }]
      : [one],
  );
  const byName = new Map([...measures, ...raw.curves].map((one) => [one.name, one]));
  /** @type {(name: string) => string} */
  const measureLabel = (name) => byName.get(name)?.label || name;

  /* A measure of unit "share" is shown in percent, and has no other unit. */
  /** @param {string} name */
  const isShare = (name) => byName.get(name)?.units === "share";

  /** @type {(name: string) => string} */
  const measureUnits = (name) => (isShare(name) ? "" : byName.get(name)?.units || "");

  /* Row of a head at a checkpoint, -1 when it is a head of another model. */
  /** @type {(checkpoint: number, head: number) => number} */
  function row(checkpoint, head) {
    if (training) return checkpoint * heads.length + head;
    return heads[head].owner === checkpoint ? head : -1;
  }

  /** @type {(table: Table, name: string, checkpoint: number, head: number) => number} */
  function value(table, name, checkpoint, head) {
    const at = row(checkpoint, head);
    return at < 0 || !table.columns[name] ? NaN : table.columns[name][at];
  }

  /* The same with its name and its standard error. */
  /** @type {(table: Table, name: string, checkpoint: number, head: number) =>
   *   { name: string, value: number, se: number }} */
  const estimate = (table, name, checkpoint, head) => ({
    ...{ name, value: value(table, name, checkpoint, head), se: value(table, `${name}_se`, checkpoint, head) },
  });

  /* The class of a head at a checkpoint, as a place in `classes`; -1 where the checkpoint lacks the head. */
  /** @type {(table: Table, checkpoint: number, head: number, by?: string) => number} */
  function code(table, checkpoint, head, by = taxonomy) {
    const at = row(checkpoint, head);
    const { codes } = table.classes[by];
    return at < 0 || codes[at] === noCode ? -1 : codes[at];
  }

  /* The name of that class. */
  /** @type {(table: Table, checkpoint: number, head: number, by?: string) => string} */
  const className = (table, checkpoint, head, by = taxonomy) =>
    raw.taxonomies[by].classes[code(table, checkpoint, head, by)] || "";

  /* The roles of a head at a checkpoint, as bits in the order of `roles`, and as places in it. */
  /** @type {(table: Table, checkpoint: number, head: number) => number} */
  function roleBits(table, checkpoint, head) {
    const at = row(checkpoint, head);
    return at < 0 || !table.roles || table.roles[at] === noCode ? 0 : table.roles[at];
  }
  /** @type {(table: Table, checkpoint: number, head: number) => number[]} */
  function rolesOf(table, checkpoint, head) {
    const bits = roleBits(table, checkpoint, head);
    return bits ? d3.range(raw.roles.length).filter((i) => bits & (1 << i)) : [];
  }

  /** @type {(table: Table, checkpoint: number, head: number) => string} */
  const roleNames = (table, checkpoint, head) =>
    rolesOf(table, checkpoint, head)
      .map((role) => raw.roles[role].name)
      .join(", ");

  /** @type {Record<string, Float64Array>} */
  const lazy = {};

  /* A component beyond the first, own windows only; unpacked when first used. */
  /** @type {(name: string, checkpoint: number, head: number, pc: number, run: number) => number} */
  function component(name, checkpoint, head, pc, run) {
    if (pc === 0) return value(runs[run].own, name, checkpoint, head);
    const { more } = parts[run];
    if (!more || !more[name] || pc > more.count) return NaN;
    const key = `${run}:${name}`;
    if (!lazy[key]) lazy[key] = (more.thousandths.includes(name) ? unpackSmall : unpack)(more[name]);
    const at = row(checkpoint, head);
    return at < 0 ? NaN : lazy[key][at * more.count + pc - 1];
  }

  /* A curve of a head at a checkpoint: a number at each place of its axis. */
  /** @type {(curve: PackedCurve, checkpoint: number, head: number, key: string) => Float64Array} */
  function curve({ name, column, at }, checkpoint, head, whose) {
    const key = `${whose}:curve:${name}`;
    if (!lazy[key]) lazy[key] = unpack(column.values, column.scale);
    const from = row(checkpoint, head) * at.length;
    return from < 0 ? new Float64Array() : lazy[key].subarray(from, from + at.length);
  }

  /** @type {Record<number, Rotary | null>} */
  const rotaries = {};

  /* Mean queries times mean keys by rotary pair, of the checkpoints that the page has; null where not known. */
  /** @type {(run: number) => Rotary | null} */
  function rotary(run) {
    const packed = parts[run].rotary;
    if (!packed) return null;
    rotaries[run] ??= {
      ...packed,
      set: bytes(packed.set),
      parts: new Float32Array(bytes(packed.parts).buffer),
      measured: packed.measured
        ? { at: packed.measured.at, values: unpack(packed.measured.column.values, packed.measured.column.scale) }
        : { at: [], values: new Float64Array() },
    };
    return rotaries[run];
  }

  /** @type {Record<number, Examples>} */
  const excerpts = {};

  /* Attention of some heads of a run on its excerpts; null if the page has none. */
  /** @type {(run: number) => Examples | null} */
  function examples(run) {
    const packed = parts[run].examples;
    if (!packed) return null;
    if (run in excerpts) return excerpts[run];
    const { heads: shown, words, first, queries, bits, steps } = packed;
    const counts = bytes(packed.counts);
    const ends = d3.cumsum(counts);
    const codes = new DataView(bytes(packed.keys).buffer);
    const sinks = packed.sinks && unpack(packed.sinks, steps);
    /** @type {Examples["row"]} */
    const rowOf = (nth, head, excerpt, query) => {
      const at = ((nth * words.length + excerpt) * shown.length + head) * queries + query - first[excerpt];
      const keys = d3.range(ends[at] - counts[at], ends[at]).map((i) => {
        const code = codes.getUint16(2 * i, true);
        return /** @type {[number, number]} */ ([code & ((1 << bits) - 1), ((code >> bits) / steps) ** 2]);
      });
      return { keys, sink: sinks ? sinks[at] ** 2 : 0 };
    };
    excerpts[run] = { ...packed, row: rowOf };
    return excerpts[run];
  }

  /** @type {Record<string, Uint8Array>} */
  const climbs = {};

  /* Bytes of what is known of a run's axes. */
  /** @type {(run: number, name: "before" | "overlap" | "paths") => Uint8Array | null} */
  function axisBytes(run, name) {
    const packed = parts[run].climb?.[name];
    if (!packed) return null;
    climbs[`${run}:${name}`] ??= bytes(packed);
    return climbs[`${run}:${name}`];
  }

  /* The component of the checkpoint before that an axis continues, and their overlap; -1 where that is not known. */
  /** @type {(run: number, checkpoint: number, head: number, pc: number) => { before: number, overlap: number }} */
  function axisBefore(run, checkpoint, head, pc) {
    const { climb } = parts[run];
    const [before, overlap] = [axisBytes(run, "before"), axisBytes(run, "overlap")];
    const at = climb ? row(checkpoint, head) * climb.count + pc : -1;
    if (!climb || !before || !overlap || pc >= climb.count || at < 0 || before[at] === noCode)
      return { before: -1, overlap: NaN };
    return { before: before[at], overlap: overlap[at] / climb.steps };
  }

  /* The mean path of queries and of keys along an axis, relative to the largest value of both. */
  /** @type {(run: number, checkpoint: number, head: number, pc: number) => number[][] | null} */
  function axisPaths(run, checkpoint, head, pc) {
    const { climb } = parts[run];
    const paths = axisBytes(run, "paths");
    if (!climb || !paths || pc >= climb.count) return null;
    const from = (row(checkpoint, head) * climb.count + pc) * 2 * climb.parts;
    return [0, 1].map((kind) =>
      [...paths.subarray(from + kind * climb.parts, from + (kind + 1) * climb.parts)].map((code) =>
        code === noCode ? NaN : code / climb.steps - 1,
      ),
    );
  }

  return {
    name: raw.name,
    title: raw.title,
    runNames: raw.runs || [],
    letters: raw.runs ? ["A", "B"] : [""],
    training,
    thresholds: raw.thresholds,
    enough: raw.enough,
    taxonomies,
    get taxonomy() {
      return taxonomy;
    },
    /** @param {string} name */
    sortBy(name) {
      taxonomy = name;
    },
    get classes() {
      return raw.taxonomies[taxonomy].classes;
    },
    allClasses: Object.values(raw.taxonomies).flatMap(({ classes }) => classes),
    /** @param {string} name */
    taxonomyOf: (name) => raw.taxonomies[name],
    roles: raw.roles,
    steps: raw.checkpoints.step,
    tokens: raw.checkpoints.tokens,
    unmeasured: raw.unmeasured,
    regions: raw.regions,
    ramps: raw.ramps,
    measures,
    phases: raw.phases,
    windowChanges: raw.windowChanges,
    checkpoints,
    heads,
    hasRope: raw.heads.rope !== null,
    own,
    matched,
    omitted: raw.omitted,
    components: raw.more ? raw.more.count + 1 : 1,
    parts: raw.parts,
    populations: raw.populations,
    value,
    estimate,
    code,
    className,
    roleBits,
    rolesOf,
    roleNames,
    component,
    curve,
    rotary,
    examples,
    axisBefore,
    axisPaths,

    /** @type {(name: string) => boolean} */
    has: (name) => name in own.columns,

    /* Whether the wavelengths of some window have shares of scores, or of r_q. */
    /** @type {(name: string) => boolean} */
    carried: (name) =>
      [raw.own, raw.matched].some((one) =>
        one?.wavelengths?.some(({ share, energy }) => (name === "signal_q" ? share : energy)?.length),
      ),

    measureLabel,
    measureUnits,
    isShare,

    /* With its unit where it has one. */
    /** @type {(name: string) => string} */
    measureName: (name) => [measureLabel(name), measureUnits(name)].filter(Boolean).join(", "),

    /** @type {(name: string) => string | null} */
    measureMeans: (name) => byName.get(name)?.description || null,

    /* What a reader calls a window. */
    /** @param {WindowName} name */
    windowName(name) {
      if (name === "own") return "training context";
      return raw.matchedWindow ? `first ${text.count(raw.matchedWindow)} tokens` : "same first tokens";
    },

    /* Columns of a run over the chosen window; own where there is no other. */
    /** @type {(windowName: WindowName, run: number) => Table} */
    table: (windowName, run) => (windowName === "matched" && runs[run].matched) || runs[run].own,

    /** @type {(run: number) => Cause[]} */
    causes: (run) => parts[run].causes,

    /** @type {(run: number) => Ablation | null} */
    ablation: (run) => parts[run].ablation,

    /* Averages and curves of a run over the chosen window. */
    /** @type {(windowName: WindowName, run: number) => PackedWindow} */
    over: (windowName, run) => (windowName === "matched" && parts[run].matched) || parts[run].own,

    /* The window a checkpoint of a run was measured over, and its name there. */
    /** @type {(run: number, checkpoint: number) => { model: string, window: Maybe }} */
    checkpointIn(run, checkpoint) {
      const { model, window: size } = parts[run].checkpoints;
      return { model: model[checkpoint], window: size[checkpoint] };
    },

    /* Whether a head's first axis is another than at the checkpoint before; null where that is not known. */
    /** @type {(table: Table, checkpoint: number, head: number) => boolean | null} */
    anotherAxis(table, checkpoint, head) {
      const same = value(table, "same_axis", checkpoint, head);
      return Number.isNaN(same) ? null : same === 0;
    },

    /* The checkpoints at which a head is present: all of them over training, its own model's otherwise. */
    /** @type {(head: number) => Checkpoint[]} */
    checkpointsOf: (head) => (training ? checkpoints : [checkpoints[heads[head].owner ?? 0]]),

    /* The checkpoint to read a head at: the chosen one over training, its own model's otherwise. */
    /** @type {(head: Head, checkpoint: number) => number} */
    checkpointOf: (head, checkpoint) => (training ? checkpoint : (head.owner ?? 0)),

    /** @param {number} checkpoint */
    labelOf: (checkpoint) => checkpoints[checkpoint].label,

    /* L3H1 */
    /** @param {number} head */
    shortName: (head) => `L${heads[head].layer}H${heads[head].head}`,

    /** @type {(head: number) => string} */
    headName(head) {
      const { layer, head: number, owner } = heads[head];
      const name = `layer ${layer}, head ${number}`;
      return owner === null ? name : `${checkpoints[owner].label}, ${name}`;
    },
  };
})();
