// How the search went: iteration after iteration, each node when it was made, with the visits and values of that moment.
import { number, plural } from "./format.js";
import { iterationAt } from "./growth.js";
import { html, useEffect, useState } from "./html.js";

const WHOLE = 12000; // milliseconds that a replay takes at most
const SLOWEST = 180; // milliseconds a node

export function Replay({ nodes, growth, upTo, onUpTo, onSelect }) {
  const size = nodes.parent.length;
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing) return undefined;
    const pace = Math.min(SLOWEST, WHOLE / size);
    const start = performance.now() - (upTo + 1) * pace;
    let frame = requestAnimationFrame(function next(now) {
      const reached = Math.min(size - 1, Math.floor((now - start) / pace));
      onUpTo(reached);
      if (reached >= size - 1) setPlaying(false);
      else frame = requestAnimationFrame(next);
    });
    return () => cancelAnimationFrame(frame);
  }, [playing, size]);
  function play() {
    if (!playing && upTo >= size - 1) onUpTo(0);
    setPlaying(!playing);
  }
  function to(id) {
    setPlaying(false);
    onUpTo(id);
  }
  const { iterations } = growth;
  const place = iterationAt(iterations, upTo);
  const ended = place >= 0 && iterations[place].last <= upTo;
  const before = place < 0 ? 0 : place === 0 ? 0 : iterations[place - 1].last;
  const after = ended || place < 0 ? iterations[place + 1]?.last ?? size - 1 : iterations[place].last;
  return html`<div class="replay">
    <div class="replay-tools">
      <button type="button" class="quiet" onClick=${play}>${playing ? "Pause" : "Replay"}</button>
      <button type="button" class="quiet" aria-label="An iteration back" disabled=${upTo <= 0} onClick=${() => to(before)}>‹</button>
      <label><span class="unseen">Nodes made so far</span>
        <input type="range" min="0" max=${size - 1} value=${upTo} aria-valuetext=${`${plural(upTo + 1, "node")} of ${size}, iteration ${place + 1} of ${iterations.length}`}
          onInput=${(event) => to(Number(event.target.value))} /></label>
      <button type="button" class="quiet" aria-label="An iteration on" disabled=${upTo >= size - 1} onClick=${() => to(after)}>›</button>
      <span class="replay-words">${upTo + 1} of ${size}</span>
    </div>
    <p class="replay-told">${place < 0
      ? "The question alone, before the first iteration."
      : html`<${Iteration} nodes=${nodes} growth=${growth} place=${place} upTo=${upTo} onSelect=${onSelect} />`}</p>
  </div>`;
}

/** An iteration in a line: what it expanded, made and gave. */
function Iteration({ nodes, growth, place, upTo, onSelect }) {
  const { iterations, own, whole, late } = growth;
  const { leaf, first, last } = iterations[place];
  const given = [];
  for (let id = first; id <= last; id++) if (own.visits[id] > 0) given.push(id);
  const step = (id) => html`<button type="button" class="link" onClick=${() => onSelect(id)}>${id === 0 ? "the question" : `${id} ${nodes.action[id] ?? ""}`}</button>`;
  const told = !whole
    ? "The tree's counts do not add up: visits and values are those of its end."
    : last > upTo
      ? "It is under way and has given nothing yet."
      : given.length
        ? html`Backed up: ${given.slice(0, 4).map((id, at) => html`${at > 0 && ", "}${step(id)} <b>${number(own.total[id] / own.visits[id])}</b>`)}${given.length > 4 && ` and ${given.length - 4} more`}.`
        : "It backed nothing up.";
  return html`Iteration ${place + 1} of ${iterations.length} expanded ${step(leaf)}; ${plural(Math.min(last, upTo) - first + 1, "step")} ${last > upTo ? "so far" : "made"}. ${told}
    ${whole && late > 0 ? ` ${plural(late, "step")} got more rewards later, shown with the first.` : ""}`;
}
