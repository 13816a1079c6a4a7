// What is looked up only while somebody looks at it: who waits, the busiest keys,
// the last refusals.

import { api, ask, path } from "/ask.js";
import { listed, reasons, seconds, whole } from "/words.js";

// An id is told by its beginning, which is enough to tell keys apart by eye.
const shownKey = (key) => (key === "" ? "(none)" : listed(key).replace(/id:([0-9a-f]{6})[0-9a-f]{10}/g, "#$1"));

// A Table keeps its rows, so that a button in one keeps the focus.
class Table {
  constructor(body) {
    this.body = body;
    this.rows = new Map();
  }

  // show takes [id, cells] for each row. A cell is a text, or a function that
  // fills it.
  show(rows) {
    const next = new Map();
    for (const [id, cells] of rows) {
      const tr = this.rows.get(id) ?? document.createElement("tr");
      while (tr.cells.length < cells.length) tr.insertCell();
      cells.forEach((cell, i) => {
        if (typeof cell === "function") cell(tr.cells[i]);
        else if (tr.cells[i].textContent !== cell) tr.cells[i].textContent = cell;
      });
      next.set(id, tr);
    }
    if (this.body.contains(document.activeElement)) return; // nothing moves away under the hand
    this.rows = next;
    this.body.replaceChildren(...next.values());
  }
}

class Panel {
  constructor(card, selector, call, label) {
    this.card = card;
    this.element = card.find(selector);
    this.sum = this.element.querySelector(".sum");
    this.table = new Table(this.element.querySelector("tbody"));
    this.scroll = this.element.querySelector(".scroll");
    this.scroll.setAttribute("aria-label", `${label} of ${card.name}`);
    this.call = call;
    this.element.addEventListener("toggle", () => this.refresh());
  }

  // refresh asks again, unless nobody looks or an answer is still to come.
  async refresh() {
    if (!this.element.open || this.element.hidden || document.hidden || this.asking) return;
    this.asking = true;
    try {
      this.show(await api("GET", path(this.card.name, this.call)));
    } catch (err) {
      this.sum.textContent = err.message;
      this.scroll.hidden = true;
    }
    this.asking = false;
  }

  rows(rows, sum) {
    this.sum.textContent = sum;
    this.scroll.hidden = rows.length === 0;
    this.table.show(rows);
  }
}

function counted(values) {
  const counts = {};
  for (const v of values) counts[v] = (counts[v] ?? 0) + 1;
  return counts;
}

export class Waiting extends Panel {
  constructor(card) { super(card, ".waiting", "/waiting", "Who waits at"); }

  show({ depth, waiting }) {
    const { fair_by: fair, key } = this.card.limit;
    const whose = (w) => (fair ? shownKey(w.flow ?? "") : key === "global" ? "" : w.key === undefined ? "another key" : shownKey(w.key));
    this.element.querySelector(".whose").textContent = fair ? listed(fair) : key === "global" ? "" : listed(key);
    const longest = Math.max(...waiting.map((w) => w.waited_seconds));
    const rows = waiting.map((w, i) => [i, [String(i + 1), w.class, whose(w), (cell) => {
      const bar = cell.querySelector("i") ?? cell.appendChild(document.createElement("i"));
      const text = cell.querySelector("span") ?? cell.appendChild(document.createElement("span"));
      bar.style.width = `${(5 * w.waited_seconds) / longest}em`;
      bar.className = w.class;
      text.textContent = seconds(w.waited_seconds);
    }]]);
    if (waiting.length === 0) {
      this.rows([], depth > 0 ? "Nobody: in a dry run the places are only counted." : "Nobody.");
      return;
    }
    const parts = [`by class: ${reasons(counted(waiting.map((w) => w.class)))}`];
    if (fair || key !== "global") {
      const each = Object.entries(counted(waiting.map(whose))).sort(([, a], [, b]) => b - a);
      parts.push(`by ${listed(fair ?? key)}: ` + each.slice(0, 5).map(([name, n]) => `${name}: ${n}`).join(", ") + (each.length > 5 ? ` and ${each.length - 5} more` : ""));
    }
    this.rows(rows, (depth > waiting.length ? `The first ${waiting.length} of ${whole(depth)}, ` : "") + parts.join("; ") + ".");
  }
}

export class Keys extends Panel {
  constructor(card) { super(card, ".keys", "/keys?top=20", "Busiest keys of"); }

  show({ keys }) {
    const rows = keys.map((k, i) => [k.id || `clipped ${i}`, [
      shownKey(k.key), whole(k.count ?? 0), k.id ? `${whole(k.remaining)} of ${whole(k.limit)}` : "",
      (cell) => { if (k.id && !cell.firstChild) cell.append(this.button(k)); },
    ]]);
    this.rows(rows, keys.length ? "Requests of about the last minutes, the busiest first." : "Nobody has asked yet.");
  }

  button(k) {
    const b = document.createElement("button");
    b.type = "button";
    b.textContent = "Reset…";
    b.setAttribute("aria-label", `Reset ${shownKey(k.key)}`);
    const limit = this.card.name;
    b.addEventListener("click", () => ask({
      title: `Reset ${shownKey(k.key)} at ${limit}?`,
      text: "It will be as if it had not come before: the whole budget may be used at once. Who waits keeps its place.",
      ok: "Reset",
      act: async () => {
        await api("DELETE", path(limit, `/keys/${encodeURIComponent(k.id)}`));
        this.refresh();
        return `${shownKey(k.key)} was reset at ${limit}.`;
      },
    }));
    return b;
  }
}

export class Refusals extends Panel {
  constructor(card) { super(card, ".refusals", "/refusals", "Last refusals of"); }

  show({ refusals }) {
    const rows = refusals.map((r, i) => [i, [
      new Date(r.t).toLocaleTimeString("en-GB"),
      (r.count > 1 ? `${whole(r.count)} × ` : "") + r.reason + (r.dry_run ? " (dry run)" : ""), r.route,
    ]]);
    const whose = this.card.limit.key === "global" ? "" : "Whose they were is not kept here: who is refused most is among the busiest keys, with little left; the access log names each client.";
    this.rows(rows, rows.length ? whose : "None since the start.");
  }
}
