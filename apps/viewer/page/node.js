// All of one step: what the policy saw, what it wrote, what came of it.
import { api } from "./api.js";
import { number, plural } from "./format.js";
import { html, useState } from "./html.js";
import { rowKey, useLoaded } from "./loading.js";
import { Action, Facts, Fault, Messages, Raw } from "./parts.js";
import { link } from "./route.js";

export function NodePane({ at, tree, stamp, id, moment, rewards, colouring, onSelect }) {
  const { data, error, stale } = useLoaded(() => api.node(at, id), [at, id]);
  const { nodes } = tree;
  const told = data ?? (stale?.id === id ? stale : null);
  return html`<div class="node-pane">
    <h3>${id === 0 ? "The question" : html`<${Action} name=${nodes.action[id]} />`}<${Verdict} nodes=${nodes} id=${id} />
      <span class="node-name">node ${id}</span></h3>
    ${nodes.content[id] && html`<p class="content">${nodes.content[id]}</p>`}
    <${Facts} facts=${[
      ["value", number(nodes.value[id])], ["visits", nodes.visits[id]],
      ["value then", moment && number(moment.values[id])], ["visits then", moment && moment.visits[id]], ["depth", nodes.depth[id]],
      ["reward", rewards && colouring !== "value" ? withError(rewards, id) : null],
      ["answer F1", nodes.prediction_f1[id] === null ? null : number(nodes.prediction_f1[id])],
      ["known before", tree.known?.includes(id) ? "yes" : null],
    ]} />
    <${Fault} error=${error} />
    ${told ? html`<${Told} told=${told} root=${id === 0} />` : html`<p class="waiting" role="status">Opening …</p>`}
    <${Siblings} nodes=${nodes} id=${id} pairs=${rewards?.pairs ?? []} tree=${tree.hash} stamp=${stamp} onSelect=${onSelect} />
    ${id !== 0 && html`<${EveryRule} key=${`${at.id}`} at=${at} id=${id} />`}
  </div>`;
}

function Verdict({ nodes, id }) {
  if (nodes.failure[id]) return html`<span class="verdict wrong">refused: ${nodes.failure[id]}</span>`;
  if (!nodes.terminal[id]) return null;
  const right = nodes.prediction_f1[id] === 1;
  return html`<span class=${`verdict ${right ? "right" : "wrong"}`}>${right ? "right" : "wrong"}</span>`;
}

const withError = (rewards, id) =>
  rewards.values[id] === null ? "none" : `${number(rewards.values[id])}${rewards.errors[id] ? ` ± ${number(rewards.errors[id])}` : ""}`;

function Told({ told, root }) {
  return html`
    ${!root && html`<h4>Completion, as sampled</h4><${Raw} label="Completion">${told.text}<//>`}
    ${told.passages.length > 0 && html`<h4>Passages found</h4>
      ${told.texts_missing && html`<p class="hint">${told.texts_missing}</p>`}
      <ol class="passages">${told.passages.map((passage) => html`<li><details><summary>${passage.title || passage.id}
        <span class="score">${number(passage.score)}</span></summary>
        <p>${passage.text ?? "no text here"}</p><p class="hint">id ${passage.id}</p></details></li>`)}</ol>`}
    ${told.judge && html`<h4>Judge</h4><${Facts} facts=${[["score", number(told.judge.score ?? null)]]} />
      ${told.judge.text && html`<${Raw} label="The judge's words">${told.judge.text}<//>`}`}
    ${told.belief && html`<h4>Belief</h4><p class="hint">${number(Math.exp(told.belief.logp), 4)} that the policy would answer
      “${told.belief.answer}” here</p>`}
    ${told.prompt && html`<details class="prompt"><summary>Prompt, as the policy saw it</summary><${Messages} messages=${told.prompt} /></details>`}
    ${root && told.next_prompt && html`<details class="prompt" open><summary>First prompt</summary><${Messages} messages=${told.next_prompt} /></details>`}
    ${told.usage.calls > 0 && html`<p class="hint">${plural(told.usage.calls, "call")} here: ${plural(told.usage.prompt_tokens, "prompt token")},
      ${" "}${told.usage.cached_tokens} cached, ${told.usage.completion_tokens} written</p>`}`;
}

/** Every sibling with what became of the pair that it makes with this step. */
function Siblings({ nodes, id, pairs, tree, stamp, onSelect }) {
  const { data, stale } = useLoaded(() => api.pairsOf(tree), [tree, stamp]);
  const made = (data ?? stale)?.pairs ?? [];
  const mine = pairs.filter((pair) => pair.chosen === id || pair.rejected === id);
  if (!mine.length) return null;
  return html`<h4>Against its siblings</h4><table class="siblings"><thead><tr><th>sibling</th><th>margin</th><th>pair</th></tr></thead>
    <tbody>${mine.map((pair) => {
      const other = pair.chosen === id ? pair.rejected : pair.chosen;
      const sign = pair.chosen === id ? "+" : "−";
      const places = made.filter(({ nodes: [one, two] }) => one === pair.chosen && two === pair.rejected);
      return html`<tr><td><button type="button" class="link" onClick=${() => onSelect(other)}>${other} ${nodes.action[other]}</button></td>
        <td>${sign}${number(pair.margin)}${pair.error ? ` ± ${number(pair.error)}` : ""}</td>
        <td>${pair.rule ? html`<span class="dropped">dropped: ${pair.rule}</span>` : html`<span class="kept">kept</span>`}
          ${places.map((one) => html` <a href=${link({ run: one.run, tab: "pairs", place: rowKey(one) })}>in ${one.run}</a>`)}</td></tr>`;
    })}</tbody></table>`;
}

function EveryRule({ at, id }) {
  const [open, setOpen] = useState(false);
  const { data, error } = useLoaded(open ? () => api.everyReward(at) : null, [at, open]);
  return html`<details class="every-rule" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>Rewards under every rule</summary>
    <${Fault} error=${error} />
    ${data && html`<table><thead><tr><th>rule</th><th>reward</th><th>standard error</th></tr></thead>
      <tbody>${Object.values(data).map((one) => (one.fault
        ? html`<tr><td>${one.rule}</td><td colspan="2" class="hint">${one.fault}</td></tr>`
        : html`<tr><td>${one.rule}</td><td>${number(one.values[id])}</td><td>${number(one.errors[id])}</td></tr>`))}
      </tbody></table>`}
  </details>`;
}
