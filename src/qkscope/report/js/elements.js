// @ts-check
/* Elements made from text, and the controls of the views. */
"use strict";

const dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  /* ---- elements: text is always text ---- */

  /** @type {<E extends Element>(node: E, attributes: Record<string, any>, children: (Child | Child[])[]) => E} */
  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }

  /** @type {<T extends keyof HTMLElementTagNameMap>(tag: T, attributes?: Record<string, any>,
   *   ...children: (Child | Child[])[]) => HTMLElementTagNameMap[T]} */
  const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

  /** @type {<T extends keyof SVGElementTagNameMap>(tag: T, attributes?: Record<string, any>,
   *   ...children: (Child | Child[])[]) => SVGElementTagNameMap[T]} */
  const s = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS(SVG, tag), attributes, children);

  /* ---- r_q with its index set low, as in print; what is copied or read aloud stays r_q ---- */

  const INDEXED = /\b(r|eta|R)_([qk])\b/;
  const AS_WRITTEN = "option, title, script, style, code, .excerpt";

  /* "mean r_q, r_k" -> [["mean r", "q"], [", r", "k"], ["", ""]] */
  /** @param {string} said */
  function split(said) {
    const parts = said.split(INDEXED);
    return d3.range(0, parts.length, 3).map((i) => [parts[i] + (parts[i + 1] || ""), parts[i + 2] || ""]);
  }

  /* A text with its indices as one element, which is one item of whatever row it stands in. */
  /** @param {string} said */
  function inHtml(said) {
    const all = h("span", {});
    for (const [plain, index] of split(said)) {
      all.append(plain);
      if (index) all.append(h("sub", {}, h("span", {}, "_"), index));
    }
    return all;
  }

  /* The same in a drawing, whose texts have no elements but pieces that are shifted. */
  /** @param {string} said */
  function inSvg(said) {
    const all = s("tspan", {});
    let up = false; // whether the next text has to go back up
    for (const [plain, index] of split(said)) {
      if (plain) all.append(up ? s("tspan", { dy: "-0.23em" }, plain) : plain);
      up = Boolean(index) || (up && !plain);
      if (!index) continue;
      const low = s("tspan", { "font-size": "0.76em", dy: "0.3em" }, index);
      all.append(s("tspan", { "font-size": 0 }, "_"), low);
    }
    return all;
  }

  /* Set the indices low in everything below an element. */
  /** @param {Node} root */
  function lower(root) {
    /** @type {Text[]} */
    const found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) found.push(/** @type {Text} */ (walker.currentNode));
    for (const node of found) {
      const parent = node.parentElement;
      if (!INDEXED.test(node.data) || !parent || parent.closest(AS_WRITTEN)) continue;
      node.replaceWith(parent instanceof SVGElement ? inSvg(node.data) : inHtml(node.data));
    }
  }

  /* A part of the template. */
  /** @type {(id: string) => HTMLElement} */
  function find(id) {
    const found = document.getElementById(id);
    if (!found) throw new Error(`the page has no #${id}`);
    return found;
  }

  /* What is to be said below a view, sentence by sentence. */
  /** @type {(view: string, said: (string | null | false | undefined)[]) => void} */
  function note(view, said) {
    const place = find(`${view}-note`);
    place.textContent = said.filter(Boolean).join(" ");
    lower(place);
  }

  const reducedMotion = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

  /* Hand a file to the reader, from memory. */
  /** @type {(blob: Blob, name: string) => void} */
  function download(blob, name) {
    const url = URL.createObjectURL(blob);
    const link = h("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 5000);
  }

  /* A file's name out of the study's, harmless on every disk. */
  /** @param {string} end */
  const fileName = (end) => `${(data.name || "heads").replace(/[^\w.-]+/g, "_").slice(0, 60)}_${end}`;

  /* ---- controls ---- */

  /** @type {(id: string, said: Child, act: Handler, more?: Record<string, any>) => HTMLButtonElement} */
  const button = (id, said, act, more = {}) => h("button", { type: "button", id, onclick: act, ...more }, said);

  /* A row of options of which one holds: radio buttons, drawn as one strip. */
  /** @type {(name: string, legend: string, choices: [string, string][], current: string,
   *   act: (value: any) => void) => HTMLFieldSetElement} */
  function options(name, legend, choices, current, act) {
    const set = h("fieldset", { class: "options" }, h("legend", {}, legend));
    for (const [value, label] of choices) {
      const id = `${name}-${value}`;
      const input = h("input", { type: "radio", name, value, id });
      input.checked = value === current;
      input.addEventListener("change", () => act(value));
      set.append(input, h("label", { for: id }, label));
    }
    return set;
  }

  /** @type {(fieldset: HTMLElement | null, value: string) => void} */
  function choose(fieldset, value) {
    for (const input of fieldset?.querySelectorAll("input") || []) input.checked = input.value === value;
  }

  /* A menu with its name before it; the third part of an entry says what it means. */
  /** @type {(id: string, label: string, entries: [any, any, any?][], value: any,
   *   act: (value: string) => void) => { field: HTMLLabelElement, box: HTMLSelectElement }} */
  function menu(id, label, entries, value, act) {
    const box = h(
      "select",
      { id },
      entries.map(([key, name, means]) => h("option", { value: String(key), title: means || null }, String(name))),
    );
    box.value = String(value);
    box.addEventListener("change", () => act(box.value));
    return { field: h("label", { class: "field" }, h("span", {}, label), box), box };
  }

  /* ---- legends ---- */

  /* What a mark means: a block or a line of a colour, a symbol, or no mark. */
  /** @type {(mark: Node | null, said: Child) => HTMLElement} */
  const key = (mark, said) => h("span", { class: "key" }, mark, said);
  /** @type {(colour: string, said: Child) => HTMLElement} */
  const blockKey = (colour, said) => key(h("i", { class: "block", style: `background-color:${colour}` }), said);
  /** @type {(colour: string | null, said: Child) => HTMLElement} */
  const lineKey = (colour, said) =>
    key(h("i", { class: "line", style: colour && `border-color:${colour}` }), said);
  /** @type {(symbol: string, said: Child, colour?: string) => HTMLElement} */
  const symbolKey = (symbol, said, colour) =>
    key(h("span", { class: "swatch", style: colour && `color:${colour}` }, symbol), said);
  /** @type {(...keys: (Child | Child[])[]) => HTMLElement} */
  const legend = (...keys) => h("p", { class: "legend" }, ...keys);

  /* What a view says where it has nothing to draw. */
  /** @param {string} why */
  const absent = (why) => h("p", { class: "absent" }, why);

  /* ---- tables ---- */

  /* A table that may be larger than its frame: reached by the keyboard to be scrolled. */
  /** @type {(label: string, table: HTMLTableElement, short?: boolean) => HTMLElement} */
  function scroller(label, table, short = false) {
    const about = { tabindex: "0", role: "region", "aria-label": label };
    return h("div", { class: short ? "scroller short" : "scroller", ...about }, table);
  }

  /* Pictures side by side in so many columns. In a single column, that of a phone, the first is in sight and the others
   * open on demand. */
  /** @type {(drawing: HTMLElement, columns: number, pictures: Element[]) => HTMLElement} */
  function grid(drawing, columns, pictures) {
    const style = `grid-template-columns:repeat(${columns},minmax(0,1fr))`;
    /** @param {Element[]} some */
    const cells = (some) => h("div", { class: "grid", style }, some);
    if (columns > 1 || pictures.length === 1) return cells(pictures);
    const [first, ...rest] = pictures;
    const open = Boolean(drawing.querySelector(".rest[open]"));
    const more = h("summary", {}, `${rest.length} more ${rest.length === 1 ? "chart" : "charts"}`);
    return h("div", {}, cells([first]), h("details", { class: "rest", open }, more, cells(rest)));
  }

  /* The numbers of a chart, folded: a table whose first column names its rows. Stays open when drawn again; rows are
   * made when it is first opened. */
  /** @type {(drawing: HTMLElement, heads: string[], rows: string[][] | (() => string[][])) => HTMLElement} */
  function numbers(drawing, heads, rows) {
    const head = heads.map((name, i) => h("th", { scope: "col", class: i ? "num" : null }, name));
    const body = h("tbody");
    const fillIn = () =>
      body.replaceChildren(
        ...(typeof rows === "function" ? rows() : rows).map(([name, ...cells]) =>
          h("tr", {}, h("th", { scope: "row" }, name), cells.map((cell) => h("td", { class: "num" }, cell))),
        ),
      );
    const table = h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head)), body);
    const view = drawing.id.replace("-drawing", "");
    const open = Boolean(drawing.querySelector(`#${view}-numbers`)?.closest("details[open]"));
    const details = h(
      "details",
      { open },
      h("summary", { id: `${view}-numbers` }, "Numbers of this chart"),
      scroller(`Numbers of the chart: ${view}`, table, true),
    );
    if (open || typeof rows !== "function") fillIn();
    else details.addEventListener("toggle", fillIn, { once: true });
    return details;
  }

  /* A long table in pages. `id` tells the tables apart, `noun` names a row; `draw` is called when a page is turned. */
  /** @type {(id: string, size: number, noun: string, draw: () => void) => { first: () => void,
   *   cut: <T>(list: T[]) => T[], buttons: (total: number) => HTMLElement | null }} */
  function pager(id, size, noun, draw) {
    let page = 0;
    /** @param {number} step */
    const turn = (step) => () => {
      page += step;
      draw();
    };
    return {
      first() {
        page = 0;
      },
      cut(list) {
        page = Math.min(page, Math.max(0, Math.ceil(list.length / size) - 1));
        return list.slice(page * size, (page + 1) * size);
      },
      buttons(total) {
        if (!total) return h("p", { class: "pager" }, `No ${noun} found`);
        if (total <= size) return null;
        const last = Math.min(total, (page + 1) * size);
        return h(
          "div",
          { class: "pager" },
          button(`${id}-before`, "‹ Previous", turn(-1), { disabled: page === 0 }),
          h("span", {}, `${text.count(page * size + 1)}–${text.count(last)} of ${text.count(total)} ${noun}s`),
          button(`${id}-after`, "Next ›", turn(1), { disabled: last >= total }),
        );
      },
    };
  }

  return {
    ...{ h, s, find, note, reducedMotion, download, fileName, lower },
    ...{ button, options, choose, menu, key, blockKey, lineKey, symbolKey, legend },
    ...{ grid, numbers, pager, absent, scroller },
  };
})();
