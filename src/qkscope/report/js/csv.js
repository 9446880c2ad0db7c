// @ts-check
/* The selection as CSV, with the columns of heads.csv that the page holds. */
"use strict";

const csv = (() => {
  const { state } = store;
  const NUMBERS = Object.keys(data.own.columns).filter((name) => name !== "abs_r_k");
  const HEADER = ["model", "layer", "head", "kv_head", ...NUMBERS, "rope", "class", "polarity"];

  /* A field that a spreadsheet would take for a formula is quoted as text. */
  /** @param {string | number | null} value */
  function field(value) {
    if (value === null || Number.isNaN(value)) return "";
    let said = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(said)) said = `'${said}`;
    return /[",\n\r]/.test(said) ? `"${said.replace(/"/g, '""')}"` : said;
  }

  /* The first component of some heads at some checkpoints, over the window that is shown. */
  /** @type {(heads: Head[], stops: Stop[]) => string} */
  function write(heads, stops) {
    const table = data.table(state.window);
    const lines = [HEADER.join(",")];
    for (const stop of stops) {
      for (const head of heads) {
        const code = data.code(table, "class", stop.index, head.index);
        if (code < 0) continue;
        const numbers = NUMBERS.map((name) => data.value(table, name, stop.index, head.index));
        const sign = data.polarities[data.code(table, "polarity", stop.index, head.index)];
        const cells = [stop.model, head.layer, head.head, head.kv, ...numbers, head.rope];
        lines.push([...cells, data.classes[code], sign].map(field).join(","));
      }
    }
    return `${lines.join("\r\n")}\r\n`;
  }

  /** @type {(heads: Head[], stops: Stop[]) => void} */
  function download(heads, stops) {
    const name = dom.fileName(`${state.heads.size ? "selection" : "heads"}.csv`);
    dom.download(new Blob([write(heads, stops)], { type: "text/csv" }), name);
  }

  return { download };
})();
