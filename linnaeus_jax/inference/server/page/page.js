"use strict";
/* The page of the server: a picture, a place, a date -> the answer with and without them; several pictures -> a list of
   answers, and a table of them as CSV. It asks /info and /predict of its own server and nobody else; all text from
   outside becomes text nodes. */

const $ = (id) => document.getElementById(id);
const DELAY = 250; // ms after the last change, before the model is asked
const STEP = 5; // degrees that an arrow key moves the place on the whole map
const MOST_ZOOM = 16;
const FORM_BYTES = 2000; // of a form beside each picture, at most

/* An element with attributes and children; strings become text. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const percent = (p) => `${(100 * p).toFixed(p > 0.995 || p < 0.0995 ? 1 : 0)} %`;
const isKnown = (taxon) => taxon.taxon_id !== 0;

function nameOf(taxon) {
  if (!isKnown(taxon)) return "unknown";
  return taxon.name || taxon.common_name || `taxon ${taxon.taxon_id}`;
}

/* An address of this server; that of the page may hold a name and password, which fetch refuses. */
const address = (path) => new URL(path, location.origin + location.pathname);

// ---- the map

const map = {
  svg: null, marker: null, zoom: 1, x: 0, y: 0, // centre of the view, in tenths of a degree; y points south

  setUp() {
    const space = "http://www.w3.org/2000/svg";
    this.svg = $("world").querySelector("svg");
    this.svg.setAttribute("aria-hidden", "true");
    const lines = document.createElementNS(space, "path");
    let d = "";
    for (let x = -1500; x <= 1500; x += 300) d += `M${x} -900v1800`;
    for (let y = -600; y <= 600; y += 300) d += `M-1800 ${y}h3600`;
    lines.setAttribute("d", d);
    lines.setAttribute("class", "graticule");
    this.marker = document.createElementNS(space, "circle");
    this.marker.setAttribute("class", "marker");
    this.svg.append(lines, this.marker);
    this.listen();
    this.draw();
  },

  /* Shows the view and the place. */
  draw() {
    const width = 3600 / this.zoom, height = 1800 / this.zoom;
    const within = (value, most) => Math.max(-most, Math.min(most, value));
    this.x = within(this.x, 1800 - width / 2);
    this.y = within(this.y, 900 - height / 2);
    this.svg.setAttribute("viewBox", `${this.x - width / 2} ${this.y - height / 2} ${width} ${height}`);
    $("world").classList.toggle("zoomed", this.zoom > 1);
    $("zoom-in").disabled = this.zoom >= MOST_ZOOM;
    $("zoom-out").disabled = this.zoom <= 1;
    const place = placeGiven();
    this.marker.toggleAttribute("hidden", !place);
    this.marker.setAttribute("r", place ? 2.2 * width / 100 : 0);
    if (place) {
      this.marker.setAttribute("cx", 10 * place.longitude);
      this.marker.setAttribute("cy", -10 * place.latitude);
    }
  },

  zoomBy(factor) {
    const place = placeGiven();
    if (place) [this.x, this.y] = [10 * place.longitude, -10 * place.latitude];
    this.zoom = Math.max(1, Math.min(MOST_ZOOM, this.zoom * factor));
    this.draw();
  },

  listen() {
    let start = null;
    const world = $("world");
    const scale = () => 3600 / this.zoom / world.clientWidth; // tenths of a degree per pixel
    world.addEventListener("pointerdown", (event) => {
      start = { x: event.clientX, y: event.clientY, viewX: this.x, viewY: this.y, moved: false };
    });
    world.addEventListener("pointermove", (event) => {
      if (!start || this.zoom === 1) return;
      const dx = event.clientX - start.x, dy = event.clientY - start.y;
      if (!start.moved && Math.hypot(dx, dy) < 6) return;
      start.moved = true;
      this.x = start.viewX - dx * scale();
      this.y = start.viewY - dy * scale();
      this.draw();
    });
    world.addEventListener("pointerup", (event) => {
      if (start && !start.moved) {
        const box = world.getBoundingClientRect();
        const x = this.x + (event.clientX - box.left - box.width / 2) * scale();
        const y = this.y + (event.clientY - box.top - box.height / 2) * scale();
        setPlace(-y / 10, x / 10);
      }
      start = null;
    });
    for (const kind of ["pointercancel", "pointerleave"]) world.addEventListener(kind, () => { start = null; });
    world.addEventListener("keydown", (event) => {
      const step = STEP / this.zoom;
      const moves = { ArrowUp: [step, 0], ArrowDown: [-step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
      if (event.key in moves) {
        const place = placeGiven() || { latitude: 0, longitude: 0 };
        setPlace(place.latitude + moves[event.key][0], place.longitude + moves[event.key][1]);
        [this.x, this.y] = [10 * Number($("longitude").value), -10 * Number($("latitude").value)];
        this.draw();
      } else if (event.key === "+" || event.key === "=") this.zoomBy(2);
      else if (event.key === "-") this.zoomBy(0.5);
      else return;
      event.preventDefault();
    });
    $("zoom-in").addEventListener("click", () => this.zoomBy(2));
    $("zoom-out").addEventListener("click", () => this.zoomBy(0.5));
  },
};

/* Latitude and longitude where both are numbers in range. */
function placeGiven() {
  const [latitude, longitude] = [$("latitude"), $("longitude")].map((input) =>
    input.value === "" || !input.validity.valid ? NaN : Number(input.value));
  return Number.isFinite(latitude) && Number.isFinite(longitude) ? { latitude, longitude } : null;
}

function setPlace(latitude, longitude) {
  const digits = map.zoom > 4 ? 2 : 1;
  $("latitude").value = Math.max(-90, Math.min(90, latitude)).toFixed(digits);
  $("longitude").value = Math.max(-180, Math.min(180, longitude)).toFixed(digits);
  changed();
}

// ---- asking

const state = { files: [], info: null, timer: 0, request: null, urls: [] };

/* What the page says of itself; fields that the model does not use are not shown. */
async function introduce() {
  let info;
  try {
    const response = await fetch(address("info"));
    if (!response.ok) throw new Error();
    info = await response.json();
  } catch {
    fail("The server cannot be reached.");
    return;
  }
  state.info = info;
  const finest = info.predicted_rank_levels.at(-1);
  const count = info.num_classes_per_rank[finest] - (info.null_class_info[finest] === null ? 0 : 1);
  const ranks = info.predicted_rank_levels.map((level) => info.rank_names[level]);
  const calibrated = info.calibration_rows ? "" : " Its probabilities are not calibrated.";
  $("about").textContent = `Model ${info.model_name}: ${count.toLocaleString("en")} classes of rank ${ranks.at(-1)}; ` +
    `ranks ${ranks.join(", ")}.${calibrated}`;
  const columns = info.metadata_feature_encoding.flatMap((component) => component.columns);
  const inputs = new Set(info.metadata_feature_encoding.flatMap((component) => component.inputs));
  $("place").hidden = !inputs.has("place");
  $("date-field").hidden = !inputs.has("date");
  $("time-field").hidden = !columns.some((column) => column.startsWith("hour_"));
  $("elevation-field").hidden = !inputs.has("elevation");
  $("more").hidden = $("date-field").hidden && $("elevation-field").hidden;
  const names = [["date", "date-field"], ["elevation", "elevation-field"]].filter(([, id]) => !$(id).hidden);
  $("more-heading").textContent = names.map(([name]) => name).join(" and ").replace(/^./, (c) => c.toUpperCase());
  if (info.set_coverages.length) {
    const options = info.set_coverages.map((share) =>
      h("option", { value: `set ${share}` }, `set that holds the truth ${Math.round(100 * share)} times in 100`));
    $("confidence").append(h("optgroup", { label: "The smallest set of taxa" }, ...options));
  }
  if (!$("place").hidden) map.draw();
}

function choose(chosen) {
  const files = [...(chosen || [])].filter((file) => !file.type || file.type.startsWith("image/"));
  if (!files.length) return;
  state.files = files;
  state.urls.forEach((url) => URL.revokeObjectURL(url));
  state.urls = files.map((file) => URL.createObjectURL(file));
  const [first] = state.urls;
  const fields = [["place", "place"], ["date", "date-field"], ["elevation", "elevation-field"]];
  const common = fields.filter(([, id]) => !$(id).hidden).map(([name]) => name);
  $("preview").hidden = files.length > 1;
  if (files.length === 1) $("preview").src = first;
  $("drop-text").textContent = files.length === 1 ? `${nameOfFile(files[0])}: drop or choose others.`
    : `${files.length} pictures: drop or choose others.` + (common.length ? ` For all of them: ${inputsText(common)}.` : "");
  changed();
}

const nameOfFile = (file) => file.name || "picture";

/* After any change: asks the model, a moment after the last one. */
function changed() {
  map.draw();
  if (!state.files.length) return;
  clearTimeout(state.timer);
  state.timer = setTimeout(ask, DELAY);
}

/* The share of sets that must hold the truth, as text; undefined where no sets are wanted. */
const coverage = () => $("confidence").value.split("set ")[1];

/* What is known of the pictures, as [name, value] of a form. */
function given() {
  const share = coverage();
  const fields = share ? [["coverage", share], ["as_sets", "true"]] : [["min_confidence", $("confidence").value]];
  for (const name of ["latitude", "longitude", "elevation"]) {
    const input = $(name);
    if (!input.validity.valid) throw new Error(`${name}: ${input.validationMessage}`);
    if (input.value !== "") fields.push([name, input.value]);
  }
  if ($("date").value) fields.push(["date", $("date").value + ($("time").value ? `T${$("time").value}Z` : "")]);
  return fields;
}

/* The pictures in requests that are as large as the server takes. */
function requests(files) {
  const limits = state.info?.limits || { pictures: 1, body_bytes: Infinity };
  const groups = [];
  let left = 0, bytes = 0;
  for (const file of files) {
    const size = file.size + FORM_BYTES;
    if (!left || bytes < size) {
      groups.push([]);
      [left, bytes] = [limits.pictures, limits.body_bytes - FORM_BYTES];
    }
    groups.at(-1).push(file);
    left -= 1;
    bytes -= size;
  }
  return groups;
}

async function ask() {
  state.request?.abort();
  const request = state.request = new AbortController();
  const files = state.files;
  $("error").hidden = true;
  try {
    const fields = given();
    const rows = [];
    for (const group of requests(files)) {
      say(files.length === 1 ? "Asking the model …" : `Asking the model … ${rows.length} of ${files.length} pictures.`, true);
      rows.push(...await answers(group, fields, files.length === 1, request.signal));
    }
    if (files.length > 1) showAll(rows);
    else if (rows[0].problem) throw new Error(rows[0].problem);
    else show(rows[0]);
  } catch (error) {
    if (!request.signal.aborted) fail(error.message);
  }
}

/* {file, prediction} of each picture, or {file, problem}: where one of them is wrong, each is asked for alone. */
async function answers(files, fields, compare, signal) {
  const most = state.info?.limits.body_bytes;
  if (most && files.length === 1 && files[0].size > most) {
    return [{ file: files[0], problem: `The picture has ${(files[0].size / 2 ** 20).toFixed(1)} MiB; ` +
      `this server takes at most ${(most / 2 ** 20).toFixed(1)} MiB.` }];
  }
  const body = new FormData();
  for (const file of files) body.append("images", file, nameOfFile(file));
  for (const [name, value] of [...fields, ["compare", String(compare)]]) body.append(name, value);
  let response;
  try {
    response = await fetch(address("predict"), { method: "POST", body, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Error("The server cannot be reached.");
  }
  const reply = await response.json().catch(() => ({}));
  if (signal.aborted) throw new Error("another question came");
  if (response.ok) return files.map((file, place) => ({ file, prediction: reply.predictions[place] }));
  const ofPictures = [413, 415, 422].includes(response.status);
  if (ofPictures && files.length > 1) {
    const rows = [];
    for (const file of files) rows.push(...await answers([file], fields, compare, signal));
    return rows;
  }
  const problem = `No answer (${response.status}): ${why(reply.detail) || response.statusText}`;
  if (!ofPictures) throw new Error(problem);
  return [{ file: files[0], problem }];
}

/* The server counts pictures; the one that is wrong was sent alone. */
function why(detail) {
  return typeof detail === "string" ? detail.replace(/^picture 0 /, "the picture ") : "";
}

function say(text, busy = false) {
  $("status").textContent = text;
  $("status").classList.toggle("busy", busy);
  $("result").setAttribute("aria-busy", String(busy));
}

function fail(text) {
  say("");
  $("error-text").textContent = text;
  $("error").hidden = false;
  $("again").hidden = !state.files.length;
  $("confidence-field").hidden = true;
  $("result").replaceChildren();
}

// ---- the answer

function show(row) {
  const { prediction } = row;
  const used = prediction.inputs.length > 0;
  const hint = used || !state.info?.metadata_components_enabled.length ? []
    : [h("p", { class: "common" }, "Give a place or a date to see what they change.")];
  $("result").replaceChildren(...details(prediction), ...hint, csvLink([row]));
  $("confidence-field").hidden = false;
  const answer = prediction.answer;
  say(answer ? `Answer: ${answer.rank} ${nameOf(answer)}, ${percent(answer.probability)}.`
    : `Answer: unknown; ${prediction.reason_text}.`);
}

/* Many pictures: each with its answer, and more of it when it is opened. */
function showAll(rows) {
  const list = rows.map(({ file, prediction, problem }, place) => {
    const text = h("span", { class: "what" }, h("span", { class: "file" }, nameOfFile(file)), h("br"),
      ...(problem ? [h("span", { class: "problem" }, problem)] : [...said(prediction), ...summary(prediction)]));
    const picture = h("img", { src: state.urls[place], alt: "", loading: "lazy", decoding: "async" });
    const line = h("details", { class: "picture" }, h("summary", {}, picture, text));
    // made when it is opened, since there may be hundreds
    line.addEventListener("toggle", () => {
      if (prediction && line.children.length === 1) line.append(...details(prediction));
    });
    return line;
  });
  $("result").replaceChildren(csvLink(rows), ...list);
  $("confidence-field").hidden = false;
  const answered = rows.filter((row) => row.prediction?.answer).length;
  const wrong = rows.filter((row) => row.problem).length;
  say(`Answer: ${answered} of ${rows.length} pictures have an answer` + (wrong ? `, ${wrong} cannot be read.` : "."));
}

/* What is said of one picture, with its metadata and, where it was asked for, without. */
function details(prediction) {
  const used = prediction.inputs.length > 0;
  const both = used && prediction.without_metadata ? [prediction, prediction.without_metadata] : [prediction];
  const columns = h("div", { class: both.length > 1 ? "columns" : "columns one" });
  const titles = used ? [`With ${inputsText(prediction.inputs)}`, "Picture alone"] : ["Picture alone"];
  const kind = (place) => (used && place === 0 ? "with" : "alone");
  titles.slice(0, both.length).forEach((title) => columns.append(h("h3", {}, title)));
  both.forEach((each, place) => columns.append(
    h("div", { class: `said ${kind(place)}` }, ...said(each), ...novelty(each), ...setOf(each))));
  prediction.path.forEach((_, depth) => {
    const rank = prediction.path[depth].rank;
    columns.append(h("h4", { class: "rank" }, rank));
    both.forEach((each, place) => {
      const other = place === 0 ? both[1] : null;
      const cell = taxonCell(each.path[depth], each.top[rank] || [], other);
      cell.classList.add(kind(place));
      cell.style.marginLeft = `${6 * depth}px`;
      columns.append(cell);
    });
  });
  const remarks = [...(prediction.prior_text ? [prediction.prior_text] : []), ...prediction.notes];
  const notes = h("ul", { class: "notes" }, ...remarks.map((note) => h("li", {}, note)));
  return [columns, ...(remarks.length ? [notes] : [])];
}

/* Whether the taxon is one that the model knows, where that is said; perhaps with the scores. */
function novelty(prediction, scored = true) {
  const below = prediction.novelty_taxon;
  const words = {
    known: "Known taxon",
    new_below: below ? `New taxon below ${below.rank} ${nameOf(below)}` : "New taxon, below no probable one",
    outside: "Outside: like no training picture",
  }[prediction.novelty];
  if (!words) return [];
  const distance = Math.round(prediction.outside_score).toLocaleString("en");
  const scores = ` (known ${percent(prediction.known_score)}, distance ${distance})`;
  return [h("div", { class: `novelty ${prediction.novelty}` }, words,
    ...(scored ? [h("span", { class: "common" }, scores)] : []))];
}

/* The taxa of which one should be the right one, where sets are wanted. */
function setOf(prediction) {
  if (!prediction.set) return [];
  const taxa = prediction.set.map((taxon) => h("li", {}, h("span", {}, `${taxon.rank} ${nameOf(taxon)}`),
    h("span", { class: "number" }, percent(taxon.probability))));
  return [h("div", { class: "set" }, `${setText(prediction)}:`, h("ul", {}, ...taxa))];
}

function setText(prediction) {
  const { set, set_size: size } = prediction;
  const within = size === set.length ? "" : ` (${size} taxa in all)`;
  const ifKnown = ["new_below", "outside"].includes(prediction.novelty) ? "If it is a known taxon after all: " : "";
  return `${ifKnown}${size === 1 ? "right" : `one of these${within} is right`} ${Math.round(100 * coverage())} times in 100`
    .replace(/^./, (c) => c.toUpperCase());
}

/* The same in a line of a list. */
function summary(prediction) {
  const names = (prediction.set || []).map(nameOf);
  const more = names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
  return [...novelty(prediction, false), ...(names.length ? [h("div", { class: "set" }, `${setText(prediction)}: ${more}`)] : [])];
}

/* The answers as a table with the columns of the command line's, and why there is no answer. */
function csv(rows) {
  const ranks = (state.info?.predicted_rank_levels || []).map((level) => state.info.rank_names[level]);
  const parts = ["taxon_id", "name", "probability"];
  const header = ["file", "answer_rank", ...parts.map((part) => `answer_${part}`),
    ...ranks.flatMap((rank) => parts.map((part) => `${rank}_${part}`)), "inputs", "notes", "reason", "reason_text",
    "set", "set_size", "novelty", "novelty_taxon_id", "novelty_taxon", "known_score", "outside_score", "problem"];
  const taxon = (each) => (each ? parts.map((part) => each[part]) : ["", "", ""]);
  const lines = rows.map(({ file, prediction, problem }) => {
    const path = Object.fromEntries((prediction?.path || []).map((each) => [each.rank, each]));
    return [nameOfFile(file), prediction?.answer?.rank ?? "", ...taxon(prediction?.answer),
      ...ranks.flatMap((rank) => taxon(path[rank])), prediction?.inputs.join(" ") ?? "",
      prediction?.notes.join("; ") ?? "", prediction?.reason ?? "", prediction?.reason_text ?? "",
      prediction?.set ? JSON.stringify(prediction.set.map((each) => [each.rank, ...parts.map((part) => each[part])])) : "",
      prediction?.set_size ?? "", prediction?.novelty ?? "", prediction?.novelty_taxon?.taxon_id ?? "",
      prediction?.novelty_taxon?.name ?? "", prediction?.known_score ?? "", prediction?.outside_score ?? "", problem ?? ""];
  });
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  return [header, ...lines].map((line) => `${line.map(cell).join(",")}\n`).join("");
}

function csvLink(rows) {
  const file = new Blob([csv(rows)], { type: "text/csv" });
  const url = URL.createObjectURL(file);
  state.urls.push(url);
  return h("p", {}, h("a", { id: "csv", href: url, download: "answers.csv" }, "Answers as CSV"));
}

/* What the metadata components that were used are made of, in words. */
function inputsText(names) {
  const encodings = state.info?.metadata_feature_encoding || [];
  const words = names.flatMap((name) => {
    const inputs = encodings.find((component) => component.name === name)?.inputs || [];
    return inputs.length ? inputs : [name];
  });
  return [...new Set(words)].join(", ").replace(/, ([^,]*)$/, " and $1");
}

function said(prediction) {
  const answer = prediction.answer;
  if (!answer) return [h("strong", {}, "Unknown"), ` – ${prediction.reason_text}`];
  const common = answer.name && answer.common_name ? [" ", h("span", { class: "common" }, `(${answer.common_name})`)] : [];
  return [`${answer.rank} `, h("strong", {}, nameOf(answer)), ...common, " ", h("span", { class: "number" }, percent(answer.probability)),
    ...(prediction.reason ? [` – ${prediction.reason_text}`] : [])];
}

/* One rank of one prediction: the taxon of the path, its probability, and the other candidates. */
function taxonCell(taxon, top, other) {
  const common = isKnown(taxon) && taxon.name && taxon.common_name ? [h("span", { class: "common" }, ` ${taxon.common_name}`)] : [];
  const number = h("div", {}, h("span", { class: "number" }, percent(taxon.probability)));
  const before = other?.top[taxon.rank]?.find((each) => each.taxon_id === taxon.taxon_id);
  if (before) {
    const points = 100 * (taxon.probability - before.probability);
    const sign = points < 0 ? "−" : "+";
    number.append(" ", h("span", { class: "change" }, `(${sign}${Math.abs(points).toFixed(0)} points)`));
  } else if (other) number.append(" ", h("span", { class: "change" }, "(no candidate of the picture alone)"));
  const list = top.map((each) =>
    h("li", {}, h("span", {}, nameOf(each)), h("span", { class: "number" }, percent(each.probability))));
  return h("div", { class: "taxon" }, h("div", {}, h("span", { class: "name" }, nameOf(taxon)), ...common),
    bar(taxon.probability), number, h("details", {}, h("summary", {}, "candidates"), h("ul", {}, ...list)));
}

function bar(probability) {
  const inner = h("div");
  inner.style.width = `${100 * probability}%`;
  return h("div", { class: "bar", "aria-hidden": "true" }, inner);
}

// ---- start

function listen() {
  $("question").addEventListener("submit", (event) => event.preventDefault());
  $("file").addEventListener("change", (event) => choose(event.target.files));
  for (const kind of ["dragenter", "dragover"]) {
    addEventListener(kind, (event) => { event.preventDefault(); $("drop").classList.add("over"); });
  }
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").classList.remove("over"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").classList.remove("over");
    choose(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => choose(event.clipboardData?.files));
  for (const id of ["latitude", "longitude", "elevation", "date", "time"]) $(id).addEventListener("input", changed);
  $("confidence").addEventListener("change", changed);
  $("again").addEventListener("click", ask);
  $("clear-place").addEventListener("click", () => {
    $("latitude").value = $("longitude").value = "";
    changed();
  });
}

map.setUp();
listen();
introduce();
