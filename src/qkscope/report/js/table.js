/* Heads table: the heads that pass the filter at the chosen checkpoint, sorted, fifty to a page. */
"use strict";

(() => {
  const { data, state, h } = qk;
  const drawing = document.getElementById("table-drawing");
  const note = document.getElementById("table-note");
  const PAGE = 50;
  let page = 0;

  const table = () => data.table(state.window);
  const stopOf = (head) => (data.training ? state.stop : head.owner);
  const at = (name, head) => data.value(table(), name, stopOf(head), head.index);
  const named = (kind, head) => {
    const code = data.code(table(), kind, stopOf(head), head.index);
    return { code, name: (kind === "class" ? data.classes : data.polarities)[code] || "" };
  };

  const ropeName = (head) => (head.rope === null ? "" : head.rope === 1 ? "RoPE" : "NoPE");

  function aboveNull(head) {
    const said = ["r_q", "r_k"].filter((name) => Math.abs(at(name, head)) > at(`${name}_null`, head));
    return said.map((name) => name.slice(-1).toUpperCase()).join(" ") || "–";
  }

  function measureCell(name) {
    return (head) => {
      const se = at(`${name}_se`, head);
      return [
        qk.number(at(name, head)),
        Number.isNaN(se) ? null : h("span", { class: "se" }, ` ±${qk.error(se)}`),
      ];
    };
  }

  function kindCell(kind) {
    return (head) => {
      const { code, name } = named(kind, head);
      const block = h("i", {
        class: name === "unmeasured" ? "block hatched" : "block",
        style: `background-color:${qk.colour(kind, code)}`,
      });
      return [block, name];
    };
  }

  /* Columns: key, heading, what to sort by, what to show, whether it is a number. */
  function columnsOf() {
    const found = [];
    if (!data.training)
      found.push({
        key: "model",
        name: "model",
        by: (d) => d.owner,
        cell: (d) => qk.shorten(data.stops[d.owner].label, 24),
      });
    found.push({
      key: "layer",
      name: "layer",
      by: (d) => d.layer * 10000 + d.head,
      cell: (d) => String(d.layer),
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
    found.push({ key: "class", name: "class", by: (d) => named("class", d).code, cell: kindCell("class") });
    found.push({ key: "r_q", name: "r_q", by: (d) => at("r_q", d), cell: measureCell("r_q"), num: true });
    found.push({ key: "r_k", name: "r_k", by: (d) => at("r_k", d), cell: measureCell("r_k"), num: true });
    if (data.own.explained_variance)
      found.push({
        key: "explained_variance",
        name: "expl. variance",
        by: (d) => at("explained_variance", d),
        cell: (d) => qk.number(at("explained_variance", d)),
        num: true,
      });
    found.push({
      key: "polarity",
      name: "polarity",
      by: (d) => named("polarity", d).code,
      cell: kindCell("polarity"),
    });
    if (data.hasKv)
      found.push({
        key: "kv",
        name: "key head",
        by: (d) => d.kv,
        cell: (d) => (d.kv === null ? "–" : String(d.kv)),
        num: true,
      });
    if (data.hasRope) found.push({ key: "rope", name: "RoPE", by: (d) => d.rope, cell: ropeName });
    if (data.own.r_q_null) found.push({ key: "null", name: "above null", by: aboveNull, cell: aboveNull });
    return found;
  }
  const columns = columnsOf();

  function rows() {
    const shown = qk.shown();
    const list = data.heads.filter((d) => (!shown || shown.has(d.index)) && named("class", d).code >= 0);
    const column =
      columns.find(({ key }) => key === state.sort) || columns.find(({ key }) => key === "layer");
    const sign = state.down ? -1 : 1;
    const missing = (v) => v === null || Number.isNaN(v);
    const keyed = list.map((d) => [column.by(d), d]);
    keyed.sort(([a, x], [b, y]) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return a < b ? -sign : a > b ? sign : x.index - y.index;
    });
    return keyed.map(([, d]) => d);
  }

  /* ---- the table ---- */

  function header() {
    const cells = columns.map(({ key, name, num }) => {
      const sorted = state.sort === key ? (state.down ? "descending" : "ascending") : null;
      const arrow = sorted ? (state.down ? " ↓" : " ↑") : "";
      const button = h(
        "button",
        { type: "button", id: `sort-${key}`, class: "sort" },
        name,
        h("span", { "aria-hidden": "true" }, arrow),
      );
      button.addEventListener("click", () => {
        page = 0;
        qk.set({ sort: key, down: state.sort === key ? !state.down : false });
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

  function row(head) {
    const picked = state.heads.has(head.index);
    const name = data.headName(head.index);
    const box = h("input", { type: "checkbox", id: `pick-${head.index}`, "aria-label": `Select ${name}` });
    box.checked = picked;
    box.addEventListener("change", () => {
      const next = new Set(state.heads);
      if (box.checked) next.add(head.index);
      else next.delete(head.index);
      qk.set({ heads: next, head: box.checked ? head.index : state.head });
    });
    const cells = columns.map((column) => {
      const content = column.cell(head);
      const inner = column.opens
        ? h(
            "button",
            {
              type: "button",
              id: `open-${head.index}`,
              class: "link",
              "aria-label": `Open ${name}`,
              onclick: () => open(head),
            },
            content,
          )
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

  function open(head) {
    qk.set({ head: head.index });
    qk.go("head");
  }

  function pager(total) {
    const pages = Math.max(1, Math.ceil(total / PAGE));
    page = Math.min(page, pages - 1);
    const turn = (step) => () => {
      page += step;
      draw();
    };
    return h(
      "div",
      { class: "pager" },
      h(
        "button",
        { type: "button", id: "page-before", disabled: page === 0, onclick: turn(-1) },
        "‹ Previous",
      ),
      h(
        "span",
        {},
        total
          ? `${qk.count(page * PAGE + 1)}–${qk.count(Math.min(total, (page + 1) * PAGE))} of ${qk.headCount(total)}`
          : "No head passes the filter",
      ),
      h(
        "button",
        { type: "button", id: "page-after", disabled: page >= pages - 1, onclick: turn(1) },
        "Next ›",
      ),
    );
  }

  function markSelected() {
    for (const line of drawing.querySelectorAll("tbody tr")) {
      const picked = state.heads.has(Number(line.dataset.head));
      line.classList.toggle("selected", picked);
      line.querySelector("input").checked = picked;
    }
  }

  function draw(keys) {
    qk.filters.draw();
    if (qk.selectionOnly(keys)) {
      markSelected();
      return;
    }
    if (keys && keys.has("filter")) page = 0;
    const list = rows();
    const turns = pager(list.length);
    const body = list.slice(page * PAGE, (page + 1) * PAGE).map(row);
    const place = data.training ? data.stops[state.stop].label : "All models";
    const caption = h("caption", {}, `${place}, ${state.window} window`);
    const grid = h("table", { class: "heads" }, caption, h("thead", {}, header()), h("tbody", {}, body));
    qk.mount(
      drawing,
      h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Table of heads" }, grid),
      turns,
    );
    const said = [];
    if (!data.hasKv) said.push("No kv_head column: key heads are not known.");
    if (!data.hasRope) said.push("No rope column: which layers rotate is not known.");
    note.textContent = said.join(" ");
  }

  qk.table = {
    setUp: () => qk.filters.setUp(rows),
    draw,
    needs: ["stop", "heads", "filter", "window", "sort", "down"],
  };
})();
