// The live page: what /api/events sends, each second.

import { Card } from "/card.js";
import { reasons, whole } from "/words.js";

const cards = new Map(); // by limit name
const $ = (id) => document.getElementById(id);

function upstream(u) {
  const e = $("upstream").content.firstElementChild.cloneNode(true);
  const find = (selector) => e.querySelector(selector);
  find("h2").textContent = u.name;
  find(".flight").textContent = `${whole(u.in_flight)} in flight`;
  const breaker = find(".breaker");
  breaker.hidden = !u.breaker || u.breaker === "closed";
  breaker.textContent = `breaker ${u.breaker}`;
  find("ul").replaceChildren(...u.addresses.map((a) => {
    const li = document.createElement("li");
    li.className = a.healthy ? "healthy" : "out";
    li.textContent = a.healthy ? a.address : `${a.address} is left out`;
    if (u.addresses.length > 1) li.textContent += `, ${whole(a.in_flight)} in flight`;
    return li;
  }));
  const refused = reasons(u.refused);
  find(".refused").textContent = refused && `not sent: ${refused}`;
  return e;
}

function show(snapshot) {
  $("ready").hidden = snapshot.ready;
  $("empty").hidden = snapshot.limits.length > 0;
  $("upstreams").replaceChildren(...snapshot.upstreams.map(upstream));

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
