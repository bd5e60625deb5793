// One tree: its canvas, the list of its steps beside it, and the step that is looked at.
import { api } from "./api.js";
import { TreeCanvas } from "./canvas.js";
import { rangeOf } from "./colours.js";
import { matcher, plural } from "./format.js";
import { bestPath, growthOf, iterationAt, momentAt } from "./growth.js";
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { useLoaded } from "./loading.js";
import { NodePane } from "./node.js";
import { Back, Choice, Fault } from "./parts.js";
import { Replay } from "./replay.js";
import { go, link } from "./route.js";
import { pathTo, shapeOf } from "./shape.js";
import { StepList } from "./steps.js";
import { TreeTools } from "./tools.js";

const NO_NODES = new Set();

export function TreeView({ run, runs, rules, row, node }) {
  const at = { run: run.key, line: row.line, id: row.id };
  const { data: tree, error, stale } = useLoaded(() => api.tree(at), [at]);
  if (error) return html`<${Fault} error=${error} />`;
  const shown = tree ?? stale;
  if (!shown) return html`<p class="empty" role="status">Opening the tree …</p>`;
  return html`<${LoadedTree} at=${at} run=${run} runs=${runs} rules=${rules} row=${row} node=${node} tree=${shown} />`;
}

function LoadedTree({ at, run, runs, rules, row, node, tree }) {
  const { nodes } = tree;
  const size = nodes.parent.length;
  const stage = useRef(null);
  const shape = useMemo(() => shapeOf(nodes), [tree]);
  const [selected, setSelected] = useState(() => placeOf(node, size) ?? 0);
  const [upTo, setUpTo] = useState(size - 1);
  const [asked, setAsked] = useState("");
  const [action, setAction] = useState("");
  const [colouring, setColouring] = useState("value");
  const rewards = useRewards(at, colouring, runs);
  const growth = useMemo(() => growthOf(tree), [tree]);
  const moment = useMemo(() => momentAt(growth, nodes, upTo), [growth, upTo]);
  const values = colouring === "value" ? moment.values : rewards.data?.values ?? Array(size).fill(null);
  const ending = colouring === "value" ? nodes.value : values; // one scale for the whole replay
  const range = useMemo(() => rangeOf(ending), [ending]);
  const hits = useMemo(() => found(nodes, asked, action), [tree, asked, action]);
  const principal = useMemo(() => new Set(bestPath(shape.children, moment)), [shape, moment]);
  const chosen = useMemo(() => new Set(pathTo(nodes, selected)), [tree, selected]);

  useEffect(() => setUpTo(size - 1), [tree]);
  useEffect(() => {
    const asks = placeOf(node, size);
    if (asks !== null && asks !== selected) choose(asks);
  }, [node]);

  function choose(id) {
    setSelected(id);
    if (id > upTo) setUpTo(size - 1);
    stage.current?.show(id);
    go({ run: run.key, tab: "trees", place: row.line, more: id || "" }, true);
  }

  const under = upTo < size - 1 ? growth.iterations[iterationAt(growth.iterations, upTo)]?.leaf ?? null : null;
  const scene = { nodes, roles: tree.roles, shape, values, visits: moment.visits, range, upTo, under, selected, hits, principal, chosen };
  const label = `Search tree of ${plural(size, "node")}; the list of steps beside it says the same.`;
  return html`<article class="tree-view">
    <header class="tree-head">
      <${Back} href=${link({ run: run.key, tab: "trees" })}>All trees<//>
      <h2>${tree.question.question}</h2>
      <p class="golden">${tree.question.golden_answers.map((answer) => html`<span class="gold">${answer}</span>`)}
        <span class="tree-words">${endWords(tree)}</span></p>
    </header>
    <div class="tree-body">
      <section class="canvas-box" aria-label="Tree">
        <${TreeTools} asked=${asked} onAsked=${setAsked} hits=${hits} stage=${stage} action=${action} onAction=${setAction} nodes=${nodes}
          onNext=${() => choose(following(shape.order, hits, selected))}>
          <${Choice} label="Colour" value=${colouring} onChange=${setColouring}
            options=${[["value", "value of the search"], ...rules.map((rule) => [rule, `reward: ${rule}`])]} />
        <//>
        <${Fault} error=${rewards.error} />
        <${TreeCanvas} scene=${scene} treeKey=${`${at.run}/${at.id}`} label=${label} onSelect=${choose} stageRef=${stage} />
        <${Legend} range=${range} colouring=${colouring} tree=${tree} unknown=${values.some((value) => (value ?? null) === null)} />
        <${Replay} nodes=${nodes} growth=${growth} upTo=${upTo} onUpTo=${setUpTo} onSelect=${choose} />
      </section>
      <section class="steps-box" aria-label="Steps">
        <${StepList} nodes=${nodes} order=${shape.order} upTo=${upTo} hits=${hits} values=${values} visits=${moment.visits} selected=${selected} onSelect=${choose}
          principal=${principal} roles=${tree.roles} />
      </section>
      <section class="node-box" aria-label="Chosen step">
        <${NodePane} at=${at} tree=${tree} stamp=${runs.map((one) => one.stamp).join()} id=${selected} moment=${upTo < size - 1 ? moment : null} rewards=${rewards.data} colouring=${colouring} onSelect=${choose} />
      </section>
    </div>
  </article>`;
}

/** A node's id as an address has it; null where the tree has no such node. */
function placeOf(text, size) {
  const id = text === "" ? Number.NaN : Number(text);
  return Number.isInteger(id) && id >= 0 && id < size ? id : null;
}

/** The rewards of the chosen rule; of the search's own values those that the pairs were made by. */
function useRewards(at, colouring, runs) {
  const like = runs.filter((one) => one.kinds.includes("pairs") && one.stage === "pairs");
  const options = colouring === "value" ? {} : { rule: colouring };
  if (like.length === 1) options.like = like[0].key;
  return useLoaded(() => api.rewards(at, options), [at, options]);
}

function found(nodes, asked, action) {
  if (!asked.trim() && !action) return null;
  const fits = matcher(asked);
  const ids = nodes.parent.map((_, id) => id).filter((id) =>
    (!action || (action === "refused" ? nodes.failure[id] : nodes.action[id] === action)) &&
    fits(nodes.text[id], nodes.content[id], nodes.failure[id], ...(nodes.found[id] ?? [])));
  return ids.length ? new Set(ids) : NO_NODES;
}

/** The next hit below a node in the list's order, the first one again after the last. */
function following(order, hits, selected) {
  const at = order.indexOf(selected);
  const later = [...order.slice(at + 1), ...order.slice(0, at + 1)];
  return later.find((id) => hits.has(id)) ?? selected;
}

function endWords({ status, iterations, usage, nodes }) {
  const parts = [plural(nodes.parent.length, "node"), iterations && plural(iterations, "iteration"), plural(usage.calls, "call")];
  return [...parts, `ended: ${status}`].filter(Boolean).join(" · ");
}

function Legend({ range, colouring, tree, unknown }) {
  const actions = [...new Set(tree.nodes.action)].filter(Boolean);
  const refused = tree.nodes.failure.some(Boolean);
  const [least, greatest] = range.map((value) => Number(value.toFixed(2)));
  return html`<div class="legend" aria-hidden="true">
    <span>${least}</span><span class="ramp"></span><span>${greatest} ${colouring === "value" ? "value" : colouring}</span>
    <span class="shapes">${actions.map((name) => html`<i class="shape" data-role=${tree.roles[name]}></i>${name} `)}</span>
    ${unknown && html`<span><i class="shape hollow"></i>${colouring === "value" ? "not visited" : "no reward"}</span>`}
    ${refused && html`<span><i class="shape hollow refused"></i>refused</span>`}
    <span class="shapes"><i class="trail"></i>best path, green where it ends right</span>
  </div>`;
}
