// The trees of a run: a list to search, and the chosen tree beside it.
import { matcher, number, plural } from "./format.js";
import { html, useMemo, useState } from "./html.js";
import { rowKey, useHits, useRows } from "./loading.js";
import { Choice, FileNotes, options, Search, SEARCH, SearchNotes, Shown } from "./parts.js";
import { go } from "./route.js";
import { TreeView } from "./tree.js";
import { VirtualList } from "./virtual.js";

const OUTCOMES = {
  "": ["any outcome", () => true],
  solved: ["solved", (row) => row.solved === 1],
  unsolved: ["not solved", (row) => row.solved === 0],
  mixed: ["right and wrong", (row) => row.mixed === 1],
  refused: ["with refused steps", (row) => row.refused_steps > 0],
};
const ORDERS = {
  "": ["in file order", null],
  nodes: ["most nodes", (a, b) => b.nodes - a.nodes],
  best: ["worst answers", (a, b) => (a.best ?? -1) - (b.best ?? -1)],
  refused: ["most refused", (a, b) => b.refused_steps - a.refused_steps],
};

export function TreesPage({ run, runs, rules, route }) {
  const state = useRows(run.key, "trees", run.files.trees.length, run.stamp);
  const [asked, setAsked] = useState("");
  const [outcome, setOutcome] = useState("");
  const [kind, setKind] = useState("");
  const [order, setOrder] = useState("");
  const found = useHits(run.key, "trees", run.files.trees.length, asked);
  const rows = useMemo(() => {
    const fits = matcher(asked);
    const kept = state.rows.filter((row) => (fits(row.question, row.id) || found.hits?.has(rowKey(row))) && OUTCOMES[outcome][1](row) && (!kind || row.kind === kind));
    return ORDERS[order][1] ? kept.sort(ORDERS[order][1]) : kept;
  }, [state.rows, asked, found, outcome, kind, order]);
  const kinds = useMemo(() => options(state.rows, (row) => row.kind, "every kind"), [state.rows]);
  const line = Number(route.place) || (rows.length && innerWidth > 900 ? rows[0].line : 0);
  const active = rows.findIndex((row) => row.line === line);
  const chosen = state.rows.find((row) => row.line === line);
  return html`<div class=${`columns ${route.place ? "one-chosen" : ""}`}>
    <section class="side" aria-label="Trees">
      <div class="filters">
        <${Search} label=${SEARCH} value=${asked} onInput=${setAsked} />
        <div class="filter-row">
          <${Choice} label="Outcome" hidden value=${outcome} onChange=${setOutcome} options=${entries(OUTCOMES)} />
          <${Choice} label="Order" hidden value=${order} onChange=${setOrder} options=${entries(ORDERS)} />
          ${kinds.length > 2 && html`<${Choice} label="Kind of question" hidden value=${kind} onChange=${setKind} options=${kinds} />`}
        </div>
        <${Shown} shown=${rows.length} all=${state.rows.length} word="tree" /><${SearchNotes} found=${found} />
        <${FileNotes} state=${state} />
      </div>
      <${VirtualList} id="trees" role="listbox" aria-label="Trees" rowRole="option" count=${rows.length} height=${76} active=${active}
        onActive=${(index) => go({ run: run.key, tab: "trees", place: rows[index].line }, true)}
        row=${(index) => html`<${TreeRow} row=${rows[index]} />`} />
    </section>
    <div class="main">
      ${chosen
        ? html`<${TreeView} key=${`${run.key}/${chosen.id}`} run=${run} runs=${runs} rules=${rules} row=${chosen} node=${route.more} />`
        : html`<p class="empty">${state.rows.length ? "Choose a tree." : ""}</p>`}
    </div>
  </div>`;
}

const entries = (table) => Object.entries(table).map(([value, [words]]) => [value, words]);

function TreeRow({ row }) {
  const tone = row.solved ? "right" : row.best === null ? "none" : "wrong";
  const words = row.best === null ? "no answer" : `best answer ${number(row.best, 2)}`;
  return html`<span class="row-words">${row.question}</span>
    <span class="row-facts"><span class=${`dot ${tone}`} aria-hidden="true"></span>${words} · ${plural(row.nodes, "node")}${
      row.refused_steps ? ` · ${row.refused_steps} refused` : ""}${row.kind ? ` · ${row.kind}` : ""}</span>`;
}
