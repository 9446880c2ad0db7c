// @ts-check
/* Start: restore the state from the hash, set up the views, draw them, and draw again what a change concerns. */
"use strict";

(() => {
  const { state } = store;
  /** @type {Record<string, View>} */
  const all = {
    ...{ signal, roles, emergence: raster, causes, scores, ablation, spectrum, explorer, distance, examples },
    ...{ classes, portrait, table: headTable, numbers, head },
  };
  /* Views that the results have nothing for are not on the page. */
  const sections = Object.fromEntries(Object.entries(all).filter(([id]) => document.getElementById(id)));
  const views = [tools, ...Object.values(sections)];

  /** @param {MouseEvent} event */
  function follow(event) {
    const link = event.target instanceof Element ? event.target.closest("a[data-view], .unfold button") : null;
    if (!link) return;
    event.preventDefault();
    const view = link.getAttribute("data-view") || link.getAttribute("aria-controls") || "signal";
    unfold(view);
    go(view, link.matches(".see") ? claimed(link) : {});
  }

  /* The two measures that a claim compares, where heads can be placed by them. */
  /** @param {Element} link */
  const axesOf = (link) =>
    (link.getAttribute("data-axes") || "").split("~").filter((name) => store.choices.across.includes(name));

  /* What "See it" sets so that the picture shows the claim's numbers: window, checkpoint and measure, no filter. */
  /** @type {(link: Element) => Partial<State>} */
  function claimed(link) {
    const checkpoint = data.checkpoints.findIndex(({ model }) => model === link.getAttribute("data-at"));
    const measure = link.getAttribute("data-measure") || "";
    const wanted = link.getAttribute("data-window") || "";
    const menu = { signal: "measure", emergence: "map", causes: "number" }[link.getAttribute("data-view") || ""];
    const [across, up] = axesOf(link);
    store.clearFilter();
    /** @type {Record<string, Partial<State>>} */
    const views = {
      emergence: { rows: "layers" },
      spectrum: { carried: "signal_q", heads: new Set() },
      classes: { taxonomy: "published" },
      portrait: across && up ? { across, up } : {},
    };
    return {
      ...views[link.getAttribute("data-view") || ""],
      ...(checkpoint >= 0 ? { checkpoint } : {}),
      ...(menu && store.choices[menu].includes(measure) ? { [menu]: measure } : {}),
      ...(store.choices.window.includes(wanted) ? { window: /** @type {WindowName} */ (wanted) } : {}),
    };
  }

  /* Views that show one checkpoint, and those that show only the heads that pass the filter. */
  const OF_CLAIMS = [
    ...["window", "checkpoint", "filter", "heads"],
    ...["measure", "map", "number", "carried", "taxonomy", "across", "up"],
  ];
  const OF_ONE_CHECKPOINT = ["roles", "distance", "portrait"];
  const FILTERED = ["signal", "emergence", "classes", "portrait"];

  /* What the picture beside a claim shows other than the claim is about: window, checkpoint, measure or heads. */
  /** @type {(link: Element) => string[]} */
  function differences(link) {
    const view = link.getAttribute("data-view") || "";
    const [wanted, measure, at] = ["window", "measure", "at"].map((name) => link.getAttribute(`data-${name}`) || "");
    const found = [];
    if (wanted !== state.window && data.matched && view !== "ablation") found.push(data.windowName(state.window));
    const { model, label } = data.checkpoints[state.checkpoint];
    if (OF_ONE_CHECKPOINT.includes(view) && at !== model) found.push(label);
    const shown = view === "signal" ? signal.measures() : view === "emergence" ? [state.map] : null;
    if (shown && store.choices.measure.includes(measure) && !shown.includes(measure))
      found.push(data.measureLabel(shown[0]));
    if (view === "causes" && store.choices.number.includes(measure) && state.number !== measure)
      found.push(state.number);
    const [across, up] = axesOf(link);
    if (across && (across !== state.across || up !== state.up))
      found.push(`${data.measureLabel(state.up)} by ${data.measureLabel(state.across)}`);
    if (view === "classes" && state.taxonomy !== "published") found.push("classes by score shares");
    if (view === "spectrum" && state.carried !== "signal_q") found.push("score strength");
    if (view === "spectrum" && state.heads.size === 1) found.push("one head");
    if (FILTERED.includes(view) && store.shown()) found.push("filtered heads");
    return found;
  }

  /* A claim about something else than its picture shows says so, until "See it" brings them together. */
  function markClaims() {
    for (const link of document.querySelectorAll(".see")) {
      const shown = differences(link);
      const claim = link.closest(".claim");
      const flag = claim?.querySelector(".other");
      claim?.classList.toggle("elsewhere", shown.length > 0);
      flag?.toggleAttribute("hidden", !shown.length);
      if (!flag) continue;
      flag.textContent = `chart shows ${shown.join(", ")}`;
      dom.lower(flag);
    }
  }

  /* A change is drawn at once where it can be seen and soon after elsewhere, one view at a time, so that the page
   * answers while it works. `pending` holds what each view has yet to hear of. */
  /** @type {Map<View, Set<string>>} */
  const pending = new Map();
  /** @type {Set<View>} */
  const inSight = new Set([tools]);
  /** @type {ReturnType<typeof setTimeout> | null} */
  let soon = null;

  /* On a phone some views stay folded until they are asked for. */
  const narrow = window.matchMedia("(max-width: 44rem)");
  const folded = new Set([...document.querySelectorAll(".folded")].map(({ id }) => sections[id]));

  /* A hidden view has no width to draw in. */
  const isShown = (/** @type {View} */ view) =>
    view === tools || ((view === head) === (state.view === "head") && !(narrow.matches && folded.has(view)));

  /** @param {string} id */
  function unfold(id) {
    const section = document.getElementById(id);
    if (!section?.classList.contains("folded")) return;
    section.classList.remove("folded");
    section.querySelector(".unfold")?.remove();
    folded.delete(sections[id]);
    drawPending(sections[id]);
  }

  /** @param {View} view */
  function drawPending(view) {
    const keys = pending.get(view);
    if (!keys || !isShown(view)) return;
    pending.delete(view);
    view.draw(keys.has("first") ? null : keys);
  }

  function drawNext() {
    const waiting = [...pending.keys()].filter(isShown);
    if (waiting.length) drawPending(waiting[0]);
    soon = waiting.length > 1 ? setTimeout(drawNext, 15) : null;
  }

  function drawAllPending() {
    for (const view of [...pending.keys()]) drawPending(view);
  }

  /** @param {Set<string>} keys */
  function onChange(keys) {
    if (keys.has("view")) go.show(state.view);
    if (keys.has("view") && state.view) unfold(state.view);
    if (OF_CLAIMS.some((key) => keys.has(key))) markClaims();
    for (const view of views) {
      if (!keys.has("size") && !view.needs.some((key) => keys.has(key))) continue;
      pending.set(view, new Set([...(pending.get(view) || []), ...keys]));
    }
    for (const view of inSight) drawPending(view);
    if (keys.has("view")) drawPending(head);
    if (pending.size && soon === null) soon = setTimeout(drawNext, 120);
  }

  function watchSight() {
    /** @type {Map<Element, View>} */
    const viewOf = new Map(Object.entries(sections).map(([id, view]) => [dom.find(id), view]));
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const view = viewOf.get(target);
        if (!view) continue;
        if (isIntersecting) inSight.add(view);
        else inSight.delete(view);
        if (isIntersecting) drawPending(view);
      }
    });
    for (const section of viewOf.keys()) observer.observe(section);
  }

  function onResize() {
    let width = window.innerWidth;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let wait;
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
    /** @type {HTMLDetailsElement[]} */
    let opened = [];
    window.addEventListener("beforeprint", () => {
      for (const id of Object.keys(sections)) unfold(id);
      drawAllPending();
      opened = [...document.querySelectorAll("details")].filter(({ open }) => !open);
      for (const details of opened) details.open = true;
    });
    window.addEventListener("afterprint", () => {
      for (const details of opened) details.open = false;
    });
  }

  function start() {
    store.startFromHash();
    for (const view of views) view.setUp?.();
    dom.lower(dom.find("main"));
    save.setUp();
    go.show(state.view);
    if (state.view) unfold(state.view);
    markClaims();
    for (const view of views) pending.set(view, new Set(["first"]));
    drawAllPending();
    marks.listenToMarks();
    store.onChange(onChange);
    watchSight();
    document.addEventListener("click", follow);
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      marks.hideTip();
      if (state.heads.size && !(event.target instanceof Element && event.target.closest("input, select")))
        store.set({ heads: new Set() });
    });
    window.addEventListener("scroll", marks.hideTip, { passive: true });
    onResize();
    onPrint();
    if (state.view) dom.find(state.view).scrollIntoView();
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }

  start();
})();
