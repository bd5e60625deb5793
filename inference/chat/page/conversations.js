// The conversations: a column beside the page, or a drawer where there is no room. Also the theme, and what answers.
import { html, useEffect, useRef, useState } from "./html.js";
import { Icon, IconButton } from "./icons.js";
import { useTheme } from "./themechoice.js";
import { ago, count } from "./words.js";

export function Conversations({ conversations, current, info, controller, close }) {
  const [doomed, setDoomed] = useState(null);
  const first = useRef(null);
  function open(event, id, title) {
    event.preventDefault();
    controller.show(id);
    controller.say(`Opened: ${title}`);
    close();
  }
  function decided(sure) {
    setDoomed(null);
    if (!sure) return;
    controller.remove(doomed.id);
    first.current.focus(); // what had the focus goes with the conversation
  }
  return html`
    <div class="side-head">
      <span class="brand">StepRAG</span>
      <${ThemeButton} />
      <span class="only-drawer"><${IconButton} icon="close" label="Close" onClick=${close} /></span>
    </div>
    <button type="button" class="new" ref=${first} onClick=${(event) => open(event, null, "a new conversation")}>
      <${Icon} name="plus" /> New conversation
    </button>
    <nav aria-label="Conversations" class="conversations">
      <ul>
        ${conversations.map((one) => html`<li key=${one.id}>
          <a href=${`#c=${one.id}`} aria-current=${one.id === current ? "page" : undefined}
            onClick=${(event) => open(event, one.id, one.title)}>
            <span class="title">${one.title}</span>
            <span class="quiet">${count(one.turns, "turn")} · ${ago(one.updated)}</span>
          </a>
          <${IconButton} icon="trash" label=${`Delete: ${one.title}`} onClick=${() => setDoomed(one)} />
        </li>`)}
      </ul>
      ${conversations.length === 0 && html`<p class="quiet none">Your conversations will be listed here.</p>`}
    </nav>
    <dl class="side-foot quiet">
      <div><dt>Model</dt><dd>${info.model}</dd></div>
      <div><dt>Index</dt><dd>${info.index}</dd></div>
      <div><dt>Version</dt><dd>${info.version}</dd></div>
    </dl>
    ${doomed && html`<${Confirm} one=${doomed} done=${decided} />`}
  `;
}

/** Asks before a conversation is deleted. A modal dialogue of the browser: it holds the focus, Escape leaves it. */
function Confirm({ one, done }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} class="confirm" aria-labelledby="confirm-title" onClose=${() => done(false)}>
    <h2 id="confirm-title">Delete this conversation?</h2>
    <p>“${one.title}” has ${count(one.turns, "turn")}. They, and what the agent read for them, will be gone.</p>
    <div class="buttons">
      <button type="button" class="plain" onClick=${() => dialog.current.close()}>Keep</button>
      <button type="button" class="danger" onClick=${() => done(true)}>Delete</button>
    </div>
  </dialog>`;
}

/** The column's content in a modal dialogue, for narrow windows. */
export function Drawer({ open, close, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (open) dialog.current.showModal();
    else dialog.current.close();
  }, [open]);
  return html`<dialog ref=${dialog} class="drawer" aria-label="Conversations" onClose=${close}
    onClick=${(event) => event.target === dialog.current && close()}>
    ${open && html`<div class="drawer-inside">${children}</div>`}
  </dialog>`;
}

function ThemeButton() {
  const [theme, next, change] = useTheme();
  return html`<${IconButton} icon=${theme} label=${`Theme: ${theme}. Change to ${next}`} onClick=${change} />`;
}
