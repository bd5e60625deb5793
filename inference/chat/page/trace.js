// The working trace: the steps of a turn as they are written, each with what its search found.
import { html, useState } from "./html.js";
import { Search } from "./passages.js";
import { Step } from "./step.js";
import { isOver, searchesOf, spansOf } from "./turns.js";
import { count, duration } from "./words.js";

/** Open while the turn is the last of its conversation; folded in older ones, until the reader says otherwise. */
export function Trace({ turn, last, controller }) {
  const [chosen, choose] = useState(null);
  if (!turn.steps.length && !turn.opening) return null;
  const open = chosen ?? (last || !turn.answer);
  const spans = spansOf(turn);
  const own = turn.steps.findLastIndex((step) => step?.given);
  return html`<details class="trace" open=${open}>
    <summary onClick=${(event) => (event.preventDefault(), choose(!open))}>${summary(turn)}</summary>
    <ol class="steps">
      ${turn.opening && html`<li class="step" data-action="query">
        <div class="step-head"><b class="action">First search</b></div>
        <${Search} search=${turn.opening} spans=${spans} />
      </li>`}
      ${turn.steps.map((step, place) => html`<${Step} key=${place} step=${step} turn=${turn} spans=${spans}
        origin=${step.given ? (place === own ? "yours" : "kept") : null} controller=${controller} />`)}
    </ol>
  </details>`;
}

function summary(turn) {
  const searches = searchesOf(turn).length;
  const steps = count(turn.steps.length, "step");
  const found = searches ? `, ${count(searches, "search", "searches")}` : "";
  if (!isOver(turn)) return `Working: ${steps}${found} so far`;
  const time = turn.seconds ? ` in ${duration(turn.seconds)}` : "";
  return `${steps}${found}${time}`;
}
