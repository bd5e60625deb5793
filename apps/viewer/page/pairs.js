// The pairs of a run: both steps side by side, where they come from, and the pairs that were dropped beside them.
import { api, offline } from "./api.js";
import { diff, Pieces } from "./diff.js";
import { matcher, number, percent, plural, shortened } from "./format.js";
import { html, useMemo, useState } from "./html.js";
import { rowKey, useHits, useLoaded, useRows } from "./loading.js";
import { Action, Back, Choice, Facts, Fault, FileNotes, Messages, options, Search, SEARCH, SearchNotes, Shown } from "./parts.js";
import { go, link } from "./route.js";
import { VirtualList } from "./virtual.js";

const MARGINS = [["", "any margin"], ["0.2", "margin ≥ 0.2"], ["0.5", "margin ≥ 0.5"], ["-0.2", "margin < 0.2"]];
const STATES = [["", "all"], ["wrong", "marked wrong"], ["unmarked", "not marked"]];
const NONE = new Set();
const UNKNOWN = {};

export function PairsPage({ run, runs, route }) {
  const files = run.files.pairs;
  const state = useRows(run.key, "pairs", files.length, run.stamp);
  const [marking, setMarking] = useState(0);
  const marks = useLoaded(() => api.marks(run.key), [run.key, marking]);
  const kinds = useLoaded(() => api.kinds(run.key), [run.key, run.stamp]).data ?? UNKNOWN;
  const wrong = useMemo(() => new Set((marks.data ?? marks.stale)?.wrong ?? NONE), [marks]);
  const [filter, setFilter] = useState({ asked: "", action: "", depth: "", kind: "", margin: "", marked: "" });
  const set = (name) => (value) => setFilter((before) => ({ ...before, [name]: value }));
  const found = useHits(run.key, "pairs", files.length, filter.asked);
  const rows = useMemo(() => kept(state.rows, filter, kinds, wrong, found.hits), [state.rows, filter, kinds, wrong, found]);
  const [file, line] = route.place ? route.place.split(".").map(Number) : [rows[0]?.file, innerWidth > 900 ? rows[0]?.line : 0];
  const is = (row) => row.file === file && row.line === line;
  const chosen = state.rows.find(is);
  const choices = useMemo(() => ({
    action: options(state.rows, actions, "every action"), depth: options(state.rows, (row) => row.depth, "every depth"),
    kind: options(state.rows, (row) => kinds[row.question_id], "every kind"),
  }), [state.rows, kinds]);
  const choice = (name, label, all) => html`<${Choice} label=${label} hidden value=${filter[name]} onChange=${set(name)} options=${all} />`;
  return html`<div class=${`columns ${route.place ? "one-chosen" : ""}`}>
    <section class="side" aria-label="Pairs">
      <div class="filters">
        <${Search} label=${SEARCH} value=${filter.asked} onInput=${set("asked")} />
        <div class="filter-row">
          ${choice("action", "Action", choices.action)}
          ${choice("depth", "Depth", choices.depth)}
          ${Object.keys(kinds).length > 0 && choice("kind", "Kind of question", choices.kind)}
          ${choice("margin", "Margin", MARGINS)}
          ${wrong.size > 0 && choice("marked", "Marks", STATES)}
        </div>
        <${Shown} shown=${rows.length} all=${state.rows.length} word="pair" /><${SearchNotes} found=${found} />
        <${FileNotes} state=${state} /><${Fault} error=${marks.error} />
      </div>
      <${VirtualList} id="pairs" role="listbox" aria-label="Pairs" rowRole="option" count=${rows.length} height=${94} active=${rows.findIndex(is)}
        onActive=${(index) => go({ run: run.key, tab: "pairs", place: rowKey(rows[index]) }, true)}
        row=${(index) => html`<${PairRow} row=${rows[index]} wrong=${wrong.has(rows[index].id)} />`} />
    </section>
    <div class="main">${chosen
      ? html`<${PairView} key=${chosen.id} run=${run} runs=${runs} row=${chosen} wrong=${wrong.has(chosen.id)} marksFile=${marks.data?.file}
          onMarked=${() => setMarking((times) => times + 1)} />`
      : html`<p class="empty">${state.rows.length ? "Choose a pair." : ""}</p>`}</div>
  </div>`;
}

const actions = (row) => (row.action === row.rejected_action ? row.action : `${row.action} over ${row.rejected_action}`);

function kept(rows, { asked, action, depth, kind, margin, marked }, kinds, wrong, hits) {
  const fits = matcher(asked);
  const bound = Math.abs(Number(margin));
  return rows.filter((row) =>
    (fits(row.question, row.question_id) || hits?.has(rowKey(row))) && (!action || actions(row) === action) && (!depth || String(row.depth) === depth) &&
    (!kind || kinds[row.question_id] === kind) && (!margin || (row.margin !== null && (margin.startsWith("-") ? row.margin < bound : row.margin >= bound))) &&
    (!marked || wrong.has(row.id) === (marked === "wrong")));
}

function PairRow({ row, wrong }) {
  return html`<span class="row-words">${row.question}</span>
    <span class="row-facts">${wrong ? html`<span class="verdict wrong">marked wrong</span> ` : ""}${actions(row)} · depth ${row.depth} · margin ${number(row.margin, 2)}</span>
    <span class="row-facts" title=${row.chosen}>${row.chosen}</span>`;
}

function PairView({ run, runs, row, wrong, marksFile, onMarked }) {
  const at = { run: run.key, file: row.file, line: row.line, id: row.id };
  const { data: pair, error } = useLoaded(() => api.record("pairs", at), [at]);
  const home = useLoaded(row.tree ? () => api.where(row.tree, row.question_id) : null, [row.tree]);
  const [failed, setFailed] = useState(null);
  if (error) return html`<${Fault} error=${error} />`;
  if (!pair) return html`<p class="empty" role="status">Opening the pair …</p>`;
  const [chosen, rejected] = [pair.chosen.at(-1).content, pair.rejected.at(-1).content];
  const [mine, yours] = diff(chosen, rejected);
  async function mark() {
    try {
      await api.mark({ ...at, wrong: !wrong });
      setFailed(null);
      onMarked();
    } catch (problem) {
      setFailed(problem);
    }
  }
  const side = (which) => ({ action: pair[which === "chosen" ? "action" : "rejected_action"], reward: pair[`${which}_reward`],
    visits: pair[`${which}_visits`], node: pair[`${which}_node`], home: home.data });
  return html`<article class="pair-view">
    <header class="tree-head"><${Back} href=${link({ run: run.key, tab: "pairs" })}>All pairs<//>
      <h2>${row.question}</h2>
      <p class="golden">${pair.golden_answers.map((answer) => html`<span class="gold">${answer}</span>`)}
        <span class="tree-words">${pair.source}${row.file ? " · held out" : ""}</span></p></header>
    <${Facts} facts=${[["margin", `${number(pair.margin)}${pair.margin_error ? ` ± ${number(pair.margin_error)}` : ""}`], ["depth", pair.depth],
      ["chance of the other way round", pair.label_smoothing === null ? null : percent(pair.label_smoothing)]]} />
    <div class="two-sides">
      <section aria-label="Chosen"><${SideHead} title="Chosen" ...${side("chosen")} /><${Pieces} pieces=${mine} tag="ins" /></section>
      <section aria-label="Rejected"><${SideHead} title="Rejected" ...${side("rejected")} /><${Pieces} pieces=${yours} tag="del" /></section>
    </div>
    ${!offline && html`<p class="mark"><button type="button" class=${wrong ? "primary" : "quiet"} aria-pressed=${wrong ? "true" : "false"} onClick=${mark}>
      ${wrong ? "Marked as wrong; press to take back" : "Mark as wrong"}</button>
      ${marksFile && html`<span class="hint" title=${marksFile}>kept in wrong.jsonl beside the pairs; <code>steprag pairs --filters.marked</code> reads it</span>`}</p>`}
    <${Fault} error=${failed} />
    <details class="prompt" open><summary>Prompt of both</summary><${Messages} messages=${pair.prompt} /></details>
    ${row.tree && home.error && html`<p class="hint">${home.error.message}</p>`}
    ${home.data && html`<${Dropped} home=${home.data} run=${run} pair=${pair} runs=${runs} />`}
  </article>`;
}

function SideHead({ title, action, reward, visits, node, home }) {
  return html`<h3>${title} <${Action} name=${action} /></h3>
    <p class="hint">${[reward !== null && `reward ${number(reward)}`, visits !== null && plural(visits, "visit")].filter(Boolean).join(" · ")}
      ${home && node !== null && html` · <a href=${link({ run: home.run, tab: "trees", place: home.line, more: node })}>node ${node} in its tree</a>`}</p>`;
}

const ROWS = 30; // pairs of a rule that are listed; a tree has hundreds

/** The pairs of the same tree: those kept, and those that a rule dropped, by rule. */
function Dropped({ home, run, pair }) {
  const [open, setOpen] = useState(false);
  const at = { run: home.run, line: home.line, id: home.id };
  const load = async () => ({ rewards: await api.rewards(at, { like: run.key }), tree: await api.tree(at) });
  const { data, error } = useLoaded(open ? load : null, [at, open]);
  const groups = new Map();
  for (const one of data?.rewards.pairs ?? []) {
    const name = one.rule === null ? "kept by every rule that looks at one pair" : `dropped: ${one.rule}`;
    groups.set(name, [...(groups.get(name) ?? []), one]);
  }
  return html`<details class="prompt" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>Every two siblings of this tree, and the rule that dropped them</summary>
    <${Fault} error=${error} />
    ${data && html`<p class="hint">A pair that is kept here and not in the file fell to a filter across trees: duplicates, contradictions, balance.</p>`}
    ${[...groups].map(([name, pairs]) => html`<details open=${name.startsWith("kept")}><summary>${name} <small>(${pairs.length})</small></summary>
      <table class="siblings"><thead><tr><th>chosen</th><th>rejected</th><th>margin</th></tr></thead>
      <tbody>${pairs.slice(0, ROWS).map((one) => html`<tr class=${one.chosen === pair.chosen_node && one.rejected === pair.rejected_node ? "here" : ""}>
        <td><${StepWords} home=${home} nodes=${data.tree.nodes} id=${one.chosen} /></td><td><${StepWords} home=${home} nodes=${data.tree.nodes} id=${one.rejected} /></td>
        <td>${number(one.margin, 2)}${one.error ? html` <small>± ${number(one.error, 2)}</small>` : ""}</td></tr>`)}</tbody></table>
      ${pairs.length > ROWS && html`<p class="hint">and ${pairs.length - ROWS} more</p>`}</details>`)}
  </details>`;
}

const StepWords = ({ home, nodes, id }) => html`<a href=${link({ run: home.run, tab: "trees", place: home.line, more: id })}>${id} ${nodes.action[id] ?? "refused"}</a>${" "}
  <span class="step-said">${shortened(nodes.content[id] ?? nodes.failure[id] ?? "", 90)}</span>`;
