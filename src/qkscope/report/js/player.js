/* Player: a slider over the checkpoints and, over training, a button that plays them. */
"use strict";

(() => {
  const { data, state, h } = qk;
  const controls = {};
  let play = null;

  function stopPlaying() {
    clearInterval(play);
    play = null;
    draw();
  }

  function togglePlay() {
    if (play) {
      stopPlaying();
      return;
    }
    if (state.stop === data.stops.length - 1) qk.set({ stop: 0 });
    const pace = data.stops.length > 40 ? 250 : 900;
    play = setInterval(() => {
      if (state.stop >= data.stops.length - 1) stopPlaying();
      else qk.set({ stop: state.stop + 1 });
    }, pace);
    draw();
  }

  function draw() {
    if (!controls.slider) return;
    if (controls.play) controls.play.textContent = play ? "❚❚ Pause" : "▶ Play";
    controls.slider.value = state.stop;
    const { label: name, phase } = data.stops[state.stop];
    controls.slider.setAttribute("aria-valuetext", name);
    controls.now.textContent = phase && phase !== name ? `${name} · ${phase}` : name;
  }

  function make() {
    if (data.stops.length === 1) return [];
    if (data.training)
      controls.play = h("button", { type: "button", id: "play", onclick: togglePlay }, "▶ Play");
    const most = data.stops.length - 1;
    controls.slider = h("input", {
      type: "range",
      id: "slider",
      min: 0,
      max: most,
      step: 1,
      "aria-label": qk.stopWord,
    });
    controls.slider.addEventListener("input", () => qk.set({ stop: Number(controls.slider.value) }));
    controls.now = h("output", { class: "now", for: "slider" });
    return [h("div", { class: "player" }, controls.play || null, controls.slider, controls.now)];
  }

  qk.player = { make, draw };
})();
