// @ts-check
/* A drawing on a canvas, for views with more cells than a page should have elements. It can be read like the others:
 * a tooltip for the cell under the pointer, and one button, the cursor, that the arrow keys move from cell to cell. */
"use strict";

const sheet = (() => {
  const { h, s } = dom;
  const SLACK = 4; // pixels that a click may wander before it is a drag

  /* Where the cursor of each sheet was last, so that it is there again when the sheet is drawn anew. */
  /** @type {Map<string, Cell>} */
  const cursors = new Map();

  /** @type {(width: number, height: number) => { canvas: HTMLCanvasElement, context: CanvasRenderingContext2D }} */
  function blank(width, height) {
    const sharp = window.devicePixelRatio || 1;
    const canvas = h("canvas", {
      width: Math.round(width * sharp),
      height: Math.round(height * sharp),
      style: `width:${width}px;height:${height}px`,
      "aria-hidden": "true",
    });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(sharp, sharp);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    return { canvas, context };
  }

  /* `paint` draws what is in view when the sheet is scrolled to `top`; `at` finds the cell at a point of the whole
   * sheet and `box` the place of one of its `rows` and `cols` there, null where there is no cell. */
  /** @type {(about: Sheet) => HTMLElement} */
  function make(about) {
    const { id, width, height, shown = height } = about;
    const { canvas, context } = blank(width, shown);
    /** @type {(cell: Cell) => Box | null} */
    const boxOf = (cell) => (cell.row < about.rows && cell.col < about.cols(cell.row) ? about.box(cell) : null);
    const over = s("svg", { width, height, class: "over", "aria-hidden": "true" }, about.over?.() || []);
    const cursor = h("button", { type: "button", id: `${id}-cursor`, class: "cursor" });
    const content = h("div", { class: "sheet", style: `width:${width}px;height:${height}px` }, canvas, over, cursor);
    const scroller = h("div", { class: "sheet-scroll", style: `height:${shown}px` }, content);

    let waiting = false;
    const paint = () => {
      waiting = false;
      context.clearRect(0, 0, width, shown);
      about.paint(context, scroller.scrollTop);
    };
    scroller.addEventListener("scroll", () => {
      if (!waiting) requestAnimationFrame(paint);
      waiting = true;
    });

    /* ---- the pointer ---- */

    /** @param {MouseEvent} event */
    const point = (event) => {
      const box = content.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    /** @param {MouseEvent} event */
    const cellOf = (event) => {
      const [x, y] = point(event);
      return about.at(x, y);
    };
    let dragged = false;
    marks.ground(content, {
      lines: (event) => {
        const cell = cellOf(event);
        return cell ? about.lines(cell) : [];
      },
      act: (event) => {
        const cell = dragged || event.target === cursor ? null : cellOf(event);
        dragged = false;
        if (!cell) return;
        moveTo(cell);
        about.act?.(cell, event);
      },
    });
    if (about.brush) listenToBrush(about.brush);

    /** @param {(from: number, to: number, event: MouseEvent) => void} brush */
    function listenToBrush(brush) {
      const box = s("rect", { class: "brush", x: 0, width });
      /** @type {number | null} */
      let from = null;
      /** @type {(event: PointerEvent) => [number, number]} */
      const ends = (event) => {
        const [, y] = point(event);
        return [Math.min(from ?? y, y), Math.max(from ?? y, y)];
      };
      content.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "touch" || event.button) return;
        [, from] = point(event);
        dragged = false;
      });
      content.addEventListener("pointermove", (event) => {
        if (from === null) return;
        const [top, bottom] = ends(event);
        if (!dragged && bottom - top > SLACK) {
          dragged = true;
          content.setPointerCapture(event.pointerId);
          over.append(box);
        }
        box.setAttribute("y", String(top));
        box.setAttribute("height", String(bottom - top));
      });
      content.addEventListener("pointerup", (event) => {
        const [top, bottom] = ends(event);
        from = null;
        box.remove();
        if (dragged) brush(top, bottom, event);
      });
      content.addEventListener("pointercancel", () => {
        from = null;
        box.remove();
      });
    }

    /* ---- the cursor ---- */

    /** @type {(value: number, count: number) => number} */
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    let here = cursors.get(id) || about.start;
    if (!boxOf(here)) here = about.start;

    /** @param {Cell} cell */
    function moveTo(cell) {
      const box = boxOf(cell);
      if (!box) return;
      here = cell;
      cursors.set(id, cell);
      const position = { left: box.x, top: box.y, width: box.width, height: box.height };
      for (const [name, pixels] of Object.entries(position)) cursor.style.setProperty(name, `${pixels}px`);
      marks.name(cursor, about.lines(here), about.verb);
    }

    /** @type {Record<string, [number, number]>} */
    const WAYS = {
      ...{ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] },
      ...{ Home: [-Infinity, 0], End: [Infinity, 0], PageUp: [0, -10], PageDown: [0, 10] },
    };
    cursor.addEventListener("keydown", (event) => {
      const way = WAYS[event.key];
      if (!way) return;
      event.preventDefault();
      event.stopPropagation();
      const row = within(here.row + way[1], about.rows);
      moveTo({ row, col: within(here.col + way[0], about.cols(row)) });
      const { y, height: tall } = boxOf(here) || { y: 0, height: 0 };
      const above = about.header || 0;
      if (y - above < scroller.scrollTop) scroller.scrollTop = y - above;
      else if (y + tall > scroller.scrollTop + shown) scroller.scrollTop = y + tall - shown;
      marks.tipAt(cursor, about.lines(here));
      dom.find("announcer").textContent = about.lines(here).filter(Boolean).join(", ");
    });
    marks.mark(cursor, {
      key: `${id}-cursor`,
      say: () => about.lines(here),
      verb: about.verb,
      // A click of the pointer is that of the cell below it.
      act: about.act && ((event) => (event.type !== "click" || event.detail === 0) && about.act?.(here, event)),
    });
    moveTo(here);
    paint();
    return h("div", { class: "sheet-frame", role: "group", "aria-label": about.label }, scroller);
  }

  return { make };
})();
