// The working trace: the steps of a turn as they are written, each with what its search found.
import { html, useState } from "./html.js";
import { SmallButton } from "./icons.js";
import { Search } from "./passages.js";
import { Step } from "./step.js";
import { chipsOf, isOver, searchesOf, spansOf } from "./turns.js";
import { count, duration } from "./words.js";

/** Open while the turn is the last of its conversation; folded in older ones, until the reader says otherwise. */
export function Trace({ turn, last, controller }) {
  const [chosen, choose] = useState(null);
  const [raw, setRaw] = useState(false);
  if (!turn.steps.length && !turn.opening) return null;
  const open = chosen ?? (last || !turn.answer);
  const spans = spansOf(turn);
  const chips = chipsOf(turn);
  const own = turn.steps.findLastIndex((step) => step?.given);
  return html`<details class="trace" open=${open}>
    <summary onClick=${(event) => (event.preventDefault(), choose(!open))}>${summary(turn)}</summary>
    <ol class="steps">
      ${turn.opening && html`<li class="step" data-action="query">
        <div class="step-head"><b class="action">First search</b></div>
        <${Search} turn=${turn.id} search=${turn.opening} spans=${spans} chips=${chips} />
      </li>`}
      ${turn.steps.map((step, place) => html`<${Step} key=${place} step=${step} turn=${turn} spans=${spans} chips=${chips} raw=${raw}
        origin=${step.given ? (place === own ? "yours" : "kept") : null} controller=${controller} />`)}
    </ol>
    <${SmallButton} icon="look" aria-pressed=${raw} onClick=${() => setRaw(!raw)}>As written<//>
  </details>`;
}

function summary(turn) {
  const searches = searchesOf(turn).length;
  const done = turn.steps.filter((step) => step?.done).length;
  const last = turn.refused !== null ? "a refused" : "an unfinished";
  const whole = turn.steps.length === done;
  const steps = whole ? count(done, "step") : done ? `${count(done, "step")} and ${last} one` : `${last} step`;
  const found = searches ? `, ${count(searches, "search", "searches")}` : "";
  if (!isOver(turn)) return `Working on step ${done + 1}${found}`;
  const time = turn.seconds ? ` in ${duration(turn.seconds)}` : "";
  return `${steps}${found}${time}`;
}
