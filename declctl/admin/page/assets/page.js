"use strict";
// The script of the page: asks for the next view, and changes the elements that differ from it.
//
// A view is JSON: for each region of the page an array of nodes. A node is a text, or [tag, attributes, children].
// Texts of objects, handlers and servers are assigned to textContent alone; nothing here parses markup.

const EVERY = 2000; // milliseconds between two views
const PATIENCE = 5000; // milliseconds for an answer
const MINUTES_15 = 900; // seconds that a line shows
const WIDTH = 180; // of a line, in units of its picture
const HEIGHT = 36;
const MOST_MARKS = 20; // in each line, the newest ones
const MOST_KEYS = 1000; // keys that the reader lists
const MOST_TEXT = 200000; // characters that the reader shows
const REGIONS = ["head", "alarms", "sections", "content"];
const TOKEN = "declctl-admin-token";
const SVG = "http://www.w3.org/2000/svg";

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
    if (element?.localName !== tag) element = create(tag, parent);
    patchAttributes(element, attributes);
    if (attributes["data-line"] === undefined) patch(element, children);
    else draw(element);
    return element;
  });
  // First removed, then put in order: an element that stays is not moved, so that it keeps focus and scroll.
  const kept = new Set(nodes);
  for (const node of before) if (!kept.has(node)) node.remove();
  nodes.forEach((node, place) => {
    if (parent.childNodes[place] !== node) parent.insertBefore(node, parent.childNodes[place] ?? null);
  });
}

function create(tag, parent) {
  const isDrawn = tag === "svg" || parent.namespaceURI === SVG;
  return isDrawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
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

// --- lines ------------------------------------------------------------------------------------------------

let figures = null; // of the last 15 minutes, as GET figures has them; null before the first answer
const drawn = new WeakMap(); // element with data-line → the figures that it shows

async function loadFigures() {
  try {
    const response = await ask("figures", "application/json");
    if (response.ok) figures = await response.json();
  } catch {
    return; // the next view says what is wrong
  }
  document.querySelectorAll("[data-line]").forEach(draw);
}

/** Draws the line of an element: data-line has the group, the figure and the name of what it is of. */
function draw(element) {
  if (!figures || drawn.get(element) === figures) return;
  drawn.set(element, figures);
  const { line, second, level } = element.dataset;
  const [group, figure, ...name] = line.split(" ");
  const named = (each) => each.name === name.join(" ");
  const owner = group === "controller" ? figures.controller : figures[group].find(named);
  patch(element, owner ? [lineNode(owner[figure], owner[second], level !== undefined)] : []);
}

function lineNode(values, faults, isLevel) {
  const known = values.filter((value) => value !== null);
  const most = Math.max(0, ...known);
  const least = isLevel ? Math.min(most, ...known) : 0;
  // A level that does not change is in the middle.
  const place = (value) => (most > least ? (value - least) / (most - least) : isLevel ? 0.5 : 0);
  const across = (time) => (WIDTH * Math.min(1, 1 - (figures.times.at(-1) - time) / MINUTES_15)).toFixed(1);
  const down = (value) => (HEIGHT - 1 - (HEIGHT - 3) * place(value)).toFixed(1);
  const nodes = shapes(values, across, down, "");
  const failed = faults?.map((value) => value || null); // without faults there is no second line
  if (failed?.some(Boolean)) nodes.push(...shapes(failed, across, down, " faults"));
  for (const mark of figures.marks.slice(-MOST_MARKS)) {
    const title = `${new Date(mark.time * 1000).toISOString().slice(11, 19)} ${mark.text}`;
    const path = { d: `M${across(mark.time)} 0V${HEIGHT}` };
    const hit = ["path", { ...path, class: "hit" }, []]; // a line of one pixel is hard to point at
    nodes.push(["g", { class: `mark ${mark.good ? "good" : "bad"}` }, [["title", {}, [title]], ["path", path, []], hit]]);
  }
  const attributes = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  return ["svg", attributes, nodes];
}

/** The line of values, and the area below it; both have gaps where there is no value. */
function shapes(values, across, down, kind) {
  const runs = [];
  values.forEach((value, place) => {
    if (value === null) return;
    if (place === 0 || values[place - 1] === null) runs.push([]);
    runs.at(-1).push([across(figures.times[place]), down(value)]);
  });
  const line = runs.map((run) => `M${run.map((point) => point.join(" ")).join("L")}${run.length > 1 ? "" : "h1"}`);
  const area = runs.map((run, n) => `${line[n]}V${HEIGHT}H${run[0][0]}Z`);
  return [
    ["path", { class: `area${kind}`, d: area.join("") }, []],
    ["path", { class: `curve${kind}`, d: line.join("") }, []],
  ];
}

// Counts are written as by declctl/kit/figures.py; a test compares both.

/** A number of things: `1,234`. */
function countText(number) {
  return number.toLocaleString("en-US");
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
  if (view.sample !== figures?.sample) loadFigures();
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
loadFigures();
timer = setTimeout(refresh, token ? 0 : EVERY);
