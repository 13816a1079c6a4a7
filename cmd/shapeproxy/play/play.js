// The playground draws what the server's limits say; it decides nothing itself.

const shown = 30; // seconds of the past
const every = 200; // ms between requests of a button that is held
const look = 150; // ms between looks
const $ = (id) => document.getElementById(id);

const about = {
  "leaky-bucket": ["Leaky bucket", "Requests fill it, it drains evenly, and what would overflow is refused."],
  "token-bucket": ["Token bucket", "A request takes a token; tokens come evenly, up to five."],
  "fixed-window": ["Fixed window", "Counts until the window ends, then begins with nothing."],
  "sliding-window-log": ["Sliding window log", "Remembers when each came, and counts those of the last 10 s."],
  "sliding-window-counter": ["Sliding window counter", "Counts this window, and the last one by the share that still reaches into 10 s."],
};

// What is asked under another session begins with nothing.
let session;
function anew() {
  session = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
  for (const lane of lanes.values()) lane.forget();
}

function svg(parent, name, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  parent.append(e);
}

const plural = (n, one) => `${n} ${n === 1 ? one : one.replace(/y$/, "ie") + "s"}`;

function words(p) {
  const level = p.level.toFixed(1);
  switch (p.algo) {
    case "token-bucket":
      return `${(p.limit - p.level).toFixed(1)} tokens left, ${level} missing`;
    case "leaky-bucket":
      return `${level} of ${p.limit} in the bucket`;
    case "fixed-window":
      return `${p.window.current} in this window; it ends in ${(p.window.length - p.window.elapsed).toFixed(1)} s`;
    case "sliding-window-counter":
      return `${p.window.previous} × ${Math.round(100 * (1 - p.window.elapsed / p.window.length))} % + ${p.window.current} = ${level}`;
  }
  const log = p.log ?? [];
  return plural(log.length, "entry") + (log.length ? `; the oldest leaves in ${Math.max(0, 10 - log[0]).toFixed(1)} s` : "");
}

class Lane {
  constructor(algo) {
    this.element = $("lane").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.element.querySelector(selector);
    this.name = about[algo][0];
    this.element.setAttribute("aria-label", this.name);
    this.element.dataset.algo = algo;
    this.find("h2").textContent = this.name;
    this.find(".words").textContent = about[algo][1];
    this.forget();
    $("lanes").append(this.element);
  }

  forget() {
    this.past = []; // {at, allowed}, by the server's seconds
    this.most = 0;
    this.verdict("–", "");
  }

  verdict(text, kind) {
    this.find(".verdict").textContent = text;
    this.find(".verdict").className = `verdict ${kind}`;
  }

  decided(p, at) {
    this.past.push({ at, allowed: p.allowed });
    if (p.allowed) this.verdict("let through", "passed");
    else this.verdict(`refused; try again in ${p.retry_after.toFixed(1)} s`, "refused");
    const recent = this.past.filter((r) => r.allowed && at - r.at < 9.9999).length;
    this.most = Math.max(this.most, recent);
  }

  draw(p, at) {
    this.past = this.past.filter((r) => at - r.at < shown);
    const filled = p.algo === "token-bucket" ? p.limit - p.level : p.level;
    this.find(".level i").style.width = `${Math.min(100, (100 * filled) / p.limit)}%`;
    this.find(".level").setAttribute("aria-label", words(p));
    this.find(".state").textContent = words(p);
    this.find(".most").textContent = `most let through in any 10 s: ${this.most}`;

    const picture = this.find("svg");
    picture.replaceChildren();
    const x = (age) => 600 * (1 - Math.min(age, shown) / shown);
    if (p.window) {
      for (let end = p.window.elapsed; end < shown; end += p.window.length) {
        svg(picture, "path", { class: "bound", d: `M${x(end)} 0V56` });
      }
      svg(picture, "rect", { class: "window", x: x(p.window.elapsed), y: 0, width: 600 - x(p.window.elapsed), height: 56 });
    } else if (p.algo === "sliding-window-log") {
      svg(picture, "rect", { class: "window", x: x(10), y: 0, width: 600 - x(10), height: 56 });
    }
    svg(picture, "path", { class: "ground", d: "M0 42H600" });
    const piles = new Map(); // those of about one moment stand on each other
    for (const r of this.past) {
      const moment = Math.floor(r.at / 0.3), height = piles.get(moment) ?? 0;
      piles.set(moment, height + 1);
      svg(picture, "rect", { class: r.allowed ? "passed" : "refused", x: x(at - moment * 0.3) - 6, y: 35 - 7 * height, width: 5, height: 5 });
    }
    for (const age of p.log ?? []) svg(picture, "path", { class: "entry", d: `M${x(age)} 46V54` });
    const passed = this.past.filter((r) => r.allowed).length;
    picture.setAttribute("aria-label", `the last ${shown} s: ${passed} let through, ${this.past.length - passed} refused`);
  }
}

const lanes = new Map();
let latest; // the fixed window's picture, and when it was drawn

async function call(what) {
  const asked = session;
  try {
    const answer = await fetch(`/play/${what}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ session: asked }),
    });
    if (!answer.ok) throw new Error();
    const { now, algorithms } = await answer.json();
    $("trouble").textContent = "";
    if (asked !== session) return;
    for (const p of algorithms) {
      if (!lanes.has(p.algo)) lanes.set(p.algo, new Lane(p.algo));
      if (what === "ask") lanes.get(p.algo).decided(p, now);
      lanes.get(p.algo).draw(p, now);
      if (p.algo === "fixed-window") latest = { window: p.window, at: performance.now() };
    }
    if (what === "ask") sent = algorithms;
  } catch {
    $("trouble").textContent = "The demo does not answer; it may have ended.";
  }
}

// What is read aloud is the last answer, and only when a press ends.
let sent;
function say() {
  if (sent) $("said").textContent = `Let through by ${sent.filter((p) => p.allowed).map((p) => about[p.algo][0].toLowerCase()).join(", ") || "none"}.`;
}

const send = $("send");
let held;

async function ask() {
  await call("ask");
  if (!held) say();
}

function press() {
  if (held) return;
  send.classList.add("held");
  held = setInterval(ask, every);
  ask();
}

function release() {
  clearInterval(held);
  held = undefined;
  send.classList.remove("held");
  say();
}

send.addEventListener("pointerdown", (e) => { if (e.button === 0) press(); });
send.addEventListener("contextmenu", (e) => e.preventDefault()); // which a long touch would open
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => { if (held) release(); });
send.addEventListener("keydown", (e) => {
  if (e.key !== "Enter" && e.key !== " ") return;
  e.preventDefault(); // a key that is held would click again and again
  if (!e.repeat) press();
});
send.addEventListener("keyup", () => { if (held) release(); });
send.addEventListener("blur", () => { if (held) release(); });
send.addEventListener("click", (e) => { if (e.detail === 0) ask(); }); // by neither pointer nor key

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function five() {
  for (let i = 0; i < 5; i++) await call("ask");
  say();
}

// alone runs an experiment during which no other is begun.
async function alone(experiment) {
  const buttons = [$("five"), $("boundary"), $("anew")];
  for (const b of buttons) b.disabled = true;
  await experiment();
  for (const b of buttons) b.disabled = false;
}

$("five").addEventListener("click", () => alone(five));
$("anew").addEventListener("click", () => { anew(); call("look"); });
$("boundary").addEventListener("click", () => alone(async () => {
  anew();
  await call("look");
  const left = () => 1000 * (latest.window.length - latest.window.elapsed) - (performance.now() - latest.at);
  if (left() < 700) await pause(left() + 50); // there is no room before this end
  await call("look");
  while (left() > 600) {
    $("said").textContent = `The window ends in ${Math.ceil(left() / 1000)} s.`;
    await pause(Math.min(200, left() - 500));
    await call("look");
  }
  await five();
  await pause(Math.max(0, left() + 50));
  await five();
}));

anew();
for (;;) {
  if (!document.hidden) await call("look");
  await pause(look);
}
