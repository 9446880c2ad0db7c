/* Elements made from text, numbers as shown, colours of kinds, and the controls of the views. */
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";

  /* ---- elements: text is always text ---- */

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }

  const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  /* ---- numbers ---- */

  /* Three decimals with a true minus sign; a missing number is a dash. */
  function number(value, digits = 3) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const text = Math.abs(value).toFixed(digits);
    return value < 0 && Number(text) !== 0 ? `−${text}` : text;
  }

  /* A standard error: one that three decimals would call zero is said to be small. */
  const error = (se) => (se < 0.0005 ? "<0.001" : number(se));
  const withError = (value, se) =>
    se === null || se === undefined || Number.isNaN(se) ? number(value) : `${number(value)} ± ${error(se)}`;
  const count = (n) => n.toLocaleString("en-US");
  const headCount = (n) => `${count(n)} ${n === 1 ? "head" : "heads"}`;
  const percent = (part, whole) =>
    whole ? `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)}%` : "–";
  const shorten = (text, length = 14) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

  function mean(values) {
    let sum = 0;
    let n = 0;
    for (const value of values) {
      if (!Number.isNaN(value)) {
        sum += value;
        n += 1;
      }
    }
    return n ? sum / n : NaN;
  }

  const CLASS_VARIABLES = ["pd", "qp", "kp", "cf", "mx", "un"];
  const POLARITY_VARIABLES = ["con", "neu", "dis", "un"];
  const colour = (kind, code) =>
    `var(--${(kind === "class" ? CLASS_VARIABLES : POLARITY_VARIABLES)[code] || "un"})`;

  const reducedMotion = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

  /* ---- controls ---- */

  /* A row of options of which one holds: radio buttons, drawn as one strip. */
  function options(name, legend, choices, current, act) {
    const set = h("fieldset", { class: "options" }, h("legend", {}, legend));
    for (const [value, label, why] of choices) {
      const input = h("input", {
        type: "radio",
        name,
        value,
        id: `${name}-${value}`,
        disabled: Boolean(why),
      });
      input.checked = value === current;
      input.addEventListener("change", () => act(value));
      set.append(input, h("label", { for: `${name}-${value}`, title: why || null }, label));
    }
    return set;
  }

  function choose(fieldset, value) {
    for (const input of fieldset.querySelectorAll("input")) input.checked = input.value === value;
  }

  Object.assign(qk, {
    h,
    s,
    number,
    withError,
    error,
    count,
    headCount,
    percent,
    shorten,
    mean,
    colour,
    reducedMotion,
    options,
    choose,
  });
})();
