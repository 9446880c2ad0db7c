// @ts-check
/* Heads table: the heads that pass the filter at the chosen checkpoint, sorted, in pages. */
"use strict";

const headTable = (() => {
  const { state } = store;
  const { h } = dom;
  const drawing = dom.find("table-drawing");
  const note = dom.find("table-note");
  const pager = dom.pager("page", 12, "head", () => draw(null));

  const { table } = store;
  const NO_ERROR = "no error: leaving out some documents makes another axis PC0";
  /** @type {(name: string, head: Head, run?: number) => number} */
  const at = (name, head, run) => data.value(table(run), name, data.checkpointOf(head, state.checkpoint), head.index);
  /** @type {(head: Head, run?: number) => number} */
  const codeOf = (head, run) => data.code(table(run), data.checkpointOf(head, state.checkpoint), head.index);
  /** @type {(name: string, run?: number) => (head: Head) => Child[]} */
  function measureCell(name, run) {
    return (head) => {
      const se = at(`${name}_se`, head, run);
      const found = at(name, head, run);
      const [value, error] = text.measure(name, found, se).split(" ± ");
      if (error !== undefined) return [value, h("span", { class: "se" }, ` ±${error}`)];
      if (Number.isNaN(found) || !data.has(`${name}_se`)) return [value];
      return [value, h("span", { class: "se lost", title: NO_ERROR }, " ± –")];
    };
  }

  /** @type {(run?: number) => (head: Head) => Child[]} */
  const classCell = (run) => (head) => {
    const code = codeOf(head, run);
    return [paint.block(code), data.classes[code] || ""];
  };

  /** @param {Head} head */
  const rolesText = (head) =>
    data
      .rolesOf(table(), data.checkpointOf(head, state.checkpoint), head.index)
      .map((role) => data.roles[role].name)
      .join(", ");

  /* Columns: key, heading, what to sort by, what to show, whether it is a number, what it means. */
  /** @typedef {{ key: string, name: string, by: (head: Head) => number | string | null,
   *   cell: (head: Head) => string | Child[], num?: boolean, opens?: boolean, means?: string }} Column */
  /* The position share first, as everywhere on the page. */
  /** @param {string} name */
  const rank = (name) => store.choices.measure.indexOf(name) + (name === "r_k" ? 99 : 0);

  /** @returns {Column[]} */
  function columnsOf() {
    /** @type {Column[]} */
    const found = [];
    if (!data.training)
      found.push({
        key: "model",
        name: "model",
        by: (d) => d.owner,
        cell: (d) => text.shorten(data.checkpoints[d.owner ?? 0].label, 24),
      });
    found.push({
      key: "layer",
      name: "layer",
      by: (d) => d.index,
      cell: (d) => (d.population === "NoPE" ? [h("span", { class: "nope" }, "NoPE ◆ "), `${d.layer}`] : `${d.layer}`),
      num: true,
    });
    found.push({
      key: "head",
      name: "head",
      by: (d) => d.head,
      cell: (d) => String(d.head),
      num: true,
      opens: true,
    });
    if (store.both()) return [...found, ...ofBoth()];
    const means = axes.taxonomyMeans();
    found.push({ key: "class", name: "class", by: (d) => codeOf(d), cell: classCell(), means });
    if (data.roles.length)
      found.push({ key: "roles", name: "roles", by: (d) => rolesText(d) || null, cell: (d) => rolesText(d) || "–" });
    for (const { name, label, inTable } of [...data.measures].sort((a, b) => rank(a.name) - rank(b.name)))
      if (inTable)
        found.push({
          key: name,
          name: label,
          by: (d) => at(name, d),
          cell: measureCell(name),
          num: true,
          means: data.measureMeans(name) || undefined,
        });
    return found;
  }

  /* Columns of two runs: the class in each, and each correlation in A, in B and their difference. */
  /** @returns {Column[]} */
  function ofBoth() {
    const kinds = store.runs().map((run) => ({
      key: `class_${data.letters[run]}`,
      name: `class ${data.letters[run]}`,
      by: (/** @type {Head} */ d) => codeOf(d, run),
      cell: classCell(run),
    }));
    const shown = ["share_positional", "r_q", "r_k"]
      .filter((name) => data.has(name))
      .flatMap((name) => [...store.runs().map((run) => inRun(name, run)), change(name)]);
    return [...kinds, ...shown];
  }

  /** @type {(name: string, run: number) => Column} */
  const inRun = (name, run) => ({
    key: `${name}_${data.letters[run]}`,
    name: `${data.measureLabel(name)} ${data.letters[run]}`,
    by: (d) => at(name, d, run),
    cell: measureCell(name, run),
    num: true,
  });

  /* The difference of a number between the runs, sorted by its size. */
  /** @type {(name: string) => Column} */
  function change(name) {
    const value = (/** @type {Head} */ d) => at(name, d, 0) - at(name, d, 1);
    return {
      key: `${name}_change`,
      name: "A − B",
      by: (d) => Math.abs(value(d)),
      cell: (d) => text.change(name, value(d)),
      num: true,
      means: `${data.measureLabel(name)} in A less that in B; sorted by its size`,
    };
  }

  let columns = columnsOf();

  function rows() {
    const shown = store.shown();
    const list = data.heads.filter((d) => (!shown || shown.has(d.index)) && codeOf(d) >= 0);
    const sorted = columns.find(({ key }) => key === state.sort) || columns[data.training ? 0 : 1];
    const sign = state.down ? -1 : 1;
    /** @param {number | string | null} v */
    const missing = (v) => v === null || Number.isNaN(v);
    /** @type {[any, Head][]} */
    const keyed = list.map((d) => [sorted.by(d), d]);
    keyed.sort(([a, x], [b, y]) => {
      if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
      return a < b ? -sign : a > b ? sign : x.index - y.index;
    });
    return keyed.map(([, d]) => d);
  }

  /* ---- the table ---- */

  function header() {
    const cells = columns.map(({ key, name, num, means }) => {
      const sorted = state.sort === key ? (state.down ? "descending" : "ascending") : null;
      const arrow = sorted ? (state.down ? " ↓" : " ↑") : "";
      const button = h(
        "button",
        { type: "button", id: `sort-${key}`, class: "sort", title: means },
        name,
        h("span", { "aria-hidden": "true" }, arrow),
      );
      button.addEventListener("click", () => {
        pager.first();
        store.set({ sort: key, down: state.sort === key ? !state.down : false });
      });
      return h("th", { scope: "col", class: num ? "num" : null, "aria-sort": sorted }, button);
    });
    return h(
      "tr",
      {},
      h("th", { scope: "col", class: "check" }, h("span", { class: "visually-hidden" }, "selected")),
      cells,
    );
  }

  /** @param {Head} head */
  function row(head) {
    const picked = state.heads.has(head.index);
    const name = data.headName(head.index);
    const box = h("input", { type: "checkbox", id: `pick-${head.index}`, "aria-label": `Select ${name}` });
    box.checked = picked;
    box.addEventListener("change", () => {
      const next = new Set(state.heads);
      if (box.checked) next.add(head.index);
      else next.delete(head.index);
      store.set({ heads: next, head: box.checked ? head.index : state.head });
    });
    const cells = columns.map((column) => {
      const content = column.cell(head);
      const opener = { class: "link", "aria-label": `Open ${name}` };
      const inner = column.opens
        ? dom.button(`open-${head.index}`, String(content), () => go("head", { head: head.index }), opener)
        : content;
      return h("td", { class: column.num ? "num" : null, "data-column": column.key }, inner);
    });
    return h(
      "tr",
      { class: picked ? "selected" : null, "data-head": head.index },
      h("td", { class: "check" }, box),
      cells,
    );
  }

  function markSelected() {
    for (const line of drawing.querySelectorAll("tbody tr")) {
      const picked = state.heads.has(Number(line.getAttribute("data-head")));
      line.classList.toggle("selected", picked);
      const box = line.querySelector("input");
      if (box) box.checked = picked;
    }
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    filters.draw();
    if (store.selectionOnly(keys)) {
      markSelected();
      return;
    }
    if (keys && keys.has("filter")) pager.first();
    columns = columnsOf();
    const list = rows();
    const body = pager.cut(list).map(row);
    const place = data.training ? data.checkpoints[state.checkpoint].label : "All models";
    const whose = data.runNames.length ? `, ${state.run === "both" ? "A and B" : `run ${state.run}`}` : "";
    const over = data.matched ? `, ${data.windowName(state.window)}` : "";
    const caption = h("caption", {}, `${place}${over}${whose}`);
    const grid = h("table", { class: "heads" }, caption, h("thead", {}, header()), h("tbody", {}, body));
    marks.mount(
      drawing,
      dom.scroller("Table of heads", grid),
      pager.buttons(list.length),
    );
    note.textContent = [
      drawing.querySelector(".lost") ? `± –: ${NO_ERROR}.` : "",
      data.hasRope ? "" : "No rope column: which layers have RoPE is not known.",
    ]
      .filter(Boolean)
      .join(" ");
  }

  /** @type {View} */
  return {
    setUp: () => filters.setUp(rows),
    draw,
    needs: ["checkpoint", "heads", "filter", "window", "run", "sort", "down", "taxonomy"],
  };
})();
