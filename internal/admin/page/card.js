// A limit on the page. Names come from the configuration, keys from clients: they
// are only ever put in as text.

import { api, ask, path } from "/ask.js";
import { Keys, Refusals, Waiting } from "/panels.js";
import { Plots } from "/plots.js";
import { listed, pause, rate, reasons, seconds, whole, words } from "/words.js";

const changeable = ["rate", "burst", "queue", "max_wait", "limit", "dry_run"];

export class Card {
  constructor(name) {
    this.name = name;
    this.samples = [];
    this.picked = null; // the second that is pointed at, from −60 to 0
    this.element = document.getElementById("limit").content.firstElementChild.cloneNode(true);
    this.element.setAttribute("aria-label", `Limit ${name}`);
    this.find = (selector) => this.element.querySelector(selector);
    this.find("h2").textContent = name;
    this.panels = [new Waiting(this), new Keys(this), new Refusals(this)];
    const button = (selector, words, act) => {
      this.find(selector).setAttribute("aria-label", `${words} ${name}`);
      this.find(selector).addEventListener("click", act);
    };
    button(".pause", "Pause", () => (this.limit.paused === "operator" ? this.resume() : this.pause()));
    button(".change", "Change", () => this.change());
  }

  update(limit) {
    const last = this.samples.length ? this.samples.at(-1).t : 0;
    this.samples.push(...limit.samples.filter((s) => s.t > last));
    while (this.samples.length > 61) this.samples.shift();
    this.limit = limit;

    const queues = limit.queue > 0;
    this.find(".dry").hidden = !limit.dry_run;
    this.find(".paused").hidden = this.find(".why").hidden = !limit.paused;
    this.find(".why").textContent = limit.paused ? pause(limit) : "";
    this.find(".words").textContent = words(limit);
    this.find(".waiting").hidden = this.find(".pause").hidden = !queues;
    for (const e of this.element.querySelectorAll(".depths")) e.hidden = !queues;
    const refused = reasons(limit.decisions.rejected);
    this.find(".reasons").hidden = !refused;
    this.find(".reasons").textContent = `${limit.dry_run ? "would have been rejected" : "rejected"} since the start: ${refused}`;
    const verb = limit.paused === "operator" ? "Resume" : "Pause";
    if (this.find(".pause").textContent !== `${verb}…`) {
      this.find(".pause").textContent = `${verb}…`;
      this.find(".pause").setAttribute("aria-label", `${verb} ${this.name}`);
    }
    this.facts();
    this.draw();
    for (const p of this.panels) p.refresh();
  }

  draw() {
    const now = this.samples.at(-1);
    // Here, as uPlot needs a place on the page to measure.
    this.plots ??= new Plots(this.find("div.decisions"), this.find("div.depths"), (second) => {
      if (second === this.picked) return;
      this.picked = second;
      this.numbers();
    });
    this.seconds = new Map(this.samples.map((s) => [Math.round((s.t - now.t) / 1000), s]));
    // Each key has a rate of its own: the line is for one alone.
    const ruled = this.plots.show(this.seconds, this.limit.key === "global" ? this.limit.per_second : 0);
    this.find(".ruled").textContent = ruled ? `╌╌ ${this.limit.max_rate || this.limit.rate || `${whole(this.limit.limit)}/${this.limit.window}`}` : "";
    this.numbers();
  }

  // numbers are those of the second that is pointed at, or else of now.
  numbers() {
    const shown = this.seconds?.get(this.picked ?? 0) ?? this.samples.at(-1);
    if (!shown) return;
    const ago = Math.round((this.samples.at(-1).t - shown.t) / 1000);
    this.find(".when").textContent = ago > 0 ? `${ago} s ago` : "";
    const put = (selector, value) => {
      const cell = this.find(`${selector} dd`);
      cell.textContent = rate(value);
      cell.classList.toggle("zero", value === 0);
    };
    for (const k of ["in", "out"]) put(`.flow .${k}`, shown[k]);
    for (const k of ["admitted", "queued", "rejected", "gone"]) put(`.rates .${k}`, shown[k]);
    for (const p of ["p50", "p90", "p99"]) {
      this.find(`.flow .${p}`).hidden = !(this.limit.queue > 0);
      const wait = this.limit.wait_seconds?.[p];
      this.find(`.flow .${p} dd`).textContent = wait === undefined ? "–" : seconds(wait);
    }
    this.queue(shown);
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
    const facts = {
      algorithm: l.algorithm, rate: l.rate, burst: l.burst, queue: l.queue, max_wait: l.max_wait,
      min_rate: l.min_rate, max_rate: l.max_rate, effective_rate: l.min_rate && l.effective_rate,
      max_in_flight: l.max_in_flight, effective_max_in_flight: l.effective_max_in_flight, shed_above: l.shed_above, sheds: l.sheds,
      reserve: l.reserve && `${Math.round(l.reserve.high * 1000) / 10}% for high`, in_flight: l.in_flight,
      limit: l.limit, window: l.window, key: listed(l.key), keys: whole(l.keys), fair_by: l.fair_by && listed(l.fair_by),
      routes: l.routes.join("\n") || "none",
      admitted: whole(d.admitted), queued: whole(d.queued), rejected: reasons(d.rejected) || "0", gone: whole(d.gone),
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

  pause() {
    ask({
      title: `Pause ${this.name}?`,
      text: "Nothing leaves the queue meanwhile. Who waits stays in order, and the time does not count as waiting.",
      fields: [{
        name: "for", label: "for", value: "",
        options: [["", "until resumed"], ["30s", "30 seconds"], ["1m", "1 minute"], ["5m", "5 minutes"], ["1h", "1 hour"]],
      }],
      ok: "Pause",
      act: async (v) => {
        await api("POST", path(this.name, "/pause"), v.for ? { for: v.for } : {});
        return `${this.name} is paused.`;
      },
    });
  }

  resume() {
    ask({
      title: `Resume ${this.name}?`,
      text: "The queue goes on at its rate, with no bunch.",
      ok: "Resume",
      act: async () => {
        await api("POST", path(this.name, "/resume"));
        return `${this.name} goes on.`;
      },
    });
  }

  change() {
    const was = this.limit;
    const fields = changeable.filter((f) => was[f] !== undefined).map((name) => ({ name, value: was[name] }));
    const changed = (v) => Object.fromEntries(fields.filter((f) => v[f.name] !== f.value).map((f) => [f.name, v[f.name]]));
    ask({
      title: `Change ${this.name}`,
      text: "State and queue are kept. It lasts until the next reload: then the file counts.",
      fields,
      ok: "Apply",
      effect: (v) => Object.entries(changed(v)).map(([name, now]) => `${name} ${was[name]} → ${now}`).join(", "),
      act: async (v) => {
        await api("PATCH", path(this.name), changed(v));
        return `${this.name} was changed.`;
      },
    });
  }
}
