// The conversations: a column beside the page, or a drawer where there is no room. Also the theme, and what answers.
import { html, useEffect, useRef, useState } from "./html.js";
import { Icon, IconButton } from "./icons.js";
import { useTheme } from "./themechoice.js";
import { ago, count } from "./words.js";

export function Conversations({ conversations, current, info, controller, close }) {
  const [doomed, setDoomed] = useState(null);
  const [naming, setNaming] = useState(null);
  const [words, setWords] = useState("");
  const found = useFound(words.trim(), conversations, controller);
  const shown = found ?? conversations;
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
    ${conversations.length > 0 && html`<label class="find"><span class="unseen">Search conversations</span>
      <input id="find" type="search" placeholder="Search (Ctrl K)" value=${words}
        onInput=${(event) => setWords(event.currentTarget.value)} /></label>`}
    <nav aria-label="Conversations" class="conversations">
      <ul>
        ${shown.map((one) => (one.id === naming ? html`<${NameForm} key=${one.id} one=${one} controller=${controller} done=${() => setNaming(null)} />` : html`<li key=${one.id}>
          <a href=${`#c=${one.id}`} aria-current=${one.id === current ? "page" : undefined}
            onClick=${(event) => open(event, one.id, one.title)}>
            <span class="title">${one.title}</span>
            <span class="quiet">${size(one)} · ${ago(one.updated)}</span>
          </a>
          <span class="row-tools">
            <${IconButton} icon="edit" label=${`Rename: ${one.title}`} onClick=${() => setNaming(one.id)} />
            <${IconButton} icon="trash" label=${`Delete: ${one.title}`} onClick=${() => setDoomed(one)} />
          </span>
        </li>`))}
      </ul>
      ${found?.length === 0 && html`<p class="quiet none" role="status">No conversation holds these words.</p>`}
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

const size = (one) => [(one.turns || !one.files) && count(one.turns, "turn"), one.files > 0 && count(one.files, "file")].filter(Boolean).join(" and ");

/** The conversations that hold the words, asked for while they are typed; null where none are. */
function useFound(words, conversations, controller) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    let here = true;
    const timer = setTimeout(() => controller.find(words).then((list) => here && setFound(list)), words ? 200 : 0);
    return () => {
      here = false;
      clearTimeout(timer);
    };
  }, [words, conversations]);
  return words ? found : null;
}

/** A name in the place of the title: Enter keeps it, Escape leaves it; an empty one is the first question again. */
function NameForm({ one, controller, done }) {
  const box = useRef(null);
  useEffect(() => box.current.select(), []);
  async function save(event) {
    event.preventDefault();
    await controller.rename(one.id, box.current.value.trim());
    done();
  }
  return html`<li><form class="naming" onSubmit=${save}><label><span class="unseen">Name of the conversation</span>
    <input ref=${box} maxlength="200" value=${one.title} onKeyDown=${(event) => event.key === "Escape" && (event.stopPropagation(), event.preventDefault(), done())}
      onBlur=${done} /></label></form></li>`;
}

/** Asks before a conversation is deleted. A modal dialogue of the browser: it holds the focus, Escape leaves it. */
function Confirm({ one, done }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} class="confirm" aria-labelledby="confirm-title" onClose=${() => done(false)}>
    <h2 id="confirm-title">Delete this conversation?</h2>
    <p>“${one.title}” has ${size(one)}. ${one.turns + (one.files ?? 0) === 1 ? "It, and what the agent read for it," : "They, and what the agent read for them,"} will be gone.</p>
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
