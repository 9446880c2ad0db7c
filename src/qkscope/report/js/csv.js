/* The selection as CSV, with the columns of heads.csv that the page holds. */
"use strict";

(() => {
  const { data, state, h } = qk;

  const CSV = [
    "model",
    "layer",
    "head",
    "kv_head",
    "r_q",
    "r_k",
    "explained_variance",
    "r_q_se",
    "r_k_se",
    "r_q_null",
    "r_k_null",
    "rope",
    "class",
    "polarity",
  ];

  /* A field that a spreadsheet would take for a formula is quoted as text. */
  function field(value) {
    if (value === null || Number.isNaN(value)) return "";
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  }

  /* The first component of some heads at some checkpoints, over the window that is shown. */
  function csv(heads, stops) {
    const table = data.table(state.window);
    const lines = [CSV.join(",")];
    for (const stop of stops) {
      for (const head of heads) {
        const code = data.code(table, "class", stop.index, head.index);
        if (code < 0) continue;
        const value = (name) => data.value(table, name, stop.index, head.index);
        const numbers = CSV.slice(4, 11).map(value);
        const sign = data.polarities[data.code(table, "polarity", stop.index, head.index)];
        lines.push(
          [stop.model, head.layer, head.head, head.kv, ...numbers, head.rope, data.classes[code], sign]
            .map(field)
            .join(","),
        );
      }
    }
    return `${lines.join("\r\n")}\r\n`;
  }

  function download(heads, stops) {
    const url = URL.createObjectURL(new Blob([csv(heads, stops)], { type: "text/csv" }));
    const safe = (data.name || "heads").replace(/[^\w.-]+/g, "_").slice(0, 60);
    const link = h("a", { href: url, download: `${safe}_${state.heads.size ? "selection" : "heads"}.csv` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  qk.download = download;
})();
