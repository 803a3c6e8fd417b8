"use strict";
// The script of the page: asks for the next view, and changes the elements that differ from it.
//
// A view is JSON: for each region of the page an array of nodes. A node is a text, or [tag, attributes, children].
// Texts of objects, handlers and servers are assigned to textContent alone; nothing here parses markup.

const EVERY = 2000; // milliseconds between two views
const PATIENCE = 5000; // milliseconds for an answer
const WINDOW = 10000; // milliseconds over which a rate is the mean
const MOST_KEYS = 1000; // keys that the reader lists
const MOST_TEXT = 200000; // characters that the reader shows
const REGIONS = ["head", "alarms", "sections", "content"];
const TOKEN = "declctl-admin-token";

const region = (id) => document.getElementById(id);
const clock = () => `${new Date().toISOString().slice(0, 19).replace("T", " ")} UTC`;

// --- elements ---------------------------------------------------------------------------------------------

/** Makes the children of an element equal to `wanted`. What is equal already is not touched. */
function patch(parent, wanted) {
  if (wanted.every((node) => typeof node === "string")) {
    const text = wanted.join("");
    if (parent.childElementCount || parent.textContent !== text) parent.textContent = text;
    return;
  }
  const before = [...parent.childNodes];
  const named = new Map(before.filter(keyOf).map((node) => [keyOf(node), node]));
  const unnamed = before.filter((node) => !keyOf(node));
  const nodes = wanted.map((node) => {
    if (typeof node === "string") return patchText(unnamed, node);
    const [tag, attributes, children] = node;
    const key = attributes["data-key"];
    let element = key === undefined ? next(unnamed, (each) => each.localName === tag) : named.get(key);
    if (element?.localName !== tag) element = document.createElement(tag);
    patchAttributes(element, attributes);
    patch(element, withRate(attributes, children));
    return element;
  });
  // First removed, then put in order: an element that stays is not moved, so that it keeps focus and scroll.
  const kept = new Set(nodes);
  for (const node of before) if (!kept.has(node)) node.remove();
  nodes.forEach((node, place) => {
    if (parent.childNodes[place] !== node) parent.insertBefore(node, parent.childNodes[place] ?? null);
  });
}

function keyOf(node) {
  return node.dataset?.key;
}

/** Takes the first node that fits out of the array. */
function next(nodes, fits) {
  const place = nodes.findIndex(fits);
  return place < 0 ? undefined : nodes.splice(place, 1)[0];
}

function patchText(unnamed, text) {
  const node = next(unnamed, (each) => each.nodeType === Node.TEXT_NODE) ?? document.createTextNode(text);
  if (node.data !== text) node.data = text;
  return node;
}

function patchAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
  for (const name of element.getAttributeNames()) {
    if (!(name in attributes)) element.removeAttribute(name);
  }
}

// --- rates ------------------------------------------------------------------------------------------------

const samples = new Map(); // name of a counter → [time, count] of the last seconds, the oldest first

/** The children of a node. A node with data-count shows how much the counter grows in a second. */
function withRate(attributes, children) {
  const name = attributes["data-rate"];
  return name === undefined ? children : [rate(name, Number(attributes["data-count"]), performance.now())];
}

function rate(name, count, now) {
  let known = samples.get(name) ?? [];
  if (known.length && count < known.at(-1)[1]) known = []; // the process has started again
  known.push([now, count]);
  while (known.length > 2 && known[1][0] <= now - WINDOW) known.shift();
  samples.set(name, known);
  const [since, first] = known[0];
  if (now <= since) return "–";
  return rateText(((count - first) * 1000) / (now - since));
}

// Figures as declctl/kit/figures.py writes them; a test compares both.

/** A number of things: `1,234`. */
function countText(number) {
  return number.toLocaleString("en-US");
}

/** A number of things in a second, with one decimal if it is small: `0`, `<0.1`, `0.4`, `12`, `1,234`. */
function rateText(perSecond) {
  const tenths = Math.floor(perSecond * 10 + 0.5);
  if (perSecond > 0 && !tenths) return "<0.1";
  if (tenths > 0 && tenths < 100) return (tenths / 10).toFixed(1);
  return countText(Math.floor(perSecond + 0.5));
}

// --- the token --------------------------------------------------------------------------------------------

let token = "";
try {
  token = sessionStorage.getItem(TOKEN) ?? "";
} catch {
  // Storage is switched off: the token is kept until the page is left.
}

function keepToken(value) {
  token = value;
  try {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // As above.
  }
  region("forget").hidden = !value;
}

async function ask(path, accept) {
  const headers = { Accept: accept };
  if (token) headers.Authorization = `Bearer ${token}`;
  const signal = AbortSignal.timeout(PATIENCE);
  return fetch(path, { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
}

/** The sentence of an answer that refuses. */
async function refusal(response) {
  const text = await response.text();
  try {
    return String(JSON.parse(text).error ?? response.statusText);
  } catch {
    return response.statusText;
  }
}

// --- live -------------------------------------------------------------------------------------------------

let timer = 0;
let asking = false;
let lost = ""; // since when there has been no view; empty while there are

async function refresh() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  const sent = token;
  try {
    const response = await ask(location.pathname, "application/json");
    if ((response.status === 401 || response.status === 403) && sent) {
      const sentence = await refusal(response);
      if (sent === token) keepToken("");
      region("token-answer").textContent = `The token was refused: ${sentence}`;
      region("token").hidden = false;
    } else if (!response.ok) {
      disconnected("shows no state", `It answers ${response.status}: ${await refusal(response)}`);
    } else {
      const view = await response.json();
      if (sent === token) show(view); // otherwise the token was entered or forgotten meanwhile
    }
  } catch (error) {
    const why = error.name === "TimeoutError" ? "It does not answer in 5 seconds." : "Nothing answers.";
    disconnected("can't be reached", why);
  }
  asking = false;
  // Another token was entered meanwhile: its view is wanted now.
  if (!document.hidden) timer = setTimeout(refresh, sent === token ? EVERY : 0);
}

function show(view) {
  lost = "";
  if (view.build !== document.documentElement.dataset.build) {
    const link = ["a", { href: location.pathname }, ["Load the page again"]];
    alarm("Warning: The process is of another version than this page", ["What to do: ", link, "."]);
    return;
  }
  patch(region("connection"), []);
  for (const name of REGIONS) patch(region(name), view[name]);
  if (document.title !== view.title) document.title = view.title;
  patch(region("live"), ["Live, as of ", ["span", { id: "time" }, [view.time]]]);
  region("token").hidden = !view.redacted;
  if (!view.redacted) region("token-answer").textContent = "";
  region("forget").hidden = !token;
}

function disconnected(what, why) {
  lost ||= clock();
  document.title = `✗ ${document.title.replace(/^✗ /, "")}`;
  alarm(`✗ Alarm: The controller ${what} since ${lost}`, [
    `${why} The page shows the state of ${region("time").textContent}. What to do: see whether the process runs, `,
    "and whether a port-forward to it has ended. The page asks again every 2 seconds.",
  ]);
}

function alarm(title, text) {
  const parts = [["h2", {}, [title]], ["p", {}, text]];
  patch(region("connection"), [["article", { class: "alarm bad" }, parts]]);
}

// --- the reader: keys and objects of the cache, behind the token if there is one ------------------------------

/** Shows the answer of a path; with `part`, one field of it. */
async function read(path, part) {
  const reader = region("reader");
  region("reader-title").textContent = decodeURIComponent(`/${path}`) + (part ? `: ${part}` : "");
  patch(region("reader-content"), [["p", {}, ["…"]]]);
  if (!reader.open) reader.showModal();
  let content;
  try {
    const response = await ask(path, "application/json");
    const found = response.ok ? await response.json() : null;
    content = found ? answerNodes(path, part ? found[part] : found) : [["p", {}, [await refusal(response)]]];
  } catch {
    content = [["p", {}, ["The controller can't be reached."]]];
  }
  patch(region("reader-content"), content);
}

/** A list of links for keys and values, and JSON for anything else. */
function answerNodes(path, answer) {
  const names = answer.keys ?? answer.values;
  if (!Array.isArray(names)) {
    return [["pre", {}, [JSON.stringify(answer, null, 2).slice(0, MOST_TEXT)]]];
  }
  // Of an index without a value, the values lead to their keys; keys lead to their objects.
  const base = answer.values ? path : `cache/${encodeURIComponent(answer.resource)}/`;
  const items = names.slice(0, MOST_KEYS).map((name) => {
    const href = base + name.split("/").map(encodeURIComponent).join("/");
    return ["li", { "data-key": name }, [["a", { href, "data-read": "" }, [name]]]];
  });
  const what = answer.values ? "values" : "keys";
  const left = names.length > MOST_KEYS ? `, of which ${countText(MOST_KEYS)} are shown` : "";
  return [["p", {}, [`${countText(names.length)} ${what}${left}`]], ["ul", {}, items]];
}

// --- events -----------------------------------------------------------------------------------------------

document.addEventListener("visibilitychange", refresh);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-read]");
  // A click with a key opens a tab, as for every link.
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  read(link.getAttribute("href"), link.dataset.read);
});
region("token").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = region("token-value");
  keepToken(field.value.trim());
  field.value = "";
  region("token-answer").textContent = "";
  refresh();
});
region("forget").addEventListener("click", () => {
  keepToken("");
  refresh();
});
region("reader-close").addEventListener("click", () => region("reader").close());

region("token").hidden = document.documentElement.dataset.redacted !== "true" || Boolean(token);
region("forget").hidden = !token;
for (const node of document.querySelectorAll("[data-rate]")) {
  rate(node.dataset.rate, Number(node.dataset.count), performance.now());
}
timer = setTimeout(refresh, token ? 0 : EVERY);
