// The page as a whole: what is known, what is shown of it, and the address bar.
import { Composer } from "./composer.js";
import { signIn } from "./api.js";
import { addressed, createController } from "./controller.js";
import { Conversations, Drawer } from "./conversations.js";
import { DropZone } from "./files.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { IconButton } from "./icons.js";
import { useLatest } from "./scrolling.js";
import { SignIn } from "./signin.js";
import { reduce, shownFiles, shownTurns, START } from "./state.js";
import { Turns } from "./turn.js";
import { Welcome } from "./welcome.js";

/** The state and the controller. The state is changed at once, and drawn once a frame however many tokens came. */
function usePage() {
  const [state, draw] = useState(START);
  const controller = useMemo(() => {
    let now = START;
    let awaited = false;
    const dispatch = (action) => {
      now = reduce(now, action);
      if (awaited) return;
      awaited = true;
      requestAnimationFrame(() => {
        awaited = false;
        draw(now);
      });
    };
    return createController(dispatch, () => now);
  }, []);
  return [state, controller];
}

export function App() {
  const [state, controller] = usePage();
  const [drawer, setDrawer] = useState(false);
  const [draft, setDraft] = useState({ text: "", mode: null, source: null, rewrite: true });
  useEffect(() => {
    controller.start();
    const moved = () => {
      const { token, conversation } = addressed(window.location.hash);
      if (token) controller.start();
      else controller.show(conversation, false);
    };
    window.addEventListener("popstate", moved);
    return () => window.removeEventListener("popstate", moved);
  }, [controller]);

  useEffect(() => {
    const pressed = (event) => {
      const typing = event.target.closest?.("input, textarea, select, dialog");
      const find = event.key === "k" && (event.ctrlKey || event.metaKey);
      if (!find && (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey)) return;
      const place = document.getElementById(find ? "find" : "question");
      if (find && !place?.checkVisibility()) return setDrawer(true); // a narrow window: the drawer holds the search
      event.preventDefault();
      place?.focus();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, []);

  const { conversations, current, info } = state;
  const turns = shownTurns(state);
  useEffect(() => {
    document.title = turns.length ? `${turns[0].asked} · StepRAG` : "StepRAG";
  }, [turns[0]?.asked]);
  const [away, toLatest] = useLatest(current, turns);

  const list = useMemo(
    () => html`<${Conversations} ...${{ conversations, current, info, controller }} close=${() => setDrawer(false)} />`,
    [conversations, current, info],
  );
  const status = html`<div class="unseen" role="status" aria-live="polite">${state.said}</div>`;
  if (state.session === "closed") {
    return html`<${SignIn} title="StepRAG" service="This service" command="steprag serve" signIn=${signIn}
      signed=${controller.start} />`;
  }
  if (state.session === "unknown") return html`<main class="centred quiet">${state.notice ?? "Loading …"}</main>`;

  return html`
    <a class="skip" href="#question" onClick=${toQuestion}>Skip to the question</a>
    <div class="page">
      <aside class="side">${list}</aside>
      <${Drawer} open=${drawer} close=${() => setDrawer(false)}>${list}<//>
      <header class="bar">
        <${IconButton} icon="menu" label="Conversations" onClick=${() => setDrawer(true)} />
        <span class="brand">StepRAG</span>
        <${IconButton} icon="plus" label="New conversation" onClick=${() => controller.show(null)} />
      </header>
      <main class="main">
        ${turns.length
          ? html`<${Turns} key=${current} conversation=${current} turns=${turns} controller=${controller} />`
          : html`<${Welcome} info=${info} mode=${draft.mode ?? info.mode} controller=${controller} />`}
      </main>
      <footer class="foot">
        ${away && html`<span class="latest">
          <${IconButton} icon="down" label="To the latest" onClick=${toLatest} />
        </span>`}
        <${Composer} info=${info} turns=${turns} notice=${state.notice} controller=${controller} shown=${{ conversation: current, ...shownFiles(state) }}
          draft=${draft} change=${(part) => setDraft((now) => ({ ...now, ...part }))} />
      </footer>
    </div>
    ${info.files && html`<${DropZone} taken=${info.files} controller=${controller} />`}
    ${status}
  `;
}

/** The address stays as it is: its fragment names the conversation. */
function toQuestion(event) {
  event.preventDefault();
  document.getElementById("question").focus();
}
