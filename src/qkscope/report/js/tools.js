// @ts-check
/* Toolbar: the checkpoint, window and selection that all views share; the link to them; the page's colours. */
"use strict";

const tools = (() => {
  const { state } = store;
  const { h } = dom;
  const announcer = dom.find("announcer");
  /** @type {Record<string, any>} */
  const controls = {};

  function stepper() {
    const place = dom.find("stepper");
    const box = h(
      "select",
      { id: "stop" },
      data.stops.map(({ index, label, model }) => h("option", { value: String(index), title: model }, label)),
    );
    box.addEventListener("change", () => store.set({ stop: Number(box.value) }));
    /** @param {number} by */
    const step = (by) => () =>
      store.set({ stop: Math.min(data.stops.length - 1, Math.max(0, state.stop + by)) });
    controls.stop = box;
    controls.before = h(
      "button",
      { type: "button", id: "stop-before", "aria-label": `Previous ${axes.stopWord}`, onclick: step(-1) },
      "‹",
    );
    controls.after = h(
      "button",
      { type: "button", id: "stop-after", "aria-label": `Next ${axes.stopWord}`, onclick: step(1) },
      "›",
    );
    const word = axes.stopWord[0].toUpperCase() + axes.stopWord.slice(1);
    place.replaceChildren(h("label", { for: "stop" }, word), controls.before, box, controls.after);
    if (data.stops.length === 1)
      [controls.before, controls.after].forEach((button) => button.setAttribute("hidden", ""));
  }

  /* A choice only where there is one: with a single window there is nothing to match. */
  function windows() {
    if (!data.matched) return;
    controls.window = dom.options(
      "window",
      "Window",
      store.choices.window.map((name) => [name, data.windowName(/** @type {WindowName} */ (name))]),
      state.window,
      (value) => store.set({ window: value }),
    );
    dom.find("window-choice").replaceChildren(controls.window);
  }

  /* Which of two runs is shown. */
  function runs() {
    if (!data.runNames.length) return;
    /** @type {[string, string][]} */
    const choices = store.choices.run.map((run) => [run, run]);
    controls.run = dom.options("run", "Run", choices, state.run, (value) => store.set({ run: value }));
    dom.find("run-choice").replaceChildren(controls.run);
  }

  function selection() {
    controls.count = h("span", { id: "selected-count" });
    controls.add = h(
      "button",
      {
        type: "button",
        id: "adding",
        "aria-pressed": "false",
        title: "Add to the selection instead of replacing it (or hold Shift)",
      },
      "+ add",
    );
    controls.add.addEventListener("click", () => {
      store.setAdding(!store.isAdding());
      controls.add.setAttribute("aria-pressed", String(store.isAdding()));
    });
    controls.clear = h(
      "button",
      { type: "button", id: "clear", onclick: () => store.set({ heads: new Set() }) },
      "Clear",
    );
    controls.filter = h("button", {
      type: "button",
      id: "filter-chip",
      class: "chip",
      onclick: () => store.clearFilter(),
    });
    dom
      .find("selection")
      .replaceChildren(controls.filter, controls.count, controls.add, controls.clear, linkButton());
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    controls.stop.value = String(state.stop);
    controls.before.disabled = state.stop === 0;
    controls.after.disabled = state.stop === data.stops.length - 1;
    dom.choose(controls.window || null, state.window);
    dom.choose(controls.run || null, state.run);
    const n = state.heads.size;
    controls.count.textContent = n ? `${text.headCount(n)} selected` : "no selection";
    controls.clear.disabled = n === 0;
    const shown = store.shown();
    controls.filter.hidden = !shown;
    const spoken = h("span", { class: "visually-hidden" }, ". Clear the filter");
    if (shown) controls.filter.replaceChildren(`filter: ${text.headCount(shown.size)}`, spoken, " ✕");
    if (keys) announce(keys, shown);
  }

  /** @type {(keys: Set<string>, shown: Set<number> | null) => void} */
  function announce(keys, shown) {
    const said = [];
    if (keys.has("stop")) said.push(data.stops[state.stop].label);
    if (keys.has("heads"))
      said.push(state.heads.size ? `${text.headCount(state.heads.size)} selected` : "selection cleared");
    if (keys.has("filter"))
      said.push(shown ? `filter: ${text.headCount(shown.size)} shown` : "filter cleared");
    if (keys.has("window")) said.push(data.windowName(state.window));
    if (said.length) announcer.textContent = said.join(", ");
  }

  /* ---- the link: this page with its state, in the clipboard or, where a page may not write there, to copy by hand */

  function linkButton() {
    const button = h(
      "button",
      { type: "button", id: "copy-link", title: "Copy a link to this very view" },
      "Copy link",
    );
    button.addEventListener("click", async () => {
      const copied = await copy(location.href);
      announcer.textContent = copied
        ? "Link copied"
        : "The link could not be copied; it is in the address bar";
      button.textContent = copied ? "Copied ✓" : "See address bar";
      setTimeout(() => {
        button.textContent = "Copy link";
      }, 1800);
    });
    return button;
  }

  /** @type {(said: string) => Promise<boolean>} */
  async function copy(said) {
    try {
      await navigator.clipboard.writeText(said);
      return true;
    } catch {
      const field = h("textarea", { class: "visually-hidden", "aria-hidden": "true" });
      field.value = said;
      document.body.append(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      return done;
    }
  }

  /* Colours: automatic, light or dark. Kept where the browser allows a file to keep something. */
  const THEMES = ["auto", "light", "dark"];
  const SIGNS = ["◐", "○", "●"];

  /** @param {string | null} theme */
  function remember(theme) {
    try {
      if (theme) localStorage.setItem("qkscope-theme", theme);
      return localStorage.getItem("qkscope-theme");
    } catch {
      return theme;
    }
  }

  function theme() {
    const button = dom.find("theme");
    /** @param {string | null} name */
    const show = (name) => {
      const known = name !== null && THEMES.includes(name) ? name : "auto";
      if (known === "auto") document.documentElement.removeAttribute("data-theme");
      else document.documentElement.setAttribute("data-theme", known);
      button.textContent = `${SIGNS[THEMES.indexOf(known)]} ${known}`;
      button.setAttribute("aria-label", `Colours: ${known}. Change`);
      return known;
    };
    let now = show(remember(null));
    button.addEventListener("click", () => {
      now = show(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
      remember(now);
      store.repaint();
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", store.repaint);
  }

  /** @type {View} */
  return {
    setUp() {
      stepper();
      runs();
      windows();
      selection();
      theme();
    },
    draw,
    needs: ["stop", "window", "run", "heads", "filter"],
  };
})();
