/* Start: restore the state from the hash, set up the views, draw them, and draw again what a change concerns. */
"use strict";

(() => {
  const { state } = qk;
  const { signal, taxonomy, portrait, depth, head, table } = qk;
  const sections = { signal, taxonomy, portrait, depth, head, table };
  const views = [qk.toolbar, ...Object.values(sections)];

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

  /* A change is drawn at once where it can be seen and soon after elsewhere, one view at a time, so that the page
   * answers while it works. `pending` holds what each view has yet to hear of. */
  const pending = new Map();
  const inSight = new Set([qk.toolbar]);
  let soon = null;

  function drawPending(view) {
    const keys = pending.get(view);
    pending.delete(view);
    if (keys) view.draw(keys);
  }

  function drawNext() {
    const [view] = pending.keys();
    if (view) drawPending(view);
    soon = pending.size ? setTimeout(drawNext, 15) : null;
  }

  function drawAllPending() {
    while (pending.size) drawPending(pending.keys().next().value);
  }

  function onChange(keys) {
    for (const view of views) {
      if (!keys.has("size") && !view.needs.some((key) => keys.has(key))) continue;
      pending.set(view, new Set([...(pending.get(view) || []), ...keys]));
    }
    for (const view of inSight) drawPending(view);
    if (pending.size && soon === null) soon = setTimeout(drawNext, 120);
    if (keys.has("view") && keys.size > 1 && state.view) document.getElementById(state.view).scrollIntoView();
  }

  function watchSight() {
    const places = new Map(Object.entries(sections).map(([id, view]) => [document.getElementById(id), view]));
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const view = places.get(target);
        if (isIntersecting) inSight.add(view);
        else inSight.delete(view);
        if (isIntersecting) drawPending(view);
      }
    });
    for (const section of places.keys()) observer.observe(section);
  }

  function onResize() {
    let width = window.innerWidth;
    let wait = null;
    window.addEventListener("resize", () => {
      clearTimeout(wait);
      wait = setTimeout(() => {
        if (window.innerWidth === width) return; // a phone's address bar coming and going
        width = window.innerWidth;
        onChange(new Set(["size"]));
      }, 120);
    });
  }

  /* On paper nothing can be opened: open it before. */
  function onPrint() {
    let opened = [];
    window.addEventListener("beforeprint", () => {
      drawAllPending();
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
    for (const view of views) view.draw(null);
    qk.listenToMarks();
    qk.onChange(onChange);
    watchSight();
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
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }

  start();
})();
