/* Toolbar: the checkpoint, the window and the selection that all views share; and the colours of the page. */
"use strict";

(() => {
  const { data, state, h } = qk;
  const controls = {};
  const announcer = document.getElementById("announcer");

  function stepper() {
    const place = document.getElementById("stepper");
    const box = h(
      "select",
      { id: "stop" },
      data.stops.map(({ index, label, model }) => h("option", { value: index, title: model }, label)),
    );
    box.addEventListener("change", () => qk.set({ stop: Number(box.value) }));
    const step = (by) => () =>
      qk.set({ stop: Math.min(data.stops.length - 1, Math.max(0, state.stop + by)) });
    controls.stop = box;
    controls.before = h(
      "button",
      { type: "button", id: "stop-before", "aria-label": `Previous ${qk.stopWord}`, onclick: step(-1) },
      "‹",
    );
    controls.after = h(
      "button",
      { type: "button", id: "stop-after", "aria-label": `Next ${qk.stopWord}`, onclick: step(1) },
      "›",
    );
    const word = qk.stopWord[0].toUpperCase() + qk.stopWord.slice(1);
    place.replaceChildren(h("label", { for: "stop" }, word), controls.before, box, controls.after);
    if (data.stops.length === 1)
      [controls.before, controls.after].forEach((button) => button.setAttribute("hidden", ""));
  }

  function windows() {
    const size = h("span", { class: "size" }, data.matchedWindow ? ` ${qk.count(data.matchedWindow)}` : "");
    const why = data.matched ? null : "No matched window was measured.";
    controls.window = qk.options(
      "window",
      "Window",
      [
        ["own", "own"],
        ["matched", ["matched", size], why],
      ],
      state.window,
      (value) => qk.set({ window: value }),
    );
    document.getElementById("window-choice").replaceChildren(controls.window);
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
      qk.setAdding(!qk.isAdding());
      controls.add.setAttribute("aria-pressed", String(qk.isAdding()));
    });
    controls.clear = h(
      "button",
      { type: "button", id: "clear", onclick: () => qk.set({ heads: new Set() }) },
      "Clear",
    );
    controls.filter = h("button", {
      type: "button",
      id: "filter-chip",
      class: "chip",
      onclick: () => qk.clearFilter(),
    });
    document
      .getElementById("selection")
      .replaceChildren(controls.filter, controls.count, controls.add, controls.clear);
  }

  function draw(keys) {
    controls.stop.value = state.stop;
    controls.before.disabled = state.stop === 0;
    controls.after.disabled = state.stop === data.stops.length - 1;
    qk.choose(controls.window, state.window);
    const n = state.heads.size;
    controls.count.textContent = n ? `${qk.headCount(n)} selected` : "no selection";
    controls.clear.disabled = n === 0;
    const shown = qk.shown();
    controls.filter.hidden = !shown;
    const spoken = h("span", { class: "visually-hidden" }, ". Clear the filter");
    if (shown) controls.filter.replaceChildren(`filter: ${qk.headCount(shown.size)}`, spoken, " ✕");
    if (keys) announce(keys, shown);
  }

  function announce(keys, shown) {
    const said = [];
    if (keys.has("stop")) said.push(data.stops[state.stop].label);
    if (keys.has("heads"))
      said.push(state.heads.size ? `${qk.headCount(state.heads.size)} selected` : "selection cleared");
    if (keys.has("filter")) said.push(shown ? `filter: ${qk.headCount(shown.size)} shown` : "filter cleared");
    if (keys.has("window")) said.push(`${state.window} window`);
    if (said.length) announcer.textContent = said.join(", ");
  }

  /* Colours: automatic, light or dark. Kept where the browser allows a file to keep something. */
  const THEMES = ["auto", "light", "dark"];

  function remember(theme) {
    try {
      if (theme) localStorage.setItem("qkscope-theme", theme);
      return localStorage.getItem("qkscope-theme");
    } catch {
      return theme;
    }
  }

  function theme() {
    const button = document.getElementById("theme");
    const show = (name) => {
      const known = THEMES.includes(name) ? name : "auto";
      if (known === "auto") document.documentElement.removeAttribute("data-theme");
      else document.documentElement.setAttribute("data-theme", known);
      button.textContent = { auto: "◐ auto", light: "○ light", dark: "● dark" }[known];
      button.setAttribute("aria-label", `Colours: ${known}. Change`);
      return known;
    };
    let now = show(remember(null));
    button.addEventListener("click", () => {
      now = show(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
      remember(now);
    });
  }

  qk.toolbar = {
    setUp() {
      stepper();
      windows();
      selection();
      theme();
    },
    draw,
    needs: ["stop", "window", "heads", "filter"],
  };
})();
