// Files that are asked about before the index: the button that adds them, dropping them anywhere, and their list.
import { documentAt, fileAt } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { IconButton } from "./icons.js";
import { count } from "./words.js";

/** The paper clip; the browser's own dialogue chooses. `taken`: what the service takes. */
export function AddFiles({ taken, controller }) {
  const box = useRef(null);
  function chosen() {
    controller.addFiles(box.current.files);
    box.current.value = ""; // so that the same file can be chosen again
  }
  return html`<input ref=${box} type="file" multiple hidden accept=${taken.endings.join(",")} onChange=${chosen} />
    <${IconButton} icon="clip" label="Add files to ask about" onClick=${() => box.current.click()} />`;
}

/** Takes files that are dropped anywhere on the page, and says so while they are held over it. */
export function DropZone({ taken, controller }) {
  const [held, setHeld] = useState(false);
  useEffect(() => {
    const holds = (event) => event.dataTransfer?.types.includes("Files");
    const over = (event) => holds(event) && (event.preventDefault(), setHeld(true));
    const left = (event) => event.relatedTarget === null && setHeld(false);
    const dropped = (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      setHeld(false);
      controller.addFiles(event.dataTransfer.files);
    };
    const heard = { dragover: over, dragleave: left, drop: dropped };
    for (const [name, hear] of Object.entries(heard)) window.addEventListener(name, hear);
    return () => Object.entries(heard).forEach(([name, hear]) => window.removeEventListener(name, hear));
  }, [controller]);
  return held && html`<div class="drop-zone"><p><b>Drop files to ask about them.</b><br />
    ${taken.endings.map((ending) => ending.slice(1).toUpperCase()).join(", ")}; at most ${taken.megabytes} MiB each</p></div>`;
}

/** The conversation's files above the question box: those that are read, are being read, and were refused. */
export function FileList({ files, coming, conversation, controller }) {
  if (!files.length && !coming.length) return null;
  function remove(action) {
    action();
    document.getElementById("question").focus(); // what had the focus goes with the row
  }
  return html`<ul class="files" aria-label="Files of this conversation">
    ${files.map((file) => html`<li key=${file.id} class="file">
      <a href=${fileAt(conversation, file.id)} target="_blank" rel="noopener">${file.name}</a>
      <span class="quiet">${file.pages ? count(file.pages, "page") : count(file.passages, "passage")}</span>
      <${IconButton} icon="close" label=${`Remove ${file.name}`} onClick=${() => remove(() => controller.removeFile(file))} />
      ${file.notes.length > 0 && html`<span class="note quiet">${file.notes.join("; ")}</span>`}
    </li>`)}
    ${coming.map((one) => html`<li key=${one.key} class="file" data-wrong=${one.wrong ? "" : undefined}>
      ${one.wrong ? html`<span class="wrong-words">${one.wrong}</span>
          <${IconButton} icon="close" label=${`Leave out ${one.name}`} onClick=${() => remove(() => controller.dismiss(one.key))} />`
        : html`<span>${one.name}</span> <span class="quiet"><span class="waiting-dot"></span> reading …</span>`}
    </li>`)}
  </ul>`;
}

/** The link that opens a passage's document, at its page where it has pages. */
export function DocumentLink({ turn, item }) {
  if (!item.file) return null;
  const { name, page } = item.file;
  return html`<p class="address"><a href=${documentAt(turn, item.n, page)} target="_blank" rel="noopener">
    Open ${name}${page ? `, page ${page}` : ""}</a></p>`;
}
