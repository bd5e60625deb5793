// One step: its action, its text as the model writes it, what may be done with it.
import { EditBox } from "./editbox.js";
import { html, useState } from "./html.js";
import { SmallButton } from "./icons.js";
import { Inspect } from "./inspect.js";
import { Search } from "./passages.js";
import { splitTags, unlooped } from "./text.js";
import { isOver, isTalk } from "./turns.js";
import { actionName, refusalWords } from "./words.js";

const ORIGINS = { kept: "kept from the earlier turn", yours: "written by you" };

export function Step({ step, turn, spans, chips, raw, origin, controller }) {
  const [shown, setShown] = useState(null); // null, "inspect" or "edit"
  const over = isOver(turn);
  const writing = !step.done && !over;
  const refused = !step.done && turn.refused !== null;
  const change = step.done || refused ? "Change" : "Write";
  const toggle = (what) => setShown(shown === what ? null : what);
  return html`<li class="step" data-action=${step.action ?? guess(step)} data-origin=${origin}
    data-refused=${refused || undefined}>
    <div class="step-head">
      <b class="action">${title(step, writing, refused)}</b>
      ${origin && html`<span class="quiet">${ORIGINS[origin]}</span>`}
      ${over && html`<span class="step-tools">
        ${!isTalk(turn) && html`<${SmallButton} icon="edit" aria-label=${`${change} step ${step.place + 1}`}
          aria-expanded=${shown === "edit"} onClick=${() => toggle("edit")}>${change}<//>`}
        ${(step.done || refused) && html`<${SmallButton} icon="look" aria-label=${`Inspect step ${step.place + 1}`}
          aria-expanded=${shown === "inspect"} onClick=${() => toggle("inspect")}>Inspect<//>`}
      </span>`}
    </div>
    <${StepText} text=${step.text} writing=${writing} raw=${raw} />
    ${refused && html`<p class="line wrong-words">Refused: ${refusalWords(turn.finish)}.</p>`}
    ${shown === "edit" && html`<${EditStep} step=${step} turn=${turn} controller=${controller}
      close=${() => setShown(null)} />`}
    ${shown === "inspect" && html`<${Inspect} turn=${turn.id} place=${step.place} />`}
    ${step.passages && html`<${Search} turn=${turn.id} search=${step.passages} spans=${spans} chips=${chips} />`}
  </li>`;
}

function title(step, writing, refused) {
  if (refused) return "Refused step";
  if (step.action) return actionName(step.action);
  return writing ? "Thinking" : "Unfinished step";
}

/** The action that a step in the making has begun, if its tag is there already. */
const guess = (step) => /<([a-z]+)>/.exec(step.text)?.[1];

/** The step's words: with tags and loops where `raw`, else without. */
function StepText({ text, writing, raw }) {
  const pieces = splitTags(raw ? text : unlooped(text)).filter(({ kind }) => raw || kind !== "tag");
  return html`<p class="step-text">
    ${pieces.map((piece, place) => html`<span key=${place} class=${piece.kind}>${raw ? piece.text : `${piece.text.trim()} `}</span>`)}
    ${writing && html`<span class="caret" aria-hidden="true"></span>`}
  </p>`;
}

/**
 * Another text in the step's place: its content alone, or on demand the whole of it with thought and tags. Where the
 * model's own was refused or not finished, the person also says which action it is.
 */
function EditStep({ step, turn, controller, close }) {
  const [raw, setRaw] = useState(false);
  const [action, setAction] = useState(step.action ?? begun(step));
  async function save(text) {
    const kind = step.done || raw ? {} : { action };
    const wrong = await controller.fork(turn, { step: step.place, text, ...kind });
    if (wrong === null) close();
    return wrong;
  }
  const choice = !step.done && !raw && step.allowed.length > 1 && html`<label class="action-choice">This step is
    <select value=${action} onChange=${(event) => setAction(event.currentTarget.value)}>
      ${step.allowed.map((one) => html`<option key=${one} value=${one}>${actionName(one)}</option>`)}
    </select></label>`;
  return html`<${EditBox} key=${raw} label=${raw ? "The whole step, with its tags" : `The ${action}`}
    text=${raw ? step.text : step.content || bare(step.text)} action="Ask again from here" save=${save} cancel=${close}
    after="question" before=${choice}>
    <button type="button" class="link" onClick=${() => setRaw(!raw)}>
      ${raw ? "Edit the content alone" : "Edit the whole step"}
    </button>
  <//>`;
}

/** The action that a refused or unfinished step begins, where it is allowed; else the first that is. */
const begun = (step) => (step.allowed.includes(guess(step)) ? guess(step) : step.allowed[0]);

/** What stands between a step's tags, as far as there are any. */
const bare = (text) => text.split(/<[a-z]+>/).at(-1).split("</")[0].trim();
