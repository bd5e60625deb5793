// A text box with a button, for words that take the place of others. Enter saves, Shift+Enter begins a line, Escape
// leaves. The focus goes back to where it came from, or to the element that `after` names once the words are saved.
import { html, useId, useLayoutEffect, useRef, useState } from "./html.js";

/**
 * `save(text)` gives what is wrong with the text, or null. `after`: an element's id. `before`: what stands above the
 * label, `children` beside the buttons.
 */
export function EditBox({ label, text, action, save, cancel, after, before, rows = 3, children }) {
  const id = useId();
  const box = useRef(null);
  const opener = useRef(document.activeElement);
  const [words, setWords] = useState(text);
  const [wrong, setWrong] = useState(null);
  const [saving, setSaving] = useState(false);
  useLayoutEffect(() => {
    box.current.focus({ preventScroll: true });
    box.current.form.scrollIntoView({ block: "nearest" });
  }, []);

  async function send(event) {
    event.preventDefault();
    if (!words.trim() || saving) return;
    setSaving(true);
    const problem = await save(words.trim());
    setWrong(problem);
    setSaving(false);
    if (problem === null) (document.getElementById(after) ?? opener.current).focus({ preventScroll: true });
  }
  function leave() {
    cancel();
    opener.current.focus({ preventScroll: true });
  }
  function pressed(event) {
    if (event.key === "Escape") leave();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  }
  return html`<form class="edit" onSubmit=${send}>
    ${before}
    <label for=${id}>${label}</label>
    <textarea id=${id} ref=${box} rows=${rows} value=${words} onKeyDown=${pressed} aria-describedby=${`${id}-wrong`}
      onInput=${(event) => setWords(event.currentTarget.value)}></textarea>
    <p id=${`${id}-wrong`} class="wrong-words" role="alert">${wrong}</p>
    <div class="buttons">
      <button type="submit" class="primary" disabled=${!words.trim() || saving}>${action}</button>
      <button type="button" class="plain" onClick=${leave}>Cancel</button>
      ${children}
    </div>
  </form>`;
}
