// @ts-check
/* Numbers as the page shows them. */
"use strict";

const text = (() => {
  /** @type {(value: number | null | undefined) => value is null | undefined} */
  const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

  /* Three decimals with a true minus sign; a missing number is a dash. */
  /** @type {(value: number | null | undefined, digits?: number) => string} */
  function number(value, digits = 3) {
    if (isMissing(value)) return "–";
    const shown = Math.abs(value).toFixed(digits);
    return value < 0 && Number(shown) !== 0 ? `−${shown}` : shown;
  }

  /* A number with its standard error; one too small to be shown is given as a bound. */
  /** @type {(value: number | null, se?: number | null, digits?: number, unit?: string) => string} */
  function withError(value, se, digits = 3, unit = "") {
    if (isMissing(value)) return "–";
    const shown = `${number(value, digits)}${unit}`;
    if (isMissing(se)) return shown;
    const least = 10 ** -digits;
    return `${shown} ± ${se < least / 2 ? `<${least.toFixed(digits)}` : number(se, digits)}`;
  }

  /* A plus sign before a difference that is shown as more than zero. */
  /** @param {string} shown */
  const signed = (shown) => (parseFloat(shown) > 0 ? `+${shown}` : shown);

  /** @param {number | null | undefined} value */
  const hundredfold = (value) => (isMissing(value) ? null : 100 * value);

  /* A share in percent, and a difference of two shares in points. */
  /** @type {(value: number | null, se?: number | null) => string} */
  const share = (value, se) => withError(hundredfold(value), hundredfold(se), 1, "%");
  /** @type {(value: number | null, se?: number | null) => string} */
  const points = (value, se) =>
    isMissing(value) ? "–" : `${signed(withError(100 * value, hundredfold(se), 1))} points`;

  /* A measure's value as the page shows it: shares in percent, all else with three decimals. */
  /** @type {(name: string, value: number | null, se?: number | null) => string} */
  const measure = (name, value, se) => (data.isShare(name) ? share(value, se) : withError(value, se));

  /* The same of a head at a checkpoint. */
  /** @type {(table: Table, name: string, checkpoint: number, head: number) => string} */
  function ofHead(table, name, checkpoint, head) {
    const { value, se } = data.estimate(table, name, checkpoint, head);
    return measure(name, value, se);
  }

  /* A difference of two values of a measure: of shares in points, not percent. */
  /** @type {(name: string, value: number | null, se?: number | null) => string} */
  const change = (name, value, se) =>
    data.isShare(name) ? points(value, se) : signed(withError(value, se));

  /* A number with its name and unit; what it is called here goes before the name of its measure. */
  /** @param {Quantity} quantity */
  function quantity({ name, value, se, whose = "", of = "", more = "", sign = false }) {
    const units = data.measureUnits(name);
    const said = `${(sign ? change : measure)(name, value, se)}${units && ` ${units}`}`;
    return `${whose && `${whose}: `}${of && `${of} `}${data.measureLabel(name)} ${said}${more}`;
  }

  /* What a tooltip says of numbers: each with its measure's name, unit and error, then what each measure means. */
  /** @type {(numbers: Quantity[], also?: (string | null)[], meaning?: boolean) => (string | null)[]} */
  function described(numbers, also = [], meaning = true) {
    const lines = [...numbers.map(quantity), ...also];
    if (!meaning) return lines;
    const names = [...new Set(numbers.map(({ name }) => name))];
    const meanings = names.map((name) => {
      const means = data.measureMeans(name);
      return means && `${names.length > 1 ? `${data.measureLabel(name)}: ` : ""}${means}`;
    });
    const sure = numbers.some(({ se }) => !isMissing(se));
    return [...lines, ...meanings, sure ? ERROR : null];
  }
  const ERROR = "± one standard error over documents";

  const PC0 =
    "the first principal axis of a head's queries and keys together, the direction along which they vary most.";

  /** @param {number} n */
  const count = (n) => n.toLocaleString("en-US");

  /* A distance or wavelength in tokens, short. */
  const SHORT = d3.format(".2~s");
  /** @param {number} n */
  const tokens = (n) => (n < 1e4 ? count(Math.round(n)) : SHORT(n));

  /* "1 token back" */
  /** @param {number} n */
  const back = (n) => `${count(n)} ${n === 1 ? "token" : "tokens"} back`;

  /** @param {number} n */
  const headCount = (n) => `${count(n)} ${n === 1 ? "head" : "heads"}`;

  /** @type {(said: string, length?: number) => string} */
  const shorten = (said, length = 14) => (said.length > length ? `${said.slice(0, length - 1)}…` : said);

  /* Of the numbers among some values; NaN where there is none. */
  /** @param {Iterable<number>} values */
  const mean = (values) => d3.mean(values) ?? NaN;

  return {
    ...{ number, share, points, measure, ofHead, change, quantity, described, error: ERROR, pc0: PC0 },
    ...{ count, tokens, back, headCount, shorten, mean },
  };
})();
