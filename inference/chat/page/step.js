// One step: its action, its text as the model writes it, what may be done with it.
import { EditBox } from "./editbox.js";
import { html, useState } from "./html.js";
import { SmallButton } from "./icons.js";
import { Inspect } from "./inspect.js";
import { Search } from "./passages.js";
import { splitTags } from "./text.js";
import { isOver } from "./turns.js";
import { actionName, refusalWords } from "./words.js";

const ORIGINS = { kept: "kept from the earlier turn", yours: "written by you" };

export function Step({ step, turn, spans, origin, controller }) {
  const [shown, setShown] = useState(null); // null, "inspect" or "edit"
  const over = isOver(turn);
  const writing = !step.done && !over;
  const refused = !step.done && turn.refused !== null;
  const toggle = (what) => setShown(shown === what ? null : what);
  return html`<li class="step" data-action=${step.action ?? guess(step)} data-origin=${origin}
    data-refused=${refused || undefined}>
    <div class="step-head">
      <b class="action">${title(step, writing, refused)}</b>
      ${origin && html`<span class="quiet">${ORIGINS[origin]}</span>`}
      ${over && (step.done || refused) && html`<span class="step-tools">
        ${step.done && html`<${SmallButton} icon="edit" aria-label=${`Change step ${step.place + 1}`}
          aria-expanded=${shown === "edit"} onClick=${() => toggle("edit")}>Change<//>`}
        <${SmallButton} icon="look" aria-label=${`Inspect step ${step.place + 1}`}
          aria-expanded=${shown === "inspect"} onClick=${() => toggle("inspect")}>Inspect<//>
      </span>`}
    </div>
    <${StepText} text=${step.text} writing=${writing} />
    ${refused && html`<p class="line wrong-words">Refused: ${refusalWords(turn.finish)}.</p>`}
    ${shown === "edit" && html`<${EditStep} step=${step} turn=${turn} controller=${controller}
      close=${() => setShown(null)} />`}
    ${shown === "inspect" && html`<${Inspect} turn=${turn.id} place=${step.place} />`}
    ${step.passages && html`<${Search} search=${step.passages} spans=${spans} />`}
  </li>`;
}

function title(step, writing, refused) {
  if (refused) return "Refused step";
  if (step.action) return actionName(step.action);
  return writing ? "Thinking" : "Unfinished step";
}

/** The action that a step in the making has begun, if its tag is there already. */
const guess = (step) => /<([a-z]+)>/.exec(step.text)?.[1];

function StepText({ text, writing }) {
  return html`<p class="step-text">
    ${splitTags(text).map((piece, place) => html`<span key=${place} class=${piece.kind}>${piece.text}</span>`)}
    ${writing && html`<span class="caret" aria-hidden="true"></span>`}
  </p>`;
}

/** Another text in the step's place: its content alone, or on demand the whole of it with thought and tags. */
function EditStep({ step, turn, controller, close }) {
  const [raw, setRaw] = useState(false);
  async function save(text) {
    const wrong = await controller.fork(turn, step.place, text);
    if (wrong === null) close();
    return wrong;
  }
  return html`<${EditBox} key=${raw} label=${raw ? "The whole step, with its tags" : `The ${step.action}`}
    text=${raw ? step.text : step.content} action="Ask again from here" save=${save} cancel=${close} after="question">
    <button type="button" class="link" onClick=${() => setRaw(!raw)}>
      ${raw ? "Edit the content alone" : "Edit the whole step"}
    </button>
  <//>`;
}
