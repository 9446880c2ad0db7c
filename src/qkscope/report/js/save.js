// @ts-check
/* A view as a picture: what stands in its drawing, redrawn as one SVG with its colours written in, or as a PNG of it.
 * Everything happens in the page; a picture opens the same anywhere. */
"use strict";

const save = (() => {
  const { h, s } = dom;
  const MARGIN = 16;
  const HEADING = 34;
  // Views of a single checkpoint, whose pictures name it.
  const ONE_CHECKPOINT = ["portrait", "head", "explorer", "distance", "examples"];
  const DASHED = { "stroke-width": 2, "stroke-dasharray": "3 3" };
  const SHARPNESS = 2; // pixels of a PNG for each of the page's

  /* What a mark's look hangs on in the page's style. */
  const LOOK = [
    ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity"],
    ...["stroke-linejoin", "stroke-linecap", "paint-order", "text-anchor", "display", "visibility"],
    ...["font-family", "font-size", "font-weight", "font-variant-numeric"],
  ];
  const SILENT = ["class", "style", "tabindex", "role", "data-key", "aria-label", "aria-pressed", "aria-hidden"];

  /* A copy of a drawing that needs no style sheet. */
  /** @param {SVGElement} original */
  function settled(original) {
    const copy = /** @type {SVGElement} */ (original.cloneNode(true));
    const [from, to] = [original, copy].map((root) => [root, ...root.querySelectorAll("*")]);
    from.forEach((element, i) => {
      const look = getComputedStyle(element);
      for (const name of SILENT) to[i].removeAttribute(name);
      for (const name of LOOK) to[i].setAttribute(name, look.getPropertyValue(name));
    });
    for (const sheet of copy.querySelectorAll("style, .columns-layer")) sheet.remove();
    return copy;
  }

  /** @type {(box: DOMRect, origin: DOMRect) => { x: number, y: number }} */
  const inPicture = (box, origin) => ({
    x: MARGIN + box.left - origin.left,
    y: MARGIN + HEADING + box.top - origin.top,
  });

  /* A legend or a caption beside the drawings: its words, and its blocks of colour. */
  /** @type {(element: Element, origin: DOMRect) => SVGElement[]} */
  function words(element, origin) {
    const found = [];
    for (const block of element.querySelectorAll("i")) {
      const box = block.getBoundingClientRect();
      const { backgroundColor, borderTopColor, borderLeftColor, borderTopWidth, borderLeftWidth } =
        getComputedStyle(block);
      const { x, y } = inPicture(box, origin);
      const [width, height] = [box.width, box.height];
      const colours = (block.getAttribute("data-colours") || "").split(";").filter(Boolean);
      if (colours.length)
        colours.forEach((fill, i) => {
          const step = width / colours.length;
          found.push(s("rect", { x: x + i * step, y, width: step + 0.5, height, fill }));
        });
      else if (width < 3 && parseFloat(borderLeftWidth))
        found.push(s("rect", { x, y, width: 2, height, fill: borderLeftColor }));
      else if (height < 3 && parseFloat(borderTopWidth))
        found.push(s("line", { x1: x, x2: x + width, y1: y, y2: y, stroke: borderTopColor, ...DASHED }));
      else found.push(s("rect", { x, y, width, height, rx: 2, fill: backgroundColor }));
    }
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const range = document.createRange();
      range.selectNodeContents(node);
      const box = range.getBoundingClientRect();
      const { color, fontSize, fontFamily, fontWeight } = getComputedStyle(node.parentElement || element);
      const { x, y } = inPicture(box, origin);
      if (!node.textContent?.trim() || !box.width) continue;
      const look = { fill: color, "font-size": fontSize, "font-family": fontFamily, "font-weight": fontWeight };
      found.push(s("text", { x, y: y + 0.78 * box.height, ...look }, node.textContent));
    }
    return found;
  }

  /* One picture of a view: its title, then legends and drawings where the page has them. */
  /** @param {string} view */
  function compose(view) {
    const drawing = dom.find(`${view}-drawing`);
    const origin = drawing.getBoundingClientRect();
    const style = getComputedStyle(dom.find(view));
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper");
    /** @type {(SVGSVGElement | HTMLCanvasElement)[]} */
    const drawings = [...drawing.querySelectorAll("canvas"), ...drawing.querySelectorAll("svg")];
    const bottom = Math.max(...drawings.map((svg) => svg.getBoundingClientRect().bottom));
    const width = Math.ceil(origin.width + 2 * MARGIN);
    const height = Math.ceil(bottom - origin.top + HEADING + 2 * MARGIN);
    const title = dom.find(`${view}-title`).textContent || "";
    const picture = s(
      "svg",
      { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
      s("title", {}, `${data.title} · ${title}`),
      s("rect", { width, height, fill: style.backgroundColor || paper }),
      s(
        "text",
        {
          ...{ x: MARGIN, y: MARGIN + 15, fill: style.color },
          ...{ "font-family": style.fontFamily, "font-size": 16, "font-weight": 650 },
        },
        ONE_CHECKPOINT.includes(view) ? `${title} · ${data.labelOf(store.state.checkpoint)}` : title,
      ),
    );
    for (const element of drawing.querySelectorAll(".legend, .small, .sentence"))
      picture.append(...words(element, origin));
    for (const svg of drawings) {
      const box = svg.getBoundingClientRect();
      const copy = svg instanceof HTMLCanvasElement ? s("image", { href: svg.toDataURL() }) : settled(svg);
      const { x, y } = inPicture(box, origin);
      const at = { x, y, width: box.width, height: box.height, overflow: "visible" };
      for (const [name, value] of Object.entries(at)) copy.setAttribute(name, String(value));
      picture.append(copy);
    }
    return { source: new XMLSerializer().serializeToString(picture), width, height };
  }

  /** @param {string} view */
  function asSvg(view) {
    const { source } = compose(view);
    dom.download(new Blob([source], { type: "image/svg+xml" }), dom.fileName(`${view}.svg`));
  }

  /** @param {string} view */
  function asPng(view) {
    const { source, width, height } = compose(view);
    const url = URL.createObjectURL(new Blob([source], { type: "image/svg+xml" }));
    const image = new Image(width, height);
    image.addEventListener("load", () => {
      const canvas = h("canvas", { width: SHARPNESS * width, height: SHARPNESS * height });
      canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
      URL.revokeObjectURL(url);
      canvas.toBlob((blob) => blob && dom.download(blob, dom.fileName(`${view}.png`)), "image/png");
    });
    image.src = url;
  }

  /* Two buttons in the heading of every view that has a drawing. */
  function setUp() {
    for (const corner of document.querySelectorAll("[data-save]")) {
      const view = corner.getAttribute("data-save") || "";
      const name = dom.find(`${view}-title`).textContent;
      /** @type {(kind: string, act: (view: string) => void) => HTMLElement} */
      const button = (kind, act) =>
        dom.button(`save-${view}-${kind.toLowerCase()}`, `↓ ${kind}`, () => act(view), {
          ...{ class: "quiet small-button", "aria-label": `Save as ${kind}: ${name}` },
        });
      corner.replaceChildren(button("SVG", asSvg), button("PNG", asPng));
    }
  }

  return { setUp };
})();
