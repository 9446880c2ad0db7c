/* What the scripts share by name and shape: the libraries, the page's data as Python writes it, a view. */

declare const d3: typeof import("d3");
declare const Plot: typeof import("@observablehq/plot");

type WindowName = "own" | "matched";
type Maybe = number | null;
type Drawn = SVGSVGElement & import("@observablehq/plot").Plot;
type ScaleName = import("@observablehq/plot").ScaleName;
type LinearScale = import("d3").ScaleLinear<number, number>;
type PathOf = import("d3").Line<[number, number]>;
type Child = Node | string | null | undefined;
type Handler = (event: any) => void;

/* A column of 16-bit integers: value = integer / scale. */
interface Packed {
  values: string;
  scale: number;
}

interface Series {
  mean: Maybe[];
  sd: Maybe[];
  se: Maybe[];
}

/* Means over populations of heads; a list has an entry per checkpoint, a list of `layers` one per checkpoint and
 * layer. */
interface Averages {
  heads: Record<string, number[]>;
  means: Record<string, Record<string, Series>>;
  layers: { places: number[] } & Record<string, any>;
  classes: Record<string, Record<string, Record<string, { se: Maybe[]; borderline: Maybe[] }>>>; // taxonomy, population
}

/* Numbers of every head along an axis of their own: rows x places, packed. */
interface PackedCurve {
  name: string;
  title: string;
  axis: string;
  log: boolean;
  at: number[];
  waves?: Maybe[][]; // of each checkpoint, the wavelength at each place
  column: Packed;
}

interface Wavelengths {
  at: number[];
  share: Maybe[]; // of r_q
  energy: Maybe[] | null; // of the scores' strength
  heads: number;
  window: Maybe;
}

interface Effect {
  name: string;
  value: number;
  se: Maybe;
  same?: Maybe; // the part from heads whose first axis stayed
}

interface Cause {
  from: number;
  to: number;
  number: string;
  heads: number;
  total: number;
  total_se: Maybe;
  same_text: boolean;
  parts: Effect[]; // RoPE settings first, then training
  other: Effect[]; // training first; empty where that makes no clear difference
}

/* What the model loses without a part of the scores of some heads, in nats per token. */
interface AblatedRow {
  part: string;
  delta: Maybe;
  delta_se: Maybe;
  random: Maybe; // random heads of the same layers
  random_se: Maybe;
  above_random: Maybe;
  above_random_se: Maybe;
}

interface AblatedSet {
  name: string;
  heads: number;
  rows: AblatedRow[];
}

interface Ablation {
  checkpoint: number;
  sets: AblatedSet[];
  parts: Record<string, string>; // in words
  loss: number;
  documents: number;
  tokens: number;
  draws: number;
}

/* Everything measured over one window. */
interface PackedWindow {
  columns: Record<string, Packed>;
  classes: Record<string, { codes: string; since: Maybe[] | null }>; // by taxonomy
  roles: string | null; // bits
  averages: Averages;
  loss: { mean: Maybe[]; se: Maybe[] } | null;
  wavelengths: Wavelengths[] | null;
  distances: { at: number[]; curves: Record<string, { score: Maybe[]; se: Maybe[] }[]> } | null;
  curves: PackedCurve[];
}

/* Mean query times mean key of each rotary pair, see rotary.py: packed, and as the views read it. */
interface PackedRotary {
  checkpoints: number[];
  pairs: number;
  sets: { frequency: number[]; theta: Maybe }[];
  set: string;
  parts: string;
  measured: { at: number[]; column: Packed } | null;
}

type Rotary = Pick<PackedRotary, "checkpoints" | "pairs" | "sets"> & {
  set: Uint8Array;
  parts: Float32Array;
  measured: { at: number[]; values: Float64Array };
};

/* Attention on excerpts, see examples.py: packed, and as the view reads it. */
interface PackedExamples {
  checkpoints: number[];
  heads: number[];
  words: string[][];
  first: number[]; // of each excerpt, the position of its first query
  queries: number;
  bits: number; // of a key's position
  steps: number;
  counts: string;
  keys: string;
  sinks: string | null;
  softmax: Record<"softcap" | "slope" | "reach", Maybe[]>;
  roles: string[][][]; // by checkpoint and head
}

type Examples = Omit<PackedExamples, "counts" | "keys" | "sinks"> & {
  row: (nth: number, head: number, excerpt: number, query: number) => { keys: [number, number][]; sink: number };
};

/* Which axis continues which, and the paths along them, see climb.py: bytes by row and component. */
interface PackedClimb {
  count: number;
  steps: number;
  parts: number;
  before: string;
  overlap: string;
  paths: string | null;
}

/* What a run has of its own. */
interface PackedRun {
  checkpoints: {
    model: string[];
    label: string[];
    phase: (string | null)[];
    window: Maybe[];
    step: number[] | null; // added up over phases
    tokens: number[] | null;
  };
  own: PackedWindow;
  matched: PackedWindow | null;
  causes: Cause[];
  ablation: Ablation | null;
  rotary: PackedRotary | null;
  examples: PackedExamples | null;
  climb: PackedClimb | null;
  more: { count: number; thousandths: string[]; [column: string]: any } | null;
  omitted: string | null;
}

/* A measure as it is declared. */
interface Measure {
  name: string;
  label: string;
  units: string;
  description: string;
  inTable?: boolean;
}

/* The first run, what all views share, and where the page has two runs the second. */
interface Payload extends PackedRun {
  runs?: string[];
  other?: PackedRun;
  name: string;
  title: string;
  kind: "training" | "models";
  thresholds: { high: number; low: number };
  enough: number; // of a head's scores, from which it follows position
  taxonomies: Record<string, { label: string; classes: string[]; means: string }>;
  roles: Role[];
  unmeasured: string;
  regions: { name: string; r_q: number; r_k: number }[];
  ramps: Record<"light" | "dark", Record<"sequential" | "diverging" | `${"sequential" | "diverging"}_keys`, string[]>>;
  encoding: { scale: number; missing: number; byteScale: number; noCode: number };
  measures: Measure[];
  curves: Measure[]; // what the page gives numbers of besides: by distance, by pair, and what it works out itself
  parts: { name: string; label: string }[];
  populations: string[];
  matchedWindow: Maybe;
  phases: [string, number, number][];
  windowChanges: number[];
  heads: {
    layer: number[];
    head: number[];
    owner: number[] | null;
    kv: Maybe[] | null;
    rope: Maybe[] | null;
  };
}

/* A role that a head has above a threshold of its score, a measure. */
interface Role {
  name: string;
  score: string;
  threshold: number;
  means: string;
}

/* A number in a tooltip: `whose` and `of` come before the measure's name, `more` after the number, as in "RoPE: mean
 * position share 59.0% ± 0.4". A number with a `sign` is a difference. */
interface Quantity {
  name: string;
  value: Maybe;
  se?: Maybe;
  whose?: string;
  of?: string;
  more?: string;
  sign?: boolean;
}

interface Table {
  columns: Record<string, Float64Array>;
  classes: Record<string, { codes: Uint8Array; since: Maybe[] | null }>;
  roles: Uint8Array | null;
}

interface Checkpoint {
  index: number;
  model: string;
  label: string;
  phase: string | null;
  window: Maybe;
}

interface Head {
  index: number;
  layer: number;
  head: number;
  owner: Maybe;
  kv: Maybe;
  rope: Maybe;
  population: string;
}

interface Filter {
  classes: string[];
  rope: string;
  search: string;
  only: boolean;
}

interface State {
  view: string | null;
  checkpoint: number;
  heads: Set<number>;
  head: Maybe;
  pc: number;
  sort: string;
  down: boolean;
  filter: Filter;
  run: string;
  window: WindowName;
  measure: string;
  map: string;
  rows: string;
  spacing: string;
  taxonomy: string;
  carried: string;
  scale: string;
  number: string;
  across: string;
  up: string;
  tint: string;
  excerpt: string;
  token: string; // whose attention on the excerpt is shown; "": chosen by the view
  theta: Maybe; // of the explorer; null: the run's own
  span: Maybe;
  [choice: string]: any;
}

/* A cell of a sheet, and the sheet: see sheet.js. */
type Cell = { row: number; col: number };
type Box = { x: number; y: number; width: number; height: number };
interface Sheet {
  id: string;
  label: string;
  width: number;
  height: number;
  shown?: number; // height of the part in view, where it scrolls
  header?: number; // height of what stays at the top
  start: Cell;
  paint: (context: CanvasRenderingContext2D, top: number) => void;
  over?: () => SVGElement[];
  at: (x: number, y: number) => Cell | null;
  rows: number;
  cols: (row: number) => number;
  box: (cell: Cell) => Box | null;
  lines: (cell: Cell) => (string | null)[];
  verb?: string; // what Enter does, in words
  act?: (cell: Cell, event: MouseEvent | KeyboardEvent) => void;
  brush?: (from: number, to: number, event: MouseEvent) => void;
}

/* A part of the page: made once, drawn again when one of its `needs` has changed (null the first time). */
interface View {
  setUp?: () => void;
  draw: (keys: Set<string> | null) => void;
  needs: string[];
}
