// @ts-check
/* Colours: of classes and populations, as Python chose them, and of numbers on a ramp. */
"use strict";

const paint = (() => {
  /** @param {number} code */
  const colour = (code) => `var(--class-${code < 0 ? data.classes.length - 1 : code})`;

  /** @param {number} code */
  const inkOn = (code) => `var(--on-class-${code})`;

  /** @param {string} population */
  const ofPopulation = (population) => (population === "all" ? "var(--r_q)" : `var(--${population})`);

  /* A block of a class's colour, for legends and tables; what is not measured is hatched. */
  /** @param {number} code */
  const block = (code) =>
    dom.h("i", {
      class: data.classes[code] === data.unmeasured ? "block hatched" : "block",
      style: `background-color:${colour(code)}`,
    });

  const sequential = d3.piecewise(d3.interpolateLab, data.ramps.sequential);
  const diverging = d3.piecewise(d3.interpolateLab, data.ramps.diverging);

  /** @param {number} v */
  const clamp = (v) => Math.max(0, Math.min(1, v));

  /* Number -> colour over a range: with a middle where the range has both signs, from light to deep otherwise. */
  /** @type {(range: [number, number]) => (value: number) => string} */
  function ramp([low, high]) {
    if (low < 0) {
      const reach = Math.max(-low, high);
      return (value) => diverging(clamp((value / reach + 1) / 2));
    }
    return (value) => sequential(clamp((value - low) / (high - low || 1)));
  }

  /* A legend of a ramp. */
  /** @type {(name: string, range: [number, number], digits?: number, percent?: boolean) => HTMLElement[]} */
  function rampKeys(name, [low, high], digits = 2, percent = false) {
    const reach = Math.max(-low, high);
    /** @type {[number, number]} */
    const ends = low < 0 ? [-reach, reach] : [low, high];
    const colours = d3.range(9).map((i) => ramp(ends)(ends[0] + ((ends[1] - ends[0]) * i) / 8));
    const strip = dom.h("i", {
      class: "ramp",
      style: `background:linear-gradient(to right,${colours.join(",")})`,
      "data-colours": colours.join(";"),
    });
    const end = ends.map((v) =>
      percent ? `${text.number(100 * v, 0)}%` : text.number(v, Number.isInteger(v) ? 0 : digits),
    );
    return [
      dom.h("span", { class: "key" }, name),
      dom.h("span", { class: "key ramp-key" }, end[0], strip, end[1]),
    ];
  }

  return { colour, inkOn, ofPopulation, block, ramp, rampKeys };
})();
