/* What the views share: elements made from text, numbers as shown, one tooltip, marks reached by the keyboard. */
"use strict";

(() => {
  const { data } = qk;
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

  const withError = (value, se) =>
    se === null || se === undefined || Number.isNaN(se) ? number(value) : `${number(value)} ± ${number(se)}`;
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

  /* ---- the tooltip ---- */

  const tip = document.getElementById("tip");

  function showTip(lines, x, y) {
    tip.replaceChildren(...lines.filter(Boolean).map((line, i) => h(i ? "p" : "strong", {}, line)));
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

  function tipAt(element, lines) {
    const box = element.getBoundingClientRect();
    showTip(lines, box.left + box.width / 2, box.top);
  }

  /* ---- marks ---- */

  /* What each mark says and does. Listening happens once for all marks, below: a page may hold thousands. */
  const known = new WeakMap();

  /* Make an element a mark: named, reachable, answering to click, Enter and Space, with a tooltip.
   * `key` tells it apart in its chart, so that focus returns to it when the chart is drawn anew. */
  function mark(element, { key, label, lines, act, pressed }) {
    known.set(element, { act, lines: () => (typeof lines === "function" ? lines() : lines || [label]) });
    element.dataset.key = key;
    element.setAttribute("role", "button");
    element.setAttribute("aria-label", label);
    element.setAttribute("tabindex", "-1");
    element.classList.add("mark");
    if (pressed !== undefined) element.setAttribute("aria-pressed", String(pressed));
    return element;
  }

  const markOf = (event) => (event.target instanceof Element ? event.target.closest(".mark") : null);

  function listenToMarks() {
    document.addEventListener("pointermove", (event) => {
      const element = event.pointerType === "mouse" && !event.buttons ? markOf(event) : null;
      if (element) showTip(known.get(element).lines(), event.clientX, event.clientY);
      else if (!tip.hidden && event.pointerType === "mouse") hideTip();
    });
    document.addEventListener("focusin", (event) => {
      const element = markOf(event);
      if (element && element.matches(":focus-visible")) tipAt(element, known.get(element).lines());
    });
    document.addEventListener("focusout", hideTip);
    document.addEventListener("click", (event) => {
      const element = markOf(event);
      if (element) known.get(element).act(event);
    });
    document.addEventListener("keydown", (event) => {
      const element = markOf(event);
      if (!element || (event.key !== "Enter" && event.key !== " ")) return;
      event.preventDefault();
      known.get(element).act(event);
    });
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function centre(element) {
    const box = element.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  }

  /* The nearest mark in a direction: distance ahead, with what lies aside counted double. */
  function neighbour(marks, from, [dx, dy]) {
    const [x, y] = centre(from);
    let best = null;
    let cost = Infinity;
    for (const candidate of marks) {
      if (candidate === from) continue;
      const [cx, cy] = centre(candidate);
      const ahead = (cx - x) * dx + (cy - y) * dy;
      const aside = Math.abs((cx - x) * dy) + Math.abs((cy - y) * dx);
      if (ahead > 0.5 && ahead + 2 * aside < cost) [best, cost] = [candidate, ahead + 2 * aside];
    }
    return best;
  }

  /* One stop of the Tab key per chart; arrows move among its marks, Home and End to the first and the last. */
  function rove(container) {
    const marks = () => [...container.querySelectorAll(".mark")];
    if (!container.dataset.roving) {
      container.dataset.roving = "yes";
      container.addEventListener("keydown", (event) => {
        const from = event.target.closest(".mark");
        if (!from) return;
        const all = marks();
        let to;
        if (ARROWS[event.key]) to = neighbour(all, from, ARROWS[event.key]);
        else if (event.key === "Home") [to] = all;
        else if (event.key === "End") to = all[all.length - 1];
        else return;
        event.preventDefault();
        if (to) to.focus();
      });
      container.addEventListener("focusin", (event) => {
        const target = event.target.closest(".mark");
        if (!target) return;
        container.querySelectorAll('.mark[tabindex="0"]').forEach((m) => m.setAttribute("tabindex", "-1"));
        target.setAttribute("tabindex", "0");
        container.dataset.active = target.dataset.key;
      });
    }
    const all = marks();
    const active = all.find((m) => m.dataset.key === container.dataset.active) || all[0];
    if (active && !all.some((m) => m.getAttribute("tabindex") === "0")) active.setAttribute("tabindex", "0");
  }

  /* Put a drawing in its place, keeping the focus on the mark that had it. */
  function mount(container, ...drawing) {
    const active = document.activeElement;
    const key = container.contains(active) ? active.dataset.key || active.id : null;
    container.replaceChildren(...drawing.flat().filter(Boolean));
    rove(container);
    if (key === null) return;
    const all = [...container.querySelectorAll("[data-key], [id]")];
    const same = all.find((m) => m.dataset.key === key || m.id === key);
    if (same) same.focus({ preventScroll: true });
  }

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

  /* ---- axes of checkpoints ---- */

  /* Evenly many of the checkpoints when each takes `room` pixels: always the first and the last. */
  function spread(width, room) {
    const n = data.stops.length;
    const fit = Math.max(2, Math.floor(width / room));
    if (n <= fit) return d3.range(n);
    return [...new Set(d3.range(fit).map((i) => Math.round((i * (n - 1)) / (fit - 1))))];
  }

  const LETTER = 7; // pixels of a letter at 12 px, on average

  /* How to label checkpoints `step` pixels apart: side by side, slanted, or every so many. */
  function labelling(stops, step) {
    const names = stops.map((stop) => shorten(data.stops[stop].label, 12));
    const longest = d3.max(names, (name) => name.length) * LETTER;
    const flat = (every) => ({ every, slant: false, room: 18, names });
    if (longest + 4 <= step) return flat(1);
    if (step < 17) return flat(Math.ceil((longest + 12) / step));
    return { every: 1, slant: true, room: Math.round(longest * 0.66 + 14), names };
  }

  const stopWord = data.training ? "checkpoint" : "model";

  function stopLines(index) {
    const { label, model, phase, window: size } = data.stops[index];
    const parts = [model === label ? null : model, phase, size ? `window ${count(size)}` : null];
    return [label, parts.filter(Boolean).join(" · ")];
  }

  /* Plot's options for an x axis of checkpoints, numbered 0, 1, ..., with room for phases above. */
  function stopAxis(width, height, title) {
    const [marginLeft, marginRight, marginTop] = [40, 14, 44];
    const n = data.stops.length;
    const half = n > 60 ? 1 : 0.5;
    const step = (width - marginLeft - marginRight) / (n - 1 + 2 * half);
    const { every, slant, room, names } = labelling(d3.range(n), step);
    return {
      width,
      height,
      marginLeft,
      marginRight,
      marginTop,
      marginBottom: room + 8,
      className: "plot",
      style: { fontSize: "12px", background: "none", overflow: "visible" },
      x: {
        type: "linear",
        domain: [-half, n - 1 + half],
        ticks: d3.range(0, n, every),
        label: null,
        tickSize: 0,
        tickPadding: 8,
        tickRotate: slant ? -40 : 0,
        tickFormat: (i) => names[i],
      },
      marks: [
        Plot.text([title], {
          frameAnchor: "top-left",
          dy: -40,
          dx: -36,
          text: (d) => d,
          fill: "var(--muted)",
          textAnchor: "start",
          lineAnchor: "top",
        }),
        ...stopGround(step),
      ],
    };
  }

  /* Behind the marks: alternating phases with their names, window changes, the chosen checkpoint. */
  function stopGround(step) {
    const phases = data.phases.map(([label, first, last], i) => ({
      label: label || "",
      x1: first - 0.5,
      x2: last + 0.5,
      shade: i % 2 === 1,
    }));
    const several = phases.length > 1;
    const changes = qk.state.window === "own" ? data.windowChanges.map((i) => i - 0.5) : [];
    const letters = (d) => Math.floor(((d.x2 - d.x1) * step - 4) / 6);
    return [
      Plot.rectX(several ? phases.filter(({ shade }) => shade) : [], {
        x1: "x1",
        x2: "x2",
        fill: "var(--shade)",
      }),
      Plot.rectX(data.stops.length > 1 ? [qk.state.stop] : [], {
        x1: (d) => d - 0.5,
        x2: (d) => d + 0.5,
        fill: "var(--accent)",
        fillOpacity: 0.1,
      }),
      Plot.ruleX(changes, { stroke: "var(--muted)", strokeDasharray: "3 3" }),
      Plot.text(several ? phases.filter((d) => letters(d) >= 3) : [], {
        x: (d) => (d.x1 + d.x2) / 2,
        frameAnchor: "top",
        dy: -10,
        text: (d) => shorten(d.label, letters(d)),
        fill: "var(--muted)",
        fontSize: 11,
      }),
    ];
  }

  /* Ramps of colour: light to deep for what grows from zero, orange to blue for what has a sign (as polarity has). */
  const sequential = d3.piecewise(d3.interpolateLab, ["#f4f4ee", "#bcdad8", "#6aaebf", "#2a77a1", "#123765"]);
  const diverging = d3.piecewise(d3.interpolateLab, ["#9c4200", "#e39a64", "#f6f2ec", "#80b5d9", "#00538a"]);
  const clamp = (v) => Math.max(0, Math.min(1, v));
  const ramp = (name, most = 1) =>
    name === "r_k" ? (v) => diverging(clamp((v + 1) / 2)) : (v) => sequential(clamp(v / most));

  /* A mark over each checkpoint of a Plot drawing, as wide as its column: choosing it chooses the checkpoint. */
  function stopColumns(svg, { label, lines, prefix = "stop" }) {
    const x = svg.scale("x");
    const y = svg.scale("y");
    const [bottom, top] = y.range;
    const layer = s("g", { class: "columns-layer" });
    for (const { index, model } of data.stops) {
      const from = x.apply(index - 0.5);
      const rect = s("rect", {
        x: from,
        y: top,
        width: x.apply(index + 0.5) - from,
        height: bottom - top,
        fill: "transparent",
      });
      const act = () => qk.set({ stop: index });
      layer.append(
        mark(rect, {
          key: `${prefix}:${model}`,
          label: label(index),
          lines: () => lines(index),
          act,
          pressed: index === qk.state.stop,
        }),
      );
    }
    svg.append(layer);
  }

  const widthOf = (container) => Math.max(280, container.clientWidth || 600);

  Object.assign(qk, {
    h,
    s,
    number,
    withError,
    count,
    headCount,
    percent,
    shorten,
    mean,
    colour,
    reducedMotion,
    showTip,
    listenToMarks,
    hideTip,
    tipAt,
    mark,
    rove,
    mount,
    options,
    choose,
    spread,
    labelling,
    ramp,
    stopWord,
    stopAxis,
    stopColumns,
    stopLines,
    widthOf,
  });
})();
