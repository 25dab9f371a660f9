"use strict";

// Texts of a run are set as text, never as markup.
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const EVERY = 1000;
let selected = 0;
let lastAnswer = null;
let drawn = "";
let listed = "";

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function clock(seconds) {
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function whole(number) {
  return number.replaceAll(" ", "\u00a0");
}

function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function badge(target, state) {
  if (target.textContent !== state) target.textContent = state;
  target.className = `badge ${state}`;
}

// Numbers at which an axis has lines: few and round, from below the least value to above the largest.
function ticks(low, high, most) {
  if (!(high > low)) { const room = Math.abs(low) * 0.05 || 0.5; low -= room; high += room; }
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let place = Math.floor(low / step); place * step < high + step * 0.999; place += 1) found.push(place * step);
  return { values: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

function chart(measure, points) {
  const share = measure.is_share ? 100 : 1;
  // On a narrow screen the drawing is narrower too, so that its text keeps its size.
  const width = window.matchMedia("(max-width: 40rem)").matches ? 350 : 500;
  const height = 240, left = 56, right = 14, top = 10, bottom = 40;
  const values = points.map((point) => point[1] * share);
  const y = ticks(Math.min(...values), Math.max(...values), 4);
  const first = points[0][0], last = points[points.length - 1][0];
  const low = y.values[0], high = y.values[y.values.length - 1];
  const across = (round) => left + (last > first ? (round - first) / (last - first) : 0.5) * (width - left - right);
  const up = (value) => height - bottom - (value - low) / (high - low) * (height - top - bottom);
  const unit = measure.is_share ? " %" : "";
  const figure = element("figure");
  figure.append(element("figcaption", measure.label));
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label":
    `${measure.label} by round: newest ${measure.newest} in round ${measure.newest_round}, ` +
    `best ${measure.best} in round ${measure.best_round}` });
  for (const value of y.values) {
    picture.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: up(value), y2: up(value) }));
    picture.append(shape("text", { x: left - 6, y: up(value) + 4, "text-anchor": "end" }, value.toFixed(y.digits) + unit));
  }
  picture.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: up(low), y2: up(low) }));
  const marks = last > first ? ticks(first, last, 5).values.filter(
    (round) => Number.isInteger(round) && round >= first && round <= last) : [first];
  for (const round of marks) {
    picture.append(shape("text", { x: across(round), y: height - bottom + 17, "text-anchor": "middle" }, round));
  }
  picture.append(shape("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, "round"));
  picture.append(shape("polyline", { class: "curve",
    points: points.map((point, place) => `${across(point[0]).toFixed(1)},${up(values[place]).toFixed(1)}`).join(" ") }));
  picture.append(shape("circle", { class: "last", r: 4, cx: across(last), cy: up(values[values.length - 1]) }));
  figure.append(picture);
  return figure;
}

function small(points) {
  const values = points.map((point) => point[1]);
  const low = Math.min(...values), high = Math.max(...values);
  const across = (place) => 2 + place / Math.max(1, points.length - 1) * 96;
  const up = (value) => high > low ? 22 - (value - low) / (high - low) * 20 : 12;
  const picture = shape("svg", { class: "small", viewBox: "0 0 100 24", preserveAspectRatio: "none",
    "aria-hidden": "true" });
  picture.append(shape("polyline", { class: "curve", "vector-effect": "non-scaling-stroke",
    points: values.map((value, place) => `${across(place).toFixed(1)},${up(value).toFixed(1)}`).join(" ") }));
  return picture;
}

function stateOf(run) {
  return run.reason ? `${run.state}: ${run.reason}` : run.state;
}

function timeOf(run, now) {
  const parts = [];
  if (run.pace !== null) parts.push(`${run.pace < 100 ? run.pace.toFixed(1) + " s" : clock(run.pace)} per round`);
  if (run.left !== null && run.done < run.rounds) parts.push(`left ${clock(run.left)}`);
  if (run.phase) parts.push(run.phase);
  if (run.changed && run.state !== "complete") parts.push(`last round ${clock(Math.max(0, now - run.changed))} ago`);
  return parts.join(", ");
}

function showOne(run, now, several) {
  byId("one-title").hidden = !several;
  setText("one-title", run.name);
  setText("title", run.title);
  byId("progress").hidden = !run.rounds;
  setText("round", `round ${run.done} of ${run.rounds}`);
  byId("bar").max = run.rounds || 1;
  byId("bar").value = run.done;
  setText("time", timeOf(run, now));
  // What has not changed is left alone, so that a selection or a reading aloud is not interrupted.
  const content = JSON.stringify([run.name, run.measures, run.curves, run.skipped, run.warnings, innerWidth > 640]);
  if (content === drawn) return;
  drawn = content;
  const numbers = run.measures.map((measure) => {
    const box = element("div", undefined, "number");
    box.append(element("span", measure.label, "quiet"), element("b", whole(measure.newest)),
      element("span", `best so far ${whole(measure.best)}, in round\u00a0${measure.best_round}`, "quiet"));
    return box;
  });
  if (run.skipped) {
    const box = element("div", undefined, "number");
    box.append(element("span", "clients left out", "quiet"), element("b", String(run.skipped)),
      element("span", "over all rounds", "quiet"));
    numbers.push(box);
  }
  byId("numbers").replaceChildren(...numbers);
  byId("charts").replaceChildren(...run.measures.filter((measure) => (run.curves[measure.key] || []).length)
    .map((measure) => chart(measure, run.curves[measure.key])));
  byId("problems").hidden = !run.warned;
  setText("problems-title", run.warned > run.warnings.length ?
    `The last ${run.warnings.length} of ${run.warned} warnings` : "Warnings");
  byId("warnings").replaceChildren(...run.warnings.map((text) => element("li", text)));
}

function showAll(runs) {
  const content = JSON.stringify([selected, runs]);
  if (content === listed) return;
  listed = content;
  const label = (runs.find((run) => run.measures.length) || { measures: [{ label: "accuracy" }] }).measures[0].label;
  const columns = [["run", "text"], ["state", "text"], ["round", ""], [label, ""], ["best so far", "wide"],
    ["course", "wide text"], ["left", "wide"], ["left out", "wide"], ["warnings", "wide"]];
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.run : undefined;
  byId("head").replaceChildren(...columns.map(([text, name]) => {
    const cell = element("th", text, name);
    cell.scope = "col";
    return cell;
  }));
  byId("runs").replaceChildren(...runs.map((run, place) => {
    const row = element("tr");
    if (place === selected) row.setAttribute("aria-current", "true");
    const choose = element("button", run.name);
    choose.type = "button";
    choose.dataset.run = String(place);
    choose.addEventListener("click", () => { selected = place; refresh(); });
    const name = element("td"), course = element("td", undefined, "wide text");
    name.append(choose);
    const state = element("td", undefined, "text");
    state.append(element("span", run.phase ? "ending" : run.state, run.state));
    if (run.reason) state.title = run.reason;
    const measure = run.measures[0];
    const points = measure ? run.curves[measure.key] || [] : [];
    if (points.length > 1) course.append(small(points));
    row.append(name, state, element("td", run.rounds ? `${run.done}/${run.rounds}` : ""),
      element("td", measure ? measure.newest : ""), element("td", measure ? measure.best : "", "wide"), course,
      element("td", run.left !== null ? clock(run.left) : "", "wide"),
      element("td", run.skipped ? String(run.skipped) : "", "wide"),
      element("td", run.warned ? String(run.warned) : "", "wide"));
    return row;
  }));
  if (focused !== undefined) {
    const again = document.querySelector(`button[data-run="${Number(focused)}"]`);
    if (again) again.focus();
  }
}

function countsOf(found) {
  if (!found.several) return found.runs[0].reason;
  const counts = {};
  for (const run of found.runs) counts[run.state] = (counts[run.state] || 0) + 1;
  const parts = Object.entries(counts).map(([state, number]) => `${number} ${state}`);
  return parts.join(", ") + (found.left !== null ? `, left ${clock(found.left)}` : "");
}

function notice(text) {
  byId("notice").hidden = !text;
  setText("notice", text);
}

function show(found) {
  notice("");
  if (selected >= found.runs.length) selected = 0;
  document.title = `${found.name}: ${found.state}`;
  setText("name", found.name);
  badge(byId("state"), found.state);
  setText("counts", countsOf(found));
  byId("all").hidden = !found.several;
  if (found.several) showAll(found.runs);
  const run = found.runs[selected];
  showOne(run, found.time, found.several);
  if (found.several && run.reason) setText("title", [run.title, stateOf(run)].filter(Boolean).join("; "));
  setText("updated", `As of ${new Date(found.time * 1000).toLocaleTimeString()}. The page refreshes every second.`);
}

async function refresh() {
  try {
    const answer = await fetch(`state?run=${selected}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    lastAnswer = await answer.json();
    show(lastAnswer);
  } catch (error) {
    notice("The connection to “fullrank watch” is lost. The page shows what it knew last.");
  }
}

async function follow() {
  if (!document.hidden || lastAnswer === null) await refresh();
  setTimeout(follow, EVERY);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
follow();
