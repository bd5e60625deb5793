// A text box with a button, for words that take the place of others. Enter saves, Shift+Enter begins a line, Escape leaves.
import { html, useEffect, useId, useRef, useState } from "./html.js";

/** `save(text)` gives what is wrong with the text, or null. */
export function EditBox({ label, text, action, save, cancel, children }) {
  const id = useId();
  const box = useRef(null);
  const [words, setWords] = useState(text);
  const [wrong, setWrong] = useState(null);
  const [saving, setSaving] = useState(false);
  useEffect(() => box.current.focus(), []);

  async function send(event) {
    event.preventDefault();
    if (!words.trim() || saving) return;
    setSaving(true);
    setWrong(await save(words.trim()));
    setSaving(false);
  }
  function pressed(event) {
    if (event.key === "Escape") cancel();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  }
  return html`<form class="edit" onSubmit=${send}>
    <label for=${id}>${label}</label>
    <textarea id=${id} ref=${box} rows="3" value=${words} onKeyDown=${pressed} aria-describedby=${`${id}-wrong`}
      onInput=${(event) => setWords(event.currentTarget.value)}></textarea>
    <p id=${`${id}-wrong`} class="wrong-words" role="alert">${wrong}</p>
    <div class="buttons">
      <button type="submit" class="primary" disabled=${!words.trim() || saving}>${action}</button>
      <button type="button" class="plain" onClick=${cancel}>Cancel</button>
      ${children}
    </div>
  </form>`;
}
