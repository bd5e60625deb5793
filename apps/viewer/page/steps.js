// The steps of a tree as a list, in step with the canvas: an ARIA tree of which only the rows that are seen exist.
import { short } from "./format.js";
import { html, useMemo } from "./html.js";
import { VirtualList } from "./virtual.js";

export function StepList({ nodes, order, upTo, hits, values, visits, selected, onSelect, principal, roles }) {
  const rows = useMemo(() => order.filter((id) => id <= upTo && (!hits || hits.has(id))), [order, upTo, hits]);
  const places = useMemo(() => new Map(rows.map((id, index) => [id, index])), [rows]);
  const children = useMemo(() => firstChildren(nodes, order), [nodes, order]);

  /** Right goes to the first step below, left to the step above. */
  function turned(event) {
    const to = event.key === "ArrowRight" ? children.get(selected) : event.key === "ArrowLeft" ? nodes.parent[selected] : undefined;
    if (to === undefined || to === null || !places.has(to)) return false;
    onSelect(to);
    return true;
  }

  return html`<${VirtualList} id="steps" role="tree" aria-label="Steps" rowRole="treeitem" count=${rows.length} height=${30}
    active=${places.get(selected) ?? -1} onActive=${(index) => onSelect(rows[index])} onKey=${turned}
    rowProps=${(index) => ({ "aria-level": nodes.depth[rows[index]] + 1, class: principal.has(rows[index]) ? "principal" : "" })}
    row=${(index) => html`<${StepRow} nodes=${nodes} id=${rows[index]} value=${values[rows[index]]} seen=${visits[rows[index]]} roles=${roles} />`} />`;
}

function firstChildren(nodes, order) {
  const first = new Map();
  for (const id of order) {
    const parent = nodes.parent[id];
    if (parent !== null && !first.has(parent)) first.set(parent, id);
  }
  return first;
}

function StepRow({ nodes, id, value, seen, roles }) {
  const failure = nodes.failure[id];
  const right = nodes.prediction_f1[id] === 1;
  const ends = failure ? "refused" : nodes.terminal[id] ? (right ? "right" : "wrong") : "";
  const words = id === 0 ? "The question" : failure ? failure : nodes.content[id] || nodes.text[id] || "–";
  return html`<span class="step-line" style=${{ paddingLeft: `${Math.min(nodes.depth[id], 12) * 12}px` }}>
    <span class="step-sign" data-role=${roles[nodes.action[id]]} data-end=${ends} aria-hidden="true"></span>
    <span class="unseen">${nodes.action[id] ?? ""} ${ends}</span>
    <span class="step-words">${words}</span>
    <span class="step-value"><span class="unseen">value</span> ${short(value)} <small>×${seen}</small></span>
  </span>`;
}
