// @ts-check
/* Wavelengths: the share of r_q that each rotary wavelength carries at the chosen checkpoint, mean over RoPE heads. */
"use strict";

const spectrum = (() => {
  const { state } = store;
  const { h } = dom;
  const drawing = document.getElementById("spectrum-drawing");

  /** @typedef {{ run: number, at: number, share: number, width: number }} Bar */

  /** @param {number} run */
  const found = (run) => store.over(run).wavelengths?.[state.stop];

  /** @returns {Bar[]} */
  const bars = () =>
    store.runs().flatMap((run) => {
      const { at, share } = found(run) || { at: [], share: [] };
      const step = at.length > 1 ? Math.log2(at[at.length - 1] / at[0]) / (at.length - 1) : 1;
      return at.map((wave, i) => ({ run, at: wave, share: share[i] ?? NaN, width: step }));
    });

  const { tokens } = text;

  /* A row per wavelength; two runs whose wavelengths differ have rows of their own. */
  /** @param {Bar[]} list */
  function numbersTable(list) {
    const rows = d3.groups(d3.sort(list, ({ at }) => at), ({ at }) => tokens(at)).map(([name, here]) => [
      name,
      ...store.runs().map((run) => text.measure("share_", here.find((bar) => bar.run === run)?.share ?? null)),
    ]);
    const heads = store.runs().map((run) => axes.ofRun(run, "share of r_q"));
    return dom.numbers(dom.find("spectrum-drawing"), ["wavelength, tokens", ...heads], rows);
  }

  function draw() {
    if (!drawing) return;
    const list = bars();
    if (!list.length) {
      marks.mount(drawing, h("p", { class: "absent" }, "Not measured over this window."));
      return;
    }
    const size = found(store.runs()[0])?.window;
    const narrow = store.both() ? 0.44 : 0.84;
    /** @type {(d: Bar, side: number) => number} */
    const edge = (d, side) => {
      const shift = store.both() ? (d.run - 0.5) * 0.46 : 0;
      return d.at * 2 ** ((shift + (side * narrow) / 2) * d.width);
    };
    const most = d3.max(list, (d) => d.share) || 1;
    const svg = axes.plot({
      ...axes.frame(drawing),
      x: { type: "log", base: 2, label: "wavelength, tokens", tickSize: 0, ticks: 6, tickFormat: tokens },
      y: {
        domain: [0, most * 1.12],
        label: null,
        ticks: 5,
        tickSize: 0,
        tickFormat: (/** @type {number} */ v) => `${Math.round(100 * v)}%`,
      },
      marks: [
        Plot.gridY({ stroke: "var(--rule)", strokeOpacity: 1, ticks: 5 }),
        Plot.ruleX(size ? [size] : [], { stroke: "var(--muted)", strokeDasharray: "3 3" }),
        Plot.text(size ? [size] : [], {
          x: (d) => d,
          frameAnchor: "top",
          dy: -14,
          text: (d) => `window ${text.count(d)}`,
          fill: "var(--muted)",
        }),
        Plot.rect(list, {
          x1: (d) => edge(d, -1),
          x2: (d) => edge(d, 1),
          y1: 0,
          y2: "share",
          fill: "var(--RoPE)",
          fillOpacity: (d) => (axes.isSecond(d.run) ? 0.45 : 0.9),
        }),
      ],
    });
    svg.querySelectorAll('g[aria-label="rect"] rect').forEach((rect, i) => {
      const { run, at, share } = list[i];
      const said = [axes.ofRun(run, `${tokens(at)} tokens`), `share of r_q ${text.measure("share_", share)}`];
      marks.mark(/** @type {any} */ (rect), {
        key: `wave:${run}:${i}`,
        label: `${said.join(", ")}, at ${data.stops[state.stop].label}`,
        lines: said,
      });
    });
    const name = data.stops[state.stop].label;
    axes.dress(svg, `Share of r_q by rotary wavelength at ${name}`);
    const whose = `${name}, ${text.headCount(found(store.runs()[0])?.heads || 0)} with RoPE`;
    marks.mount(drawing, h("p", { class: "legend" }, whose, axes.runKeys()), svg, numbersTable(list));
  }

  /** @type {View} */
  return { setUp() {}, draw, needs: ["window", "run", "stop"] };
})();
