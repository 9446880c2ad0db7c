/* Start: restore the state from the hash, set up the views, draw them, and draw again what a change concerns. */
"use strict";

(() => {
  const { state } = qk;
  const views = [qk.toolbar, qk.signal, qk.taxonomy, qk.portrait, qk.depth, qk.head, qk.table];

  /* Go to a view: scroll to it, give it the focus, and name it in the hash. */
  function go(view) {
    const section = document.getElementById(view);
    qk.set({ view });
    section.scrollIntoView({ behavior: qk.reducedMotion() ? "auto" : "smooth", block: "start" });
    section.focus({ preventScroll: true });
    qk.hideTip();
  }
  qk.go = go;

  function follow(event) {
    const link = event.target.closest("a[data-view]");
    if (!link) return;
    event.preventDefault();
    go(link.dataset.view);
  }

  function drawAll(keys) {
    for (const view of views) {
      if (!keys || keys.has("size") || view.needs.some((key) => keys.has(key))) view.draw(keys);
    }
    if (keys && keys.has("view") && keys.size > 1 && state.view)
      document.getElementById(state.view).scrollIntoView();
  }

  function onResize() {
    let width = window.innerWidth;
    let wait = null;
    window.addEventListener("resize", () => {
      clearTimeout(wait);
      wait = setTimeout(() => {
        if (window.innerWidth === width) return; // a phone's address bar coming and going
        width = window.innerWidth;
        drawAll(new Set(["size"]));
      }, 120);
    });
  }

  /* On paper nothing can be opened: open it before. */
  function onPrint() {
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("main details:not([open])")];
      for (const details of opened) details.open = true;
    });
    window.addEventListener("afterprint", () => {
      for (const details of opened) details.open = false;
    });
  }

  function start() {
    qk.startFromHash();
    for (const view of views) view.setUp();
    drawAll(null);
    qk.onChange(drawAll);
    document.addEventListener("click", follow);
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      qk.hideTip();
      if (state.heads.size && !event.target.closest("input, select")) qk.set({ heads: new Set() });
    });
    window.addEventListener("scroll", qk.hideTip, { passive: true });
    onResize();
    onPrint();
    if (state.view) document.getElementById(state.view).scrollIntoView();
    document.documentElement.dataset.ready = String(Math.round(performance.now())); // milliseconds, for those who measure
  }

  start();
})();
