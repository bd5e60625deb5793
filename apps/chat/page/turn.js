// A conversation's turns. A turn is the question, the working trace, and how it ended.
import { exportPath } from "./api.js";
import { Answer, Feedback } from "./answer.js";
import { EditBox } from "./editbox.js";
import { html, useEffect, useId, useMemo, useState } from "./html.js";
import { Icon, SmallButton } from "./icons.js";
import { Trace } from "./trace.js";
import { isOver, isTalk } from "./turns.js";
import { count, duration, modeName, refusalWords, sentence } from "./words.js";

const SHOWN = 20; // turns that are drawn at once; earlier ones come on demand

export function Turns({ conversation, turns, controller }) {
  const [more, setMore] = useState(0);
  const first = Math.max(0, turns.length - SHOWN - more);
  return html`<div class="turns">
    <h1 class="unseen">Conversation</h1>
    ${turns.some(isOver) && html`<p class="exports quiet">Export as${" "}
      <a href=${exportPath(conversation, "markdown")} download=${`${conversation}.md`}>Markdown</a>,${" "}
      <a href=${exportPath(conversation, "json")} download=${`${conversation}.json`}>JSON</a></p>`}
    ${first > 0 && html`<button type="button" class="earlier" onClick=${() => setMore(more + SHOWN)}>
      Show earlier turns (${first})
    </button>`}
    ${turns.slice(first).map((turn, place) => html`<${Turn} key=${turn.id} turn=${turn} controller=${controller}
      last=${first + place === turns.length - 1} />`)}
  </div>`;
}

/** A turn is redrawn only where it changed: a token costs the turn that it belongs to, not the conversation. */
function Turn(props) {
  return useMemo(() => html`<${TurnView} ...${props} />`, Object.values(props));
}

function TurnView({ turn, last, controller }) {
  const id = useId();
  useEffect(() => {
    if (!isOver(turn)) controller.follow(turn.id); // only turns that are drawn are asked for
  }, [turn.id]);
  return html`<article class=${isTalk(turn) ? "turn talk" : "turn"} id=${turn.id} aria-labelledby=${id} aria-busy=${!isOver(turn)}>
    <${Asked} id=${id} turn=${turn} controller=${controller} />
    ${!turn.heard && html`<p class="line calm"><span class="waiting-dot"></span>
      The connection to the service is lost. Trying again; the turn continues when the service is back.</p>`}
    ${turn.status === "waiting" && turn.heard && html`<p class="line quiet"><span class="waiting-dot"></span>
      ${turn.queued ? `Waiting: ${count(turn.queued, "question")} before this one.` : "Waiting for the agent …"}</p>`}
    ${isTalk(turn) && !isOver(turn)
      ? html`<p class="answer-text">${turn.steps[0]?.text}<span class="caret" aria-hidden="true"></span></p>`
      : html`<${Trace} turn=${turn} last=${last && !isTalk(turn)} controller=${controller} />`}
    <${Ending} turn=${turn} controller=${controller} />
  </article>`;
}

/** The question as it was typed; where it was rewritten, also the words that the agent saw. Both can be changed. */
function Asked({ id, turn, controller }) {
  const [editing, setEditing] = useState(false);
  const rewritten = turn.question !== turn.asked;
  const forked = turn.steps.findLastIndex((step) => step?.given);
  async function again(text) {
    const accepted = await controller.ask(text, { mode: turn.mode, rewrite: false });
    if (!accepted) return "This was not accepted.";
    setEditing(false);
    return null;
  }
  const other = () => controller.ask(turn.asked, { mode: isTalk(turn) ? "search" : "direct", rewrite: true });
  return html`<header class="asked">
    <div class="asked-line">
      <h2 id=${id}>${turn.asked}</h2>
      ${isOver(turn) && !editing && html`<${SmallButton} icon="edit" onClick=${() => setEditing(true)}
        aria-label="Edit the question">Edit<//>`}
    </div>
    ${turn.route && html`<p class="line quiet" title=${turn.why}>
      ${isTalk(turn) ? `Read as talk: ${turn.why}.` : "Searched for."}
      ${isOver(turn) && html` <button type="button" class="link" onClick=${other}>
        ${isTalk(turn) ? "Search for it" : "Just talk"}</button>`}</p>`}
    ${rewritten && html`<p class="line quiet">Understood as: <q>${turn.question}</q></p>`}
    ${forked >= 0 && html`<p class="line quiet"><${Icon} name="fork" /> Asked again from step ${forked + 1} of${" "}
      <button type="button" class="link" onClick=${() => goTo(turn.parent)}>the earlier turn</button></p>`}
    ${editing && html`<${EditBox} label="The question, as the agent is to see it" text=${turn.question}
      action="Ask again" save=${again} cancel=${() => setEditing(false)} after="question" />`}
  </header>`;
}

function goTo(turn) {
  const heading = document.getElementById(turn)?.querySelector("h2");
  heading?.setAttribute("tabindex", "-1");
  heading?.focus({ preventScroll: true });
  heading?.scrollIntoView({ block: "start" });
}

function Ending({ turn, controller }) {
  if (!isOver(turn)) return null;
  return html`<div class="ending">
    ${turn.answer ? html`<${Answer} turn=${turn} />` : html`<${NoAnswer} turn=${turn} controller=${controller} />`}
    <div class="after">
      ${!isTalk(turn) && html`<${Feedback} turn=${turn} controller=${controller} />`}
      ${turn.answer && html`<${SmallButton} icon="again" onClick=${() => controller.again(turn)}
        aria-label="Try this question again">Try again<//>`}
      <span class="costs quiet">${costs(turn)}</span>
    </div>
  </div>`;
}

/** Why there is no answer, in plain words. */
function NoAnswer({ turn, controller }) {
  const [title, words] = reason(turn);
  const again = () => controller.ask(turn.asked, { mode: turn.mode, rewrite: true });
  return html`<section class=${`no-answer ${turn.status}`}>
    <h3>${title}</h3>
    <p>${words}</p>
    <${SmallButton} icon="again" onClick=${again}>Ask again<//>
  </section>`;
}

function reason(turn) {
  if (turn.status === "cancelled") return ["Stopped", "The turn was ended before it had an answer. Ask again, or write its next step yourself."];
  if (turn.status === "failed") return ["The turn failed", sentence(turn.error.message)];
  return ["No answer", `The last step was refused: ${refusalWords(turn.finish)}. Nothing is guessed in its place.`];
}

function costs(turn) {
  const { usage, seconds } = turn;
  if (!usage || seconds === null) return modeName(turn.mode);
  const tokens = usage.prompt_tokens + usage.completion_tokens;
  return [modeName(turn.mode), duration(seconds), tokens > 0 && count(tokens, "token")].filter(Boolean).join(" · ");
}
