// @ts-check
/* Go to a view: scroll to it, give it the focus, and name it in the hash. */
"use strict";

/** @param {string} view */
function go(view) {
  const section = dom.find(view);
  store.set({ view });
  section.scrollIntoView({ behavior: dom.reducedMotion() ? "auto" : "smooth", block: "start" });
  section.focus({ preventScroll: true });
  marks.hideTip();
}
