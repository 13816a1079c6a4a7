"use strict";
(() => {
  const timelines = JSON.parse(document.getElementById("timelines").textContent);
  const plots = document.getElementById("plots");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const charts = [];

  // Both sides of a comparison begin and end with the same log, but one may
  // take longer to empty its queue.
  const byName = new Map();
  for (const t of timelines) {
    if (!byName.has(t.name)) byName.set(t.name, []);
    byName.get(t.name).push(t);
  }

  function draw(parent, caption, sides, lines) {
    const longest = sides.reduce((a, b) => ((b.time || []).length > (a.time || []).length ? b : a));
    if (!longest.time) return;
    const series = [{}], data = [longest.time];
    sides.forEach((t, n) => {
      for (const [field, label, name] of lines) {
        if (!t[field]) continue;
        series.push({
          label: (t.side ? t.side + ": " : "") + label, stroke: () => color(name),
          width: 1.5, dash: n > 0 ? [6, 4] : undefined, points: { show: false },
        });
        data.push(longest.time.map((_, i) => (i < t[field].length ? t[field][i] : null)));
      }
    });
    const figure = parent.appendChild(document.createElement("figure"));
    const figcaption = figure.appendChild(document.createElement("figcaption"));
    figcaption.textContent = caption;
    const peaks = series.slice(1).map((s, i) => `${s.label}: at most ${Number(Math.max(0, ...data[i + 1]).toPrecision(3))}`);
    figure.setAttribute("role", "img");
    figure.setAttribute("aria-label", caption + ". " + peaks.join("; "));
    const axis = () => ({ stroke: () => color("--dim"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { stroke: () => color("--line") } });
    charts.push(new uPlot({
      width: plots.clientWidth, height: 200, series, axes: [axis(), { ...axis(), size: 60 }],
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      cursor: { sync: { key: "time" } },
    }, data, figure));
  }

  for (const [name, sides] of byName) {
    if (!sides.some((t) => t.time)) continue;
    const part = plots.appendChild(document.createElement("section"));
    part.appendChild(document.createElement("h3")).textContent = name;
    draw(part, "requests a second", sides, [["offered", "offered", "--a"], ["released", "released", "--b"], ["rejected", "rejected", "--no"]]);
    if (sides.some((t) => t.queue)) {
      draw(part, "waiting at most", sides, [["depth", "depth", "--a"]]);
      draw(part, "longest wait of those released, seconds", sides, [["wait", "wait", "--b"]]);
    }
  }
  addEventListener("resize", () => charts.forEach((c) => c.setSize({ width: plots.clientWidth, height: 200 })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((c) => c.redraw()));
})();
