// @ts-check
/* Colours: of classes and populations, as Python chose them, and of numbers on a ramp. */
"use strict";

const paint = (() => {
  /** @param {number} code */
  const colour = (code) => `var(--class-${data.taxonomy}-${code < 0 ? data.classes.length - 1 : code})`;

  /** @param {number} role */
  const ofRole = (role) => `var(--role-${role})`;

  /** @param {number} code */
  const inkOn = (code) => `var(--on-class-${data.taxonomy}-${code})`;

  /** @param {string} population */
  const ofPopulation = (population) => (population === "all" ? "var(--ink)" : `var(--${population})`);

  /* A block of a class's colour, for legends and tables; what is not measured is hatched. */
  /** @param {number} code */
  const block = (code) =>
    dom.h("i", {
      class: data.classes[code] === data.unmeasured ? "block hatched" : "block",
      style: `background-color:${colour(code)}`,
    });

  /* Whether the page is dark: what the reader chose, else what the system has. */
  function isDark() {
    const chosen = document.documentElement.getAttribute("data-theme");
    return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  /* Nothing is the colour of the page, in both schemes. */
  const ramps = [data.ramps.light, data.ramps.dark].map((ramp) => ({
    sequential: d3.piecewise(d3.interpolateLab, ramp.sequential),
    diverging: d3.piecewise(d3.interpolateLab, ramp.diverging),
    sequentialKeys: d3.piecewise(d3.interpolateLab, ramp.sequential_keys),
    divergingKeys: d3.piecewise(d3.interpolateLab, ramp.diverging_keys),
  }));

  /* A colour of the style sheet as a canvas takes it. */
  const probe = dom.h("i", { hidden: true });
  document.body.append(probe);
  /** @type {(colour: string) => string} */
  function resolved(colour) {
    probe.style.color = colour;
    return getComputedStyle(probe).color;
  }

  /* Colours of the style sheet by name: "ink" for --ink. */
  /** @param {string[]} names */
  const inks = (...names) => names.map((name) => resolved(`var(--${name})`));

  /** @param {number} v */
  const clamp = (v) => Math.max(0, Math.min(1, v));

  /* Number -> colour over a range: with a middle where the range has both signs, from light to deep otherwise. The
   * measure's own colours where it has some: r_k is red, as its lines are. */
  /** @type {(range: [number, number], measure?: string) => (value: number) => string} */
  function ramp([low, high], measure = "") {
    const known = ramps[Number(isDark())];
    const keys = /^(abs_)?r_k/.test(measure);
    const sequential = keys ? known.sequentialKeys : known.sequential;
    const diverging = keys ? known.divergingKeys : known.diverging;
    if (low < 0) {
      const reach = Math.max(-low, high);
      return (value) => diverging(clamp((value / reach + 1) / 2));
    }
    return (value) => sequential(clamp((value - low) / (high - low || 1)));
  }

  /* The same with a few hundred colours computed beforehand, for many cells. */
  /** @type {(range: [number, number], measure?: string) => (value: number) => string} */
  function fastRamp([low, high], measure = "") {
    const reach = Math.max(-low, high);
    const [from, to] = low < 0 ? [-reach, reach] : [low, high];
    const colour = ramp([low, high], measure);
    const steps = 200;
    const colours = d3.range(steps + 1).map((i) => colour(from + ((to - from) * i) / steps));
    return (value) => colours[Math.round(steps * clamp((value - from) / (to - from || 1)))];
  }

  /* Dark or light, whichever is read on a colour. */
  /** @param {string} fill */
  const inkFor = (fill) => (d3.lab(fill).l > 58 ? "#111" : "#fff");

  /* A legend of a ramp. */
  /** @type {(name: string, range: [number, number], look?: { percent?: boolean, measure?: string }) => HTMLElement[]} */
  function rampKeys(name, [low, high], { percent = false, measure = "" } = {}) {
    const reach = Math.max(-low, high);
    /** @type {[number, number]} */
    const ends = low < 0 ? [-reach, reach] : [low, high];
    const colours = d3.range(9).map((i) => ramp(ends, measure)(ends[0] + ((ends[1] - ends[0]) * i) / 8));
    const strip = dom.h("i", {
      class: "ramp",
      style: `background:linear-gradient(to right,${colours.join(",")})`,
      "data-colours": colours.join(";"),
    });
    const end = ends.map((v) =>
      percent ? `${text.number(100 * v, 0)}%` : text.number(v, Number.isInteger(v) ? 0 : 2),
    );
    return [dom.key(null, name), dom.h("span", { class: "key ramp-key" }, end[0], strip, end[1])];
  }

  return { colour, ofRole, inkOn, inkFor, ofPopulation, block, ramp, fastRamp, rampKeys, resolved, inks };
})();
