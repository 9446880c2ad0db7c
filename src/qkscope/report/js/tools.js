// @ts-check
/* Going to a view; the player of checkpoints; the toolbar: the checkpoint, window and selection that all views share,
 * the link to them, the page's colours. */
"use strict";

/* Go to a view: show the page that it is on, scroll to it, give it the focus, and name it in the hash. */
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

/* A slider over the checkpoints and, over training, a button that plays them. */
const player = (() => {
  const { state } = store;
  const { h } = dom;
  const last = data.checkpoints.length - 1;
  /** @type {number | null} */
  let playing = null;

  /** @type {{ button: HTMLElement, slider: HTMLInputElement, now: HTMLElement }[]} */
  const all = [];

  function pause() {
    if (playing !== null) clearInterval(playing);
    playing = null;
    draw();
  }

  function toggle() {
    if (playing !== null) {
      pause();
      return;
    }
    if (state.checkpoint === last) store.set({ checkpoint: 0 });
    playing = window.setInterval(
      () => {
        if (state.checkpoint >= last) pause();
        else store.set({ checkpoint: state.checkpoint + 1 });
      },
      last >= 40 ? 250 : 900,
    );
    draw();
  }

  function draw() {
    const { label: name, phase } = data.checkpoints[state.checkpoint];
    for (const { button, slider, now } of all) {
      button.textContent = playing === null ? "▶ Play" : "❚❚ Pause";
      slider.value = String(state.checkpoint);
      slider.setAttribute("aria-valuetext", name);
      now.textContent = phase && phase !== name ? `${name} · ${phase}` : name;
    }
  }

  /* One more player, of a view; nothing where there is one checkpoint. */
  /** @type {(view?: string) => HTMLElement[]} */
  function make(view = "") {
    if (last === 0) return [];
    const button = h("button", { type: "button", id: `${view}play`, onclick: toggle }, "▶ Play");
    const slider = h("input", {
      ...{ type: "range", id: `${view}slider`, min: 0, max: last, step: 1, "aria-label": axes.checkpointWord },
      oninput: () => store.set({ checkpoint: Number(slider.value) }),
    });
    const now = h("output", { class: "now", for: `${view}slider` });
    all.push({ button, slider, now });
    return [h("div", { class: "player" }, data.training ? button : null, slider, now)];
  }

  return { make, draw };
})();

const tools = (() => {
  const { state } = store;
  const { h } = dom;
  const announcer = dom.find("announcer");
  /** @type {Record<string, any>} */
  const controls = {};

  function stepper() {
    const box = h(
      "select",
      { id: "checkpoint" },
      data.checkpoints.map(({ index, label, model }) => h("option", { value: String(index), title: model }, label)),
    );
    box.addEventListener("change", () => store.set({ checkpoint: Number(box.value) }));
    const last = data.checkpoints.length - 1;
    /** @type {(id: string, sign: string, said: string, by: number) => HTMLButtonElement} */
    const step = (id, sign, said, by) =>
      dom.button(id, sign, () => store.set({ checkpoint: Math.min(last, Math.max(0, state.checkpoint + by)) }), {
        ...{ "aria-label": `${said} ${axes.checkpointWord}`, hidden: last === 0 },
      });
    controls.checkpoint = box;
    controls.before = step("checkpoint-before", "‹", "Previous", -1);
    controls.after = step("checkpoint-after", "›", "Next", 1);
    const word = axes.checkpointWord[0].toUpperCase() + axes.checkpointWord.slice(1);
    dom.find("stepper").replaceChildren(h("label", { for: "checkpoint" }, word), controls.before, box, controls.after);
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
    const turn = () => {
      store.setAdding(!store.isAdding());
      controls.add.setAttribute("aria-pressed", String(store.isAdding()));
    };
    const adds = "Add to the selection instead of replacing it (or hold Shift)";
    controls.add = dom.button("adding", "+ add", turn, { "aria-pressed": "false", title: adds });
    controls.clear = dom.button("clear", "Clear", () => store.set({ heads: new Set() }));
    controls.filter = dom.button("filter-chip", null, () => store.clearFilter(), { class: "chip" });
    dom
      .find("selection")
      .replaceChildren(controls.filter, controls.count, controls.add, controls.clear, linkButton());
  }

  /** @param {Set<string> | null} keys */
  function draw(keys) {
    controls.checkpoint.value = String(state.checkpoint);
    controls.before.disabled = state.checkpoint === 0;
    controls.after.disabled = state.checkpoint === data.checkpoints.length - 1;
    dom.choose(controls.window || null, state.window);
    dom.choose(controls.run || null, state.run);
    const n = state.heads.size;
    controls.count.textContent = n ? `${text.headCount(n)} selected` : "no selection";
    controls.clear.disabled = n === 0;
    dom.find("selection").classList.toggle("some", n > 0);
    const shown = store.shown();
    controls.filter.hidden = !shown;
    const spoken = h("span", { class: "visually-hidden" }, ". Clear the filter");
    if (shown) controls.filter.replaceChildren(`filter: ${text.headCount(shown.size)}`, spoken, " ✕");
    if (keys) announce(keys, shown);
  }

  /** @type {(keys: Set<string>, shown: Set<number> | null) => void} */
  function announce(keys, shown) {
    const said = [];
    if (keys.has("checkpoint")) said.push(data.labelOf(state.checkpoint));
    if (keys.has("heads"))
      said.push(state.heads.size ? `${text.headCount(state.heads.size)} selected` : "selection cleared");
    if (keys.has("filter"))
      said.push(shown ? `filter: ${text.headCount(shown.size)} shown` : "filter cleared");
    if (keys.has("window")) said.push(data.windowName(state.window));
    if (said.length) announcer.textContent = said.join(", ");
  }

  /* The link: this page with its state, in the clipboard where a page may write there. */
  function linkButton() {
    /** @param {boolean} copied */
    const show = (copied) => {
      announcer.textContent = copied ? "Link copied" : "The link could not be copied; it is in the address bar";
      button.textContent = copied ? "Copied ✓" : "See address bar";
      setTimeout(() => {
        button.textContent = "Copy link";
      }, 1800);
    };
    const copy = async () => navigator.clipboard.writeText(location.href);
    const act = () => copy().then(() => show(true), () => show(false));
    const button = dom.button("copy-link", "Copy link", act, { title: "Copy a link to this very view" });
    return button;
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
    needs: ["checkpoint", "window", "run", "heads", "filter"],
  };
})();
