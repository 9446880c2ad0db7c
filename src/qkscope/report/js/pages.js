// @ts-check
/* A long table in pages, with buttons to turn them. */
"use strict";

const pages = (() => {
  const { h } = dom;

  /* `id` tells the tables apart, `noun` names a row; `draw` is called when a page is turned. */
  /** @type {(id: string, size: number, noun: string, draw: () => void) => { first: () => void,
   *   cut: <T>(list: T[]) => T[], buttons: (total: number) => HTMLElement | null }} */
  function make(id, size, noun, draw) {
    let page = 0;
    /** @param {number} step */
    const turn = (step) => () => {
      page += step;
      draw();
    };
    /** @type {(name: string, said: string, disabled: boolean, step: number) => HTMLElement} */
    const button = (name, said, disabled, step) =>
      h("button", { type: "button", id: `${id}-${name}`, disabled, onclick: turn(step) }, said);
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
          button("before", "‹ Previous", page === 0, -1),
          h("span", {}, `${text.count(page * size + 1)}–${text.count(last)} of ${text.count(total)} ${noun}s`),
          button("after", "Next ›", last >= total, 1),
        );
      },
    };
  }

  return { make };
})();
