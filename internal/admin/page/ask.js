// What the page changes: every change is asked about first, and what the API
// says against it is told in its words.

const dialog = document.getElementById("ask");
const find = (selector) => dialog.querySelector(selector);
let current = null;

// api is one call; it throws an Error that can be read. The origin has no
// credentials in it, with which a browser would not fetch.
export async function api(method, path, body) {
  let answer;
  try {
    answer = await fetch(new URL(path, location.origin), {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Error("The proxy cannot be reached. It may have stopped; try again.");
  }
  if (answer.status === 204) return null;
  const json = await answer.json().catch(() => null);
  if (answer.ok) return json;
  throw new Error(json?.problems?.join("\n") || json?.error || `The proxy answered ${answer.status}.`);
}

export const path = (limit, rest = "") => `/api/limits/${encodeURIComponent(limit)}${rest}`;

function input(field) {
  const label = document.createElement("label");
  const name = document.createElement("span");
  name.textContent = field.label ?? field.name;
  let control;
  if (field.options) {
    control = document.createElement("select");
    for (const [value, text] of field.options) control.add(new Option(text, value));
  } else {
    control = document.createElement("input");
    control.type = typeof field.value === "boolean" ? "checkbox" : "text";
    if (typeof field.value === "number") control.inputMode = "numeric";
    control.autocomplete = "off";
    control.spellcheck = false;
  }
  if (control.type === "checkbox") control.checked = field.value;
  else if (field.value !== undefined) control.value = String(field.value);
  control.name = field.name;
  label.append(name, control);
  return label;
}

// values has each field in the type that it had.
function values() {
  return Object.fromEntries(current.fields.map((f) => {
    const control = find("form").elements.namedItem(f.name);
    if (control.type === "checkbox") return [f.name, control.checked];
    const text = control.value.trim();
    // What is no number is sent as it is, for the API to say so.
    return [f.name, typeof f.value === "number" && /^\d+$/.test(text) ? Number(text) : text];
  }));
}

function effect() {
  const text = current.effect?.(values());
  find(".effect").textContent = text ?? "";
  find(".ok").disabled = text === "";
}

// ask opens the dialog. act is called with the values when it is confirmed, and
// says what has been done. effect says in words what will be; "" is nothing.
export function ask({ title, text, fields = [], ok, act, effect: words }) {
  current = { fields, act, effect: words };
  find("h2").textContent = title;
  find(".text").textContent = text;
  find(".fields").replaceChildren(...fields.map(input));
  find(".error").textContent = "";
  find(".ok").textContent = ok;
  find(".ok").disabled = false;
  effect();
  dialog.showModal();
  (find(".fields input, .fields select") ?? find(".cancel")).focus();
}

// say tells what has been done, for as long as it is news.
let forget;
function say(done) {
  const said = document.getElementById("said");
  said.textContent = done;
  clearTimeout(forget);
  forget = setTimeout(() => { said.textContent = ""; }, 15_000);
}

find("form").addEventListener("input", effect);
find(".cancel").addEventListener("click", () => dialog.close());
find("form").addEventListener("submit", async (e) => {
  e.preventDefault();
  const asked = current;
  find(".ok").disabled = true;
  find(".error").textContent = "";
  try {
    const done = await asked.act(values());
    say(done);
    if (asked === current) dialog.close();
  } catch (err) {
    if (asked !== current) return;
    find(".error").textContent = err.message;
    find(".ok").disabled = false;
  }
});
