// The question box: Enter sends, Shift+Enter begins a new line, ↑ brings the last question back. While a turn runs, its button stops the turn.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { AddFiles, FileList } from "./files.js";
import { Icon } from "./icons.js";
import { isOver } from "./turns.js";
import { modeWords, SEARCHED } from "./words.js";

const TALLEST = 200; // pixels
const ONE_AT_A_TIME = "One question at a time: yours waits in the box until this turn ends. Stop ends it now.";

/** `draft`: {text, mode, rewrite, source}, what stands in the box; mode and source are null until one is chosen. */
export function Composer({ info, turns, shown, notice, draft, change, controller }) {
  const { text, rewrite } = draft;
  const mode = draft.mode ?? info.mode;
  const source = draft.source ?? turns.findLast((turn) => turn.source)?.source ?? "both";
  const [sending, setSending] = useState(false);
  const box = useRef(null);
  const filed = shown.files.length + shown.coming.length > 0;
  const running = turns.find((turn) => !isOver(turn));

  useEffect(() => {
    if (!turns.length) box.current.focus({ preventScroll: true });
  }, [turns.length === 0]);
  useEffect(() => {
    if (!running && notice === ONE_AT_A_TIME) controller.notice(null);
  }, [!running]);
  useLayoutEffect(() => {
    box.current.style.height = "auto";
    box.current.style.height = `${Math.min(box.current.scrollHeight, TALLEST)}px`;
  }, [text]);

  async function send(event) {
    event.preventDefault();
    if (running && text.trim()) controller.notice(ONE_AT_A_TIME);
    if (!text.trim() || running || sending) return;
    setSending(true);
    if (await controller.ask(text.trim(), { mode, rewrite, ...(filed && { source }) })) change({ text: "" });
    setSending(false);
  }
  function pressed(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    if (event.key === "ArrowUp" && !text && turns.length) {
      event.preventDefault();
      change({ text: turns.at(-1).asked });
    }
  }

  return html`<form class="composer" onSubmit=${send}>
    ${notice && html`<p class="notice">${notice}</p>`}
    <${FileList} ...${shown} controller=${controller} />
    <div class="box">
      <label class="unseen" for="question">Question</label>
      <textarea id="question" ref=${box} rows="1" placeholder="Ask a question" value=${text} maxlength="8192"
        onInput=${(event) => change({ text: event.currentTarget.value })} onKeyDown=${pressed}></textarea>
      <div class="controls">
        ${info.files && html`<${AddFiles} taken=${info.files} controller=${controller} />`}
        <${Choice} name="Mode" words=${Object.fromEntries(info.modes.map((one) => [one, modeWords(one)]))} chosen=${mode}
          choose=${(one) => change({ mode: one })} />
        ${filed && html`<${Choice} name="Search" words=${SEARCHED} chosen=${source} choose=${(one) => change({ source: one })} />`}
        ${info.rewriter && turns.length > 0 && html`<label class="check">
          <input type="checkbox" checked=${rewrite}
            onChange=${(event) => change({ rewrite: event.currentTarget.checked })} />
          Use earlier turns
        </label>`}
        ${running
          ? html`<button type="button" class="send" onClick=${() => controller.stop(running.id)}>
              <${Icon} name="stop" /><span>Stop</span></button>`
          : html`<button type="submit" class="send" disabled=${!text.trim() || sending}>
              <${Icon} name="send" /><span>Ask</span></button>`}
      </div>
    </div>
  </form>`;
}

/** `words`: {value: what is shown of it}. */
function Choice({ name, words, chosen, choose }) {
  return html`<label class="mode">
    <span class="unseen">${name}</span>
    <select value=${chosen} title=${words[chosen]} onChange=${(event) => choose(event.currentTarget.value)}>
      ${Object.entries(words).map(([one, said]) => html`<option key=${one} value=${one}>${said}</option>`)}
    </select>
  </label>`;
}
