// The answer, the passages that it rests on, and what a person says of it. Citations come from the service, which
// computes them from evidence and passages; the model writes none.
import { EditBox } from "./editbox.js";
import { html, useId, useState } from "./html.js";
import { SmallButton } from "./icons.js";
import { PassageText } from "./passages.js";
import { chipsOf, originOf, passagesOf, searchesOf } from "./turns.js";
import { count, LACKING, NOT_FOUND, sentence, sourceName } from "./words.js";

export function Answer({ turn }) {
  const id = useId();
  const [open, setOpen] = useState(new Set());
  const passages = passagesOf(turn);
  const known = turn.answer.sources.filter((source) => passages.has(source.n));
  const cited = known.filter((source) => source.cited);
  const places = chipsOf(turn);
  const toggle = (n) => setOpen(new Set(open.has(n) ? [...open].filter((one) => one !== n) : [...open, n]));
  if (turn.answer.lacks) return html`<${Guess} turn=${turn} read=${known.length} />`;
  return html`<div class="answer" role="group" aria-label="Answer">
    <p class="answer-text">${turn.answer.content}
      ${cited.map(({ n }) => html` <button key=${n} type="button" class="cite" aria-expanded=${open.has(n)}
        aria-controls=${`${id}-${n}`} aria-label=${`Source ${places.get(n)}: ${passages.get(n).title || passages.get(n).id}`}
        onClick=${() => toggle(n)}>${places.get(n)}</button>`)}
    </p>
    <${CopyButton} text=${turn.answer.content} />
    ${cited.length > 0 && html`<ul class="sources">
      ${cited.map((source) => html`<${Source} key=${source.n} id=${`${id}-${source.n}`} source=${source} place=${places.get(source.n)}
        turn=${turn.id} item=${passages.get(source.n)} open=${open.has(source.n)} toggle=${() => toggle(source.n)} />`)}
    </ul>`}
    <p class="grounds quiet">${grounds(turn, known.length, cited.length)}
      ${turn.answer.extractive && " Sentences as they stand in the documents: no language model read them."}</p>
  </div>`;
}

/** An answer that nothing supports: no finding, but a guess. */
function Guess({ turn, read }) {
  return html`<div class="answer lacking" role="group" aria-label="Answer">
    <p class="answer-text">${NOT_FOUND}</p>
    <p class="guess">A guess: ${turn.answer.content}</p>
    <p class="grounds quiet">${sentence(LACKING[turn.answer.lacks] ?? "")} ${count(read, "passage")} read.</p>
  </div>`;
}

function Source({ id, turn, source, place, item, open, toggle }) {
  return html`<li id=${id}>
    <details open=${open}>
      <summary onClick=${(event) => (event.preventDefault(), toggle())}>
        <span class="number">${place}</span> <b>${item.title || item.id}</b>
        <span class="quiet">
          evidence of step ${source.evidence + 1}, from ${sourceName(originOf(item))}
        </span>
      </summary>
      <${PassageText} turn=${turn} item=${item} spans=${source.spans} />
    </details>
  </li>`;
}

/** How far the answer can be traced to what was read. */
function grounds(turn, read, cited) {
  if (!searchesOf(turn).length) return "Answered without searching: there are no sources.";
  if (!read) return "The searches found nothing: there are no sources.";
  const all = `${count(read, "passage")} read`;
  if (!cited) return `${all}; none holds the agent's evidence. Check the steps before you rely on this answer.`;
  return read === cited ? "Every passage that was read is cited." : `${all}, ${cited} cited.`;
}

/** Copies the text. Browsers allow it on this machine and over HTTPS; elsewhere there is no button. */
function CopyButton({ text }) {
  const [copied, setCopied] = useState(false);
  if (!navigator.clipboard) return null;
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return; // the browser's user does not allow it
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  }
  return html`<${SmallButton} icon=${copied ? "right" : "copy"} onClick=${copy} aria-label="Copy the answer">
    ${copied ? "Copied" : "Copy"}<//>`;
}

/** Right, wrong, and what is right: the service keeps it as the question's golden answer. */
export function Feedback({ turn, controller }) {
  const [asking, setAsking] = useState(false);
  const { feedback } = turn;
  async function judge(right) {
    await controller.judge(turn, { right });
    setAsking(!right);
  }
  async function correct(answer) {
    const kept = await controller.judge(turn, { right: false, answer });
    if (kept) setAsking(false);
    return kept ? null : "This was not kept.";
  }
  return html`<div class="feedback">
    <div class="verdict" role="group" aria-label="Is the answer right?">
      ${turn.answer && html`<${SmallButton} icon="right" aria-pressed=${feedback?.right === true}
        onClick=${() => judge(true)}>Right<//>`}
      <${SmallButton} icon=${turn.answer ? "wrong" : "edit"} aria-pressed=${feedback?.right === false}
        onClick=${() => judge(false)}>${turn.answer ? "Wrong" : "I know the answer"}<//>
    </div>
    ${feedback?.answer && !asking && html`<p class="line">The answer is <b>${feedback.answer}</b>
      <${SmallButton} icon="edit" onClick=${() => setAsking(true)} aria-label="Change the right answer">Change<//></p>`}
    ${asking && html`<${EditBox} label="The answer is" text=${feedback?.answer ?? ""} action="Save" rows="1"
      save=${correct} cancel=${() => setAsking(false)} />`}
  </div>`;
}
