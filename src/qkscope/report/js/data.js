/* The page's data: packed columns -> arrays, and how to find a head's row in them.
 *
 * Over training, row = checkpoint * heads + head. In a study of models each head belongs to one of them (owner)
 * and row = head. A missing number is NaN; a head that a checkpoint lacks has no class (255).
 */
"use strict";

const qk = {};

(() => {
  const raw = JSON.parse(document.getElementById("data").textContent);
  const MISSING = -32768;
  const NO_CODE = 255;

  function bytes(text) {
    const binary = atob(text);
    const found = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i += 1) found[i] = binary.charCodeAt(i);
    return found;
  }

  /* base64 of int16 ten-thousandths -> Float64Array, so that toFixed(3) shows what the table rounds to. */
  function unpack(text) {
    if (!text) return null;
    const view = new DataView(bytes(text).buffer);
    const found = new Float64Array(view.byteLength / 2);
    for (let i = 0; i < found.length; i += 1) {
      const n = view.getInt16(2 * i, true);
      found[i] = n === MISSING ? NaN : n / raw.scale;
    }
    return found;
  }

  /* base64 of one byte of thousandths each -> Float64Array. */
  const unpackSmall = (text) => Float64Array.from(bytes(text), (n) => (n === NO_CODE ? NaN : n / 1000));

  const NUMBERS = ["r_q", "r_k", "explained_variance", "r_q_se", "r_k_se", "r_q_null", "r_k_null"];

  function columns(packed) {
    if (!packed) return null;
    const found = {};
    for (const name of NUMBERS) found[name] = unpack(packed[name]);
    found.class = bytes(packed.class);
    found.polarity = bytes(packed.polarity);
    return found;
  }

  const stops = raw.stops.model.map((model, index) => ({
    index,
    model,
    label: raw.stops.label[index] || model,
    phase: raw.stops.phase[index],
    window: raw.stops.window[index],
    step: raw.stops.step[index],
  }));

  const heads = raw.heads.layer.map((layer, index) => ({
    index,
    layer,
    head: raw.heads.head[index],
    owner: raw.heads.owner ? raw.heads.owner[index] : null,
    kv: raw.heads.kv ? raw.heads.kv[index] : null,
    rope: raw.heads.rope ? raw.heads.rope[index] : null,
    bin: raw.heads.bin[index],
  }));

  const training = raw.kind === "training";
  const lazy = {};

  qk.data = {
    name: raw.name,
    title: raw.title,
    training,
    thresholds: raw.thresholds,
    classes: raw.classes,
    polarities: raw.polarities,
    matchedWindow: raw.matchedWindow,
    phases: raw.phases,
    windowChanges: raw.windowChanges,
    stops,
    heads,
    hasKv: raw.heads.kv !== null,
    hasRope: raw.heads.rope !== null,
    own: columns(raw.own),
    matched: columns(raw.matched),
    aggregates: raw.aggregates,
    omitted: raw.omitted,
    components: raw.more ? raw.more.count + 1 : 1,

    /* Row of a head at a checkpoint, -1 when it is a head of another model. */
    row(stop, head) {
      if (training) return stop * heads.length + head;
      return heads[head].owner === stop ? head : -1;
    },

    /* Columns of the window asked for; own where there is no other. */
    table(windowName) {
      return windowName === "matched" && this.matched ? this.matched : this.own;
    },

    aggregate(windowName) {
      const { own, matched } = this.aggregates;
      return windowName === "matched" && matched ? matched : own;
    },

    value(table, name, stop, head) {
      const row = this.row(stop, head);
      if (row < 0) return NaN;
      if (name === "abs_r_k") return Math.abs(table.r_k[row]);
      return table[name] ? table[name][row] : NaN;
    },

    code(table, kind, stop, head) {
      const row = this.row(stop, head);
      return row < 0 || table[kind][row] === NO_CODE ? -1 : table[kind][row];
    },

    measured(table, stop, head) {
      const row = this.row(stop, head);
      return row >= 0 && !Number.isNaN(table.r_q[row] + table.r_k[row]);
    },

    /* A component beyond the first, own windows only; unpacked when first asked for. */
    component(name, stop, head, pc) {
      if (pc === 0) return this.value(this.own, name, stop, head);
      if (!raw.more || !raw.more[name]) return NaN;
      if (!lazy[name])
        lazy[name] = (raw.more.thousandths.includes(name) ? unpackSmall : unpack)(raw.more[name]);
      const row = this.row(stop, head);
      return row < 0 ? NaN : lazy[name][row * raw.more.count + pc - 1];
    },

    /* The stops at which a head is present: all of them over training, its own model's otherwise. */
    stopsOf(head) {
      return training ? stops : [stops[heads[head].owner]];
    },

    headName(head) {
      const { layer, head: number, owner } = heads[head];
      const name = `layer ${layer}, head ${number}`;
      return owner === null ? name : `${stops[owner].label}, ${name}`;
    },
  };
})();
