// Predictions of a run, alone or against another run's on the same questions.
import { api } from "./api.js";
import { matcher, number, percent } from "./format.js";
import { html, useMemo, useState } from "./html.js";
import { rowKey, useHits, useLive, useLoaded, useRows } from "./loading.js";
import { Action, Back, Choice, Facts, Fault, FileNotes, options, Raw, Search, SEARCH, SearchNotes, Shown } from "./parts.js";
import { Figure, shown } from "./quality.js";
import { go, link } from "./route.js";
import { VirtualList } from "./virtual.js";

const OUTCOMES = [["won", "won: only this run is right"], ["lost", "lost: only the other is right"], ["both", "both right"], ["none", "none right"]];
const RANGED = 2; // figures of the short table that are shown with their intervals
const RIGHT = [["right", "right"], ["wrong", "wrong"]];

export function PredictionsPage({ run, runs, route }) {
  const others = runs.filter((one) => one.key !== run.key && one.kinds.includes("predictions"));
  const other = others.find((one) => one.key === route.more);
  const state = useRows(run.key, "predictions", run.files.predictions.length, run.stamp);
  const against = useRows(other?.key ?? "", "predictions", other ? other.files.predictions.length : 0, other?.stamp ?? "");
  const theirs = useMemo(() => new Map(against.rows.map((row) => [row.id, row])), [against.rows]);
  const [filter, setFilter] = useState({ asked: "", outcome: "", error: route.only, group: "", finish: "", searches: "" });
  const set = (name) => (value) => setFilter((before) => ({ ...before, [name]: value }));
  const found = useHits(run.key, "predictions", run.files.predictions.length, filter.asked);
  const rows = useMemo(() => kept(state.rows, filter, other ? theirs : null, found.hits), [state.rows, filter, theirs, other, found]);
  const tally = useMemo(() => tallied(state.rows, theirs), [state.rows, theirs]);
  const line = Number(route.place) || (innerWidth > 900 ? rows[0]?.line : 0);
  const chosen = state.rows.find((row) => row.line === line);
  const choice = (name, label, all) => html`<${Choice} label=${label} hidden value=${filter[name]} onChange=${set(name)} options=${all} />`;
  const choices = useMemo(() => ({
    error: options(state.rows, (row) => row.error, "any error"), group: options(state.rows, (row) => row.groups, "every kind"),
    finish: options(state.rows, (row) => row.finish, "any ending"), searches: options(state.rows, (row) => row.searches, "any searches"),
  }), [state.rows]);
  const outcomes = other ? OUTCOMES.map(([name, words]) => [name, `${words} (${tally[name]})`]) : RIGHT;
  return html`<div class=${`columns ${route.place ? "one-chosen" : ""}`}>
    <section class="side" aria-label="Predictions">
      <div class="filters">
        ${others.length > 0 && html`<${Choice} label="Compare with" value=${other?.key ?? ""} options=${[["", "no other run"], ...others.map((one) => one.key)]}
          onChange=${(key) => go({ run: run.key, tab: "predictions", place: route.place || line || "", more: key })} />`}
        <${Search} label=${SEARCH} value=${filter.asked} onInput=${set("asked")} />
        <div class="filter-row">
          ${choice("outcome", "Outcome", [["", "any outcome"], ...outcomes])}
          ${choice("error", "Error", choices.error)}
          ${choice("group", "Kind of question", choices.group)}
          ${choice("finish", "Ending", choices.finish)}
          ${choice("searches", "Searches", choices.searches)}
        </div>
        <${Shown} shown=${rows.length} all=${state.rows.length} word="prediction" /><${SearchNotes} found=${found} />
        <${FileNotes} state=${state} />
      </div>
      <${VirtualList} id="predictions" role="listbox" aria-label="Predictions" rowRole="option" count=${rows.length} height=${76}
        active=${rows.findIndex((row) => row.line === line)}
        onActive=${(index) => go({ run: run.key, tab: "predictions", place: rows[index].line, more: other?.key ?? "" }, true)}
        row=${(index) => html`<${PredictionRow} row=${rows[index]} their=${other ? theirs.get(rows[index].id) : null} />`} />
    </section>
    <div class="main">
      ${run.stage === "infer" && html`<${Figures} runs=${other ? [other, run] : [run]} />`}
      ${chosen
        ? html`<${PredictionView} run=${run} row=${chosen} other=${other} their=${other ? theirs.get(chosen.id) : null} />`
        : html`<p class="empty">${state.rows.length ? "Choose a prediction." : ""}</p>`}
    </div>
  </div>`;
}

const outcomeOf = (mine, theirs) => (mine.em === 1 ? (theirs.em === 1 ? "both" : "won") : theirs.em === 1 ? "lost" : "none");

function tallied(rows, theirs) {
  const tally = { won: 0, lost: 0, both: 0, none: 0 };
  for (const row of rows) if (theirs.has(row.id)) tally[outcomeOf(row, theirs.get(row.id))] += 1;
  return tally;
}

function kept(rows, { asked, outcome, error, group, finish, searches }, theirs, hits) {
  const fits = matcher(asked);
  const came = (row) => {
    if (!outcome) return true;
    if (theirs && outcome !== "right" && outcome !== "wrong") return theirs.has(row.id) && outcomeOf(row, theirs.get(row.id)) === outcome;
    return theirs ? true : (row.em === 1) === (outcome === "right");
  };
  return rows.filter((row) =>
    (fits(row.question, row.said, row.id) || hits?.has(rowKey(row))) && came(row) && (!error || row.error === error) && (!group || row.groups?.includes(group)) &&
    (!finish || row.finish === finish) && (!searches || String(row.searches) === searches));
}

function PredictionRow({ row, their }) {
  const right = row.em === undefined ? row.judged : row.em === 1; // of a turn, what a person said of it
  const tone = right === null || right === undefined ? "none" : right ? "right" : "wrong";
  const said = row.said ?? `no answer (${row.finish})`;
  return html`<span class="row-words">${row.question}</span>
    <span class="row-facts"><span class=${`dot ${tone}`} aria-hidden="true"></span>${tone === "none" ? "" : `${tone}: `}${said}${
      their ? ` · other: ${their.em === 1 ? "right" : "wrong"}` : ""}</span>`;
}

/** The short table of `steprag compare`: with another run, over the questions that both came to, and the difference. */
function Figures({ runs }) {
  const keys = runs.map((run) => run.key);
  const { data, error } = useLive(() => api.comparison(keys), keys, runs.map((run) => run.status).join());
  if (error) return html`<p class="hint figures-wait">${error.message}</p>`;
  if (!data) return html`<p class="hint figures-wait" role="status">Computing the figures …</p>`;
  const { rows } = data;
  const two = rows.length > 1;
  const value = (one) => (one ? shown(one.value, one.unit) : "–");
  const kinds = data.main.map((name) => [name, rows.map((row) => row.quality.figures[name]).find(Boolean)]).filter(([, kind]) => kind);
  const gain = (row) => row.gain_em !== undefined &&
    html`${(100 * row.gain_em).toFixed(1)} points <small>${(100 * row.gain_low).toFixed(1)} to ${(100 * row.gain_high).toFixed(1)}, p ${number(row.gain_p)}</small>`;
  return html`<div class="table-box" tabindex="0" role="region" aria-label="Figures with 95 % intervals"><table class="figures">
    <caption class="unseen">${two ? "Over the questions that both runs came to" : "All questions of the run"}, with 95 % intervals; shares in percent</caption>
    <thead><tr><th>run</th><th>questions</th>${kinds.map(([, kind], place) => html`<th>${kind.label}</th>${two && !place && html`<th>EM over the other</th>`}`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr><th scope="row">${row.run}</th><td>${row.questions}${row.failed ? ` (+${row.failed} failed)` : ""}</td>
      ${kinds.map(([name, kind], place) => html`<td>${place < RANGED ? html`<${Figure} one=${row.quality.figures[name]} unit=${kind.unit} />` : value(row.quality.figures[name])}</td>
        ${two && !place && html`<td>${gain(row)}</td>`}`)}</tr>`)}</tbody></table>
    <p class="hint"><a href=${link({ run: keys.at(-1), tab: "quality", more: keys.length > 1 ? keys[0] : "" })}>Every figure, with n, interval and definition</a></p></div>`;
}

function PredictionView({ run, row, other, their }) {
  const mine = useLoaded(() => api.record("predictions", { run: run.key, file: row.file, line: row.line, id: row.id }), [run.key, row.file, row.line, row.id]);
  const yours = useLoaded(their ? () => api.record("predictions", { run: other.key, file: their.file, line: their.line, id: their.id }) : null,
    [other?.key, their?.file, their?.line, their?.id]);
  const one = mine.data ?? mine.stale;
  if (mine.error) return html`<${Fault} error=${mine.error} />`;
  if (!one) return html`<p class="empty" role="status">Opening …</p>`;
  const two = their ? yours.data ?? yours.stale : null;
  const steps = Math.max(one.steps.length, two?.steps.length ?? 0);
  const columns = two ? [[run.key, one], [other.key, two]] : [[run.key, one]];
  return html`<article class="prediction-view">
    <header class="tree-head"><${Back} href=${link({ run: run.key, tab: "predictions", more: "" })}>All predictions<//>
      <h2>${one.question}</h2>
      <p class="golden">${one.golden_answers.map((answer) => html`<span class="gold">${answer}</span>`)}</p></header>
    ${other && !their && html`<p class="hint">${other.key} has no prediction for this question.</p>`}
    <div class=${`step-grid ${two ? "two" : ""}`}>
      ${columns.map(([name, prediction]) => html`<${Ending} name=${name} prediction=${prediction} />`)}
      ${Array.from({ length: steps }, (_, place) => columns.map(([name, prediction]) =>
        html`<${PlayedStep} key=${`${name}/${place}`} prediction=${prediction} place=${place} />`))}
      ${columns.some(([, prediction]) => prediction.refused) && columns.map(([, prediction]) => html`<div class="played">
        ${prediction.refused && html`<h4 class="verdict wrong">refused: ${prediction.finish}</h4><${Raw} label="Refused completion">${prediction.refused}<//>`}</div>`)}
    </div></article>`;
}

function Ending({ name, prediction }) {
  const { score, usage } = prediction;
  return html`<div class="ending"><h3>${name}</h3>
    <p class="content">${prediction.prediction ?? "no answer"}${score && html` <span class=${`verdict ${score.em === 1 ? "right" : "wrong"}`}>${score.em === 1 ? "right" : "wrong"}</span>`}</p>
    <${Facts} facts=${[["F1", score && number(score.f1)], ["error", score && score.error !== "right" ? score.error : null], ["gold found", score && score.gold !== null ? percent(score.gold) : null], ["ended", prediction.finish],
      ["tokens", usage.prompt_tokens + usage.completion_tokens], ["seconds", prediction.seconds ? number(prediction.seconds, 1) : null]]} />
    ${prediction.texts_missing && html`<p class="hint">${prediction.texts_missing}</p>`}</div>`;
}

/** A step, and what its search found: the passages of the n-th step that has any belong to the n-th search. */
function PlayedStep({ prediction, place }) {
  const step = prediction.steps[place];
  if (!step) return html`<div class="played none"></div>`;
  const searching = (one) => one.action === "query" || one.action === "search";
  const search = searching(step) ? prediction.steps.slice(0, place).filter(searching).length : -1;
  const offset = prediction.passages.length - prediction.steps.filter(searching).length;
  const found = search < 0 ? [] : prediction.passages[search + Math.max(0, offset)] ?? [];
  return html`<div class="played"><h4><${Action} name=${step.action} /> <small>step ${place + 1}</small></h4>
    <p class="content">${step.content}</p>
    ${found.length > 0 && html`<ol class="passages">${found.map((passage) => html`<${FoundPassage} passage=${passage} text=${prediction.texts?.[passage.id]} />`)}</ol>`}
    <details class="prompt"><summary>As written</summary><${Raw} label=${`Step ${place + 1} as written`}>${step.text}<//></details></div>`;
}

function FoundPassage({ passage, text }) {
  const head = html`${passage.title || passage.id} <span class="score">${number(passage.score)}</span>`;
  return text ? html`<li><details><summary>${head}</summary><p>${text}</p></details></li>` : html`<li>${head}</li>`;
}
