// Curves: what training logged by step, how a run of questions went on, and the episodes of GRPO by group.
import { api } from "./api.js";
import { Chart } from "./chart.js";
import { number, plural } from "./format.js";
import { html, useMemo, useState } from "./html.js";
import { useLive, useLoaded, useRows } from "./loading.js";
import { Choice, Facts, Fault, FileNotes, Raw } from "./parts.js";

const FIRST = ["loss", "eval_loss", "reward", "rewards/margins", "rewards/accuracies", "groups_dropped"];
const SHOWN = 4; // curves that stand open; the others are unfolded
const PLANNED = new Set(["learning_rate", "beta"]); // set by a schedule: nothing to smooth
const HELD_OUT = "eval_";

export function TrainingPage({ run }) {
  const series = useLive(async () => (run.kinds.includes("series") ? api.series(run.key) : null), [run.key], run.stamp);
  const told = series.data;
  const panels = useMemo(() => (told ? panelsOf(told) : []), [told]);
  const still = panels.filter((panel) => panel.still !== undefined);
  const moving = panels.filter((panel) => panel.still === undefined);
  const more = moving.length > SHOWN + 1 ? moving.slice(SHOWN) : [];
  const charts = (some) => html`<div class="charts">${some.map((panel) => html`<${Chart} key=${panel.title} ...${panel} />`)}</div>`;
  return html`<div class="curves">
    <${Fault} error=${series.error} />
    ${told?.faults > 0 && html`<p class="hint">${plural(told.faults, "line")} of metrics.jsonl cannot be read.</p>`}
    ${told && !panels.length && html`<p class="empty">${run.status === "failed" ? "The run failed before it logged anything." : run.status === "running" ? "Nothing is logged yet." : "This run logged no curves."}</p>`}
    ${charts(more.length ? moving.slice(0, SHOWN) : moving)}
    ${more.length > 0 && html`<${Folded} words=${plural(more.length, "more curve")}>${charts(more)}<//>`}
    ${still.length > 0 && html`<details class="prompt"><summary>${plural(still.length, "figure")} that never changed</summary>
      <${Facts} facts=${still.map((panel) => [panel.title, number(panel.still)])} /></details>`}
    ${run.kinds.includes("episodes") && html`<${Groups} run=${run} />`}
  </div>`;
}

/** What is made once it is unfolded: a chart wants to know its room. */
function Folded({ words, children }) {
  const [open, setOpen] = useState(false);
  return html`<details class="prompt" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>${words}</summary>${open && children}</details>`;
}

/** A chart for every curve; what is held out lies in the chart of the same name, and terms of rewards in one. */
function panelsOf({ steps, curves, done }) {
  const names = Object.keys(curves).filter((name) => !(name.startsWith(HELD_OUT) && name.slice(HELD_OUT.length) in curves));
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length + !name.startsWith("reward"));
  names.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const panels = names.map((name) => {
    const held = curves[HELD_OUT + name];
    const seen = new Set(curves[name].filter((value) => value !== null));
    if (!held && seen.size === 1 && !FIRST.includes(name) && steps.length > 1) return { title: name, still: [...seen][0] };
    return { title: name, unit: "step", x: steps, lines: [{ name, values: curves[name], smooth: !PLANNED.has(name) }, ...(held ? [{ name: "held out", values: held, dots: true }] : [])] };
  });
  const timed = done.filter((one) => one.at !== null);
  if (timed.length > 1) {
    timed.sort((a, b) => a.at - b.at);
    const x = timed.map((one) => one.at / 60);
    panels.push({ title: "questions done", unit: "minutes", x, lines: [{ name: "questions", values: timed.map((_, place) => place + 1) }] });
    panels.push({ title: "seconds a question", unit: "minutes", x, lines: [{ name: "seconds", values: timed.map((one) => one.seconds), dots: true }] });
  }
  return panels;
}

function Groups({ run }) {
  const state = useRows(run.key, "episodes", run.files.episodes.length, run.stamp);
  const groups = useMemo(() => grouped(state.rows), [state.rows]);
  const steps = useMemo(() => [...new Set(groups.map((group) => group.step))], [groups]);
  const [step, setStep] = useState("");
  const shown = groups.filter((group) => String(group.step) === (step || String(steps.at(-1))));
  return html`<section aria-label="Episodes by group"><h2>Episodes by group</h2>
    <${FileNotes} state=${state} />
    ${steps.length > 0 && html`<${Choice} label="Training step" value=${step || String(steps.at(-1))} onChange=${setStep} options=${steps.map(String)} />`}
    ${shown.map((group) => html`<${Group} key=${`${group.step}/${group.question}`} run=${run} group=${group} />`)}</section>`;
}

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = `${row.step}/${row.id}`;
    if (!groups.has(key)) groups.set(key, { step: row.step, question: row.id, rows: [] });
    groups.get(key).rows.push(row);
  }
  return [...groups.values()];
}

function Group({ run, group }) {
  const terms = Object.keys(group.rows[0].rewards);
  const [open, setOpen] = useState(null);
  const { data } = useLoaded(open ? () => api.record("episodes", { run: run.key, file: open.file, line: open.line, id: open.id }) : null, [open?.line]);
  return html`<div class="table-box" tabindex="0" role="region" aria-label=${`Group of ${group.question}`}><table class="figures"><caption>${group.question}</caption>
    <thead><tr><th>episode</th><th>answer</th><th>ended</th>${terms.map((term) => html`<th>${term}</th>`)}<th>reward</th><th>advantage</th></tr></thead>
    <tbody>${group.rows.map((row, place) => html`<tr>
      <td><button type="button" class="link" aria-expanded=${open?.line === row.line ? "true" : "false"} onClick=${() => setOpen(open?.line === row.line ? null : row)}>${place + 1}</button></td>
      <td>${row.prediction ?? "–"}</td><td>${row.finish}</td>${terms.map((term) => html`<td>${number(row.rewards[term], 2)}</td>`)}
      <td>${number(row.reward, 2)}</td><td>${number(row.advantage, 2)}</td></tr>`)}</tbody></table>
    ${data && html`<div class="episode"><${Facts} facts=${[["refused", data.refused]]} />${data.steps.map((text, place) =>
      html`<${Raw} label=${`Step ${place + 1}`}>${text}<//>`)}</div>`}</div>`;
}
