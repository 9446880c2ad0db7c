// @ts-check
/* The selection as CSV, with the columns of heads.csv that the page holds. */
"use strict";

const csv = (() => {
  const { state } = store;
  const NUMBERS = Object.keys(data.own.columns).filter((name) => name !== "abs_r_k");
  const two = data.runNames.length > 0;
  const HEADER = [
    ...(two ? ["run"] : []),
    ...["model", "layer", "head", "kv_head", ...NUMBERS, "rope"],
    ...data.taxonomies.map((name) => (name === "scores" ? "score_class" : "class")),
  ];

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
    const lines = store.runs().flatMap((run) =>
      stops.flatMap((stop) => heads.map((head) => line(run, stop.index, head))),
    );
    return `${[HEADER.join(","), ...lines.filter(Boolean)].join("\r\n")}\r\n`;
  }

  /* One head at one checkpoint of a run; nothing where it is not there. */
  /** @type {(run: number, stop: number, head: Head) => string} */
  function line(run, stop, head) {
    const table = store.table(run);
    const code = data.code(table, stop, head.index);
    if (code < 0) return "";
    const numbers = NUMBERS.map((name) => data.value(table, name, stop, head.index));
    const { model } = data.stopIn(run, stop);
    const cells = [...(two ? [data.runNames[run]] : []), model, head.layer, head.head, head.kv];
    const kinds = data.taxonomies.map((name) => data.className(table, stop, head.index, name));
    return [...cells, ...numbers, head.rope, ...kinds].map(field).join(",");
  }

  /** @type {(heads: Head[], stops: Stop[]) => void} */
  function download(heads, stops) {
    const name = dom.fileName(`${state.heads.size ? "selection" : "heads"}.csv`);
    dom.download(new Blob([write(heads, stops)], { type: "text/csv" }), name);
  }

  return { download };
})();
