// What stands behind a step: the exact prompt, the raw completions and why others were refused, the allowed actions.
import { ApiError, getStep } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { actionName, refusalWords } from "./words.js";

export function Inspect({ turn, place }) {
  const [detail, setDetail] = useState(null);
  const [wrong, setWrong] = useState(null);
  useEffect(() => {
    let here = true;
    getStep(turn, place).then(
      (found) => here && setDetail(found),
      (error) => here && setWrong(error instanceof ApiError ? error.message : String(error)),
    );
    return () => (here = false);
  }, [turn, place]);
  if (wrong) return html`<p class="line wrong-words" role="alert">${wrong}</p>`;
  if (!detail) return html`<p class="line quiet">Reading …</p>`;
  return html`<div class="inspect">
    <h3>Allowed here</h3>
    <p>${detail.allowed.map((action) => html`
      <span key=${action} class="chip" data-action=${action}>${actionName(action)}</span>`)}</p>
    <h3>Completion</h3>
    ${detail.candidates.length === 0 && html`<p class="quiet">
      The model was not asked in this turn: a person wrote the step, or it was kept from the earlier turn.</p>`}
    ${detail.candidates.map((one, number) => html`<div key=${number} class="candidate">
      ${one.refused && html`<p class="wrong-words">Refused: ${refusalWords(one.refused)}</p>`}
      <pre tabindex="0">${one.text}</pre>
    </div>`)}
    <h3>Prompt</h3>
    ${detail.messages.map((message, number) => html`<div key=${number} class="message">
      <span class="role">${message.role}</span>
      <pre tabindex="0">${message.content}</pre>
    </div>`)}
  </div>`;
}
