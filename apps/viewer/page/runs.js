// The runs at a glance: a table to sort and search; and of one run, how far it is or why it stopped.
import { api, offline } from "./api.js";
import { count, matcher, percent, plural, span, when } from "./format.js";
import { html, useMemo, useState } from "./html.js";
import { useLoaded } from "./loading.js";
import { Fault, Search, Shown } from "./parts.js";
import { go, link } from "./route.js";

const FIRST = 100; // rows that are drawn; more come on demand
const SILENT = 600; // seconds without a change after which a run that calls itself running is doubted

/** Seconds that a run has taken: by its own count, else from its start to its end, or until now. */
function taken(run) {
  const own = run.status === "running" ? run.progress?.seconds : run.seconds;
  if (own !== null && own !== undefined) return own;
  const end = run.ended ? Date.parse(run.ended) : run.status === "running" && !offline ? Date.now() : Number.NaN;
  const seconds = (end - Date.parse(run.started)) / 1000;
  return seconds >= 0 ? seconds : null;
}

const underWay = (run) => (run.status === "running" ? run.progress : null);
const cost = (run) => underWay(run)?.usd ?? run.usd;
const dollars = (usd) => (usd === null || usd === undefined ? "–" : usd > 0 && usd < 0.01 ? "< $0.01" : `$${usd.toFixed(2)}`);
const text = (value) => value ?? "";

/** Columns: name, heading, what is sorted by, what is shown, whether the greatest comes first. */
const COLUMNS = [
  ["run", "run", (run) => run.key, (run) => html`<a href=${link({ run: run.key, tab: "" })}>${run.key}</a>`],
  ["when", "when", (run) => Date.parse(run.started) || 0, (run) => html`<span title=${text(run.started)}>${when(run.started)}</span>`, true],
  ["stage", "stage", (run) => text(run.stage), (run) => run.stage ?? "–"],
  ["model", "model", (run) => text(run.model), (run) => run.model ?? "–"],
  ["n", "n", size, (run) => (size(run) < 0 ? "–" : plural(size(run), run.what)), true],
  ["state", "state", (run) => text(run.status), (run) => html`<${State} run=${run} />`],
  ["em", "EM, %", (run) => run.em ?? -1, Score, true],
  ["cost", "cost", (run) => cost(run) ?? -1, (run) => dollars(cost(run)), true],
  ["time", "duration", (run) => taken(run) ?? -1, (run) => (taken(run) === null ? "–" : span(taken(run))), true],
];

function size(run) {
  return underWay(run)?.done ?? run.n ?? -1;
}

function Score(run) {
  if (run.em === null) return "–";
  const [low, high] = run.em_interval ?? [];
  return html`${(100 * run.em).toFixed(1)}${run.em_interval && html` <small>${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}</small>`}`;
}

function State({ run }) {
  const tone = run.status === "failed" ? "wrong" : run.status === "done" ? "right" : "";
  const far = underWay(run);
  const share = far?.total ? `, ${percent(far.done / far.total)}` : "";
  return html`<span class=${`verdict ${tone}`}>${run.status ?? "–"}${share}</span>
    ${run.error && run.status !== "done" && html`<span class="reason">${run.error}</span>`}${silent(run) > 0 && html`<span class="reason">silent for ${span(silent(run))}</span>`}`;
}

/** For how long nothing changed in a folder whose run calls itself running; 0 where that is not worth a word. */
function silent(run) {
  const seconds = run.status === "running" && !offline && run.changed ? Date.now() / 1000 - run.changed : 0;
  return seconds > SILENT ? seconds : 0;
}

export function RunsPage({ runs }) {
  const [asked, setAsked] = useState("");
  const [order, setOrder] = useState({ by: "when", down: true });
  const [most, setMost] = useState(FIRST);
  const rows = useMemo(() => {
    const fits = matcher(asked);
    const [, , read] = COLUMNS.find(([name]) => name === order.by);
    const kept = runs.filter((run) => fits(run.key, run.stage, run.model, run.status, run.error));
    const sign = order.down ? -1 : 1;
    return kept.sort((a, b) => sign * compared(read(a), read(b)) || compared(a.key, b.key));
  }, [runs, asked, order]);
  const turn = (by, down = false) => setOrder((now) => ({ by, down: now.by === by ? !now.down : down }));
  return html`<div class="runs">
    <div class="runs-tools"><${Search} label="Search runs" value=${asked} onInput=${setAsked} /><${Shown} shown=${rows.length} all=${runs.length} word="run" /></div>
    <div class="table-box" tabindex="0" role="region" aria-label="Runs"><table class="figures runs-table">
      <thead><tr>${COLUMNS.map(([name, words, , , down]) => html`<th key=${name} class=${`of-${name}`} aria-sort=${order.by === name ? (order.down ? "descending" : "ascending") : undefined}>
        <button type="button" class="sorter" onClick=${() => turn(name, down)}>${words}<span aria-hidden="true">${order.by === name ? (order.down ? " ↓" : " ↑") : ""}</span></button></th>`)}</tr></thead>
      <tbody>${rows.slice(0, most).map((run) => html`<tr key=${run.key} onClick=${(event) => event.target.closest("a") ?? go({ run: run.key, tab: "" })}>
        ${COLUMNS.map(([name, , , show]) => html`<td key=${name} class=${`of-${name}`}>${show(run)}</td>`)}</tr>`)}</tbody></table></div>
    ${rows.length > most && html`<button type="button" class="quiet" onClick=${() => setMost(rows.length)}>Show all ${count(rows.length)} runs</button>`}
    ${!runs.length && html`<p class="empty">No run has begun here yet. What begins in this folder appears here.</p>`}
  </div>`;
}

const compared = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));

const ENDED = {
  failed: "This run failed.",
  budget: "This run stopped at its budget. The same command with a larger one continues it.",
  interrupted: "This run was interrupted. The same command resumes where it stopped.",
  partial: "Some questions of this run failed. The same command tries them again.",
};

/** Why a run is not done, or how far it is; nothing of one that is. */
export function Standing({ run }) {
  if (run.status === "running") return html`<${Going} run=${run} far=${run.progress} />`;
  if (!(run.status in ENDED)) return null;
  return html`<div class=${`banner ${run.status === "failed" ? "fault-words" : "hint"}`} role="status">
    <p>${ENDED[run.status]} ${run.error}</p>
    ${!offline && run.status !== "budget" && html`<${Failures} run=${run} />`}</div>`;
}

function Going({ run, far }) {
  const told = [
    far && (far.total ? `${count(far.done)} of ${plural(far.total, "question")}` : plural(far.done, "question")),
    far?.calls && plural(far.calls, "call"), far?.usd && dollars(far.usd), taken(run) !== null && `${span(taken(run))} so far`,
    far?.left_seconds && `about ${span(far.left_seconds)} left`, silent(run) > 0 && `nothing changed for ${span(silent(run))}: does it still run?`,
  ].filter(Boolean);
  return html`<div class="banner hint going"><p>${told.join(" · ")}</p>
    ${far?.total > 0 && html`<progress aria-label="Questions done" max=${far.total} value=${far.done}></progress>`}</div>`;
}

/** The questions that failed, each with its reason. */
function Failures({ run }) {
  const [open, setOpen] = useState(false);
  const { data, error } = useLoaded(open ? () => api.failures(run.key) : null, [run.key, run.stamp, open]);
  return html`<details onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Questions that failed</summary>
    <${Fault} error=${error} />
    ${data && html`<ul class="failures">${data.failures.map((one) => html`<li>${one.id}: ${one.reason}: ${one.detail}</li>`)}</ul>
      ${!data.failures.length && html`<p>None is written down.</p>`}`}</details>`;
}
