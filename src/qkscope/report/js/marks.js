// @ts-check
/* Marks: one tooltip for all, and every chart reached by the keyboard with the focus kept. */
"use strict";

const marks = (() => {
  const { h } = dom;

  /* ---- the tooltip ---- */

  const tip = dom.find("tip");

  /** @type {(lines: (string | null)[], x: number, y: number) => void} */
  function showTip(lines, x, y) {
    tip.replaceChildren(...lines.filter(Boolean).map((line, i) => h(i ? "p" : "strong", {}, line)));
    dom.lower(tip);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), document.documentElement.clientWidth - box.width - 8);
    const above = y - box.height - 12;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above < 8 ? y + 18 : above}px`;
  }

  function hideTip() {
    tip.hidden = true;
  }

  /** @type {(element: Element, lines: (string | null)[]) => void} */
  function tipAt(element, lines) {
    const box = element.getBoundingClientRect();
    showTip(lines, box.left + box.width / 2, box.top);
  }

  /* ---- marks ---- */

  /* What each mark says and does. Listening happens once for all marks, below: a page may hold thousands. */
  /** @typedef {(string | null)[]} Lines */
  /** @type {WeakMap<Element, { act?: Handler, lines: (event: any) => Lines }>} */
  const known = new WeakMap();

  /* An element that has marks of its own drawing: what it says and does depends on where the pointer is. */
  /** @type {(element: HTMLElement, about: { act?: Handler, lines: (event: any) => Lines }) => void} */
  const ground = (element, about) => {
    known.set(element, about);
  };

  /* Words with a tooltip that explains them. */
  /** @type {<E extends HTMLElement>(element: E, name: string, means: string | null | undefined) => E} */
  function explained(element, name, means) {
    if (!means) return element;
    known.set(element, { lines: () => [name, means] });
    element.classList.add("explained");
    element.setAttribute("aria-description", means);
    return element;
  }

  /** @type {(element: Element, lines: Lines, verb?: string) => void} */
  const name = (element, lines, verb) =>
    element.setAttribute("aria-label", lines.filter(Boolean).join(", ") + (verb ? `. ${verb}` : ""));

  /* Make an element a mark: named, reachable, with a tooltip; a button where there is something to do.
   * `key` tells it apart in its chart, so that focus returns to it when the chart is drawn anew. `say` gives the lines
   * of its tooltip and, without what measures mean, of its label; `verb` is what a click does, in words. */
  /** @type {<E extends Element>(element: E, what: { key: string, say: (meaning: boolean) => Lines, verb?: string,
   *   act?: Handler, pressed?: boolean, named?: boolean }) => E} */
  function mark(element, { key, say, verb, act, pressed, named = true }) {
    known.set(element, { act, lines: () => say(true) });
    element.setAttribute("data-key", key);
    element.setAttribute("role", act ? "button" : "img");
    if (named) name(element, say(false), verb);
    element.setAttribute("tabindex", "-1");
    element.classList.add("mark");
    if (pressed !== undefined) element.setAttribute("aria-pressed", String(pressed));
    return element;
  }

  /* The mark that an event is about, and what is known of it. */
  /** @param {Event} event */
  function markOf(event) {
    const element = event.target instanceof Element ? event.target.closest(".mark, .sheet, .explained") : null;
    const about = element && known.get(element);
    return element && about ? { element, ...about } : null;
  }

  function listenToMarks() {
    document.addEventListener("pointermove", (event) => {
      const found = event.pointerType === "mouse" && !event.buttons ? markOf(event) : null;
      const lines = found?.lines(event) || [];
      if (lines.length) showTip(lines, event.clientX, event.clientY);
      else if (!tip.hidden && event.pointerType === "mouse") hideTip();
    });
    document.addEventListener("focusin", (event) => {
      const found = markOf(event);
      if (found && found.element.matches(":focus-visible")) tipAt(found.element, found.lines(event));
    });
    document.addEventListener("focusout", hideTip);
    document.addEventListener("click", (event) => {
      markOf(event)?.act?.(event);
    });
    document.addEventListener("keydown", (event) => {
      const found = markOf(event);
      if (!found?.act || (event.key !== "Enter" && event.key !== " ")) return;
      event.preventDefault();
      found.act(event);
    });
  }

  /** @type {Record<string, [number, number]>} */
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  /** @param {Element} element */
  function centre(element) {
    const box = element.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  }

  /* The nearest mark in a direction: distance ahead, with what lies aside counted double. */
  /** @type {(all: HTMLElement[], from: Element, direction: [number, number]) => HTMLElement | null} */
  function neighbour(all, from, [dx, dy]) {
    const [x, y] = centre(from);
    let best = null;
    let cost = Infinity;
    for (const candidate of all) {
      if (candidate === from) continue;
      const [cx, cy] = centre(candidate);
      const ahead = (cx - x) * dx + (cy - y) * dy;
      const aside = Math.abs((cx - x) * dy) + Math.abs((cy - y) * dx);
      if (ahead > 0.5 && ahead + 2 * aside < cost) [best, cost] = [candidate, ahead + 2 * aside];
    }
    return best;
  }

  /* One checkpoint of the Tab key per chart; arrows move among its marks, Home and End to the first and the last. */
  /** @param {HTMLElement} container */
  function rove(container) {
    if (!container.dataset.roving) listenToArrows(container);
    container.dataset.roving = "yes";
    const all = marksOf(container);
    const active = all.find((m) => m.dataset.key === container.dataset.active) || all[0];
    if (active && !all.some((m) => m.getAttribute("tabindex") === "0")) active.setAttribute("tabindex", "0");
  }

  /** @type {(container: HTMLElement) => HTMLElement[]} */
  const marksOf = (container) => [...container.querySelectorAll(".mark")].map((m) => /** @type {any} */ (m));

  /** @param {HTMLElement} container */
  function listenToArrows(container) {
    container.addEventListener("keydown", (event) => {
      const from = event.target instanceof Element ? event.target.closest(".mark") : null;
      if (!from) return;
      const all = marksOf(container);
      let to;
      if (ARROWS[event.key]) to = neighbour(all, from, ARROWS[event.key]);
      else if (event.key === "Home") [to] = all;
      else if (event.key === "End") to = all[all.length - 1];
      else return;
      event.preventDefault();
      if (to) to.focus();
    });
    container.addEventListener("focusin", (event) => {
      const target = event.target instanceof Element ? event.target.closest(".mark") : null;
      if (!target) return;
      for (const m of container.querySelectorAll('.mark[tabindex="0"]')) m.setAttribute("tabindex", "-1");
      target.setAttribute("tabindex", "0");
      container.dataset.active = /** @type {any} */ (target).dataset.key;
    });
  }

  /* Put a drawing in its place, keeping the focus on the mark that had it. */
  /** @type {(container: HTMLElement, ...drawing: (Node | null | (Node | null)[])[]) => void} */
  function mount(container, ...drawing) {
    /** @type {any} */
    const active = document.activeElement;
    const key = container.contains(active) ? active.dataset.key || active.id : null;
    container.replaceChildren(...drawing.flat().filter((node) => node !== null));
    dom.lower(container);
    rove(container);
    if (key === null) return;
    /** @type {any[]} */
    const all = [...container.querySelectorAll("[data-key], [id]")];
    const same = all.find((m) => m.dataset.key === key || m.id === key);
    if (same) same.focus({ preventScroll: true });
  }

  return { listenToMarks, hideTip, tipAt, ground, explained, mark, name, rove, mount };
})();
