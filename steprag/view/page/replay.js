// How the tree grew: nodes appear in the order in which the search made them.
import { html, useEffect, useState } from "./html.js";

const WHOLE = 9000; // milliseconds that a replay takes at most
const SLOWEST = 180; // milliseconds a node

export function Replay({ size, upTo, onUpTo }) {
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
  return html`<div class="replay">
    <button type="button" class="quiet" onClick=${play}>${playing ? "Pause" : "Replay"}</button>
    <label><span class="unseen">Nodes made so far</span>
      <input type="range" min="0" max=${size - 1} value=${upTo} aria-valuetext=${`${upTo + 1} of ${size} nodes`}
        onInput=${(event) => { setPlaying(false); onUpTo(Number(event.target.value)); }} /></label>
    <span class="replay-words">${upTo + 1} of ${size}</span>
  </div>`;
}
