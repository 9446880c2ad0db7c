// @ts-check
/* Player: a slider over the checkpoints and, over training, a button that plays them. */
"use strict";

const player = (() => {
  const { state } = store;
  const { h } = dom;
  const last = data.stops.length - 1;
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
    if (state.stop === last) store.set({ stop: 0 });
    playing = window.setInterval(
      () => {
        if (state.stop >= last) pause();
        else store.set({ stop: state.stop + 1 });
      },
      last >= 40 ? 250 : 900,
    );
    draw();
  }

  function draw() {
    const { label: name, phase } = data.stops[state.stop];
    for (const { button, slider, now } of all) {
      button.textContent = playing === null ? "▶ Play" : "❚❚ Pause";
      slider.value = String(state.stop);
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
      ...{ type: "range", id: `${view}slider`, min: 0, max: last, step: 1, "aria-label": axes.stopWord },
      oninput: () => store.set({ stop: Number(slider.value) }),
    });
    const now = h("output", { class: "now", for: `${view}slider` });
    all.push({ button, slider, now });
    return [h("div", { class: "player" }, data.training ? button : null, slider, now)];
  }

  return { make, draw };
})();
