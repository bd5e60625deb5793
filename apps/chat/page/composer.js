// The question box: Enter sends, Shift+Enter begins a new line, ↑ brings the last question back. While a turn runs, its button stops the turn.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { AddFiles, FileList } from "./files.js";
import { Icon } from "./icons.js";
import { isOver } from "./turns.js";
import { modeWords } from "./words.js";

const TALLEST = 200; // pixels
const ONE_AT_A_TIME = "One question at a time: yours waits in the box until this turn ends. Stop ends it now.";

/** `draft`: {text, mode, rewrite}, what stands in the box; mode is null until one is chosen. */
export function Composer({ info, turns, shown, notice, draft, change, controller }) {
  const { text, rewrite } = draft;
  const mode = draft.mode ?? info.mode;
  const [sending, setSending] = useState(false);
  const box = useRef(null);
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
    if (await controller.ask(text.trim(), { mode, rewrite })) change({ text: "" });
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
        <${ModeChoice} modes=${info.modes} mode=${mode} choose=${(one) => change({ mode: one })} />
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

function ModeChoice({ modes, mode, choose }) {
  return html`<label class="mode">
    <span class="unseen">Mode</span>
    <select value=${mode} title=${modeWords(mode)} onChange=${(event) => choose(event.currentTarget.value)}>
      ${modes.map((one) => html`<option key=${one} value=${one}>${modeWords(one)}</option>`)}
    </select>
  </label>`;
}
