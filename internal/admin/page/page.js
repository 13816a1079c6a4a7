// Names come from the configuration and are only ever put in as text.

const minute = 60_000;
const kinds = ["admitted", "queued", "rejected", "gone"]; // from the ground of the plot upwards
const cards = new Map(); // by limit name
const $ = (id) => document.getElementById(id);

// ---- numbers and words

// A rate as it is read: a tenth matters only when there are few.
function rate(n) {
  if (n === 0) return "0";
  if (n < 9.95) return n.toFixed(1);
  if (n < 10_000) return String(Math.round(n));
  return n < 1e6 ? `${(n / 1e3).toFixed(1)}k` : `${(n / 1e6).toFixed(1)}M`;
}

function seconds(s) {
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s.toFixed(1)} s`;
  return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
}

const whole = (n) => n.toLocaleString("en");

const listed = (v) => [v].flat().join(", "); // a word or a list of words

function words(l) {
  const each = l.key === "global" ? "" : `, for each ${listed(l.key)}`;
  const waits = () => `up to ${whole(l.queue)} wait, each at most ${l.max_wait}${each}.`;
  switch (l.algorithm) {
    case "leaky-bucket":
      return l.queue > 0
        ? `Leaky bucket with a queue: requests leave evenly at ${l.rate}; ${waits()}`
        : `Leaky bucket: drains at ${l.rate} and refuses what would overflow ${whole(l.burst)}${each}.`;
    case "token-bucket":
      return l.queue > 0
        ? `Token bucket with a queue: ${whole(l.burst)} at once, then ${l.rate}; ${waits()}`
        : `Token bucket: ${whole(l.burst)} at once, then ${l.rate}${each}.`;
    case "fixed-window":
      return `Fixed window: ${whole(l.limit)} in each ${l.window}${each}.`;
    case "sliding-window-log":
      return `Sliding window, exact: at most ${whole(l.limit)} in any ${l.window}${each}.`;
    case "sliding-window-counter":
      return `Sliding window of two counters: about ${whole(l.limit)} in any ${l.window}${each}.`;
    case "concurrency":
      return l.queue > 0
        ? `Places: ${whole(l.max_in_flight)} at the upstream at once; ${waits()}`
        : `Places: ${whole(l.max_in_flight)} at the upstream at once${each}.`;
  }
  return l.algorithm;
}

// ---- plots

function svg(parent, name, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  parent.append(e);
  return e;
}

// A round number that holds every value, and little more.
function ceiling(max) {
  if (max <= 1) return 1;
  const tens = 10 ** Math.floor(Math.log10(max));
  const steps = tens < 10 ? [1, 2, 3, 4, 6, 8, 10] : [1, 1.5, 2, 3, 4, 6, 8, 10]; // whose halves read well
  return steps.map((m) => m * tens).find((c) => c >= max - tens / 100);
}

const left = 38, right = 6, top = 18;

// frame draws what both plots share, and returns where values go.
function frame(title, width, height, max, bottom) {
  const root = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  root.setAttribute("height", height);
  root.setAttribute("role", "img");
  root.setAttribute("aria-label", title);
  const ground = height - bottom;
  const x = (age) => left + (width - left - right) * (1 - age / minute);
  const y = (v) => ground - (ground - top) * (v / max);
  svg(root, "text", { class: "title", x: left, y: 11 }, title);
  for (const v of max === 1 ? [0, 1] : [0, max / 2, max]) {
    const at = Math.round(y(v)) + 0.5;
    svg(root, "path", { class: v ? "grid" : "axis", d: `M${left} ${at}H${width - right}` });
    svg(root, "text", { x: left - 6, y: at + 3.5, "text-anchor": "end" }, rate(v).replace(".0", ""));
  }
  if (bottom > 10) {
    for (const age of [60, 45, 30, 15, 0]) {
      const at = x(age * 1000);
      const anchor = age === 0 ? "end" : age === 60 ? "start" : "middle";
      svg(root, "text", { x: at, y: height - 3, "text-anchor": anchor }, age ? `−${age} s` : "now");
    }
  }
  return { root, x, y, ground };
}

function plotDecisions(card, width, now) {
  const limit = card.limit;
  const total = (s) => kinds.reduce((sum, k) => sum + s[k], 0);
  const ruled = limit.key === "global" && limit.per_second > 0;
  const busiest = Math.max(0, ...card.samples.map(total));
  // The rate's line belongs to the picture unless it would flatten it.
  const shown = ruled && limit.per_second <= Math.max(1, busiest) * 4;
  const max = ceiling(Math.max(busiest, shown ? limit.per_second : 0));
  const p = frame("decisions/s", width, limit.queue > 0 ? 104 : 122, max, limit.queue > 0 ? 6 : 20);
  const step = (p.x(0) - p.x(1000));
  const paths = Object.fromEntries(kinds.map((k) => [k, ""]));
  for (const s of card.samples) {
    const age = now - s.t;
    if (age > minute - 1000) continue;
    // Whole pixels and one between, so that the bars stand apart and crisp.
    const from = Math.round(p.x(age) - step), to = Math.max(from + 1, Math.round(p.x(age)) - 1);
    let sum = 0;
    for (const k of kinds) {
      if (!s[k]) continue;
      const low = p.y(sum), high = p.y(sum += s[k]);
      paths[k] += `M${from} ${low.toFixed(1)}H${to}V${high.toFixed(1)}H${from}Z`;
    }
  }
  for (const k of kinds) svg(p.root, "path", { class: `bars ${k}`, d: paths[k] });
  if (shown) {
    const at = Math.round(p.y(limit.per_second)) + 0.5;
    svg(p.root, "path", { class: "rate", d: `M${left} ${at}H${width - right}` });
    const name = limit.rate || `${whole(limit.limit)}/${limit.window}`;
    svg(p.root, "text", { x: width - right, y: 11, "text-anchor": "end" }, `╌╌ ${name}`);
  }
  return p;
}

function plotDepth(card, width, now) {
  const samples = card.samples.filter((s) => now - s.t <= minute);
  const max = ceiling(Math.max(1, ...samples.map((s) => s.depth)));
  const p = frame("depth: requests waiting", width, 92, max, 20);
  const points = samples.map((s) => `${p.x(now - s.t).toFixed(1)} ${p.y(s.depth).toFixed(1)}`);
  if (points.length > 0) {
    const first = p.x(now - samples[0].t).toFixed(1), last = p.x(now - samples.at(-1).t).toFixed(1);
    svg(p.root, "path", { class: "area", d: `M${first} ${p.ground}L${points.join("L")}L${last} ${p.ground}Z` });
    svg(p.root, "path", { class: "edge", d: `M${points.join("L")}` });
  }
  return p;
}

// ---- cards

class Card {
  constructor(name) {
    this.samples = [];
    this.picked = null; // the time of the sample under the pointer
    this.element = $("limit").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.element.querySelector(selector);
    this.find("h2").textContent = name;
    this.plots = this.find(".plots");
    this.plots.addEventListener("pointermove", (e) => this.pick(e));
    this.plots.addEventListener("pointerleave", () => { this.picked = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.plots);
  }

  update(limit) {
    const last = this.samples.length ? this.samples.at(-1).t : 0;
    this.samples.push(...limit.samples.filter((s) => s.t > last));
    while (this.samples.length > 61) this.samples.shift();
    this.limit = limit;

    this.find(".dry").hidden = !limit.dry_run;
    this.find(".words").textContent = words(limit);
    this.facts();
    this.draw();
  }

  pick(e) {
    if (!this.samples.length) return;
    const box = this.plots.getBoundingClientRect();
    const share = (e.clientX - box.left - left) / (box.width - left - right);
    const at = this.samples.at(-1).t - minute * (1 - share);
    this.picked = this.samples.find((s) => s.t >= at)?.t ?? null;
    this.draw();
  }

  draw() {
    const width = this.plots.clientWidth;
    if (!this.limit || !this.samples.length || !width) return;
    const now = this.samples.at(-1);
    const shown = this.samples.find((s) => s.t === this.picked) ?? now;

    const ago = Math.round((now.t - shown.t) / 1000);
    this.find(".when").textContent = ago > 0 ? `${ago} s ago` : "";
    for (const k of kinds) {
      const cell = this.find(`.rates .${k} dd`);
      cell.textContent = rate(shown[k]);
      cell.classList.toggle("zero", shown[k] === 0);
    }
    this.queue(shown);

    const drawn = [plotDecisions(this, width, now.t)];
    if (this.limit.queue > 0) drawn.push(plotDepth(this, width, now.t));
    if (shown !== now) {
      for (const p of drawn) {
        const at = Math.round(p.x(now.t - shown.t)) - 0.5;
        svg(p.root, "path", { class: "cursor", d: `M${at} ${top}V${p.ground}` });
      }
    }
    this.plots.replaceChildren(...drawn.map((p) => p.root));
  }

  queue(sample) {
    const { queue: places, key, keys } = this.limit;
    this.find(".queue").hidden = !(places > 0);
    if (!(places > 0)) return;
    // Each key has a queue of its own: their sum is not a share of one.
    const one = key === "global";
    const bar = this.find(".bar");
    bar.hidden = !one;
    if (one) {
      const share = Math.min(1, sample.depth / places);
      bar.classList.toggle("cells", places <= 60);
      bar.classList.toggle("nearly", share >= 0.9);
      bar.style.setProperty("--capacity", places);
      bar.setAttribute("aria-label", `${sample.depth} of ${places} places taken`);
      bar.firstElementChild.style.width = `${share * 100}%`;
    }
    this.find(".depth").textContent = whole(sample.depth);
    this.find(".places").textContent = one
      ? `of ${whole(places)} places waiting`
      : `waiting over ${whole(keys)} ${keys === 1 ? "key" : "keys"}, ${whole(places)} places each`;
    this.find(".oldest").textContent = sample.depth > 0 ? `oldest ${seconds(sample.oldest_wait_seconds)}` : "";
  }

  facts() {
    const l = this.limit, d = l.decisions;
    const rejected = Object.entries(d.rejected).map(([reason, n]) => `${reason} ${whole(n)}`);
    const facts = {
      algorithm: l.algorithm, rate: l.rate, burst: l.burst, queue: l.queue, max_wait: l.max_wait,
      max_in_flight: l.max_in_flight, in_flight: l.in_flight,
      limit: l.limit, window: l.window, key: listed(l.key), keys: whole(l.keys), routes: l.routes.join("\n") || "none",
      admitted: whole(d.admitted), queued: whole(d.queued), rejected: rejected.join(", ") || "0", gone: whole(d.gone),
    };
    const rows = [];
    for (const [name, value] of Object.entries(facts)) {
      if (value === undefined) continue;
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = value;
      rows.push(dt, dd);
    }
    this.find(".facts").replaceChildren(...rows);
  }
}

// ---- the stream

function show(snapshot) {
  $("ready").hidden = snapshot.ready;
  $("empty").hidden = snapshot.limits.length > 0;

  $("upstreams").replaceChildren(...snapshot.upstreams.map((u) => {
    const row = document.createElement("div");
    row.append(document.createElement("dt"), document.createElement("dd"));
    row.firstChild.textContent = u.name;
    row.lastChild.textContent = whole(u.in_flight);
    return row;
  }));

  const names = new Set(snapshot.limits.map((l) => l.name));
  for (const [name, card] of cards) {
    if (names.has(name)) continue;
    card.element.remove();
    cards.delete(name);
  }
  let before = null; // keep the file's order without moving what stands right
  for (const limit of snapshot.limits) {
    let card = cards.get(limit.name);
    if (!card) cards.set(limit.name, card = new Card(limit.name));
    const place = before ? before.nextElementSibling : $("limits").querySelector("article");
    if (place !== card.element) {
      before ? before.after(card.element) : $("limits").append(card.element);
    }
    before = card.element;
    card.update(limit);
  }
}

function state(now) {
  const e = $("connection");
  if (e.dataset.state === now) return; // it is read aloud when it changes
  e.dataset.state = e.textContent = now;
  $("limits").toggleAttribute("data-stale", now === "reconnecting");
}

let source, silence;

function connect() {
  source?.close();
  source = new EventSource("/api/events");
  source.onmessage = (e) => {
    state("live");
    listen();
    show(JSON.parse(e.data));
  };
  source.onerror = () => state("reconnecting");
  listen();
}

// An event is due each second. The browser reconnects by itself after most
// failures, but not after a refusal, nor when the network has gone silent.
function listen() {
  clearTimeout(silence);
  silence = setTimeout(() => { state("reconnecting"); connect(); }, 5000);
}

connect();
