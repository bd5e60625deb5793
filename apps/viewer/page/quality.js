// The figures of a run beside EM and F1: what each means, over how many, how sure; and how completions follow the grammar.
import { api } from "./api.js";
import { Chart } from "./chart.js";
import { count, number, percent, plural } from "./format.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { useLive } from "./loading.js";
import { Action, Choice, Fault } from "./parts.js";
import { go, link } from "./route.js";

const AGAIN = 700; // milliseconds until a file that is not wholly listed is asked for again
const NAMES = { trees: "trees", predictions: "predictions", episodes: "episodes of training" };

export function QualityPage({ run, runs, route }) {
  const others = runs.filter((one) => one.key !== run.key && one.stage === "infer" && run.stage === "infer");
  const other = others.find((one) => one.key === route.more);
  const files = useFiles(run);
  return html`<div class="curves">
    ${others.length > 0 && html`<${Choice} label="Compare with" value=${other?.key ?? ""} options=${[["", "no other run"], ...others.map((one) => one.key)]}
      onChange=${(key) => go({ run: run.key, tab: "quality", more: key })} />`}
    <${Fault} error=${files.error} />
    ${!files.told && !files.error && html`<p class="hint" role="status">Counting completions …</p>`}
    ${run.stage === "infer" && html`<${Answers} runs=${other ? [other, run] : [run]} />`}
    ${files.told?.map((file) => html`<${Kept} key=${file.name} file=${file} alone=${files.told.length === 1} />`)}
    ${files.told && !files.told.length && html`<p class="empty">No file of this run tells of completions.</p>`}
  </div>`;
}

/** What the files of the run tell, asked again while they are being listed. */
function useFiles(run) {
  const [times, setTimes] = useState(0);
  const { data, error } = useLive(() => api.quality(run.key), [run.key], `${run.stamp}/${times}`);
  useEffect(() => {
    if (!data || data.files.every((file) => file.complete)) return undefined;
    const timer = setTimeout(() => setTimes(times + 1), AGAIN);
    return () => clearTimeout(timer);
  }, [data]);
  return { told: data?.files, error };
}

/** A share in percent, a count as it is; `sign` shows a plus before a gain. */
export function shown(value, unit, sign = false) {
  const plus = sign && value >= 0 ? "+" : "";
  return unit === "share" ? `${plus}${(100 * value).toFixed(1)}` : `${plus}${value.toFixed(Math.abs(value) >= 100 ? 1 : 2)}`;
}

function Answers({ runs }) {
  const keys = runs.map((run) => run.key);
  const { data, error } = useLive(() => api.comparison(keys), keys, runs.map((run) => run.stamp).join());
  if (error) return html`<p class="hint">${error.message}</p>`;
  if (!data) return html`<p class="hint" role="status">Computing the figures …</p>`;
  const { rows } = data;
  const told = rows.map((row) => row.quality);
  const figures = Object.entries(told.at(-1).figures);
  const two = rows.length > 1;
  const notes = [...new Set(told.flatMap(({ counted_with: how }) => [how.missing, how.bleu && `BLEU: ${how.bleu}`,
    how.bertscore && `BERTScore: ${how.bertscore.model}, layer ${how.bertscore.layer}, weights ${how.bertscore.weights}`]).filter(Boolean))];
  return html`<section aria-label="Answers"><h2>Answers</h2>
    <p class="hint">${two ? "Over the questions that both runs came to. " : ""}Shares in percent, with 95 % intervals.</p>
    <div class="table-box" tabindex="0" role="region" aria-label="Figures of the answers"><table class="figures wide">
      <thead><tr><th>figure</th>${rows.map((row) => html`<th>${row.run}</th>`)}${two && html`<th>${rows[1].run} less ${rows[0].run}</th>`}<th>n</th><th>what it means</th></tr></thead>
      <tbody>${figures.map(([name, one]) => html`<tr><th scope="row">${one.label}</th>
        ${told.map((each) => html`<td><${Figure} one=${each.figures[name]} unit=${one.unit} /></td>`)}
        ${two && html`<td class=${tone(told[1].gains[name], one.better)}><${Figure} one=${told[1].gains[name]} unit=${one.unit} sign=${true} /></td>`}
        <td>${[...new Set(told.map((each) => each.figures[name]?.n ?? 0))].join(", ")}</td><td class="means">${one.definition}</td></tr>`)}</tbody></table></div>
    ${notes.map((note) => html`<p class="hint">${note}</p>`)}
    ${!("bertscore" in told.at(-1).figures) && html`<p class="hint">BERTScore loads a model: <code>steprag score evaluate --predictions RUN --bertscore minilm</code> adds it.</p>`}
    <${Errors} rows=${rows} keys=${keys} /></section>`;
}

/** "right" for a gain, "wrong" for a loss; "" where the interval holds 0 or neither direction is better. */
function tone(gain, better) {
  if (!better || !gain || gain.low * gain.high <= 0) return "";
  return (gain.value > 0) === (better === "more") ? "right" : "wrong";
}

export function Figure({ one, unit, sign }) {
  if (!one) return "–";
  return html`${shown(one.value, unit, sign)} <small>${shown(one.low, unit, sign)} to ${shown(one.high, unit, sign)}</small>`;
}

/** What is the matter with answers; a kind leads to its predictions. */
function Errors({ rows, keys }) {
  const mine = rows.at(-1);
  const kinds = Object.keys(mine.quality.kinds).filter((kind) => rows.some((row) => row.quality.errors[kind]));
  const total = (row) => Object.values(row.quality.errors).reduce((sum, one) => sum + one, 0);
  const cell = (row, kind) => html`${count(row.quality.errors[kind] ?? 0)} <small>${percent((row.quality.errors[kind] ?? 0) / total(row))}</small>`;
  const other = keys.length > 1 ? keys[0] : "";
  return html`<h2>Errors</h2><div class="table-box" tabindex="0" role="region" aria-label="Errors"><table class="figures wide">
    <thead><tr><th>kind</th>${rows.map((row) => html`<th>${row.run}</th>`)}<th>what it means</th></tr></thead>
    <tbody>${kinds.map((kind) => html`<tr><th scope="row"><a href=${link({ run: keys.at(-1), tab: "predictions", more: other, only: kind })}>${kind}</a></th>
      ${rows.map((row) => html`<td>${cell(row, kind)}</td>`)}<td class="means">${mine.quality.kinds[kind]}</td></tr>`)}</tbody></table></div>`;
}

/** How the completions of a file follow the grammar, and how long its answers and episodes are. */
function Kept({ file, alone }) {
  const { written, clock } = file;
  const time = useMemo(() => {
    const told = file.over_time;
    const column = (name) => told.map((one) => 100 * one[name]);
    return { x: told.map((one) => one.at), lines: [{ name: "follow the grammar, %", values: column("value"), low: column("low"), high: column("high") }] };
  }, [file]);
  return html`<section aria-label=${`Completions of ${file.name}`}><h2>Completions that follow the grammar ${!alone && html`<small>${file.name}</small>`}</h2>
    ${!file.complete && html`<p class="hint" role="status">Reading: ${plural(file.n, "record")} so far.</p>`}
    ${written.n === 0
      ? html`<p class="hint">No completion is counted yet.</p>`
      : html`<p class="hint">${percent(written.value)} of ${plural(written.n, "completion")} in ${count(file.n)} ${NAMES[file.kind]}${" "}
          (95 % interval ${percent(written.low)} to ${percent(written.high)}). A completion that is refused belongs to the action whose tag it opens first.</p>
        <div class="charts">${time.x.length > 1 && html`<${Chart} title=${`over time, by ${clock}`} unit=${clock} words="with 95 % intervals" ...${time} />`}
          ${file.lengths.map((one) => html`<${Length} key=${one.name} one=${one} />`)}</div>
        <div class="table-box" tabindex="0" role="region" aria-label=${`Completions of ${file.name} by action`}><table class="figures wide">
          <thead><tr><th>action</th><th>completions</th><th>follow the grammar, %</th><th>refused, by reason</th></tr></thead>
          <tbody>${written.actions.map((one) => html`<tr><th scope="row"><${Action} name=${one.action} /></th><td>${count(one.n)}</td>
            <td><${Figure} one=${one} unit="share" /></td><td class="means">${reasons(one)}</td></tr>`)}</tbody></table></div>`}
  </section>`;
}

const reasons = (one) => Object.entries(one.reasons).map(([reason, times]) => `${reason} ${count(times)}`).join(", ") || "–";

function Length({ one }) {
  const chart = useMemo(() => ({
    x: one.bars.map((bar) => (bar.from + bar.to) / 2),
    lines: [{ name: "how many", values: one.bars.map((bar) => bar.count), bars: one.bars[0].to - one.bars[0].from + 1 }],
  }), [one]);
  const told = `mean ${number(one.value, 2)} (${number(one.low, 2)} to ${number(one.high, 2)}), n ${count(one.n)}`;
  return html`<${Chart} title=${one.label} unit=${one.label} words=${told} hint=${one.definition} ...${chart} />`;
}
