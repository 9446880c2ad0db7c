// @ts-check
/* Go to a view: show the page that it is on, scroll to it, give it the focus, and name it in the hash. */
"use strict";

const go = (() => {
  /* The head has a page of its own; all other views are on the report's. */
  /** @param {string | null} view */
  function show(view) {
    const alone = view === "head";
    dom.find("report").hidden = alone;
    dom.find("head").hidden = !alone;
    const section = view ? document.getElementById(view) : null;
    const folded = section?.querySelector(":scope > details");
    if (folded instanceof HTMLDetailsElement) folded.open = true;
  }

  /** @type {(view: string, also?: Partial<State>) => void} */
  function to(view, also = {}) {
    store.set({ ...also, view });
    show(view);
    const section = dom.find(view);
    if (view === "head") window.scrollTo(0, 0);
    else section.scrollIntoView({ behavior: dom.reducedMotion() ? "auto" : "smooth", block: "start" });
    section.focus({ preventScroll: true });
    marks.hideTip();
  }

  return Object.assign(to, { show });
})();
