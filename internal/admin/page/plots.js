// The plots of one limit, by uPlot: a second is a place from −60 to 0.

import { rate } from "/words.js";

const seconds = Array.from({ length: 61 }, (_, i) => i - 60);
const kinds = ["admitted", "queued", "rejected", "gone"]; // from the ground upwards

// The style sheet has the colours, for light and for dark.
const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A round number that holds every value, and little more.
function ceiling(max) {
  if (!(max > 1)) return 1;
  const tens = 10 ** Math.floor(Math.log10(max));
  const steps = tens < 10 ? [1, 2, 3, 4, 6, 8, 10] : [1, 1.5, 2, 3, 4, 6, 8, 10]; // whose halves read well
  return steps.map((m) => m * tens).find((c) => c >= max - tens / 100);
}

function plot(parent, height, labels, series, data, picked) {
  const axis = { stroke: colour("--soft"), font: "11px system-ui", grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
  const u = new uPlot({
    width: Math.max(1, parent.clientWidth), height, padding: [6, 12, labels ? 0 : 6, 0], legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false }, focus: { prox: -1 } },
    hooks: { setCursor: [(u) => picked(u.cursor.idx == null ? null : seconds[u.cursor.idx])] },
    scales: { x: { time: false, range: [-60, 0] }, y: { range: (_u, _min, max) => [0, ceiling(max)] } },
    axes: [
      {
        ...axis, show: labels, size: 20, gap: 3, grid: { show: false }, splits: () => [-45, -30, -15, 0], // −60 would stand on the 0 beside it
        values: (_u, at) => at.map((s) => (s === 0 ? "now" : `−${-s} s`)),
      },
      {
        ...axis, size: 36, gap: 4, splits: (_u, _i, _min, max) => (max === 1 ? [0, 1] : [0, max / 2, max]),
        values: (_u, at) => at.map((v) => rate(v).replace(".0", "")),
      },
    ],
    series: [{}, ...series.map((s) => ({ points: { show: false }, ...s }))],
  }, data, parent);
  return u;
}

// Plots draws into the two elements; picked is told which second, from −60 to 0,
// is pointed at, or null.
export class Plots {
  constructor(decisions, depths, picked) {
    const none = seconds.map(() => null);
    const bars = uPlot.paths.bars({ size: [0.8, 40], align: -1 });
    this.decisions = plot(decisions, 104, true, [
      // What stands on others is drawn before them, up from the ground.
      ...[...kinds].reverse().map((k) => ({ paths: bars, width: 0, fill: colour(`--${k}`) })),
      { stroke: colour("--soft"), width: 1, dash: [4, 3] },
    ], [seconds, none, none, none, none, none], picked);
    this.depths = plot(depths, 84, true, [{ stroke: colour("--depth"), fill: colour("--depth-area"), width: 1.5 }], [seconds, none], picked);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    new ResizeObserver(() => {
      for (const u of [this.decisions, this.depths]) {
        const width = u.root.parentElement.clientWidth;
        if (width > 0 && width !== u.width) u.setSize({ width, height: u.height });
      }
    }).observe(decisions);
  }

  redraw() {
    this.decisions.redraw(false);
    this.depths.redraw(false);
  }

  // show draws the samples, by second, and reports whether the line of the rate is in
  // the picture: not where it would flatten it.
  show(samples, perSecond) {
    const at = seconds.map((s) => samples.get(s));
    const sums = kinds.map(() => []);
    for (const s of at) {
      let sum = 0;
      kinds.forEach((k, i) => sums[i].push(s ? (sum += s[k]) : null));
    }
    const busiest = Math.max(0, ...sums.at(-1));
    const ruled = perSecond > 0 && perSecond <= Math.max(1, busiest) * 4;
    this.decisions.setData([seconds, ...sums.reverse(), seconds.map(() => (ruled ? perSecond : null))]);
    this.depths.setData([seconds, at.map((s) => s?.depth ?? null)]);
    return ruled;
  }
}
